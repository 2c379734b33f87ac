"""The contract of an evaluation, and the options that several evaluations share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tqdm import tqdm

from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.figures import Figures

Item = TypeVar("Item")


@dataclass(kw_only=True)
class EncoderOptions:
    """Options of every evaluation that encodes sentences."""

    batch_tokens: int = 4096
    """Number of subwords that go through the encoder at once."""
    cache: str | None = None
    """Folder in which the vectors are kept, and from which they are taken the next time."""
    list_sentences: str | None = None
    """Measure nothing, but write to this file the sentences that need vectors of another system, as lines
    language<TAB>sentence."""


@dataclass(kw_only=True)
class OverlapOption:
    """Option of every evaluation on a test set."""

    drop_overlap: bool = False
    """Leave out the examples that were in the training text."""


@dataclass(kw_only=True)
class PlotOption:
    """Option of every evaluation whose figures have ``plot``."""

    plot: str | None = None
    """Draw the results as this PNG file (needs the extra 'plot')."""


class Evaluation(ABC):
    """An evaluation of an encoder, or of another model.

    An evaluation is one class in one file and one line in ``xrep.registry.EVALUATIONS``, or in a plugin.
    ``xrep-eval NAME`` constructs it from its options and calls ``read``, ``open`` and ``measure``, in this order. Then
    it prints the figures, draws the plot and writes the JSON; an evaluation prints nothing itself.

    - The docstring of the class is the description in ``xrep-eval NAME --help``, and its first line is the summary in
      ``xrep-eval --help``. It has an example that begins with ``xrep-eval NAME --path run1/best``.
    - Its nested dataclass ``Config`` has the options, and the string below a field is the help. ``--help`` reads both
      from the source text without importing the module, so defaults are literals. A ``Config`` can inherit the options
      above. ``list[str]`` takes several arguments, ``Literal`` offers a choice, and a field without a default must be
      given.
    - With ``--list-sentences``, the encoder that ``measure`` gets is a ``SentenceList``: it records the sentences and
      returns arbitrary vectors. The figures are discarded, so ``measure`` may skip whatever comes after encoding.

    Args:
        config: An instance of ``Config``.
    """

    Config: ClassVar[type]

    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        """Return what this evaluation can measure in a folder and its subfolders, for ``xrep-eval all``.

        Returns:
            A map from the place of the data to a ``Config`` that measures it. By default it is empty, and the
            evaluation is not part of ``all``.
        """
        return {}

    @abstractmethod
    def read(self) -> None:
        """Check the options and read the data, before a model is loaded.

        Raises:
            UserError: The options or the data are wrong. Whatever a user can get wrong is found here, except what
                depends on the model.
        """

    def open(self, path: str) -> Any:
        """Open the model that ``measure`` takes; by default it is an ``Encoder``.

        Raises:
            UserError: There is no such model at ``path``.
        """
        return open_encoder(path, batch_tokens=self.config.batch_tokens, cache=self.config.cache)

    @abstractmethod
    def measure(self, encoder: Any) -> Figures:
        """Measure a model on the data that ``read`` has read.

        Raises:
            UserError: The model does not fit the data or the options.
        """


def progress(items: Sequence[Item], unit: str) -> Iterable[Item]:
    """Return the items with a progress line on stderr, if that is a terminal."""
    return tqdm(items, disable=None, leave=False, unit=f" {unit}")

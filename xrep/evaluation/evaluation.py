"""The contract of an evaluation, the options that several evaluations share, and the result: text and a record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from tqdm import tqdm

import xrep
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.overlap import Overlap
from xrep.evaluation.plots import Picture
from xrep.files import sha256_of
from xrep.metrics.bootstrap import interval, shown_difference
from xrep.precision import Precision

Item = TypeVar("Item")
SHARED_SETTINGS = ("drop_overlap", "layer", "precision")
"""Options that several evaluations share and on which the figures depend."""


@dataclass(kw_only=True)
class PrecisionOption:
    """Option of every evaluation of a model."""

    precision: Precision = "float32"
    """Type in which the model computes; int8 is for CPUs, and faster than float32 there."""


@dataclass(kw_only=True)
class EncoderOptions(PrecisionOption):
    """Options of every evaluation that encodes sentences."""

    batch_tokens: int = 4096
    """Number of subwords that go through the encoder at once."""
    layer: int | None = None
    """Pool the token vectors of this layer instead of the last one; 0: the embeddings. XTREME's retrieval uses layer 7
    of mBERT and 13 of XLM-R large. none: the layer with which the encoder was trained."""
    cache: str | None = None
    """Folder in which the vectors are kept, and from which they are taken the next time."""
    list_sentences: str | None = None
    """Measure nothing, but write to this file the sentences that need vectors of another system, as lines
    language<TAB>sentence."""


@dataclass(kw_only=True)
class DimensionsOption:
    """Option of every evaluation that needs nothing but the vectors of sentences."""

    dimensions: str | None = None
    """Measure vectors that are cut to their first numbers, too: 256,128,64 for these three widths, as an encoder is
    trained for with --matryoshka."""


@dataclass(kw_only=True)
class OverlapOption:
    """Option of every evaluation on a test set."""

    drop_overlap: bool = False
    """Leave out the examples that were in the training text."""


@dataclass(kw_only=True)
class PlotOption:
    """Option of every evaluation whose figures have ``plot``."""

    plot: str | None = None
    """Draw the results as this file, which ends in .png, .svg or .pdf (needs the extra 'plot')."""


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
    takes_path: ClassVar[bool] = True
    """Whether ``--path`` names the model; if not, the options of the evaluation name it."""
    resampled: ClassVar[bool] = True
    """Whether its figures have ``resamples``; if not, ``--resamples`` is refused before a model is loaded."""

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

        It has an attribute ``path``, and a method ``fingerprint()``, whose result changes when the output changes.

        Raises:
            UserError: There is no such model at ``path``.
        """
        config = self.config
        more = {"cache": config.cache, "layer": config.layer, "precision": config.precision}
        return open_encoder(path, batch_tokens=config.batch_tokens, **more)

    @abstractmethod
    def measure(self, encoder: Any) -> Figures:
        """Measure a model on the data that ``read`` has read.

        Raises:
            UserError: The model does not fit the data or the options.
        """


def progress(items: Sequence[Item], unit: str) -> Iterable[Item]:
    """Return the items with a progress line on stderr, if that is a terminal."""
    return tqdm(items, disable=None, leave=False, unit=f" {unit}")


@dataclass(kw_only=True)
class Figures:
    """What ``Evaluation.measure`` returns, in the same form for every evaluation."""

    text: str
    """Tables and lines for people, without intervals and overlap, which the printer adds."""
    values: Mapping[str, Any]
    """Measured values, unrounded; only JSON types."""
    headline: Mapping[str, float] = field(default_factory=dict)
    """The few figures (name -> number) by which the test is usually quoted; ``xrep-eval all`` prints them."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95% bootstrap confidence intervals of figures in ``headline``, over the examples (``xrep.metrics.bootstrap``).
    Those of ``resamples`` are added."""
    resamples: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Figures in ``headline`` on examples drawn with replacement, float64 [R]. The draws are the same for all systems
    that are measured on the same examples, so differences between systems are paired."""
    settings: Mapping[str, Any]
    """Everything else that the values depend on, such as split, languages, neighbours and seeds."""
    files: Sequence[str | Path] = ()
    """Every data file that was read."""
    overlap: Overlap | None = None
    """Overlap with the training data; None if the data is not a test set."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Of several tests, those that could not be measured, and the reasons."""
    plot: Callable[[Picture], Sequence[str] | None] | None = None
    """Function that draws the figures into a file. It may return lines to print below the text."""

    def __post_init__(self) -> None:
        self.intervals = {**self.intervals, **{name: interval(values) for name, values in self.resamples.items()}}

    @property
    def has_all_examples(self) -> bool:
        """Whether no example was left out because it was in the training text."""
        return not (self.overlap and self.overlap.dropped and self.overlap.found)

    def printed(self) -> str:
        """Return the text that ``xrep-eval`` prints."""
        spans = [f"{name}: 95% interval {low:.2f} to {high:.2f}" for name, (low, high) in self.intervals.items()]
        return "\n".join([self.text, *spans, *([self.overlap.line] if self.overlap else [])])

    def record(self, test: str, model: Any, config: Any) -> dict[str, Any]:
        """Return the record of a ``model`` and of the evaluation called ``test`` that is written as JSON. Its settings
        include the options of ``config`` that several evaluations share."""
        shared = {option: getattr(config, option) for option in SHARED_SETTINGS if hasattr(config, option)}
        return {
            "test": test,
            "values": dict(self.values),
            "headline": dict(self.headline),
            "intervals": {name: list(span) for name, span in self.intervals.items()},
            "model": {"path": str(model.path), "fingerprint": model.fingerprint()},
            "data": {str(path): sha256_of(path) for path in self.files},
            "settings": {**self.settings, **shared},
            "version": xrep.__version__,
            "overlap": asdict(self.overlap) if self.overlap else None,
        }


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format a table. The first column is left-aligned, the others right-aligned; an empty row draws a rule.

    Floats have two decimals.

    >>> print(table(["test", "score"], [["a", 1.0], [], ["mean", 10.0]]))
    test  score
    ----  -----
    a      1.00
    ----  -----
    mean  10.00
    """
    cells = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in [header, [], *rows]]
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(len(header))]
    dashes = ["-" * width for width in widths]
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] if row else dashes for row in cells)
    return "\n".join("  ".join(line).rstrip() for line in lines)


def random_record(seeds: Sequence[Figures]) -> dict[str, Any]:
    """Return what is written as JSON about random weights, one ``Figures`` for each seed: the mean and the spread (the
    sample standard deviation; null for one seed) of each headline, and all values."""
    headline = {}
    for figure in seeds[0].headline:
        own = [figures.headline[figure] for figures in seeds]
        spread = float(np.std(own, ddof=1)) if own[1:] else None
        headline[figure] = {"mean": float(np.mean(own)), "spread": spread, "by_seed": own}
    return {"seeds": len(seeds), "headline": headline, "values": [dict(figures.values) for figures in seeds]}


def differences(first: Figures, other: Figures) -> dict[str, tuple[float, float, float]]:
    """Return the difference of each figure of another model from that of the first one, and the bounds of its 95%
    interval by a paired bootstrap: both are computed on the same draws of examples. There are none if each model was
    measured without examples of its own training text."""
    if not (first.has_all_examples and other.has_all_examples):
        return {}
    return {
        name: (other.headline[name] - value, *interval(other.resamples[name] - first.resamples[name]))
        for name, value in first.headline.items()
        if name in first.resamples and name in other.resamples
    }


def comparison(
    records: Mapping[str, Mapping[str, Any]], differing: Mapping[str, Mapping[str, Sequence[float]]] | None = None
) -> str:
    """Return a table of the headlines of several models, by name, with their intervals, and of their random weights;
    empty if there are no headlines.

    Args:
        differing: The ``differences`` of models from the first one.
    """
    figures = list(dict.fromkeys(figure for record in records.values() for figure in record["headline"]))
    columns = {}
    for name, record in records.items():
        columns[name] = [_quoted(record, figure) for figure in figures]
        if random := record.get("random_weights"):
            heading = f"{name}, random weights" if len(records) > 1 else "random weights"
            columns[heading] = [_random(random["headline"].get(figure)) for figure in figures]
    for name, own in (differing or {}).items():
        if own:
            heading = "difference" if len(records) == 2 else f"{name}, difference"
            columns[heading] = [shown_difference(own[figure]) if figure in own else "" for figure in figures]
    rows = zip(figures, *columns.values(), strict=True)
    return table(["figure", *columns], list(rows)) if figures else ""


def _quoted(record: Mapping[str, Any], figure: str) -> str:
    if figure not in record["headline"]:
        return ""
    span = record["intervals"].get(figure)
    return f"{record['headline'][figure]:.2f}" + (f" [{span[0]:.2f}, {span[1]:.2f}]" if span else "")


def _random(own: Mapping[str, float | None] | None) -> str:
    if own is None:
        return ""
    return f"{own['mean']:.2f}" + ("" if own["spread"] is None else f" ± {own['spread']:.2f}")

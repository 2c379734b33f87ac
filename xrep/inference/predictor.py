"""The interface of what ``xrep-predict`` uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

from xrep.number_types import Precision


class Predictor(ABC):
    """A trained model with its tokenizer that predicts something of each line of text.

    It is registered as ``predictor.NAME``, where NAME is that of the model in the registry of models.

    Attributes:
        columns: The numbers of columns, separated by tabs, that a line may have.
        form: What a line is, for messages, such as ``question<TAB>context``.
    """

    columns: Container[int]
    form: str

    @classmethod
    @abstractmethod
    def load(cls, path: str | Path, *, device: str | None, dtype: Precision, batch_tokens: int) -> Predictor:
        """Load a checkpoint, or a directory of another library. Raises UserError if it holds something else."""

    @classmethod
    def opens(cls, path: str | Path) -> bool:
        """Return whether this is a directory of another library that it loads."""
        return False

    @abstractmethod
    def predict_lines(self, rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what is predicted from the columns of each line: a line of text, and the fields of a JSON object."""

"""The result of an evaluation: the text that is printed, and the record that is written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import xrep
from xrep.evaluation.overlap import Overlap
from xrep.files import sha256_of


class Measured(Protocol):
    """Protocol of models that were measured; ``path`` is where the model was loaded from."""

    path: str

    def fingerprint(self) -> str:
        """Return a digest that changes when the output of the model changes."""
        ...


@dataclass(kw_only=True)
class Figures:
    """What ``Evaluation.measure`` returns, in the same form for every evaluation."""

    text: str
    """Tables and lines for people, without the line about the overlap, which the printer adds."""
    values: Mapping[str, Any]
    """Measured values, unrounded; only JSON types."""
    headline: Mapping[str, float] = field(default_factory=dict)
    """The few figures (name -> number) by which the test is usually quoted; ``xrep-eval all`` prints them."""
    settings: Mapping[str, Any]
    """Everything else that the values depend on, such as split, languages, neighbours and seeds."""
    files: Sequence[str | Path] = ()
    """Every data file that was read."""
    overlap: Overlap | None = None
    """Overlap with the training data; None if the data is not a test set."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Of several tests, those that could not be measured, and the reasons."""
    plot: Callable[[str], Sequence[str] | None] | None = None
    """Function that draws the figures as a PNG file. It may return lines to print below the text."""

    def printed(self) -> str:
        """Return the text that ``xrep-eval`` prints."""
        return "\n".join([self.text, *([self.overlap.line] if self.overlap else [])])

    def record(self, test: str, model: Measured) -> dict[str, Any]:
        """Return the record that ``--json`` writes.

        Args:
            test: Name of the evaluation.
            model: The model that was measured.

        Returns:
            A dict with the keys ``test values headline model {path, fingerprint} data {file: sha256} settings version
            overlap``.
        """
        return {
            "test": test,
            "values": dict(self.values),
            "headline": dict(self.headline),
            "model": {"path": str(model.path), "fingerprint": model.fingerprint()},
            "data": {str(path): sha256_of(path) for path in self.files},
            "settings": dict(self.settings),
            "version": xrep.__version__,
            "overlap": self.overlap.as_dict() if self.overlap else None,
        }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of text. The first column is left-aligned, the others right-aligned; an empty row draws a rule.

    >>> print(table(["test", "score"], [["a", "1.00"], [], ["mean", "10.00"]]))
    test  score
    ----  -----
    a      1.00
    ----  -----
    mean  10.00
    """
    widths = [max(len(row[i]) for row in [header, *rows] if i < len(row)) for i in range(len(header))]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(rule if not row else _line(row, widths) for row in [header, [], *rows])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(row, widths, strict=False)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()

"""The result of an evaluation: the text that is printed, and the record that is written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
        """Return the record of a ``model`` and of the evaluation called ``test`` that is written as JSON."""
        return {
            "test": test,
            "values": dict(self.values),
            "headline": dict(self.headline),
            "model": {"path": str(model.path), "fingerprint": model.fingerprint()},
            "data": {str(path): sha256_of(path) for path in self.files},
            "settings": dict(self.settings),
            "version": xrep.__version__,
            "overlap": asdict(self.overlap) if self.overlap else None,
        }


def to_json(record: Mapping[str, Any]) -> str:
    """Return a record as JSON text that ends with a newline.

    Raises:
        ValueError: A number is not finite. JSON cannot represent it, and such a measurement needs an explanation.
    """
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


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

"""Plain-text tables, as every evaluation prints them."""

from __future__ import annotations

from collections.abc import Sequence


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
    lines = [rule if not row else _line(row, widths) for row in [header, [], *rows]]
    return "\n".join(lines)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(row, widths, strict=False)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()

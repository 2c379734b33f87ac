"""Tables of text, as commands print them."""

from __future__ import annotations

from collections.abc import Sequence


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

"""What the emulated device counts, and the lines of xrep that it counts at."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Counts:
    """What happened since the last ``clear``.

    Attributes:
        syncs: operations after which the host waits for the device, with the lines of xrep that made them.
        launches: operations that start a kernel, by name; one on a list of tensors counts once.
        float32_products: matrix products of float32 operands, by line.
        collectives: exchanges between ranks of tensors on the device, by name.
        exchanged: bytes of these tensors, by name; what is received counts beside what is sent.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.syncs, self.launches, self.float32_products = Counter[str](), Counter[str](), Counter[str]()
        self.collectives, self.exchanged = Counter[str](), Counter[str]()


def lines_of_xrep() -> str:
    """Return the innermost three lines of xrep on the stack."""
    frame, found = sys._getframe(1), list[str]()
    while frame is not None and len(found) < 3:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT / "xrep"):
            found.append(f"{path.relative_to(ROOT)}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(found) or "torch"

"""Lines on stderr that tell how far a long computation is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO

from tqdm import tqdm

Advance = Callable[[int], object]
"""Function that is told how much more of a work is done."""
SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_UPDATES = 0.2


class ProgressLine:
    """A line of text that is rewritten in place on a terminal; elsewhere (a log file), a new line now and then.

    Args:
        stream: Where the line is printed; None for stderr.
        shown: Whether ``show`` prints anything.
        at_once: Whether the first line is printed at once where lines are not rewritten, instead of after a while.
    """

    def __init__(self, stream: IO[str] | None = None, *, shown: bool = True, at_once: bool = False) -> None:
        self._stream, self._shown = stream or sys.stderr, shown
        self._terminal = self._stream.isatty()
        self._seconds = _SECONDS_BETWEEN_UPDATES if self._terminal else SECONDS_BETWEEN_LINES
        self._last = 0.0 if self._terminal or at_once else time.monotonic()
        self._width = 0

    def show(self, text: str) -> None:
        """Show the state of the computation, unless the last state was shown very recently."""
        if not self._shown or time.monotonic() - self._last < self._seconds:
            return
        self._last = time.monotonic()
        if self._terminal:
            print("\r" + text.ljust(self._width), end="", file=self._stream, flush=True)
            self._width = len(text)
        else:
            print(text, file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """Print a line that is not overwritten."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self._width:
            print("\r" + " " * self._width, end="\r", file=self._stream, flush=True)
            self._width = 0


class Counter:
    """Context manager that shows how much of something is done, how fast, and the time left if the total is known.

    Args:
        unit: Name of what is counted, in the plural.
        title: What is being done, for the beginning of the line.
        done: Number that an earlier run did, which do not count for the speed.
        total: Number to do, including ``done``; None if it is not known.
        shown: Whether anything is printed.
    """

    def __init__(
        self, unit: str, title: str = "", *, done: int = 0, total: int | None = None, shown: bool = True
    ) -> None:
        self._bar = {"prefix": title, "total": total, "initial": done, "unit": f" {unit}", "unit_scale": True}
        self._line, self._done, self._began = ProgressLine(shown=shown), done, time.monotonic()

    def update(self, count: int) -> None:
        """Add ``count`` to what is done."""
        self._done += count
        self._line.show(tqdm.format_meter(self._done, elapsed=time.monotonic() - self._began, **self._bar))

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._line.clear()


def duration(seconds: float) -> str:
    """Return seconds as ``h:mm:ss`` or ``m:ss``."""
    return tqdm.format_interval(max(seconds, 0)).removeprefix("0")

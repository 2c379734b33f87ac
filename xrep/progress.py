"""Lines on stderr that tell how far a long computation is."""

from __future__ import annotations

import sys
import time
from typing import IO

SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_UPDATES = 0.2


class ProgressLine:
    """A line of text that is rewritten in place on a terminal; elsewhere (a log file), a new line now and then.

    Args:
        stream: Where the line is printed; None for stderr.
        seconds: Least time between two lines where they are not rewritten.
        shown: Whether ``show`` prints anything.
        at_once: Whether the first line is printed at once where lines are not rewritten, instead of after ``seconds``.
    """

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        seconds: float | None = None,
        shown: bool = True,
        at_once: bool = False,
    ) -> None:
        self._stream, self._shown = stream or sys.stderr, shown
        self._terminal = self._stream.isatty()
        self._seconds = SECONDS_BETWEEN_LINES if seconds is None else seconds
        if self._terminal:
            self._seconds = _SECONDS_BETWEEN_UPDATES
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
        done: Number done in an earlier run.
        total: Number to do, including ``done``; None if it is not known.
        shown: Whether anything is printed.
    """

    def __init__(
        self, unit: str, title: str = "", *, done: int = 0, total: int | None = None, shown: bool = True
    ) -> None:
        self._unit, self._title, self._first, self._done, self._total = unit, title, done, done, total
        self._line, self._began = ProgressLine(shown=shown), time.monotonic()

    def update(self, count: int) -> None:
        """Add ``count`` to what is done."""
        self._done += count
        speed = (self._done - self._first) / max(time.monotonic() - self._began, 1e-9)
        of, left = "", ""
        if self._total is not None:
            of = f" of {self._total:,}"
            left = f", {duration((self._total - self._done) / max(speed, 1e-9))} left"
        title = f"{self._title}: " if self._title else ""
        self._line.show(f"{title}{self._done:,}{of} {self._unit}, {speed:,.0f} per second{left}")

    def skip(self, count: int) -> None:
        """Add ``count`` that an earlier run did, which do not count for the speed."""
        self._done, self._first = self._done + count, self._first + count

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._line.clear()


def duration(seconds: float) -> str:
    """Return seconds as ``h:mm:ss`` or ``m:ss``."""
    minutes, secs = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"

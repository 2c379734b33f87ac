"""Ctrl-C, and other requests to stop, during a computation that saves what it has before it stops."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

NOTICE = "Ctrl-C: the part that is being computed is finished first; press it again to stop at once"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a computation; the message says what is saved and how to go on."""


@contextmanager
def saving_nothing() -> Iterator[None]:
    """Context manager around a computation whose output is a stream: what it has saved is deleted after Ctrl-C."""
    try:
        yield
    except Interrupted:
        raise Interrupted("nothing is saved, because the output is a stream; write to a file to go on later") from None


class StopRequest:
    """Records the signals that ask a computation to stop, so that it can save what is done.

    At the first Ctrl-C a line on stderr says what happens. The second one raises KeyboardInterrupt, except under
    torchrun, which passes the Ctrl-C of a terminal on to processes that had it already, and kills them after 30
    seconds.

    Args:
        others: Further signals that ask to stop, beside that of Ctrl-C.
        notice: What the line says; empty for none.

    Attributes:
        signal: Name of the last signal, such as SIGINT; None if there was none.
    """

    def __init__(self, *others: signal.Signals, notice: str = NOTICE) -> None:
        self.signal: str | None = None
        self._numbers, self._notice = (signal.SIGINT, *others), notice

    @contextmanager
    def watching(self) -> Iterator[StopRequest]:
        """Context manager that records these signals instead of letting them end the process."""
        # Signal handlers can be set only in the main thread. A Ctrl-C that is ignored stays ignored: shells start
        # processes in the background so.
        main = threading.current_thread() is threading.main_thread()
        numbers = [number for number in self._numbers if signal.getsignal(number) != signal.SIG_IGN] if main else []
        previous = {number: signal.signal(number, self._note) for number in numbers}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        again, self.signal = self.signal == "SIGINT", signal.Signals(number).name
        if number != signal.SIGINT or "TORCHELASTIC_RUN_ID" in os.environ:
            return
        if again:
            raise KeyboardInterrupt
        if self._notice:
            with suppress(OSError):  # print may not be called here, as it may be interrupted by this signal itself
                os.write(2, f"\n{self._notice}\n".encode())

"""Which test pairs an encoder may have seen: sentences that also stood in its training data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.text.cleaning import NO_KEY, sentence_hashes


@dataclass(frozen=True)
class Overlap:
    """How many of ``total`` test pairs have a side that was trained on; ``found`` is None where nobody knows."""

    found: int | None
    total: int
    dropped: bool = False
    """Whether the pairs found were left out of the measurement."""

    @property
    def line(self) -> str:
        """What every evaluation prints."""
        if self.found is None:
            return "overlap: unknown (no training hashes beside the encoder)"
        left_out = ", left out" if self.dropped else ""
        return f"overlap: {self.found} of {self.total} test pairs were in the training text{left_out}"


def load_training_hashes(path: Path | None) -> np.ndarray | None:
    """The hashes of the training sentences: sorted uint64 [K], mapped and not read; None without a path.

    Raises:
        UserError: the file is missing or holds something else.
    """
    if path is None:
        return None
    cure = "restore the file, or delete it to measure without the overlap"
    try:
        hashes = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise UserError("no such file", path=path, cure=cure) from None
    except (ValueError, EOFError):
        raise UserError("not a file of training hashes", path=path, cure=cure) from None
    if not isinstance(hashes, np.ndarray) or hashes.ndim != 1 or hashes.dtype != np.uint64:
        raise UserError("not a file of training hashes", path=path, cure=cure)
    return hashes


def seen(sentences: Sequence[str], training_hashes: np.ndarray) -> np.ndarray:
    """Which sentences were trained on, case, punctuation and Unicode form aside: bool [N].

    Args:
        training_hashes: sorted uint64 [K]; only the pages that the binary searches touch are read.
    """
    hashes = sentence_hashes(sentences)
    if not len(training_hashes):
        return np.zeros(len(hashes), dtype=bool)
    places = np.minimum(np.searchsorted(training_hashes, hashes), len(training_hashes) - 1)
    return (training_hashes[places] == hashes) & (hashes != NO_KEY)

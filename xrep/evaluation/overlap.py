"""Find the test examples that an encoder may have seen, because a sentence of them is also in its training data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.store.arrays import open_array
from xrep.text.cleaning import NO_KEY, sentence_hashes


@dataclass(frozen=True)
class Overlap:
    """Number of the ``total`` test examples with a sentence from the training data; ``found`` is None if unknown."""

    found: int | None
    total: int
    dropped: bool = False
    """Whether these examples were left out of the measurement."""

    @property
    def line(self) -> str:
        if self.found is None:
            return "overlap: unknown (no training hashes beside the encoder)"
        left_out = ", left out" if self.dropped else ""
        return f"overlap: {self.found} of {self.total} test examples were in the training text{left_out}"


def total(overlaps: Iterable[Overlap]) -> Overlap:
    """Return the overlap of several tests of the same encoder together."""
    parts = list(overlaps)
    known = [part.found for part in parts if part.found is not None]
    sizes, dropped = [part.total for part in parts], any(part.dropped for part in parts)
    return Overlap(sum(known) if len(known) == len(parts) else None, sum(sizes), dropped)


def seen(columns: Sequence[Sequence[str]], training_hashes: Path) -> np.ndarray:
    """Return which examples have a sentence in the training data, ignoring case, punctuation and Unicode form: bool
    [N]. Of the sorted hashes, uint64 [K], only the pages that the binary searches touch are read."""
    cure = "restore the file, or delete it to measure without the overlap"
    known = open_array(training_hashes, "training hashes", cure)
    hashes = np.stack([sentence_hashes(column) for column in columns])
    if not len(known):
        return np.zeros(hashes.shape[1], dtype=bool)
    rows = np.searchsorted(known[:-1], hashes)
    return ((known[rows] == hashes) & (hashes != NO_KEY)).any(axis=0)

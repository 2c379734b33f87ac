"""Find the test examples that an encoder may have seen, because a sentence of them is also in its training data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
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


def seen(sentences: Sequence[str], training_hashes: np.ndarray) -> np.ndarray:
    """Return which sentences are in the training data, ignoring case, punctuation and Unicode form: bool [N]. Of
    sorted ``training_hashes``, uint64 [K], in a memory map, only the pages that the binary searches touch are read."""
    hashes = sentence_hashes(sentences)
    if not len(training_hashes):
        return np.zeros(len(hashes), dtype=bool)
    places = np.searchsorted(training_hashes[:-1], hashes)
    return (training_hashes[places] == hashes) & (hashes != NO_KEY)


def find_overlap(
    training_hashes: Path | None, *columns: Sequence[str], drop: bool = False, name: str = "the test", least: int = 1
) -> tuple[np.ndarray, Overlap]:
    """Return a mask of the examples to measure, bool [N], and the overlap with the training data.

    Args:
        columns: Sentences of N examples: one column for single sentences, two for pairs.
        drop: Leave out the examples of which a sentence is in the training data, of which ``least`` must be left.
        name: Name of the test, for error messages.
    """
    count, cure = len(columns[0]), "measure without `drop_overlap`"
    if training_hashes is None:
        if drop:
            raise UserError("no training hashes beside the encoder", cure=cure)
        return np.ones(count, dtype=bool), Overlap(None, count)
    restored = "restore the file, or delete it to measure without the overlap"
    hashes = open_array(training_hashes, "training hashes", restored)
    known = np.logical_or.reduce([seen(column, hashes) for column in columns])
    found = int(known.sum())
    if drop and count - found < least:
        problem = f"{found} of {count} examples of {name} were in the training text, too few are left"
        raise UserError(problem, cure=cure)
    return ~known | (not drop), Overlap(found, count, dropped=drop)

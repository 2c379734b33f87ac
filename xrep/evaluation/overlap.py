"""Find the test examples that an encoder may have seen, because a sentence of them is also in its training data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
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
        """The line about the overlap that every evaluation prints."""
        if self.found is None:
            return "overlap: unknown (no training hashes beside the encoder)"
        left_out = ", left out" if self.dropped else ""
        return f"overlap: {self.found} of {self.total} test examples were in the training text{left_out}"

    def as_dict(self) -> dict[str, int | bool | None]:
        """Return the fields for JSON; ``found`` is null if unknown."""
        return asdict(self)


def total(overlaps: Iterable[Overlap]) -> Overlap:
    """Return the overlap of several tests of the same encoder together."""
    parts = list(overlaps)
    counts = [part.found for part in parts if part.found is not None]
    found = sum(counts) if len(counts) == len(parts) else None
    return Overlap(found, sum(part.total for part in parts), any(part.dropped for part in parts))


def load_training_hashes(path: Path | None) -> np.ndarray | None:
    """Open the hashes of the training sentences, sorted uint64 [K], as a memory map; return None if ``path`` is None.

    Raises:
        UserError: The file is missing or is not a file of training hashes.
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
    """Return which sentences are in the training data, ignoring case, punctuation and Unicode form: bool [N].

    Args:
        training_hashes: Sorted uint64 [K]; of a memory map, only the pages that the binary searches touch are read.
    """
    hashes = sentence_hashes(sentences)
    if not len(training_hashes):
        return np.zeros(len(hashes), dtype=bool)
    places = np.minimum(np.searchsorted(training_hashes, hashes), len(training_hashes) - 1)
    return (training_hashes[places] == hashes) & (hashes != NO_KEY)


def find_overlap(
    training_hashes: Path | None, *columns: Sequence[str], drop: bool = False, name: str = "the test", least: int = 1
) -> tuple[np.ndarray, Overlap]:
    """Count the examples with a sentence that is in the training data.

    Args:
        training_hashes: File of training hashes, or None if there is none.
        columns: Sentences of N examples: one column for single sentences, two for pairs.
        drop: Whether to leave these examples out.
        name: Name of the test, for error messages.
        least: Number of examples that must be left.

    Returns:
        A mask of the examples to measure, bool [N] (all True without ``drop``), and the overlap.

    Raises:
        UserError: ``drop`` is set, but there are no training hashes or too few examples are left.
    """
    keep = np.ones(len(columns[0]), dtype=bool)
    hashes = load_training_hashes(training_hashes)
    if hashes is None:
        if drop:
            raise UserError("no training hashes beside the encoder", cure="measure without `drop_overlap`")
        return keep, Overlap(None, len(keep))
    known = np.logical_or.reduce([seen(column, hashes) for column in columns])
    overlap = Overlap(int(known.sum()), len(keep), dropped=drop)
    if not drop:
        return keep, overlap
    if overlap.total - known.sum() < least:
        problem = f"{overlap.found} of {overlap.total} examples of {name} were in the training text, too few are left"
        raise UserError(problem, cure="measure without `drop_overlap`")
    return ~known, overlap


def chosen(rows: np.ndarray, *columns: list[str]) -> Iterator[list[str]]:
    """Yield, for each column, the rows that the mask ``rows``, bool [N], selects."""
    for column in columns:
        yield [sentence for sentence, is_chosen in zip(column, rows, strict=True) if is_chosen]

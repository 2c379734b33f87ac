"""The choice of training and validation pairs among the cleaned ones, each of which has a fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from xrep.data.cleaned_text import DUPLICATE, HELD_OUT, KEPT, NEAR_HELD_OUT, SAMPLED_AWAY, CleanedText
from xrep.data.disk_sort import DiskSort
from xrep.hashing import scramble
from xrep.text.cleaning import NO_KEY, HashSet, pair_hashes


def drop_duplicates(texts: Sequence[CleanedText], fates: np.ndarray, folder: Path) -> None:
    """Mark all but the first of the pairs of a language pair that have the same sentence keys as DUPLICATE.

    Args:
        fates: Those of all corpora: uint8, by the number of the pair.
        folder: Where temporary files are written.
    """
    pairs = DiskSort(folder, 2)  # hash and number of each pair
    for text in texts:
        for block in text.blocks():
            hashes = pair_hashes(text.table.hashes[block])
            rows = np.flatnonzero(hashes != NO_KEY)
            pairs.add(np.stack([hashes[rows], (text.first + block.start + rows).astype(np.uint64)], axis=1))
    for part in pairs.parts():
        repeats = part[1:, 1][part[1:, 0] == part[:-1, 0]]
        fates[repeats.astype(np.int64)] = DUPLICATE


def hold_out(texts: Sequence[CleanedText], fates: np.ndarray, wanted: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Mark up to ``wanted`` pairs of one language pair as HELD_OUT; ``fates`` are those of all corpora.

    At most one pair is taken per template, and each sentence occurs at most once on its side. Templates are drawn by
    their hash only, so several language pairs hold out the same templates as far as they contain them.

    Returns:
        The hashes of the sentences, uint64 [n, 2], and of the templates, uint64 [n], of the pairs held out.
    """
    best = np.empty((0, 5), dtype=np.uint64)  # priority, hashes of source and target, template, number
    for text in texts:
        for block in text.blocks():
            templates, hashes = text.table["template"].values[block], text.table.hashes[block]
            rows = np.flatnonzero((templates != NO_KEY) & (hashes[:, 0] != NO_KEY) & (text.fates[block] == KEPT))
            numbers = (text.first + block.start + rows).astype(np.uint64)
            new = [scramble(templates[rows], seed), *hashes[rows].T, templates[rows], numbers]
            best = np.concatenate([best, np.stack(new, axis=1)])
            # Keep twice as many templates as wanted, because several templates may share a source sentence.
            best = best[np.unique(best[:, 0], return_index=True)[1][: 2 * wanted]]
    chosen = best[np.sort(np.unique(best[:, 1], return_index=True)[1])[:wanted]]
    fates[chosen[:, 4].astype(np.int64)] = HELD_OUT
    return chosen[:, 1:3], chosen[:, 3]


def drop_held_out(text: CleanedText, sentences: HashSet, templates: HashSet) -> None:
    """Mark the training pairs that share a sentence or the target's template with a held-out pair as NEAR_HELD_OUT."""
    for block in text.blocks():
        near = sentences.contains(text.table.hashes[block]).any(axis=1)
        near |= templates.contains(text.table["template"].values[block])
        text.fates[block][near & (text.fates[block] == KEPT)] = NEAR_HELD_OUT


def sample(text: CleanedText, maximum: int, seed: int) -> None:
    """Keep ``maximum`` of the kept pairs, drawn uniformly, and mark the others as SAMPLED_AWAY."""
    if text.by_fate()[KEPT] <= maximum:
        return
    best = np.empty(0, dtype=np.uint64)
    for _, priorities in _priorities(text, seed):
        best = np.sort(np.concatenate([best, priorities]))[:maximum]
    for rows, priorities in _priorities(text, seed):
        text.fates[rows[priorities > best[-1]]] = SAMPLED_AWAY


def _priorities(text: CleanedText, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield some of the rows that are kept, int64 [n], and a pseudo-random number for each: uint64 [n]."""
    distinct = 0
    for block in text.blocks():
        fates = text.fates[block]
        numbers = distinct + np.cumsum(fates != DUPLICATE) - 1
        distinct += int(np.count_nonzero(fates != DUPLICATE))
        rows = np.flatnonzero(fates == KEPT)
        yield rows + block.start, scramble(numbers[rows].astype(np.uint64), seed)

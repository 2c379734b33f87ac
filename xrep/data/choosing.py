"""The choice of training and validation pairs among the cleaned ones, by marking them in their spools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from xrep.data.hash_runs import HashRuns
from xrep.data.spool import DROPPED, DUPLICATE, HELD_OUT, KEPT, Spool
from xrep.hashing import scramble
from xrep.text.cleaning import NO_KEY, HashSet, pair_hashes


def drop_duplicates(spools: Sequence[Spool], folder: Path) -> list[int]:
    """Mark all but the first of the pairs of a language pair that have the same sentence keys as DUPLICATE.

    Args:
        folder: Where temporary files are written.

    Returns:
        The number of pairs marked in each spool.
    """
    starts = np.cumsum([0, *map(len, spools)])
    runs = HashRuns(folder, 2)  # hash and number of each pair
    for start, spool in zip(starts, spools, strict=False):
        for block in spool.blocks():
            hashes = pair_hashes(spool.hashes(block))
            rows = np.flatnonzero(hashes != NO_KEY)
            runs.add(np.stack([hashes[rows], (start + block.start + rows).astype(np.uint64)], axis=1))
    counts = np.zeros(len(spools), dtype=np.int64)
    for part in runs.parts():
        repeats = np.sort(part[1:, 1][part[1:, 0] == part[:-1, 0]].astype(np.int64))
        for number, rows in enumerate(np.split(repeats, np.searchsorted(repeats, starts[1:-1]))):
            spools[number].mark(rows - starts[number], DUPLICATE)
            counts[number] += len(rows)
    return counts.tolist()


def hold_out(spools: list[Spool], wanted: int, seed: int) -> tuple[HashSet, HashSet]:
    """Mark up to ``wanted`` pairs of one language pair as HELD_OUT.

    At most one pair is taken per template, and each sentence occurs at most once on its side. Templates are drawn by
    their hash only, so several language pairs hold out the same templates as far as they contain them.

    Returns:
        The sentence hashes of both sides and the template hashes of the pairs held out.
    """
    best = np.empty((0, 4), dtype=np.uint64)  # priority, source hash, spool, row
    for number, spool in enumerate(spools):
        for block in spool.blocks():
            templates, sources = spool.templates(block), spool.hashes(block)[:, 0]
            rows = np.flatnonzero((templates != NO_KEY) & (sources != NO_KEY) & (spool.marks(block) == KEPT))
            new = np.stack([scramble(templates[rows], seed), sources[rows], 0 * sources[rows], sources[rows]], axis=1)
            new[:, 2], new[:, 3] = number, rows + block.start
            best = np.concatenate([best, new])
            # Keep twice as many templates as wanted, because several templates may share a source sentence.
            best = best[np.unique(best[:, 0], return_index=True)[1][: 2 * wanted]]
    chosen = best[np.sort(np.unique(best[:, 1], return_index=True)[1])[:wanted]]
    sentences, templates = HashSet(), HashSet()
    for number, spool in enumerate(spools):
        rows = chosen[chosen[:, 2] == number, 3].astype(np.int64)
        spool.mark(rows, HELD_OUT)
        places = [slice(row, row + 1) for row in rows.tolist()]
        if places:
            sentences.add(np.concatenate([spool.hashes(place) for place in places]).ravel())
            templates.add(np.concatenate([spool.templates(place) for place in places]))
    return sentences, templates


def drop_held_out(spool: Spool, sentences: HashSet, templates: HashSet) -> int:
    """Mark as DROPPED the training pairs that share a sentence or the target's template with a held-out pair.

    Returns:
        The number of these pairs.
    """
    dropped = 0
    for block in spool.blocks():
        near = sentences.contains(spool.hashes(block)).any(axis=1) | templates.contains(spool.templates(block))
        rows = np.flatnonzero(near & (spool.marks(block) == KEPT))
        spool.mark(rows + block.start, DROPPED)
        dropped += len(rows)
    return dropped


def sample(spool: Spool, maximum: int, seed: int) -> int:
    """Keep ``maximum`` of the kept pairs, drawn uniformly, and mark the others as DROPPED; return their number."""
    best = np.empty(0, dtype=np.uint64)
    kept = 0
    for _, priorities in _priorities(spool, seed):
        kept += len(priorities)
        best = np.sort(np.concatenate([best, priorities]))[:maximum]
    if kept <= maximum:
        return 0
    for rows, priorities in _priorities(spool, seed):
        spool.mark(rows[priorities > best[-1]], DROPPED)
    return kept - maximum


def _priorities(spool: Spool, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield some of the rows that are kept, int64 [n], and a pseudo-random number for each: uint64 [n]."""
    distinct = 0
    for block in spool.blocks():
        marks = spool.marks(block)
        numbers = distinct + np.cumsum(marks != DUPLICATE) - 1
        distinct += int(np.count_nonzero(marks != DUPLICATE))
        rows = np.flatnonzero(marks == KEPT)
        yield rows + block.start, scramble(numbers[rows].astype(np.uint64), seed)

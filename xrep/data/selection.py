"""The choice of training and validation pairs among the cleaned ones, each of which has a fate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from xrep.data.cleaned_text import (
    DUPLICATE,
    HELD_OUT,
    IN_EVALUATION,
    KEPT,
    NEAR_HELD_OUT,
    SAMPLED_AWAY,
    CleanedText,
    by_languages,
)
from xrep.data.disk_sort import DiskSort
from xrep.hashing import scramble
from xrep.text.cleaning import NO_KEY, CleaningOptions, HashSet, pair_hashes

_HELD_OUT_SHARE = 0.05  # maximum share of a language pair, so that a small corpus keeps most pairs for training


def decide_fates(
    texts: Sequence[CleanedText], fates: np.ndarray, options: CleaningOptions, valid_size: int, seed: int, folder: Path
) -> None:
    """Decide on the fate of each pair; all are KEPT at first.

    Training pairs that share a sentence with a validation or test pair are dropped, and duplicates. Without validation
    text, up to ``valid_size`` pairs of each language pair are held out, but at most 5%, and pairs near to them are
    dropped. Then the pairs of each corpus are sampled.

    Args:
        texts: All of the text; training text comes last.
        fates: uint8, by the number of the pair, counted over all corpora.
        folder: Where temporary files are written.
    """
    train = [text for text in texts if text.corpus.split == "train"]
    has_valid = any(text.corpus.split == "valid" for text in texts)
    evaluation, sentences, templates = HashSet(), HashSet(), HashSet()
    for text in texts[: -len(train)]:
        for block in text.blocks():
            evaluation.add(text.table.hashes[block].ravel())
    for text in train:
        _drop_near(text, evaluation, HashSet(), IN_EVALUATION)
    for group in by_languages(train).values():
        if options.deduplicate:
            _drop_duplicates(group, fates, folder)
        wanted = min(valid_size, int(_HELD_OUT_SHARE * sum(text.by_fate()[KEPT] for text in group)))
        if wanted and not has_valid:
            _hold_out(group, fates, wanted, seed, sentences, templates)
    for number, text in enumerate(train):
        _drop_near(text, sentences, templates, NEAR_HELD_OUT)
        maximum = options.sample if text.corpus.bitext.sample is None else text.corpus.bitext.sample
        if maximum is not None:
            _sample(text, maximum, seed + number)


def _drop_duplicates(texts: Sequence[CleanedText], fates: np.ndarray, folder: Path) -> None:
    """Mark all but the first of the pairs of a language pair that have the same sentence keys as DUPLICATE."""
    pairs = DiskSort(folder, 2)  # hash and number of each pair
    for text in texts:
        for block in text.blocks():
            hashes = pair_hashes(text.table.hashes[block])
            rows = np.flatnonzero((hashes != NO_KEY) & (text.fates[block] == KEPT))
            pairs.add(np.stack([hashes[rows], (text.first + block.start + rows).astype(np.uint64)], axis=1))
    for part in pairs.parts():
        repeats = part[1:, 1][part[1:, 0] == part[:-1, 0]]
        fates[repeats.astype(np.int64)] = DUPLICATE


def _hold_out(
    texts: Sequence[CleanedText], fates: np.ndarray, wanted: int, seed: int, sentences: HashSet, templates: HashSet
) -> None:
    """Mark up to ``wanted`` pairs of one language pair as HELD_OUT, and add their hashes to both sets.

    At most one pair is taken per template, and each sentence occurs at most once on its side. Templates are drawn by
    their hash only, so several language pairs hold out the same templates as far as they contain them.
    """
    best = np.empty((0, 5), dtype=np.uint64)  # priority, hashes of source and target, template, number
    for text in texts:
        for block in text.blocks():
            templates_here, hashes = text.table["template"].values[block], text.table.hashes[block]
            rows = np.flatnonzero((templates_here != NO_KEY) & (hashes[:, 0] != NO_KEY) & (text.fates[block] == KEPT))
            numbers = (text.first + block.start + rows).astype(np.uint64)
            new = [scramble(templates_here[rows], seed), *hashes[rows].T, templates_here[rows], numbers]
            best = np.concatenate([best, np.stack(new, axis=1)])
            # Keep twice as many templates as wanted, because several templates may share a source sentence.
            best = best[np.unique(best[:, 0], return_index=True)[1][: 2 * wanted]]
    chosen = best[np.sort(np.unique(best[:, 1], return_index=True)[1])[:wanted]]
    fates[chosen[:, 4].astype(np.int64)] = HELD_OUT
    sentences.add(chosen[:, 1:3].ravel())
    templates.add(chosen[:, 3])


def _drop_near(text: CleanedText, sentences: HashSet, templates: HashSet, fate: int) -> None:
    """Mark the kept pairs with ``fate`` that have one of some sentences, or whose target has one of some templates."""
    for block in text.blocks():
        near = sentences.contains(text.table.hashes[block]).any(axis=1)
        near |= templates.contains(text.table["template"].values[block])
        text.fates[block][near & (text.fates[block] == KEPT)] = fate


def _sample(text: CleanedText, maximum: int, seed: int) -> None:
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
        is_distinct = (fates != DUPLICATE) & (fates != IN_EVALUATION)
        numbers = distinct + np.cumsum(is_distinct) - 1
        distinct += int(np.count_nonzero(is_distinct))
        rows = np.flatnonzero(fates == KEPT)
        yield rows + block.start, scramble(numbers[rows].astype(np.uint64), seed)

"""Temporary storage on disk between the passes of preprocessing: the cleaned pairs of each corpus and their marks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from xrep.hashing import scramble
from xrep.text.cleaning import NO_KEY, CleaningReport, HashSet, pair_hashes, sentence_hash, template_hash
from xrep.text.readers import Bitext, read_pairs

DROPPED, KEPT, HELD_OUT = 0, 1, 2
_CHUNK_LINES = 8192
_CHUNK_ROWS = 1 << 20


@dataclass
class Spool:
    """The cleaned pairs of one corpus on disk, in their original order.

    Attributes:
        name: Name of the corpus in the report.
        bitext: Files of the corpus.
        stem: Path prefix of the files ``{stem}.text`` (``source<TAB>target`` lines), ``.hashes``, ``.templates`` and
            ``.marks``.
        rows: Number of pairs.
    """

    name: str
    bitext: Bitext
    stem: Path
    rows: int = 0

    @property
    def hashes(self) -> np.ndarray:
        """``sentence_hash`` of both sides, uint64 [rows, 2]."""
        return self._map("hashes", np.uint64, (self.rows, 2), "r")

    @property
    def templates(self) -> np.ndarray:
        """``template_hash`` of the target, uint64 [rows]."""
        return self._map("templates", np.uint64, (self.rows,), "r")

    @property
    def marks(self) -> np.ndarray:
        """DROPPED, KEPT or HELD_OUT for each pair, a writable uint8 [rows]; all pairs are KEPT at first."""
        return self._map("marks", np.uint8, (self.rows,), "r+")

    def blocks(self) -> Iterator[slice]:
        """Yield ranges of rows, to be processed one at a time."""
        for start in range(0, self.rows, _CHUNK_ROWS):
            yield slice(start, min(start + _CHUNK_ROWS, self.rows))

    def pairs(self, mark: int) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
        """Yield the pairs that have ``mark`` in non-empty chunks: (sources, targets, hashes uint64 [n, 2])."""
        marks, hashes, start = self.marks, self.hashes, 0
        with self._file("text").open(encoding="utf-8", newline="\n") as stream:
            while lines := list(itertools.islice(stream, _CHUNK_LINES)):
                chosen = np.flatnonzero(marks[start : start + len(lines)] == mark)
                if len(chosen):
                    rows = [lines[i].rstrip("\n").split("\t") for i in chosen.tolist()]
                    yield [row[0] for row in rows], [row[1] for row in rows], hashes[start + chosen]
                start += len(lines)

    def _file(self, suffix: str) -> Path:
        return self.stem.with_name(f"{self.stem.name}.{suffix}")

    def _map(self, suffix: str, dtype: type, shape: tuple[int, ...], mode: Literal["r", "r+"]) -> np.ndarray:
        if not self.rows:
            return np.empty(shape, dtype)  # an empty file cannot be mapped
        return np.memmap(self._file(suffix), dtype=dtype, mode=mode, shape=shape)


@dataclass
class Filters:
    """The filters that are applied to the pairs of a corpus while they are read.

    Attributes:
        drop_reason: Function of (source, target, hashes) that returns the first rule that drops the pair, or None.
        excluded: Hashes of the sentences of evaluation sets.
        evaluation: Hashes of the sentences of the validation and test splits.
        seen: Hashes of the pairs kept so far, to drop repeated pairs; None to keep repeated pairs.
    """

    drop_reason: Callable[[str, str, tuple[int, int]], str | None]
    excluded: HashSet
    evaluation: HashSet
    seen: HashSet | None


def fill(spool: Spool, filters: Filters, report: CleaningReport, advance: Callable[[int], object]) -> None:
    """Read a corpus, drop and count the pairs that the filters reject, and write the rest to the spool.

    Each run of white space is replaced by one space, so that a sentence contains neither tabs nor line ends.

    Args:
        advance: Called with the number of pairs read, after each chunk.
    """
    report.add(spool.name, "read", 0)
    pairs = ((" ".join(s.split()), " ".join(t.split())) for _, s, t in read_pairs(spool.bitext))
    with (
        spool._file("text").open("x", encoding="utf-8", newline="\n") as text,
        spool._file("hashes").open("xb") as hash_file,
        spool._file("templates").open("xb") as template_file,
        spool._file("marks").open("xb") as mark_file,
    ):
        while chunk := list(itertools.islice(pairs, _CHUNK_LINES)):
            report.add(spool.name, "read", len(chunk))
            kept, hashes = _filter(chunk, spool.name, filters, report)
            text.writelines(f"{source}\t{target}\n" for source, target in kept)
            hash_file.write(hashes.tobytes())
            template_file.write(np.array([template_hash(target) for _, target in kept], dtype=np.uint64).tobytes())
            mark_file.write(bytes([KEPT]) * len(kept))
            spool.rows += len(kept)
            advance(len(chunk))


def _filter(
    chunk: list[tuple[str, str]], corpus: str, filters: Filters, report: CleaningReport
) -> tuple[list[tuple[str, str]], np.ndarray]:
    kept: list[tuple[str, str]] = []
    rows: list[tuple[int, int]] = []
    for source, target in chunk:
        hashes = sentence_hash(source), sentence_hash(target)
        reason = filters.drop_reason(source, target, hashes)
        if reason:
            report.add(corpus, reason)
        else:
            kept.append((source, target))
            rows.append(hashes)
    hashes_kept = np.array(rows, dtype=np.uint64).reshape(len(rows), 2)
    for step, sentences in (("excluded", filters.excluded), ("in valid/test", filters.evaluation)):
        free = ~np.any(sentences.contains(hashes_kept), axis=1)
        kept, hashes_kept = _select(kept, hashes_kept, free, corpus, step, report)
    if filters.seen is not None:
        new = filters.seen.add(pair_hashes(hashes_kept))
        kept, hashes_kept = _select(kept, hashes_kept, new, corpus, "duplicate", report)
    return kept, hashes_kept


def _select(
    pairs: list[tuple[str, str]], hashes: np.ndarray, mask: np.ndarray, corpus: str, step: str, report: CleaningReport
) -> tuple[list[tuple[str, str]], np.ndarray]:
    report.add(corpus, step, len(mask) - np.count_nonzero(mask))
    return list(itertools.compress(pairs, mask.tolist())), hashes[mask]


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
            templates, sources = spool.templates[block], spool.hashes[block, 0]
            rows = np.flatnonzero((templates != NO_KEY) & (sources != NO_KEY))
            new = np.stack([scramble(templates[rows], seed), sources[rows], 0 * sources[rows], sources[rows]], axis=1)
            new[:, 2], new[:, 3] = number, rows + block.start
            best = np.concatenate([best, new])
            # Keep twice as many templates as wanted, because several templates may share a source sentence.
            best = best[np.unique(best[:, 0], return_index=True)[1][: 2 * wanted]]
    chosen = best[np.sort(np.unique(best[:, 1], return_index=True)[1])[:wanted]]
    sentences, templates = HashSet(), HashSet()
    for number, spool in enumerate(spools):
        rows = chosen[chosen[:, 2] == number, 3].astype(np.int64)
        if len(rows):
            spool.marks[rows] = HELD_OUT
            sentences.add(spool.hashes[rows].ravel())
            templates.add(spool.templates[rows])
    return sentences, templates


def drop_held_out(spool: Spool, sentences: HashSet, templates: HashSet) -> int:
    """Mark as DROPPED the training pairs that share a sentence or the target's template with a held-out pair.

    Returns:
        The number of these pairs.
    """
    dropped = 0
    for block in spool.blocks():
        marks = spool.marks[block]
        near = sentences.contains(spool.hashes[block]).any(axis=1) | templates.contains(spool.templates[block])
        near &= marks == KEPT
        marks[near] = DROPPED
        dropped += np.count_nonzero(near)
    return dropped


def sample(spool: Spool, maximum: int, seed: int) -> int:
    """Keep ``maximum`` of the kept pairs, drawn uniformly, and mark the others as DROPPED; return their number."""
    best = np.empty(0, dtype=np.uint64)
    kept = 0
    for block in spool.blocks():
        rows = np.flatnonzero(spool.marks[block] == KEPT) + block.start
        kept += len(rows)
        best = np.sort(np.concatenate([best, scramble(rows.astype(np.uint64), seed)]))[:maximum]
    if kept <= maximum:
        return 0
    for block in spool.blocks():
        marks = spool.marks[block]
        priority = scramble(np.arange(block.start, block.stop, dtype=np.uint64), seed)
        marks[(marks == KEPT) & (priority > best[-1])] = DROPPED
    return kept - maximum

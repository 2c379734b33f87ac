"""Temporary storage on disk between the passes of preprocessing: the cleaned pairs of each corpus and their marks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.hashing import scramble
from xrep.text.cleaning import NO_KEY, CleaningReport, HashSet, sentence_hash, template_hash
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
        text: File of the pairs, in lines ``source<TAB>target``.
        hashes: ``sentence_hash`` of both sides, uint64 [N, 2].
        templates: ``template_hash`` of the target, uint64 [N].
        marks: DROPPED, KEPT or HELD_OUT for each pair, a writable uint8 [N]; all pairs are KEPT at first.
    """

    name: str
    bitext: Bitext
    text: Path
    hashes: np.ndarray
    templates: np.ndarray
    marks: np.ndarray

    def __len__(self) -> int:
        return len(self.marks)

    def blocks(self) -> Iterator[slice]:
        """Yield ranges of rows, to be processed one at a time."""
        for start in range(0, len(self), _CHUNK_ROWS):
            yield slice(start, min(start + _CHUNK_ROWS, len(self)))

    def pairs(self, mark: int) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
        """Yield the pairs that have ``mark`` in non-empty chunks: (sources, targets, hashes uint64 [n, 2])."""
        start = 0
        with self.text.open(encoding="utf-8", newline="\n") as stream:
            while lines := list(itertools.islice(stream, _CHUNK_LINES)):
                chosen = np.flatnonzero(self.marks[start : start + len(lines)] == mark)
                if len(chosen):
                    rows = [lines[i].rstrip("\n").split("\t") for i in chosen.tolist()]
                    yield [row[0] for row in rows], [row[1] for row in rows], self.hashes[start + chosen]
                start += len(lines)


DropReason = Callable[[str, str, tuple[int, int]], str | None]
"""Function of (source, target, hashes) that returns the rule that drops a pair, or None."""
Step = tuple[str, Callable[[np.ndarray], np.ndarray]]
"""Name of a rule, and its function of the hashes of pairs, uint64 [n, 2], that returns which it keeps, bool [n]."""


def fill(
    name: str,
    bitext: Bitext,
    stem: Path,
    drop_reason: DropReason,
    steps: Sequence[Step],
    report: CleaningReport,
    advance: Callable[[int], object],
) -> Spool:
    """Read a corpus, count the pairs that a rule drops, and write the rest to files whose names begin with ``stem``.

    Each run of white space is replaced by one space, so that a sentence contains neither tabs nor line ends.

    Args:
        steps: Rules for many pairs at once, which are applied after ``drop_reason``.
        advance: Called with the number of pairs read, after each chunk.
    """
    report.add(name, "read", 0)
    pairs = ((" ".join(s.split()), " ".join(t.split())) for _, s, t in read_pairs(bitext))
    text, hash_file, template_file, mark_file = (
        stem.with_name(f"{stem.name}.{ending}") for ending in ("text", "hashes", "templates", "marks")
    )
    with (
        text.open("x", encoding="utf-8", newline="\n") as lines,
        hash_file.open("xb") as all_hashes,
        template_file.open("xb") as templates,
        mark_file.open("xb") as marks,
    ):
        while chunk := list(itertools.islice(pairs, _CHUNK_LINES)):
            report.add(name, "read", len(chunk))
            kept, hashes = _filter(chunk, name, drop_reason, steps, report)
            lines.writelines(f"{source}\t{target}\n" for source, target in kept)
            all_hashes.write(hashes.tobytes())
            templates.write(np.array([template_hash(target) for _, target in kept], dtype=np.uint64).tobytes())
            marks.write(bytes([KEPT]) * len(kept))
            advance(len(chunk))
    hashes, templates = _map(hash_file, np.uint64).reshape(-1, 2), _map(template_file, np.uint64)
    return Spool(name, bitext, text, hashes, templates, _map(mark_file, np.uint8))


def _map(path: Path, dtype: type) -> np.ndarray:
    return np.memmap(path, dtype, "r+") if path.stat().st_size else np.empty(0, dtype)  # an empty file has no map


def _filter(
    chunk: list[tuple[str, str]], corpus: str, drop_reason: DropReason, steps: Sequence[Step], report: CleaningReport
) -> tuple[list[tuple[str, str]], np.ndarray]:
    kept: list[tuple[str, str]] = []
    rows: list[tuple[int, int]] = []
    for source, target in chunk:
        pair_hashes = sentence_hash(source), sentence_hash(target)
        if reason := drop_reason(source, target, pair_hashes):
            report.add(corpus, reason)
        else:
            kept.append((source, target))
            rows.append(pair_hashes)
    hashes = np.array(rows, dtype=np.uint64).reshape(len(rows), 2)
    for step, keeps in steps:
        mask = keeps(hashes)
        report.add(corpus, step, len(mask) - np.count_nonzero(mask))
        kept, hashes = list(itertools.compress(kept, mask.tolist())), hashes[mask]
    return kept, hashes


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

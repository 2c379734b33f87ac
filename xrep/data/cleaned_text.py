"""Cleaned parallel text: a table for each corpus, with the pairs that the rules for a single pair let pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.table import ColumnType, Flat, Table
from xrep.text.cleaning import CleaningOptions, HashSet, drop_reason, sentence_hash, template_hash
from xrep.text.examples import orient
from xrep.text.find import Bitext
from xrep.text.lines import is_too_long

SPLIT_ORDER = ("valid", "test", "train")
CLEANED_COLUMNS = {
    "source": ColumnType("u1", ragged=True),
    "target": ColumnType("u1", ragged=True),
    "hashes": ColumnType("<u8", 2),
    "template": ColumnType("<u8"),
}
"""The columns: both sides, each sentence in UTF-8 with a newline at its end, so that many of them are decoded at once;
the ``sentence_hash`` of each; and the ``template_hash`` of the target."""
FATES = ("kept", "in valid/test", "duplicate", "held out", "near held out", "sampled away")
"""The steps of preprocessing that compare a pair with others, by the number that stands for what becomes of a pair."""
KEPT, IN_EVALUATION, DUPLICATE, HELD_OUT, NEAR_HELD_OUT, SAMPLED_AWAY = range(len(FATES))
_BLOCK_ROWS = 1 << 18


@dataclass(frozen=True)
class Corpus:
    """Parallel text that is cleaned: its split, its name in the report, and the files as they are read (``orient``)."""

    split: str
    name: str
    bitext: Bitext


def list_corpora(
    splits: Mapping[str, Sequence[Bitext]], repeatable: Callable[[str], str]
) -> tuple[list[Corpus], list[str]]:
    """Return all corpora in the order in which they are cleaned, and notes for the user.

    Args:
        repeatable: Function that returns, for a file that can be read once only, one with what it has.
    """
    corpora, notes = dict[str, Corpus](), list[str]()
    for split in SPLIT_ORDER:
        for given in splits.get(split, []):
            files = ",".join(Path(path).name for path in given.paths)
            name = f"{'' if split == 'train' else split + ' '}{given.name} {files}"
            name += f" ({len(corpora)})" if name in corpora else ""
            read, note = orient(given)
            notes += [note] if note else []
            corpora[name] = Corpus(split, name, replace(read, paths=tuple(map(repeatable, read.paths))))
    return list(corpora.values()), notes


def kept_of_corpora(manifest: Mapping[str, Any], pair: str) -> list[int]:
    """Return the number of training pairs of each corpus of a language pair, in the order of the rows of its table."""
    return [counts[FATES[KEPT]] for name, counts in manifest["cleaning"].items() if name.startswith(f"{pair} ")]


def clean(
    pairs: Iterable[tuple[str, str]], options: CleaningOptions | None, excluded: HashSet
) -> tuple[dict[str, Flat | np.ndarray], Counter[str]]:
    """Return the rows of the pairs that may stay, and how many pairs each step has dropped.

    Each run of white space is replaced by one space, so that a sentence contains no line ends.

    Args:
        options: Rules for each pair; without them, only pairs with a side that is empty, or that ``is_too_long`` for
            any sentence, are dropped.
        excluded: Hashes of sentences that no side may be.
    """
    dropped, sources, targets = Counter[str](), list[str](), list[str]()
    found = list[tuple[int, int]]()
    for source, target in pairs:
        if is_too_long(source) or is_too_long(target):
            dropped["too long"] += 1
            continue
        source, target = " ".join(source.split()), " ".join(target.split())
        pair = sentence_hash(source), sentence_hash(target)
        if options is None:
            reason = None if source and target else "empty"
        else:
            reason = drop_reason(source, target, pair, options)
        if reason:
            dropped[reason] += 1
        else:
            sources.append(source)
            targets.append(target)
            found.append(pair)
    hashes = np.array(found, dtype=np.uint64).reshape(-1, 2)
    allowed = np.logical_not(excluded.contains(hashes).any(axis=1))
    dropped["excluded"] = int(np.count_nonzero(~allowed))
    hashes = hashes[allowed]
    sources, targets = (list(compress(texts, allowed.tolist())) for texts in (sources, targets))
    templates = np.fromiter(map(template_hash, targets, hashes[:, 1].tolist()), np.uint64, len(targets))
    rows = {"source": _lines(sources), "target": _lines(targets), "hashes": hashes, "template": templates}
    return rows, dropped


def _lines(texts: Iterable[str]) -> Flat:
    """Return texts as rows of UTF-8, each with a newline at its end."""
    content = np.frombuffer("".join(f"{text}\n" for text in texts).encode("utf-8"), np.uint8)
    return content, np.diff(np.flatnonzero(content == ord("\n")) + 1, prepend=0)


@dataclass(frozen=True)
class CleanedText:
    """The cleaned pairs of a corpus, in their original order, and what becomes of each. Memory holds only what is asked
    for.

    Attributes:
        corpus: The corpus.
        table: See ``CLEANED_COLUMNS``.
        counts: The number of pairs that were read, and that each step has dropped.
        ends: Where each chunk of the text that was cleaned at a time ends, in rows.
        first: The number of the first pair, counted over all corpora.
        fates: One of ``FATES`` for each pair, by its number: uint8 [n], mapped from a file.
    """

    corpus: Corpus
    table: Table
    counts: Mapping[str, int]
    ends: Sequence[int]
    first: int
    fates: np.ndarray

    def blocks(self) -> Iterator[slice]:
        """Yield ranges of rows, of which numbers are processed one at a time."""
        for start in range(0, len(self.table), _BLOCK_ROWS):
            yield slice(start, min(start + _BLOCK_ROWS, len(self.table)))

    def chunks(self, fate: int) -> Iterator[tuple[slice, int]]:
        """Yield ranges of rows, of which sentences are processed one at a time, with the number of pairs that have a
        fate, if there are any."""
        for start, end in pairwise([0, *self.ends]):
            if count := int(np.count_nonzero(self.fates[start:end] == fate)):
                yield slice(start, end), count

    def by_fate(self) -> np.ndarray:
        """Return the number of pairs of each fate: int64 [len(FATES)]."""
        counts = np.zeros(len(FATES), np.int64)
        for block in self.blocks():
            counts += np.bincount(self.fates[block], minlength=len(FATES))
        return counts

    def sentences(self, side: str, rows: slice, fate: int) -> list[str]:
        """Return the sentences of one side in a range of rows whose pairs have a fate."""
        column = self.table[side]
        assert column.offsets is not None
        begin, end = column.offsets[[rows.start, rows.stop]]
        lines = column.values[begin:end].tobytes().decode("utf-8").split("\n")
        return list(compress(lines, (self.fates[rows] == fate).tolist()))


def by_languages(texts: Iterable[CleanedText]) -> dict[tuple[str, str], list[CleanedText]]:
    """Return the texts of each language pair, in their order."""
    grouped = dict[tuple[str, str], list[CleanedText]]()
    for text in texts:
        grouped.setdefault(text.corpus.bitext.languages, []).append(text)
    return grouped

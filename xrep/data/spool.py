"""Temporary storage on disk between the passes of preprocessing: the cleaned pairs of each corpus and their marks."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from xrep.text.cleaning import CleaningOptions, drop_reason, sentence_hash, template_hash
from xrep.text.examples import orient, read_pairs
from xrep.text.find import Bitext
from xrep.text.lines import is_too_long

DROPPED, KEPT, HELD_OUT, DUPLICATE = 0, 1, 2, 3
SPLIT_ORDER = ("valid", "test", "train")
"""Evaluation text is read first, because training text is compared with it."""
_CHUNK_LINES = 8192
_BLOCK_ROWS = 1 << 18


FILES = TEXT, HASHES, TEMPLATES = "text", "hashes", "templates"
"""Names of the files of a spool."""


@dataclass(frozen=True)
class RawCorpus:
    """Parallel text that is read: its split, its name in the report, and its files as they were given and as they are
    read (``orient``)."""

    split: str
    name: str
    given: Bitext
    read: Bitext


class SpoolWriter(ExitStack):
    """Context manager that writes the files of a spool to a folder.

    Attributes:
        chunks: Where each chunk of the text begins, in bytes and in rows, and the end of the last one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files = [self.enter_context((folder / name).open("xb")) for name in FILES]
        self.chunks = [(0, 0)]

    def append(self, cleaned: Cleaned) -> None:
        """Add a chunk of pairs."""
        contents = cleaned.text, cleaned.hashes.tobytes(), cleaned.templates.tobytes()
        for file, content in zip(self._files, contents, strict=True):
            file.write(content)
        if len(cleaned.hashes):
            place, rows = self.chunks[-1]
            self.chunks.append((place + len(cleaned.text), rows + len(cleaned.hashes)))


@dataclass(frozen=True)
class Spool:
    """The cleaned pairs of one corpus on disk, in their original order. Memory holds only what is asked for.

    Attributes:
        corpus: The corpus.
        files: The files by their names: ``text`` has lines ``source<TAB>target``, ``hashes`` the ``sentence_hash`` of
            both sides, uint64 [N, 2], and ``templates`` that of the target's template, uint64 [N].
        chunks: As ``SpoolWriter`` has them.
        counts: The number of pairs that were read, and that each step of cleaning dropped.
        marks_file: One of the marks above for each pair, uint8 [N].
    """

    corpus: RawCorpus
    files: Mapping[str, str]
    chunks: Sequence[tuple[int, int]]
    counts: Mapping[str, int]
    marks_file: Path = Path()

    def __len__(self) -> int:
        return self.chunks[-1][1]

    def mark_all(self) -> None:
        """Mark every pair as KEPT, as they are at first."""
        with self.marks_file.open("wb") as file:
            for block in self.blocks():
                file.write(bytes([KEPT]) * (block.stop - block.start))

    def blocks(self) -> Iterator[slice]:
        """Yield ranges of rows, to be processed one at a time."""
        for start in range(0, len(self), _BLOCK_ROWS):
            yield slice(start, min(start + _BLOCK_ROWS, len(self)))

    def hashes(self, rows: slice) -> np.ndarray:
        """Return uint64 [n, 2]."""
        return _read(self.files[HASHES], np.uint64, 2, rows).reshape(-1, 2)

    def templates(self, rows: slice) -> np.ndarray:
        """Return uint64 [n]."""
        return _read(self.files[TEMPLATES], np.uint64, 1, rows)

    def marks(self, rows: slice) -> np.ndarray:
        """Return uint8 [n]."""
        return _read(self.marks_file, np.uint8, 1, rows)

    def mark(self, rows: np.ndarray, mark: int) -> None:
        """Change the marks of ``rows``, int64 [n]."""
        rows = np.sort(rows)
        while len(rows):
            start = int(rows[0]) // _BLOCK_ROWS * _BLOCK_ROWS
            count = int(np.searchsorted(rows, start + _BLOCK_ROWS))
            size = min(_BLOCK_ROWS, len(self) - start)
            np.memmap(self.marks_file, np.uint8, "r+", start, (size,))[rows[:count] - start] = mark
            rows = rows[count:]

    def count(self, mark: int) -> int:
        """Return the number of pairs that have ``mark``."""
        return sum(int(np.count_nonzero(self.marks(block) == mark)) for block in self.blocks())

    def chunks_with(self, mark: int) -> Iterator[tuple[int, int]]:
        """Yield the number of each chunk in which pairs have ``mark``, and the number of these pairs."""
        for number, ((_, first), (_, end)) in enumerate(itertools.pairwise(self.chunks)):
            if found := int(np.count_nonzero(self.marks(slice(first, end)) == mark)):
                yield number, found

    def pairs(self, chunk: int, mark: int) -> tuple[list[str], list[str], np.ndarray]:
        """Return the pairs of a chunk that have ``mark``: sources, targets and hashes, uint64 [n, 2]."""
        (place, first), (end, last) = self.chunks[chunk : chunk + 2]
        with open(self.files[TEXT], "rb") as file:
            file.seek(place)
            lines = file.read(end - place).decode("utf-8").split("\n")
        chosen = np.flatnonzero(self.marks(slice(first, last)) == mark)
        rows = [lines[row].split("\t") for row in chosen.tolist()]
        return [row[0] for row in rows], [row[1] for row in rows], self.hashes(slice(first, last))[chosen]


def list_corpora(
    splits: Mapping[str, Sequence[Bitext]], repeatable: Callable[[str], str]
) -> tuple[list[RawCorpus], list[str]]:
    """Return all corpora in the order in which they are read, and notes for the user.

    Args:
        repeatable: Function that returns, for a file that can be read once only, one with what it has.
    """
    corpora, notes = dict[str, RawCorpus](), list[str]()
    for split in SPLIT_ORDER:
        for given in splits.get(split, []):
            files = ",".join(Path(path).name for path in given.paths)
            name = f"{'' if split == 'train' else split + ' '}{given.name} {files}"
            name += f" ({len(corpora)})" if name in corpora else ""
            read, note = orient(given)
            notes += [note] if note else []
            read = replace(read, paths=tuple(map(repeatable, read.paths)))
            corpora[name] = RawCorpus(split, name, given, read)
    return list(corpora.values()), notes


def _read(path: str | Path, dtype: type, width: int, rows: slice) -> np.ndarray:
    size = np.dtype(dtype).itemsize * width
    return np.fromfile(path, dtype, (rows.stop - rows.start) * width, offset=rows.start * size)


@dataclass(frozen=True)
class Cleaned:
    """What cleaning leaves of a chunk: lines ``source<TAB>target`` with their hashes, and what it dropped by rule."""

    text: bytes
    hashes: np.ndarray
    templates: np.ndarray
    dropped: Counter[str]

    def only(self, mask: np.ndarray) -> Cleaned:
        """Return the pairs where ``mask``, bool [n], is true."""
        if mask.all():
            return self
        lines = itertools.compress(self.text.splitlines(keepends=True), mask.tolist())
        return Cleaned(b"".join(lines), self.hashes[mask], self.templates[mask], self.dropped)


def read_chunks(bitext: Bitext) -> Iterator[list[tuple[str, str]]]:
    """Yield the pairs of a corpus, as written, in chunks."""
    pairs = ((source, target) for _, source, target in read_pairs(bitext))
    while chunk := list(itertools.islice(pairs, _CHUNK_LINES)):
        yield chunk


def clean(pairs: Sequence[tuple[str, str]], options: CleaningOptions | None) -> Cleaned:
    """Apply the rules that concern one pair; without options, only pairs with a side that is empty, or that
    ``is_too_long`` for any sentence, are dropped.

    Each run of white space is replaced by one space, so that a sentence contains neither tabs nor line ends.
    """
    dropped, lines = Counter[str](), list[str]()
    hashes, templates = list[tuple[int, int]](), list[int]()
    for pair in pairs:
        if any(map(is_too_long, pair)):
            dropped["too long"] += 1
            continue
        source, target = (" ".join(text.split()) for text in pair)
        own = sentence_hash(source), sentence_hash(target)
        if options is None:
            reason = None if source and target else "empty"
        else:
            reason = drop_reason(source, target, own, options)
        if reason:
            dropped[reason] += 1
        else:
            lines.append(f"{source}\t{target}\n")
            hashes.append(own)
            templates.append(template_hash(target))
    rows = np.array(hashes, dtype=np.uint64).reshape(-1, 2)
    return Cleaned("".join(lines).encode("utf-8"), rows, np.array(templates, dtype=np.uint64), dropped)

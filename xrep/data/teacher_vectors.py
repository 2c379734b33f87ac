"""Vectors of sentences on disk that an encoder, or another system, has computed before training."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from xrep.data.build import cached_at, chunks
from xrep.data.disk_sort import DiskSort
from xrep.data.table import HASH, MANIFEST_FILE, ColumnType, DataDirectory, TableWriter, write_manifest
from xrep.errors import UserError
from xrep.files import build_once
from xrep.hashing import find_sorted
from xrep.store.vectors import Vectors
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.lines import read_lines

_SCANNED = 8192
"""Number of vectors that are checked at a time."""
_LAYOUT = "`{}` must be floats [N, D] (.npy, or a folder of xrep-encode), a row for each line of `{}_text`"


class TeacherVectors:
    """Vectors that another system computed for the lines of a text: row i of ``vectors`` belongs to line i of ``text``.

    Sentences are looked up by the same hash that training data stores. Lines that differ only in case or punctuation
    therefore count as one sentence, which gets the vector of the first of these lines. Sentences without words have no
    such hash, and so no vector.

    Args:
        vectors: The address of vectors [N, D] as xrep-encode writes them: a ``.npy`` file or a folder.
        text: The address of a UTF-8 file with one sentence per line, optionally compressed.
        option: The name of the option of the vectors, and in front of ``_text`` that of the text.
        hashes: The hashes of the lines, uint64 [N], if they are known, sorted and all different. That of sentences
            without words may be one of them, which then share a vector.

    Raises:
        UserError: A file does not exist, or the two files do not belong together.
    """

    def __init__(
        self, vectors: str | Path, text: str | Path, option: str = "teacher", hashes: np.ndarray | None = None
    ) -> None:
        self.path, self.text = vectors, text
        cure = _LAYOUT.format(f"{option}_vectors" if option == "teacher" else option, option)
        self._vectors = Vectors(self.path, cure=cure)
        self.width = self._vectors.size
        self._shares = hashes is not None
        if hashes is not None:
            self._hashes, self._lines = hashes, np.arange(len(hashes))
            return
        data = _sorted_lines(text)
        if data.manifest["lines"] != len(self._vectors):
            problem = f"{len(self._vectors)} vectors, but {self.text} has {data.manifest['lines']} lines"
            raise UserError(problem, path=self.path, cure=cure)
        (table,) = data.splits["train"]
        self._hashes, self._lines = table.hashes, table["lines"].values

    def has(self, hashes: np.ndarray) -> np.ndarray:
        """Return whether sentences with these hashes, uint64 [...], have a vector, bool [...]."""
        return (self._shares | (hashes != NO_KEY)) & (find_sorted(self._hashes, hashes) >= 0)

    def of(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the vectors of sentences with these ids, int64 [...], at length 1: float32 [..., D]; NaN for those of
        sentences that have none, such as those of validation."""
        hashes = ids.numpy().view(np.uint64)
        known, vectors = self.has(hashes), np.full((*hashes.shape, self.width), np.nan, np.float32)
        vectors[known] = self.read(hashes[known])
        return F.normalize(torch.from_numpy(vectors), dim=-1)

    def check(self, needed: Iterable[np.ndarray]) -> None:
        """Raise UserError if a sentence that is needed has no vector, or one of another system that is not finite or is
        zero. ``needed`` are blocks of hashes, uint64 [N] each."""
        used = np.zeros(len(self._vectors), dtype=bool)
        for hashes in needed:
            used[self.rows(hashes)] = True
        if self._vectors.manifest or self._shares:  # what xrep has encoded has been checked
            return
        for start in range(0, len(used), _SCANNED):
            own = used[start : start + _SCANNED]
            vectors = self._vectors.stored(slice(start, start + _SCANNED))
            vectors[~own] = 1
            self._vectors.check_rows(vectors, start, ~own)

    def rows(self, hashes: np.ndarray) -> np.ndarray:
        """Return the row of the vector of each sentence, int64 [N], given the sentences' hashes, uint64 [N]. Raises
        UserError if a sentence has no vector."""
        if not self._shares and (wordless := np.count_nonzero(hashes == NO_KEY)):
            problem = f"{wordless} of {len(hashes)} training sentences that need a vector have no words"
            raise UserError(problem, path=self.text, cure="remove their pairs; such lines cannot be told apart")
        places = find_sorted(self._hashes, hashes)
        if missing := np.count_nonzero(places < 0):
            problem = f"lacks {missing} of {len(hashes)} training sentences that need a vector"
            raise UserError(problem, path=self.text, cure="add them, and their vectors")
        return self._lines[places]

    def read(self, hashes: np.ndarray) -> np.ndarray:
        """Return the vectors of the sentences with these hashes (uint64 [N]), float32 [N, D]. Raises UserError if a
        sentence has no vector, or its vector is not finite."""
        rows = self.rows(hashes)
        vectors = self._vectors.stored(rows).astype(np.float32)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            problem = f"the vector of line {int(rows[~finite][0]) + 1} is not finite"
            raise UserError(problem, path=self.path, cure="check the system that made it")
        return vectors


def check_width(given: int, width: int, path: str | Path) -> None:
    """Raise UserError if a teacher's vectors have another width than the student's."""
    if given != width:
        problem = f"vectors of {given} numbers, the model's have {width}"
        raise UserError(problem, path=path, cure=f"set `projection_size` to {given}")


def _sorted_lines(text: str | Path) -> DataDirectory:
    """Return a table of the sentences of a text: their hashes, sorted, and the first line that has each of them."""
    kind, schema = "lines", {"hashes": HASH, "lines": ColumnType("<i8")}

    directory = cached_at("tables", [kind], [text])

    def write(folder: Path) -> None:
        print(f"sorting the sentences of {text} (once; kept in {directory})")
        order, count = DiskSort(folder, 2), 0
        for lines in chunks(line for _, line in read_lines(text)):
            numbers = np.arange(count, count + len(lines), dtype=np.uint64)
            order.add(np.stack([sentence_hashes(lines), numbers], 1))
            count += len(lines)
        with TableWriter(folder, "train.text", schema) as table:
            for rows in order.parts():
                hashes, first = np.unique(rows[:, 0], return_index=True)
                table.append({"hashes": hashes, "lines": rows[first, 1]})
        splits = {"train": [{"name": "text", **table.facts}]}
        write_manifest(folder, kind, splits, None, {"lines": count})

    build_once(directory, MANIFEST_FILE, write)
    return DataDirectory(directory, kind)

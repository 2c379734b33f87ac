"""Sentence vectors that another system computed for the lines of a text file, looked up by sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.hashing import find_sorted
from xrep.store.vectors import Vectors
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.lines import read_lines

_LAYOUT = (
    "`teacher_vectors` must be floats [N, D] (.npy, or a folder of xrep-encode), a row for each line of `teacher_text`"
)


class TeacherVectors:
    """Vectors from a file: row i of ``vectors`` belongs to line i of ``text``.

    Sentences are looked up by the same hash that training data stores. Lines that differ only in case or punctuation
    therefore count as one sentence, which gets the vector of the first of these lines. Sentences without words have no
    such hash, and so no vector.

    Args:
        vectors: The address of vectors [N, D] as xrep-encode writes them: a ``.npy`` file or a folder.
        text: The address of a UTF-8 file with one sentence per line, optionally compressed.

    Raises:
        UserError: A file does not exist, or the two files do not belong together.
    """

    def __init__(self, vectors: str | Path, text: str | Path) -> None:
        self.path, self.text = vectors, text
        self._vectors = Vectors(self.path, cure=_LAYOUT)
        self.width = self._vectors.size
        hashes = sentence_hashes(line for _, line in read_lines(self.text))
        if len(hashes) != len(self._vectors):
            problem = f"{len(self._vectors)} vectors, but {self.text} has {len(hashes)} lines"
            raise UserError(problem, path=self.path, cure=_LAYOUT)
        self._hashes, self._first = np.unique(hashes.view(np.int64), return_index=True)

    def rows(self, hashes: np.ndarray) -> np.ndarray:
        """Return the row of the vector of each sentence, int64 [N], given the sentences' hashes, int64 [N]. Raises
        UserError if a sentence has no vector."""
        if wordless := np.count_nonzero(hashes == NO_KEY):
            problem = f"{wordless} of {len(hashes)} training pairs have a source sentence without words"
            raise UserError(problem, path=self.text, cure="remove these pairs; such lines cannot be told apart")
        places = find_sorted(self._hashes, hashes)
        if missing := np.count_nonzero(places < 0):
            problem = f"lacks the source sentences of {missing} of {len(hashes)} training pairs"
            raise UserError(problem, path=self.text, cure="add them, and their vectors, or drop pairs without words")
        return self._first[places]

    def read(self, hashes: np.ndarray) -> np.ndarray:
        """Return the vectors of the sentences with these hashes (int64 [N]), float32 [N, D]. Raises UserError if a
        sentence has no vector, or its vector is not finite."""
        rows = self.rows(hashes)
        vectors = self._vectors.stored(rows).astype(np.float32)
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            problem = f"the vector of line {int(rows[~finite][0]) + 1} is not finite"
            raise UserError(problem, path=self.path, cure="check the system that made it")
        return vectors

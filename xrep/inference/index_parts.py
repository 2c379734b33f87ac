"""The directory of a search index: its manifest and its parts, which are opened and searched here.

Layout::

    manifest.json            what made the vectors, how they are indexed, and the text, size and sha256 of each part
    part-00000/              the sentences that ``build`` wrote
        lines.txt, offsets.npy and others        the sentences, and their numbers in the text (``xrep.store.lines``)
        vectors.npy          float16 [N, D], each of length 1
        00000.faiss, ...     faiss's index of the first vectors, of the next ones, and so on; none: the search is exact
    part-00001/              those that the first ``add`` wrote, and so on

A part never changes. It is made in ``{directory}.job`` and moved into the directory before the manifest that lists it
replaces the old one. So whoever has read the manifest finds all that it lists. A command that was interrupted goes on
from ``{directory}.job``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.precision import Precision
from xrep.retrieval.ivf import compare_proposed
from xrep.retrieval.neighbours import neighbours
from xrep.retrieval.topk import TopK
from xrep.store.lines import Texts
from xrep.store.vectors import Vectors

SCHEMA = 2
MANIFEST, VECTORS = "manifest.json", "vectors.npy"
_SEARCHED_BYTES = 1 << 25
"""Bytes of float32 vectors that are searched at a time."""
_LEAST = 128
"""Fewest rows that faiss proposes for a query."""


@dataclass(frozen=True, kw_only=True)
class PartFacts:
    """A part: its folder; the name (null: no file), the language and the number of lines of its text; its number of
    sentences; how faiss describes its index ("flat": none), and the rows of each file of faiss; ``sha256`` and
    ``bytes`` of all files."""

    folder: str
    source: str | None
    language: str | None
    lines: int
    rows: int
    index: str
    index_rows: int
    files: dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an index says of itself. ``encoder`` is the path or the name of the encoder, and ``beside`` its path from
    the directory, because both may be moved together. ``index`` is what the user wanted."""

    schema: int
    xrep: str
    encoder: str
    beside: str
    fingerprint: str
    precision: Precision
    prompt: str
    index: str
    size: int
    parts: list[PartFacts]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read the manifest of a directory; a UserError says that this is not an index, or has another schema."""
        if not path.exists():
            raise UserError("no such index", path=path, cure="build it with xrep-search build")
        try:
            values = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            schema, _ = values["schema"], values["fingerprint"]
            if schema == SCHEMA:
                return cls(**values | {"parts": [PartFacts(**part) for part in values["parts"]]})
        except (OSError, ValueError, KeyError, TypeError):
            cure = "name a directory that xrep-search build wrote"
            raise UserError(f"not an index (no valid {MANIFEST})", path=path, cure=cure) from None
        problem = f"an index of schema {schema!r:.20}, this version reads {SCHEMA}"
        raise UserError(problem, path=path, cure="use the version that wrote it, or build it again")


class Part:
    """A part of an index, whose sentences have the rows from ``start`` on. A UserError says which of its files has
    another size than it had."""

    def __init__(self, folder: Path, facts: PartFacts, start: int) -> None:
        self.folder, self.facts, self.start = folder, facts, start
        for name, described in facts.files.items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != described["bytes"]:
                raise damaged(folder / name)
        self.lines, self.vectors = Texts.open(folder), Vectors(folder / VECTORS)

    @cached_property
    def _indexes(self) -> list[Any]:
        """The indexes of faiss, whose inverted lists stay on disk."""
        import faiss

        names = sorted(name for name in self.facts.files if name.endswith(".faiss"))
        return [faiss.read_index(str(self.folder / name), faiss.IO_FLAG_MMAP) for name in names]

    @cached_property
    def _held(self) -> np.ndarray:
        """The vectors of a small part, which are read once."""
        return self.vectors.read(slice(None))

    def search(self, x_QD: np.ndarray, best: TopK, probes: int, *, exact: bool = False) -> None:
        """Add the vectors nearest to queries of length 1 to their neighbours: those that faiss proposes, if there is an
        index of faiss, and if the search is not to be ``exact``. All similarities are computed from the vectors."""
        if not self.facts.index_rows or exact:
            step = max(1, _SEARCHED_BYTES // (4 * self.vectors.size))
            for first in range(0, self.facts.rows, step):
                y_ND = self._held if self.facts.rows <= step else self.vectors.read(slice(first, first + step))
                found, _ = neighbours(x_QD, y_ND, min(best.k, len(y_ND)), 0)
                best.merge(TopK(found.similarity, found.index + self.start + first))
            return
        import faiss

        for number, index in enumerate(self._indexes):
            if lists := faiss.try_extract_index_ivf(index):
                lists.nprobe = min(probes, lists.nlist)
            _, proposed = index.search(x_QD, min(max(_LEAST, 8 * best.k), index.ntotal))
            first = number * self.facts.index_rows
            compare_proposed(best, x_QD, proposed, self.vectors, first, self.start + first)


def damaged(path: Path) -> UserError:
    cure = "remove the index and build it again"
    return UserError("damaged: the file is not as it was written", path=path, cure=cure)

"""One side of mining as stages of a job: its text or vectors, without sentences that are empty or repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.hashing import hash_bytes
from xrep.inference.distinct import HASHED_BYTES, Distinct, SearchedSide
from xrep.inference.encoding import Encode, HeldEncoder, Read, VectorSource, origin_of
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.settings import MiningOptions, SearchOptions
from xrep.jobs.outputs import repeatable, states_of
from xrep.jobs.plan import Advance, Stage
from xrep.retrieval.ivf import make_index
from xrep.store import addresses
from xrep.store.arrays import READ_BYTES, block_bounds
from xrep.store.texts import HASHES
from xrep.store.vectors import Origin, Vectors, text_digest
from xrep.text.languages import canonical

_CHECKED_ROWS = 1 << 18
"""Number of vectors that are checked as a unit."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """One side of the search: a text, or vectors, or both. Row i of the vectors belongs to line i of the text, which
    may be several files, ``part*.txt``. Its language is needed if the encoder has a tower for each side."""

    name: Literal["source", "target"]
    text: str | Path | None = None
    vectors: str | Path | None = None
    lang: str | None = None


class TextSide(SearchedSide):
    """One side of the search as stages: its text is read, sentences that are empty or repeated are left out, and the
    vectors of the others are computed or, if they were given, checked."""

    def __init__(
        self, text: Text, output: str | Path, encoder: HeldEncoder | None, options: MiningOptions, k: int
    ) -> None:
        """``k`` neighbours are searched of each sentence, of which the margin uses some."""
        self.name = text.name
        files = [repeatable(file, output) for file in (addresses.matching_files(str(text.text)) if text.text else ())]
        lang = text.lang and canonical(text.lang)
        self._read = Read(text.name, files, lang, "stripped") if files else None
        self.facts: dict[str, Any] = {"text": states_of(files), "lang": lang}
        if text.vectors:
            given = CheckVectors(text, self._read)
            self.distinct = Distinct(text.name, self._read or given, options.neighbours)
            self.stages: list[Stage] = [*filter(None, [self._read]), given, self.distinct]
            self.made_by = given.made_by
            self.facts["vectors"] = states_of([text.vectors])
            super().__init__(given, k, self.distinct)
        elif self._read is None or encoder is None:
            raise UserError(f"no vectors of the {text.name}", cure="give them, or a text and an encoder")
        else:
            self.distinct = Distinct(text.name, self._read, options.neighbours)
            origin = search_origin(encoder.encoder, lang, options)
            encode = Encode(text.name, self.distinct, encoder, origin)
            self.stages = [self._read, self.distinct, encode]
            self.made_by = encoder.path, origin.size, origin.encoder
            super().__init__(encode, k)

    def has(self, hashes: np.ndarray) -> np.ndarray:
        """Return which hashes of sentences are those of lines of the text, bool [n]; none if there is no text."""
        there = np.zeros(len(hashes), bool)
        for result in self._read.results if self._read else ():
            for _, known in result.array(HASHES).blocks(HASHED_BYTES):
                there |= np.isin(hashes, known[:, 0])
        return there

    def columns(self, chosen: np.ndarray) -> Iterable[object]:
        """Return what is written of some sentences: their lines or, if there is no text, their numbers from 1."""
        return self.distinct.texts.take(chosen) if self._read else (self.distinct.rows.read(chosen) + 1).tolist()


def search_origin(
    encoder: SentenceEncoder, lang: str | None, options: SearchOptions, usual: Iterable[str] = ()
) -> Origin:
    """Return what the vectors of a search depend on, in which numbers have 16 bits. Sentences get the first of the
    ``usual`` prompts that the encoder has, or else its default. A UserError says that there is no such index of them.
    """
    if options.index != "flat":
        make_index(options.index, encoder.output_size)
    prompt = encoder.find_prompt(None, usual) if usual else None
    return origin_of(encoder, lang, dtype="float16", batch_tokens=options.batch_tokens, normalize=True, prompt=prompt)


class CheckVectors(VectorSource, Stage):
    """Check vectors that were given: those of a folder by the checksums of the lines, others by their numbers. A unit
    is a part of a folder, or some rows."""

    unit = "vectors"

    def __init__(self, text: Text, read: Read | None) -> None:
        self.name, self._text, self._read = f"check-{text.name}", text, read

    @cached_property
    def vectors(self) -> Vectors:
        assert self._text.vectors
        return Vectors(self._text.vectors)

    @property
    def made_by(self) -> tuple[str, int, str | None]:
        """The path and the size of the vectors, and the fingerprint of their encoder."""
        return self.vectors.path, self.vectors.size, self.vectors.manifest and self.vectors.manifest.origin.encoder

    @cached_property
    def units(self) -> Sequence[tuple[int, int]]:
        if self._read and self._text.text:
            self.vectors.check_count(len(self._read.texts), self._text.text)
        return list(
            pairwise(self.vectors.starts) if self.vectors.manifest else block_bounds(len(self.vectors), _CHECKED_ROWS)
        )

    def weight(self, unit: tuple[int, int]) -> int:
        return unit[1] - unit[0]

    def run(self, unit: tuple[int, int], folder: Path, advance: Advance) -> dict[str, Any]:
        """Without a text, write hashes of the rows with their places among these rows."""
        (start, stop), vectors = unit, self.vectors
        texts = self._read.texts if self._read else None
        if vectors.manifest and texts:
            assert self._text.text
            vectors.check_text(self.units.index(unit), text_digest(texts.read(start, stop)), self._text.text)
            return {"rows": stop - start}
        hashes = np.empty((0 if texts else stop - start, 2), np.uint64)
        for first, last in block_bounds(stop - start, READ_BYTES // (vectors.size * vectors.dtype.itemsize)):
            rows = vectors.stored(slice(start + first, start + last))
            lines = texts.read(start + first, start + last) if texts else ["-"] * len(rows)
            vectors.check_rows(rows, start + first, np.array([not line for line in lines]))
            if texts is None:
                hashes[first:last] = [(hash_bytes(row.data), place) for place, row in enumerate(rows, first)]
            advance(len(rows))
        if texts is None:
            np.save(folder / HASHES, hashes)
        return {"rows": stop - start}

"""Semantic search: an index of sentences that answers queries in any language of its encoder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from xrep.errors import UserError
from xrep.inference.index_files import LINES, IndexOptions, Lines, Manifest, build, open_files
from xrep.inference.sentence_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder
from xrep.memory import check_memory
from xrep.precision import Precision
from xrep.retrieval.faiss_files import PROBES, Quantize
from xrep.retrieval.faiss_search import nearest
from xrep.retrieval.neighbours import normalize_rows


@dataclass(frozen=True)
class Hit:
    """A sentence that was found: its cosine with the query, its row in the index (from 0), its file (None for sentences
    that were in no file), its line there (from 1) and its text."""

    score: float
    row: int
    file: str | None
    line: int
    text: str


class SearchIndex:
    """A directory with the vectors of sentences, which is searched with faiss.

    >>> index = SearchIndex.build("run1/best", "corpus.txt", "index/", lang="en")    # doctest: +SKIP
    >>> index.search("Wo ist der Bahnhof?", k=5, lang="de")[0].text                  # doctest: +SKIP
    'Where is the station?'
    >>> index.add(["The bus stop is over there."], lang="en")                        # doctest: +SKIP

    ``xrep.inference.index_files`` describes the files of the directory. ``manifest`` is what it says of itself.

    Args:
        path: The directory.
        encoder: The encoder, or its path, if it is not to be loaded from where it was when the index was built.
        device: Device of an encoder that is loaded.

    Raises:
        UserError: This is not an index, a file is damaged, or the encoder is not the one that made the vectors.
    """

    def __init__(
        self, path: str | Path, encoder: SentenceEncoder | str | Path | None = None, *, device: str | None = None
    ) -> None:
        self.path, self._device = Path(path), device
        self._given: SentenceEncoder | str | Path | None = encoder
        self._files = open_files(path)
        if isinstance(encoder, SentenceEncoder):
            self._check(encoder)

    @classmethod
    def build(
        cls,
        encoder: SentenceEncoder | str | Path,
        lines: Lines,
        path: str | Path,
        *,
        lang: str | None = None,
        index: Literal["auto", "flat", "ivf"] = "auto",
        quantize: Quantize = "none",
        precision: Precision = "float32",
        prompt_name: str | None = None,
        batch_tokens: int = 4096,
        device: str | None = None,
        show_progress: bool = False,
    ) -> SearchIndex:
        """Encode sentences, write their index to a new directory, and open it.

        Memory does not grow with the number of sentences. If it is interrupted, call it again with the same arguments:
        it goes on.

        Args:
            encoder: The encoder, or what ``SentenceEncoder.load`` accepts.
            lines: A file, whose lines are sentences (``-`` is standard input), or the sentences. Empty ones are left
                out, and each run of white space becomes one space.
            lang, batch_tokens: As in ``SentenceEncoder.encode``.
            index, quantize: As in ``IndexOptions``.
            prompt_name: Name of the encoder's prompt that is put in front of each sentence; the default is the first
                of document, passage and corpus that there is, or else the encoder's default.
            precision, device: Type and device in which an encoder that is loaded computes.

        Raises:
            UserError: Something is at ``path``, there is no such prompt, or the sentences cannot be read or encoded.
        """
        if not isinstance(encoder, SentenceEncoder):
            encoder = SentenceEncoder.load(encoder, device=device, dtype=precision)
        named = encoder.path
        if named and os.path.exists(named):
            named = os.path.relpath(os.path.abspath(named), os.path.realpath(path))  # both may be moved together
        facts = {
            "encoder": named,
            "fingerprint": encoder.fingerprint(),
            "precision": encoder.precision,
            "prompt": encoder.find_prompt(prompt_name, DOCUMENT_PROMPTS),
            "options": IndexOptions(index=index, quantize=quantize),
        }
        build(path, encoder, facts, lines, lang, batch_tokens=batch_tokens, show_progress=show_progress)
        return cls(path, encoder)

    def add(
        self, lines: Lines, *, lang: str | None = None, batch_tokens: int = 4096, show_progress: bool = False
    ) -> None:
        """Encode further sentences and add them; arguments and errors are those of ``build``. Only they are encoded,
        with the prompt of the index. The directory is replaced at once by one with them."""
        held = self.manifest
        facts = {name: vars(held)[name] for name in ("encoder", "fingerprint", "precision", "prompt", "options")}
        more = {"batch_tokens": batch_tokens, "show_progress": show_progress}
        build(self.path, self.encoder, facts, lines, lang, base=self._files, **more)
        self._files = open_files(self.path)

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def manifest(self) -> Manifest:
        return self._files.manifest

    @property
    def encoder(self) -> SentenceEncoder:
        """The encoder of the index; a UserError says that it is not found, or not the one that made the vectors."""
        if not isinstance(self._given, SentenceEncoder):
            named = self._given
            if named is None:
                if not (recorded := self.manifest.encoder):
                    raise UserError("the index does not say where its encoder is", path=self.path, cure="give `path`")
                beside = os.path.normpath(os.path.join(os.path.realpath(self.path), recorded))
                named = beside if os.path.exists(beside) else recorded
            loaded = SentenceEncoder.load(named, device=self._device, dtype=self.manifest.precision)
            self._check(loaded)
            self._given = loaded
        return self._given

    def _check(self, encoder: SentenceEncoder) -> None:
        if encoder.fingerprint() != self.manifest.fingerprint:
            cure = "give `path`, or build the index again"
            raise UserError("its vectors were made by another encoder", path=self.path, cure=cure)

    @overload
    def search(  # pyright: ignore[reportOverlappingOverload] (a string is also a sequence of strings)
        self,
        queries: str,
        k: int = 10,
        lang: str | None = None,
        *,
        probes: int = PROBES,
        prompt_name: str | None = None,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        queries: Sequence[str],
        k: int = 10,
        lang: str | None = None,
        *,
        probes: int = PROBES,
        prompt_name: str | None = None,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        lang: str | None = None,
        *,
        probes: int = PROBES,
        prompt_name: str | None = None,
    ) -> Any:
        """Return the k sentences nearest to a query, nearest first, or a list of them for each of several queries.

        There may be fewer, if the index has fewer, or its inverted files miss some. A blank query finds nothing.

        Args:
            lang: Language of the queries; needed if the encoder has a tower for each side.
            probes: Number of inverted files that are searched; more find more and take longer.
            prompt_name: Name of the encoder's prompt that is put in front of each query; the default is query if there
                is one, or else the encoder's default.

        Raises:
            UserError: k or probes is below 1, the encoder has no tower for the language or no such prompt, or there is
                too little memory.
        """
        several = [queries] if isinstance(queries, str) else list(queries)
        full = [number for number, query in enumerate(several) if query.strip()]
        prompt = self.encoder.find_prompt(prompt_name, QUERY_PROMPTS)
        vectors = self.encoder.encode([several[number] for number in full], lang, prompt=prompt)
        hits: list[list[Hit]] = [[] for _ in several]
        scores_QK, rows_QK = self.search_vectors(vectors, k, probes=probes)
        for number, scores, rows in zip(full, scores_QK.tolist(), rows_QK.tolist(), strict=True):
            hits[number] = [self.hit(row, score) for score, row in zip(scores, rows, strict=True) if row >= 0]
        return hits[0] if isinstance(queries, str) else hits

    def search_vectors(
        self, vectors: np.ndarray, k: int = 10, *, probes: int = PROBES
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the cosines and the rows of the k vectors nearest to each query, float32 and int64 [Q, k], nearest
        first: at most as many as the index has, and -inf and -1 where inverted files miss some.

        Args:
            vectors: Queries [Q, D].

        Raises:
            UserError: As ``search``.
            ValueError: The vectors have another size than those of the index.
        """
        if min(k, probes) < 1:
            raise UserError(f"`{'k' if k < 1 else 'probes'}` {min(k, probes)}", cure="give at least 1")
        if vectors.ndim != 2 or vectors.shape[1] != self.manifest.size:
            raise ValueError(f"queries must be [Q, {self.manifest.size}], not {list(vectors.shape)}")
        k, held = min(k, len(self)), self._files
        check_memory(60 * k * max(1, len(vectors)), f"{k:,} sentences for each query", cure="lower `k`")
        x_QD = normalize_rows(np.ascontiguousarray(vectors, dtype=np.float32))
        return nearest(held.index, held.manifest.shape, held.vectors, x_QD, k, probes)

    def hit(self, row: int, score: float) -> Hit:
        """Return the sentence of a row of the index."""
        held = self._files
        (source, line), (start, stop) = held.ids[row].tolist(), held.offsets[row : row + 2].tolist()
        with open(held.path / LINES, "rb") as file:
            text = os.pread(file.fileno(), stop - start, start).decode().removesuffix("\n")
        return Hit(score, row, held.manifest.sources[source].name, line, text)

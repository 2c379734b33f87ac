"""Semantic search: an index of sentences that answers queries in any language of its encoder."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import xrep
from xrep.errors import UserError
from xrep.inference.index_files import Sentences, check_place, write_part
from xrep.inference.index_parts import SCHEMA, Manifest, Part, damaged
from xrep.inference.sentence_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder
from xrep.models.directory import describe
from xrep.precision import Precision
from xrep.retrieval.topk import TopK
from xrep.store.vectors import normalize_rows

PROBES = 32
"""Number of inverted lists that are searched for each query, unless the user wants another."""


@dataclass(frozen=True)
class Hit:
    """A sentence that was found: its cosine with the query, its row in the index (from 0), its file (None for sentences
    that were in no file), its line there (from 1) and its text."""

    score: float
    row: int
    file: str | None
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What ``SearchIndex.check`` found: the number and bytes of the files, all of which are as they were written, and
    the share (``recall``) of the ``k`` nearest sentences of some sentences (``queries``) that a search finds."""

    files: int
    bytes: int
    k: int
    queries: int
    recall: float


class SearchIndex:
    """A directory with the vectors of sentences, which is searched exactly or with faiss.

    >>> index = SearchIndex.build("run1/best", "corpus.txt", "index/", lang="en")    # doctest: +SKIP
    >>> index.search("Wo ist der Bahnhof?", k=5, lang="de")[0].text                  # doctest: +SKIP
    'Where is the station?'
    >>> index.add(["The bus stop is over there."])                                   # doctest: +SKIP

    ``xrep.inference.index_parts`` describes the files of the directory. ``manifest`` is what it says of itself.

    Args:
        path: The directory.
        encoder: The encoder, or its path, if it is not to be loaded from where it was when the index was built.
        device: Device of an encoder that is loaded.

    Raises:
        UserError: This is not an index, a file has another size, or the encoder is not the one that made the vectors.
    """

    def __init__(
        self, path: str | Path, encoder: SentenceEncoder | str | Path | None = None, *, device: str | None = None
    ) -> None:
        self.path, self._device, self._given = Path(path), device, encoder
        self._open()
        if isinstance(encoder, SentenceEncoder):
            _ = self.encoder  # compare it now

    def _open(self) -> None:
        self.manifest = Manifest.read(self.path)
        self._rows, self._parts = 0, list[Part]()
        for facts in self.manifest.parts:
            self._parts.append(Part(self.path / facts.folder, facts, self._rows))
            self._rows += facts.rows

    @classmethod
    def build(
        cls,
        encoder: SentenceEncoder | str | Path,
        lines: Sentences,
        path: str | Path,
        *,
        lang: str | None = None,
        index: str = "auto",
        precision: Precision = "float32",
        prompt_name: str | None = None,
        batch_tokens: int = 4096,
        device: str | None = None,
        show_progress: bool = False,
    ) -> SearchIndex:
        """Encode sentences, write their index to a new directory, and open it.

        If it is interrupted, call it again with the same arguments: it goes on. If all is done, nothing is changed.

        Args:
            encoder: The encoder, or what ``SentenceEncoder.load`` accepts.
            lines: A file, whose lines are sentences (``-`` is standard input), or the sentences. Empty ones are left
                out, and each run of white space becomes one space.
            lang, batch_tokens: As in ``SentenceEncoder.encode``.
            index: flat: the search is exact. A description of faiss's ``index_factory``, such as ``IVF4096,PQ48``: an
                index of faiss proposes sentences, and their vectors decide. auto: flat up to 100,000 sentences, and
                inverted lists with 8-bit numbers (``IVF{n},SQ8``) beyond.
            prompt_name: Name of the encoder's prompt that is put in front of each sentence; the default is the first
                of document, passage and corpus that there is, or else the encoder's default.
            precision, device: Type and device in which an encoder that is loaded computes.

        Raises:
            UserError: Something else is at ``path``, there is no such prompt, the sentences cannot be read or encoded,
                or faiss has no such index.
        """
        place = encoder.path if isinstance(encoder, SentenceEncoder) else encoder
        check_place(Path(path), place, lines)
        if not isinstance(encoder, SentenceEncoder):
            encoder = SentenceEncoder.load(encoder, device=device, dtype=precision)
        known = bool(encoder.path) and os.path.exists(encoder.path)
        named = os.path.abspath(encoder.path) if known else encoder.path
        new = Manifest(
            schema=SCHEMA,
            xrep=xrep.__version__,
            encoder=named,
            beside=os.path.relpath(named, os.path.realpath(path)) if known else "",
            fingerprint=encoder.fingerprint(),
            precision=encoder.precision,
            prompt=encoder.find_prompt(prompt_name, DOCUMENT_PROMPTS),
            index=index,
            size=encoder.output_size,
            parts=[],
        )
        write_part(path, encoder, new, lines, lang, batch_tokens=batch_tokens, show_progress=show_progress)
        return cls(path, encoder)

    def add(
        self, lines: Sentences, *, lang: str | None = None, batch_tokens: int = 4096, show_progress: bool = False
    ) -> None:
        """Encode further sentences and add them as a new part; arguments and errors are those of ``build``.

        They are encoded with the prompt of the index and, unless ``lang`` is given, in the language with which it was
        built. A search meanwhile finds all or none of them. At most 100,000 are searched exactly.
        """
        lang = lang or self.manifest.parts[0].language
        write_part(self.path, self.encoder, None, lines, lang, batch_tokens=batch_tokens, show_progress=show_progress)
        self._open()

    def __len__(self) -> int:
        return self._rows

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The encoder of the index; a UserError says that it is not found, or not the one that made the vectors."""
        cure, how = "give `path`, or build the index again", {"device": self._device, "dtype": self.manifest.precision}
        problem = UserError("its vectors were made by another encoder", path=self.path, cure=cure)
        for given in self._recorded() if self._given is None else [self._given]:
            try:
                encoder = given if isinstance(given, SentenceEncoder) else SentenceEncoder.load(given, **how)
            except UserError as error:
                problem = error
                continue
            if encoder.fingerprint() == self.manifest.fingerprint:
                return encoder
        raise problem

    def _recorded(self) -> list[str]:
        """Return where the encoder may be: its path from the index, and its path or name when that was built."""
        beside = os.path.normpath(os.path.join(os.path.realpath(self.path), self.manifest.beside))
        recorded = [place for place in (self.manifest.beside and beside, self.manifest.encoder) if place]
        if places := [place for place in recorded if os.path.exists(place) or not os.path.isabs(place)]:
            return places
        where = f"is not where it was ({' or '.join(dict.fromkeys(recorded))})" if recorded else "has no path"
        raise UserError(f"its encoder {where}", path=self.path, cure="give its directory as `path`")

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        lang: str | None = None,
        *,
        probes: int = PROBES,
        prompt_name: str | None = None,
    ) -> Any:
        """Return the k sentences nearest to a query, a list of ``Hit``, nearest first, or for several queries a list of
        such lists.

        There may be fewer, if the index has fewer, or its inverted lists miss some. A blank query finds nothing.

        Args:
            lang: Language of the queries; needed if the encoder has a tower for each side.
            probes: Number of inverted lists that are searched; more find more and take longer.
            prompt_name: Name of the encoder's prompt that is put in front of each query; the default is query if there
                is one, or else the encoder's default.

        Raises:
            UserError: k or probes is below 1, or the encoder has no tower for the language or no such prompt.
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
        first, and of equal ones the lowest row: at most as many as the index has, and -inf and -1 where inverted lists
        miss some.

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
        best = self._best(normalize_rows(np.ascontiguousarray(vectors, dtype=np.float32)), k, probes)
        return best.similarity.numpy(), best.index.numpy()

    def _best(self, x_QD: np.ndarray, k: int, probes: int, exact: bool = False) -> TopK:
        best = TopK.none(len(x_QD), min(k, len(self)))
        for part in self._parts if len(x_QD) else ():
            part.search(x_QD, best, probes, exact=exact)
        return best

    def hit(self, row: int, score: float) -> Hit:
        """Return the sentence of a row of the index."""
        part = self._parts[bisect_right(self._parts, row, key=lambda part: part.start) - 1]
        (text,), (_, line) = part.lines.take([row - part.start]), part.lines.place(row - part.start)
        return Hit(score, row, part.facts.source, line, text)

    def check(self, k: int = 10, queries: int = 100) -> Checked:
        """Compare all files with their checksums, and measure how many of the nearest sentences a search finds.

        The queries are sentences of the index, drawn with a fixed seed, each of which is not its own neighbour.

        Raises:
            UserError: A file is damaged.
        """
        files = [(part.folder / name, one) for part in self._parts for name, one in part.facts.files.items()]
        for path, described in files:
            if describe(path) != described:
                raise damaged(path)
        rows = np.sort(np.random.default_rng(0).choice(len(self), min(queries, len(self)), replace=False))
        x_QD = np.concatenate([
            part.vectors.read(rows[(part.start <= rows) & (rows < part.start + part.facts.rows)] - part.start)
            for part in self._parts
        ])  # fmt: skip
        exact, found = (self._best(x_QD, k + 1, PROBES, exact).index.tolist() for exact in (True, False))
        shares = []
        for row, *both in zip(rows.tolist(), exact, found, strict=True):
            wanted, given = ({*[other for other in some if other not in (row, -1)][:k]} for some in both)
            shares.append(len(wanted & given) / len(wanted) if wanted else 1.0)
        size, recall = sum(described["bytes"] for _, described in files), round(sum(shares) / len(shares), 4)
        return Checked(files=len(files), bytes=size, k=k, queries=len(rows), recall=recall)

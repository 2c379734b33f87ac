"""Semantic search: an index of sentences that answers queries in any language of its encoder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.inference.index_files import VECTORS, SentenceSource, read_manifest, write_part
from xrep.inference.sentence_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder
from xrep.inference.settings import PROBES
from xrep.number_types import Precision
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.ivf import compare_proposed
from xrep.retrieval.topk import TopK
from xrep.store.arrays import by_part
from xrep.store.texts import TEXT_FILES, Texts
from xrep.store.vectors import Vectors, normalize_rows

_SEARCHED_BYTES = 1 << 25
"""Bytes of float32 vectors that are searched at a time. Those of a part that has no more are read once."""
_LEAST = 128
"""Fewest rows that faiss proposes for a query."""


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
    """A directory with the vectors of sentences, which is searched exactly or with faiss.

    Examples:
        >>> index = SearchIndex.build("run1/best", "corpus.txt", "index/", lang="en")    # doctest: +SKIP
        >>> index = SearchIndex.load("index/")                                           # doctest: +SKIP
        >>> index.search("Wo ist der Bahnhof?", k=5, lang="de")[0].text                  # doctest: +SKIP
        'Where is the station?'
        >>> index.add(["The bus stop is over there."])                                   # doctest: +SKIP

    ``xrep.inference.index_files`` describes the files of the directory. ``manifest`` is what it says of itself.

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
        self.manifest = read_manifest(self.path)
        parts = self.manifest["parts"]
        folders, rows = [self.path.absolute() / part["folder"] for part in parts], [part["rows"] for part in parts]
        self._texts = Texts([[folder / name for name in TEXT_FILES] for folder in folders], rows)
        self._vectors = lru_cache(maxsize=64)(lambda number: Vectors(folders[number] / VECTORS))
        self._held = cache(lambda number: self._vectors(number).read(slice(None)))
        self._indexes = cache(lambda number: _opened(folders[number], parts[number]["files"]))
        self._check_files(whole=False)

    def _check_files(self, whole: bool) -> None:
        """Raise a UserError if a file has another size than it had or, if the ``whole`` is read, another content."""
        for part in self.manifest["parts"]:
            for name, described in part["files"].items():
                path = self.path / part["folder"] / name
                size = path.stat().st_size if path.is_file() else -1
                if size != described["bytes"] or (whole and sha256_of(path) != described["sha256"]):
                    problem = "damaged: the file is not as it was written"
                    raise UserError(problem, path=path, cure="remove the index and build it again")

    @classmethod
    def load(
        cls, path: str | Path, encoder: SentenceEncoder | str | Path | None = None, *, device: str | None = None
    ) -> SearchIndex:
        """Open the index that ``build`` wrote to a directory; arguments and errors are those of the class."""
        return cls(path, encoder, device=device)

    @classmethod
    def build(
        cls,
        encoder: SentenceEncoder | str | Path,
        lines: SentenceSource,
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
            lang: As in ``SentenceEncoder.encode``.
            batch_tokens: As in ``SentenceEncoder.encode``.
            index: flat: the search is exact. A description of faiss's ``index_factory``, such as ``IVF4096,PQ48``: an
                index of faiss proposes sentences, and their vectors decide. auto: flat up to 100,000 sentences, and
                inverted lists with 8-bit numbers (``IVF{n},SQ8``) beyond.
            prompt_name: Name of the encoder's prompt that is put in front of each sentence; the default is the first
                of document, passage and corpus that there is, or else the encoder's default.
            precision: Type in which an encoder that is loaded computes.
            device: Device on which it computes.

        Raises:
            UserError: Something else is at ``path``, there is no such prompt, the sentences cannot be read or encoded,
                or faiss has no such index.
        """
        source, real = encoder.path if isinstance(encoder, SentenceEncoder) else str(encoder), os.path.realpath(path)
        known = bool(source) and os.path.exists(source)
        if known and Path(os.path.realpath(source)) in (Path(real), *Path(real).parents):
            raise UserError(f"an index inside {source}", path=path, cure="choose another place")
        if not isinstance(encoder, SentenceEncoder):
            encoder = SentenceEncoder.load(encoder, device=device, dtype=precision)
        new = {
            "encoder": os.path.abspath(source) if known else source,
            "beside": os.path.relpath(source, real) if known else "",
            "precision": encoder.precision,
            "prompt": encoder.find_prompt(prompt_name, DOCUMENT_PROMPTS),
            "index": index,
        }
        write_part(Path(path), encoder, new, lines, lang, batch_tokens=batch_tokens, show_progress=show_progress)
        return cls(path, encoder)

    def add(
        self, lines: SentenceSource, *, lang: str | None = None, batch_tokens: int = 4096, show_progress: bool = False
    ) -> None:
        """Encode further sentences and add them as a new part; arguments and errors are those of ``build``.

        They are encoded with the prompt of the index and, unless ``lang`` is given, in the language with which it was
        built. A search meanwhile finds all or none of them. At most 100,000 are searched exactly. Nothing is changed if
        the same sentences in the same language have been added before.
        """
        lang = lang or self.manifest["parts"][0]["language"]
        write_part(self.path, self.encoder, None, lines, lang, batch_tokens=batch_tokens, show_progress=show_progress)
        self._open()

    def __len__(self) -> int:
        return len(self._texts)

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The encoder of the index; a UserError says that it is not found, or not the one that made the vectors."""
        manifest, how = self.manifest, {"device": self._device, "dtype": self.manifest["precision"]}
        beside = manifest["beside"] and os.path.normpath(os.path.join(os.path.realpath(self.path), manifest["beside"]))
        places = list(dict.fromkeys(filter(None, (beside, manifest["encoder"]))))
        problem = f"its encoder is not where it was ({' or '.join(places) or 'it had no path'})"
        error = UserError(problem, path=self.path, cure="give its directory as `path`")
        there = [place for place in places if os.path.exists(place) or not os.path.isabs(place)]
        for place in there if self._given is None else [self._given]:
            try:
                encoder = place if isinstance(place, SentenceEncoder) else SentenceEncoder.load(place, **how)
                if encoder.fingerprint() == manifest["fingerprint"]:
                    return encoder
                cure = "give `path`, or build the index again"
                error = UserError("its vectors were made by another encoder", path=self.path, cure=cure)
            except UserError as failure:
                error = failure
        raise error

    def search(
        self,
        queries: str | Sequence[str] | np.ndarray,
        k: int = 10,
        lang: str | None = None,
        *,
        probes: int | None = PROBES,
        prompt_name: str | None = None,
    ) -> Any:
        """Return the k sentences nearest to a query, a list of ``Hit``, nearest first, or for several queries a list of
        such lists.

        There may be fewer, if the index has fewer, or its inverted lists miss some. A blank query finds nothing.

        Args:
            queries: A sentence, several sentences, or their vectors [Q, D].
            lang: Language of the queries; needed if the encoder has a tower for each side.
            probes: Number of inverted lists that are searched; more find more and take longer. None: the search is
                exact, and reads all vectors.
            prompt_name: Name of the encoder's prompt that is put in front of each query; the default is query if there
                is one, or else the encoder's default.

        Raises:
            UserError: k or probes is below 1, or the encoder has no tower for the language or no such prompt.
            ValueError: The vectors have another size than those of the index.
        """
        several, vectors = [queries] if isinstance(queries, str) else list(queries), queries
        full = [number for number, query in enumerate(several) if not isinstance(query, str) or query.strip()]
        if not isinstance(vectors, np.ndarray):
            prompt = self.encoder.find_prompt(prompt_name, QUERY_PROMPTS)
            vectors = self.encoder.encode([several[number] for number in full], lang, prompt=prompt)
        hits = [list[Hit]() for _ in several]
        for number, found in zip(full, self._hits(self._search(vectors, k, probes)), strict=True):
            hits[number] = found
        return hits[0] if isinstance(queries, str) else hits

    def similar(self, row: int, k: int = 10, *, probes: int | None = PROBES) -> list[Hit]:
        """Return the k sentences nearest to one of the index, which is not among them; ``k`` and ``probes`` are as for
        ``search``. Raises UserError if the index has no such row."""
        self.text(row)
        ((part, _, place),) = by_part(self._texts.starts, np.array([row]))
        (hits,) = self._hits(self._search(self._vectors(part).read(place), k + 1, probes))
        return [hit for hit in hits if hit.row != row][:k]

    def text(self, row: int) -> str:
        """Return a sentence of the index. Raises UserError if the index has no such row."""
        if not 0 <= row < len(self):
            raise UserError(f"`row` {row}", cure=f"rows are numbers from 0 to {len(self) - 1}")
        return self._texts.take([row])[0]

    def _hits(self, best: TopK) -> Iterator[list[Hit]]:
        for scores, rows in zip(best.similarity.tolist(), best.index.tolist(), strict=True):
            places = [
                (score, row, *self._texts.place(row)) for score, row in zip(scores, rows, strict=True) if row >= 0
            ]
            texts, parts = self._texts.take([row for _, row, _, _ in places]), self.manifest["parts"]
            yield [
                Hit(score, row, parts[part]["source"], line, text)
                for (score, row, part, line), text in zip(places, texts, strict=True)
            ]

    def _search(self, vectors: np.ndarray, k: int, probes: int | None) -> TopK:
        """Return the rows nearest to vectors [Q, D], of equal ones the lowest row first: at most as many as there are.
        Faiss only proposes rows: all cosines are computed from the vectors."""
        for name, value in (("k", k), ("probes", probes)):
            if value is not None and value < 1:
                raise UserError(f"`{name}` {value}", cure="give at least 1")
        size = self.manifest["size"]
        if vectors.ndim != 2 or vectors.shape[1] != size:
            raise ValueError(f"queries must be [Q, {size}], not {list(vectors.shape)}")
        x_QD = normalize_rows(np.ascontiguousarray(vectors, dtype=np.float32))
        best, step = TopK.none(len(x_QD), min(k, len(self))), max(1, _SEARCHED_BYTES // (4 * size))
        for number, part in enumerate(self.manifest["parts"] if len(x_QD) else ()):
            start, rows = self._texts.starts[number], part["rows"]
            if probes is None or part["index"] == "flat":
                for first in range(0, rows, step):
                    few = rows <= step
                    y_ND = self._held(number) if few else self._vectors(number).read(slice(first, first + step))
                    found, _ = neighbours(x_QD, y_ND, min(best.k, len(y_ND)), 0)
                    best.merge(TopK(found.similarity, found.index + start + first))
                continue
            import faiss

            first = 0
            for index in self._indexes(number):
                if lists := faiss.try_extract_index_ivf(index):
                    lists.nprobe = min(probes, lists.nlist)
                _, proposed = index.search(x_QD, min(max(_LEAST, 8 * best.k), index.ntotal))
                compare_proposed(best, x_QD, proposed, self._vectors(number), first, start + first)
                first += index.ntotal
        return best

    def check(self, k: int = 10, queries: int = 100) -> float:
        """Compare all files with their checksums, and return the recall: how many of the k sentences nearest to one of
        the index a search finds, on average over some sentences, which are drawn with a fixed seed.

        Raises:
            UserError: A file is damaged.
        """
        self._check_files(whole=True)
        rows = np.sort(np.random.default_rng(0).choice(len(self), min(queries, len(self)), replace=False))
        x_QD = np.concatenate([self._vectors(part).read(some) for part, _, some in by_part(self._texts.starts, rows)])
        exact, found = [self._search(x_QD, k + 1, probes).index.tolist() for probes in (None, PROBES)]
        pairs = [({*one} - {row, -1}, {*other}) for row, one, other in zip(rows.tolist(), exact, found, strict=True)]
        wanted = sum(len(one) for one, _ in pairs)
        return round(sum(len(one & other) for one, other in pairs) / wanted, 4) if wanted else 1.0


def _opened(folder: Path, files: Iterable[str]) -> list[Any]:
    """Return the indexes of faiss among the files of a part; their inverted lists stay on disk."""
    import faiss

    names = sorted(name for name in files if name.endswith(".faiss"))
    return [faiss.read_index(str(folder / name), faiss.IO_FLAG_MMAP) for name in names]

"""Encoders that can be evaluated: those that xrep loads, and the precomputed vectors of any other system."""

from __future__ import annotations

import copy
import functools
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.files import build_once, sha256_of, write_aside
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.metrics.components import remove_components, whiten
from xrep.models.kinds import kind_of
from xrep.precision import Precision
from xrep.store.arrays import open_array
from xrep.store.vectors import normalize_rows
from xrep.text.languages import canonical
from xrep.text.readers import read_lines

VECTORS, SENTENCES = "vectors.npy", "sentences.tsv"
_LAYOUT = f"a folder of vectors holds {VECTORS}, [N, D] floats, and {SENTENCES}, N lines language<TAB>sentence"


class Encoder(ABC):
    """A sentence encoder as evaluations take it. Its vectors may be cut to their first numbers."""

    path: str
    """Path from which the encoder was loaded."""
    training_hashes: Path | None
    """File with the hashes of its training sentences, see ``xrep.evaluation.overlap``; None if there is none."""
    languages: list[str]
    """Canonical codes of the languages that it was trained on; empty if they are not known."""
    size: int
    """The dimension of vectors that are not cut."""
    truncate_dim: int | None = None
    """Number of the first numbers that are kept of each vector; None: all."""

    @abstractmethod
    def whole(self, sentences: Sequence[str], lang: str | None, normalize: bool, show_progress: bool) -> np.ndarray:
        """Return vectors as ``encode`` does that are not cut."""

    @abstractmethod
    def digest(self) -> str:
        """Return a digest that changes when the vectors that are not cut change."""

    def encode(
        self, sentences: Sequence[str], lang: str | None = None, *, normalize: bool = True, show_progress: bool = False
    ) -> np.ndarray:
        """Return finite vectors, float32 [N, D], of length 1 with ``normalize`` and unchanged without."""
        vectors = self.whole(sentences, lang, normalize, show_progress)
        if self.truncate_dim is None:
            return vectors
        vectors = vectors[:, : self.truncate_dim]
        return normalize_rows(vectors) if normalize else vectors

    def fingerprint(self) -> str:
        """Return a digest that changes when the vectors that the encoder computes change."""
        return self.digest() + ("" if self.truncate_dim is None else f":{self.truncate_dim}")


def open_encoder(
    path: str | Path,
    *,
    batch_tokens: int = 4096,
    cache: str | Path | None = None,
    layer: int | None = None,
    precision: Precision = "float32",
) -> Encoder:
    """Open the encoder at ``path``.

    Args:
        path: A run of xrep, a directory of Hugging Face or sentence-transformers, or a folder with ``vectors.npy``
            [N, D] and ``sentences.tsv`` (lines ``language<TAB>sentence``).
        batch_tokens: Number of subwords that are encoded at a time.
        cache: Folder in which vectors are kept, by encoder, language and sentences: each in a folder as the one above.
        layer, precision: As ``layer`` and ``dtype`` of ``SentenceEncoder.load``.
    """
    if kind_of(path) == "folder of vectors":
        if layer is not None:
            raise UserError("`layer` of vectors that another system computed", path=path, cure="leave it out")
        return Precomputed(path)
    encoder = SentenceEncoder.load(path, layer=layer, dtype=precision)
    return Loaded(str(path), encoder, batch_tokens, None if cache is None else Path(cache))


def check_languages(encoder: Encoder, sentences: Mapping[str, str]) -> None:
    """Encode one sentence of each language, so that languages that the encoder refuses are reported before the work."""
    refused: dict[str, str] = {}
    for language, sentence in sentences.items():
        try:
            encoder.encode([sentence], language)
        except UserError as error:
            refused[language] = error.problem
    if refused:
        known = [language for language in sentences if language not in {**refused, "en": ""}]
        cure = f"give `langs` {','.join(known)}" if known and "en" not in refused else "name another encoder"
        raise UserError(f"the encoder cannot encode {' '.join(refused)} ({next(iter(refused.values()))})", cure=cure)


def encode_columns(encoder: Encoder | SentenceEncoder, columns: Sequence[Sequence[str]], lang: str) -> list[np.ndarray]:
    """Encode each different sentence of several columns once; return unnormalised vectors, float32 [N, D] each."""
    places = {sentence: place for place, sentence in enumerate(dict.fromkeys(chain.from_iterable(columns)))}
    vectors = encoder.encode(list(places), lang, normalize=False, show_progress=sys.stderr.isatty())
    return [vectors[[places[sentence] for sentence in column]] for column in columns]


def without_components(unit: np.ndarray, count: int) -> np.ndarray:
    """Return vectors of length 1, [N, D], without their first ``count`` principal components, again of length 1."""
    if count >= unit.shape[1]:
        problem = f"`remove_components` {count} of vectors {unit.shape[1]} wide"
        raise UserError(problem, cure=f"give at most {unit.shape[1] - 1}")
    return normalize_rows(remove_components(unit, count)) if count else unit


def whitened(vectors: np.ndarray, count: int) -> np.ndarray:
    """Return vectors [N, D] whitened to ``count`` directions; 0 leaves them as they are."""
    if not count:
        return vectors
    try:
        return whiten(vectors, count)
    except ValueError as error:
        most = min(len(vectors) - 1, vectors.shape[1])
        raise UserError(f"`whiten` {count}: {error}", cure=f"give a smaller number, at most {most}") from None


class Loaded(Encoder):
    """A ``SentenceEncoder`` for evaluations, whose vectors may be kept; ``open_encoder`` explains the arguments."""

    def __init__(
        self, path: str | Path, encoder: SentenceEncoder, batch_tokens: int = 4096, cache: Path | None = None
    ) -> None:
        self.path, self.encoder, self.batch_tokens, self.cache = str(path), encoder, batch_tokens, cache
        self.training_hashes: Path | None = encoder.training_hashes
        self.languages, self.size = encoder.languages, encoder.output_size
        self._digest = functools.cache(encoder.fingerprint)

    def digest(self) -> str:
        return self._digest()

    def whole(self, sentences: Sequence[str], lang: str | None, normalize: bool, show_progress: bool) -> np.ndarray:
        options = {"batch_tokens": self.batch_tokens, "show_progress": show_progress}
        if self.cache is None or len(sentences) == 1:  # one sentence is encoded faster than looked up
            vectors = self.encoder.encode(sentences, lang, normalize=normalize, **options)
            return _finite(vectors, self.path, "take an earlier checkpoint")
        language, distinct = canonical(lang) if lang else "", list(dict.fromkeys(map(one_line, sentences)))
        digest = hashlib.sha256(f"{self.digest()} {language}".encode())
        for sentence in distinct:
            digest.update(hashlib.sha256(sentence.encode()).digest())

        def build(folder: Path) -> None:
            vectors = self.encoder.encode(distinct, lang, normalize=False, **options)
            vectors = _finite(vectors, self.path, "take an earlier checkpoint")
            write_sentences(folder / SENTENCES, [(language, distinct)])
            np.save(folder / VECTORS, vectors, allow_pickle=False)

        kept = self.cache / digest.hexdigest()[:32]
        build_once(kept, VECTORS, build)
        return Precomputed(kept).encode(sentences, lang, normalize=normalize)


def shortened(encoder: Any, dimensions: str | None) -> list[Any]:
    """Return an encoder, and those of its vectors cut to the widths in ``dimensions``, such as ``256,128,64``. Raises
    UserError if ``dimensions`` is not a list of numbers above 0 and below the width of the vectors."""
    widths = [width.strip() for width in dimensions.split(",")] if dimensions is not None else []
    if not all(width.isascii() and width.isdigit() and 0 < int(width) < 2**31 for width in widths):
        raise UserError(f"`dimensions` {dimensions!r}", cure="write numbers above 0, such as 256,128,64")
    if too_wide := [width for width in widths if int(width) >= encoder.size]:
        problem = f"`dimensions` {too_wide[0]} of vectors of {encoder.size} numbers"
        raise UserError(problem, path=encoder.path, cure="name smaller ones")
    encoders = [encoder, *(copy.copy(encoder) for _ in dict.fromkeys(widths))]
    for shorter, width in zip(encoders[1:], dict.fromkeys(map(int, widths)), strict=True):
        shorter.truncate_dim, shorter.path = width, f"{encoder.path}:{width}"
    return encoders


def with_random_weights(encoder: Any, seed: int) -> Any:
    """Return an encoder of the same architecture whose weights are drawn by ``seed``. Raises UserError if the encoder
    is not one that xrep loaded, such as the vectors of another system."""
    if not isinstance(encoder, Loaded):
        cure = "measure without `random_baseline`"
        raise UserError("no encoder whose weights can be drawn at random", path=encoder.path, cure=cure)
    whole = encoder.encoder
    options = {"layer": whole.model.config.pooled_layer, "dtype": whole.precision}
    random = SentenceEncoder.load(whole.path, random_weights=seed, **options)
    drawn = Loaded(encoder.path, random, encoder.batch_tokens, encoder.cache)
    drawn.training_hashes = encoder.training_hashes  # so that both are measured on the same examples
    drawn.truncate_dim = encoder.truncate_dim
    return drawn


def _finite(vectors: np.ndarray, path: str, cure: str) -> np.ndarray:
    finite = np.all(np.isfinite(vectors), axis=1)
    if not finite.all():
        raise UserError(f"{len(finite) - finite.sum()} of {len(finite)} vectors are not finite", path=path, cure=cure)
    if not vectors.any():
        raise UserError(f"every number of {len(vectors)} vectors is 0", path=path, cure=cure)
    return vectors


class Precomputed(Encoder):
    """Vectors that another system computed, or that were kept, looked up by language and sentence."""

    def __init__(self, path: str | Path) -> None:
        folder = Path(path)
        self.path = str(path)
        hashes = folder / "training_hashes.npy"
        self.training_hashes = hashes if hashes.is_file() else None
        self.languages: list[str] = []
        self._folder, self._vectors = folder, open_array(folder / VECTORS, "vectors", _LAYOUT)
        if self._vectors.ndim != 2 or self._vectors.dtype.kind != "f" or not self._vectors.shape[1]:
            raise UserError("not an array [N, D] of floats", path=folder / VECTORS, cure=_LAYOUT)
        self.size = self._vectors.shape[1]
        self._rows: dict[tuple[str, str], int] = {}
        path = folder / SENTENCES
        for number, line in read_lines(path):
            language, tab, sentence = line.partition("\t")
            if not tab:
                raise UserError("no tab in the line", path=path, line=number, cure=_LAYOUT)
            row = self._rows.setdefault((canonical(language) if language else "", sentence), number - 1)
            if row < number - 1:
                cure = "keep one of the two, here and in the vectors"
                raise UserError(f"the sentence is also in line {row + 1}", path=path, line=number, cure=cure)
        if len(self._rows) != len(self._vectors):
            problem = f"{len(self._rows)} lines, but {VECTORS} has {len(self._vectors)} rows"
            raise UserError(problem, path=path, cure="row i must be the vector of line i")

    def digest(self) -> str:
        digests = (bytes.fromhex(sha256_of(self._folder / name)) for name in (VECTORS, SENTENCES))
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def whole(self, sentences: Sequence[str], lang: str | None, normalize: bool, show_progress: bool) -> np.ndarray:
        language = canonical(lang) if lang else ""
        keys = [(language, one_line(sentence)) for sentence in sentences]
        if missing := [sentence for key, sentence in zip(keys, sentences, strict=True) if key not in self._rows]:
            problem = f"no vector for {len(missing)} of {len(sentences)} sentences of {language or 'no language'}, "
            cure = "encode what `list_sentences` writes"
            raise UserError(f"{problem}the first is {missing[0][:80]!r}", path=self.path, cure=cure)
        with np.errstate(over="ignore"):  # numbers that do not fit are counted below
            vectors = self._vectors[[self._rows[key] for key in keys]].astype(np.float32)
        vectors = _finite(vectors, str(self._folder / VECTORS), "check the system that made them")
        return normalize_rows(vectors) if normalize else vectors


def write_sentences(path: str | Path, columns: Iterable[tuple[str, Iterable[str]]]) -> int:
    """Write each different sentence of columns, of which each has its language, as a line ``language<TAB>sentence``, as
    ``Precomputed`` reads them, and return their number."""
    rows = dict.fromkeys((language, one_line(sentence)) for language, column in columns for sentence in column)
    with write_aside(path) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{language}\t{sentence}\n" for language, sentence in rows)
    return len(rows)


def one_line(sentence: str) -> str:
    """Replace line ends by spaces: sentences of some data sets contain them, but ``sentences.tsv`` has one per line."""
    return sentence.replace("\r", " ").replace("\n", " ")

"""Encoders that can be evaluated, which xrep loads or whose vectors it has, and what they have seen of a test."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.files import build_once, sha256_of, write_aside
from xrep.metrics.components import remove_components
from xrep.number_types import Precision
from xrep.store.arrays import open_array
from xrep.store.vectors import normalize_rows
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.languages import canonical
from xrep.text.lines import packed, read_lines

if TYPE_CHECKING:  # what imports torch is imported when a model is opened, for which --help does not wait
    from xrep.inference.sentence_encoder import SentenceEncoder

VECTORS_FILE, SENTENCES_FILE = "vectors.npy", "sentences.tsv"
_LAYOUT = (
    f"a folder of vectors holds {VECTORS_FILE}, [N, D] floats, and {SENTENCES_FILE}, N lines language<TAB>sentence"
)


@dataclass
class MeasuredEncoder:
    """A sentence encoder as evaluations take it: a model, or the vectors of another system.

    Its ``languages`` are the canonical codes of those that it was trained on, none if they are not known, and
    ``training_hashes`` are files with the hashes of its training sentences (see ``seen``), none if these are not known.
    """

    path: str
    """Path from which it was opened."""
    encoder: SentenceEncoder | Precomputed
    batch_tokens: Count = 4096
    """Number of subwords that are encoded at a time."""
    cache: Path | None = None
    """Folder in which vectors are kept: those of one call in a folder that ``Precomputed`` reads."""
    truncate_dim: int | None = None
    """Number of the first numbers that are kept of each vector; None: all."""

    def __post_init__(self) -> None:
        self.languages, self.training_hashes = self.encoder.languages, self.encoder.training_hashes
        self._digest = functools.cache(self.encoder.fingerprint)

    def fingerprint(self) -> str:
        """Return a digest that changes when the vectors that the encoder computes change."""
        return self._digest() + ("" if self.truncate_dim is None else f":{self.truncate_dim}")

    def encode(
        self, sentences: Sequence[str], lang: str | None = None, *, normalize: bool = True, show_progress: bool = False
    ) -> np.ndarray:
        """Return finite vectors, float32 [N, D], of length 1 with ``normalize`` and unchanged without."""
        if self.cache is None or len(sentences) == 1:  # one sentence is encoded faster than looked up
            vectors = self._computed(sentences, lang, normalize, show_progress)
        else:
            distinct, language = list(dict.fromkeys(map(on_one_line, sentences))), canonical(lang) if lang else ""
            question = "\n".join((self._digest(), language, *distinct))

            def build(folder: Path) -> None:
                write_sentences(folder / SENTENCES_FILE, [(language, distinct)])
                np.save(folder / VECTORS_FILE, self._computed(distinct, lang, False, show_progress), allow_pickle=False)

            kept = self.cache / hashlib.sha256(question.encode()).hexdigest()[:32]
            build_once(kept, VECTORS_FILE, build)
            vectors = Precomputed(kept).encode(sentences, lang, normalize=normalize)
        if self.truncate_dim is None:
            return vectors
        vectors = vectors[:, : self.truncate_dim]
        return normalize_rows(vectors) if normalize else vectors

    def _computed(self, sentences: Sequence[str], lang: str | None, normalize: bool, show_progress: bool) -> np.ndarray:
        options = {"batch_tokens": self.batch_tokens, "show_progress": show_progress}
        return finite_vectors(self.encoder.encode(sentences, lang, normalize=normalize, **options), self.path)


def finite_vectors(vectors: np.ndarray, path: str) -> np.ndarray:
    """Return vectors [N, D]; a UserError says that some are not finite."""
    if wrong := int((~np.isfinite(vectors)).any(axis=1).sum()):
        cure = "take an earlier checkpoint, or check the system that made them"
        raise UserError(f"{wrong} of {len(vectors)} vectors are not finite", path=path, cure=cure)
    return vectors


class Precomputed:
    """Vectors that another system computed, or that were kept, looked up by language and sentence, in a folder with
    ``vectors.npy`` [N, D] and ``sentences.tsv``, N lines ``language<TAB>sentence``."""

    training_hashes = ()

    def __init__(self, path: str | Path) -> None:
        self.path, self.languages = str(path), list[str]()
        self._files = vectors, sentences = Path(path, VECTORS_FILE), Path(path, SENTENCES_FILE)
        self._vectors, keys = open_array(vectors, "vectors", _LAYOUT), list[tuple[str, str]]()
        if self._vectors.ndim != 2 or self._vectors.dtype.kind != "f" or not self._vectors.shape[1]:
            raise UserError("not an array [N, D] of floats", path=vectors, cure=_LAYOUT)
        self.output_size = self._vectors.shape[1]
        for number, line in read_lines(sentences):
            language, tab, sentence = line.partition("\t")
            if not tab:
                raise UserError("no tab in the line", path=sentences, line=number, cure=_LAYOUT)
            keys.append((canonical(language) if language else "", sentence))
        if len(keys) != len(self._vectors):
            problem = f"{len(keys)} lines, but {VECTORS_FILE} has {len(self._vectors)} rows"
            raise UserError(problem, path=sentences, cure="row i must be the vector of line i")
        self._rows = {key: row for row, key in enumerate(keys)}

    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(bytes.fromhex(sha256_of(file)) for file in self._files)).hexdigest()

    def encode(
        self, sentences: Sequence[str], lang: str | None = None, *, normalize: bool = True, **_: Any
    ) -> np.ndarray:
        """Return vectors as ``SentenceEncoder.encode`` does; there is nothing to compute, so options do nothing."""
        language = canonical(lang) if lang else ""
        keys = [(language, on_one_line(sentence)) for sentence in sentences]
        if missing := [sentence for key, sentence in zip(keys, sentences, strict=True) if key not in self._rows]:
            problem = f"no vector for {len(missing)} of {len(sentences)} sentences of {language or 'no language'}, "
            cure = "encode what `list_sentences` writes"
            raise UserError(f"{problem}the first is {missing[0][:80]!r}", path=self.path, cure=cure)
        vectors = self._vectors[[self._rows[key] for key in keys]].astype(np.float32)
        return normalize_rows(vectors) if normalize else vectors


def open_encoder(
    path: str | Path,
    *,
    batch_tokens: Count = 4096,
    cache: str | Path | None = None,
    layer: int | None = None,
    precision: Precision = "float32",
    prompt: str | None = None,
    prompt_name: str | None = None,
) -> MeasuredEncoder:
    """Open a run of xrep, a directory of Hugging Face or sentence-transformers, or a folder that ``Precomputed`` reads.
    The options are those of ``MeasuredEncoder`` and, as ``dtype`` for the precision, of ``SentenceEncoder.load``, and
    of ``SentenceEncoder.use_prompt``."""
    from xrep.inference.sentence_encoder import SentenceEncoder
    from xrep.models.kinds import kind_of

    if kind_of(path) != "folder of vectors":
        encoder = SentenceEncoder.load(path, layer=layer, dtype=precision).use_prompt(prompt, prompt_name)
        return MeasuredEncoder(str(path), encoder, batch_tokens, Path(cache) if cache else None)
    given = {"layer": layer, "prompt": prompt, "prompt_name": prompt_name, "precision": precision}
    for name, value in given.items():
        if value not in (None, "float32"):
            raise UserError(f"`{name}` of vectors that another system computed", path=path, cure="leave it out")
    return MeasuredEncoder(str(path), Precomputed(path))


def encode_columns(
    encoder: MeasuredEncoder | SentenceEncoder, columns: Sequence[Sequence[str]], lang: str
) -> list[np.ndarray]:
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


def with_random_weights(encoder: MeasuredEncoder, seed: int) -> MeasuredEncoder:
    """Return an encoder of the same architecture whose weights are drawn by ``seed``."""
    from xrep.inference.sentence_encoder import SentenceEncoder

    whole = encoder.encoder
    if isinstance(whole, Precomputed):
        problem, cure = "vectors without weights that can be drawn at random", "measure without `random_baseline`"
        raise UserError(problem, path=encoder.path, cure=cure)
    options = {"layer": whole.model.config.pooled_layer, "dtype": whole.precision}
    random = SentenceEncoder.load(whole.path, random_weights=seed, **options)
    random.prompts, random.default_prompt_name = whole.prompts, whole.default_prompt_name
    random.training_hashes = whole.training_hashes  # so that both have the same examples
    return replace(encoder, encoder=random)


def write_sentences(path: str | Path, columns: Iterable[tuple[str, Iterable[str]]]) -> int:
    """Write each different sentence of columns, of which each has its language, as a line ``language<TAB>sentence``, as
    ``Precomputed`` reads them, and return their number."""
    rows = dict.fromkeys((language, on_one_line(sentence)) for language, column in columns for sentence in column)
    with write_aside(path) as aside, packed(aside, path) as file:
        file.writelines(f"{language}\t{sentence}\n" for language, sentence in rows)
    return len(rows)


def on_one_line(sentence: str) -> str:
    """Replace line ends by spaces: sentences of some data sets contain them, but ``sentences.tsv`` has one per line."""
    return sentence.replace("\r", " ").replace("\n", " ")


@dataclass(frozen=True)
class Overlap:
    """Number of the ``total`` test examples with a sentence from the training data; ``found`` is None if unknown."""

    found: int | None
    total: int
    dropped: bool = False
    """Whether these examples were left out of the measurement."""

    @property
    def line(self) -> str:
        if self.found is None:
            return "overlap: unknown (no training hashes beside the encoder)"
        left_out = ", left out" if self.dropped else ""
        return f"overlap: {self.found} of {self.total} test examples were in the training text{left_out}"


def total(overlaps: Iterable[Overlap]) -> Overlap:
    """Return the overlap of several tests of the same encoder together."""
    parts = list(overlaps)
    known = [part.found for part in parts if part.found is not None]
    sizes, dropped = [part.total for part in parts], any(part.dropped for part in parts)
    return Overlap(sum(known) if len(known) == len(parts) else None, sum(sizes), dropped)


def seen(columns: Sequence[Sequence[str]], training_hashes: Sequence[Path]) -> np.ndarray:
    """Return which examples have a sentence in the training data, ignoring case, punctuation and Unicode form: bool
    [N]. Of each file of sorted hashes, uint64 [K], only the pages that the binary searches touch are read."""
    cure = "restore the file, or delete it to measure without the overlap"
    hashes = np.stack([sentence_hashes(column) for column in columns])
    found = np.zeros(hashes.shape, dtype=bool)
    for file in training_hashes:
        known = open_array(file, "training hashes", cure)
        if len(known):
            found |= known[np.searchsorted(known[:-1], hashes)] == hashes
    return (found & (hashes != NO_KEY)).any(axis=0)

"""Tokenised natural language inference data on disk: labelled pairs or triplets, in one or several languages.

A directory is built once for the same files and options, in ``$XREP_HOME/nli/``. Besides the files of every directory
of tokenised text (``xrep.data.store``), it has::

    {split}.{column}.tokens, .offsets        the sentences
    {split}.languages                        uint8 [n, columns], indices into the manifest's languages
    {split}.labels                           int64 [n], classes; -1 in triplets
    {split}.hashes                           uint64 [n, columns], xrep.text.cleaning.sentence_hash

The columns are premise and hypothesis, or anchor, positive and hard negative.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from xrep.data.building import build_cached, train_vocabulary
from xrep.data.store import (
    TOKENIZER_DIRECTORY,
    TRAINING_HASHES_FILE,
    ColumnWriter,
    Kind,
    TokenColumn,
    TokenDirectory,
    write_manifest,
)
from xrep.errors import UserError
from xrep.text.cleaning import HashSet, sentence_hashes
from xrep.text.nli_readers import Example, NliFile, discover_nli, read_nli
from xrep.text.sides import SHARED, Tokenizers, save_tokenizers, tokenizer_of

NLI = Kind("xrep-nli", 2, "remove its directory; it is made again")
_CHUNK = 8192
_ARRAYS = {"languages": "u1", "labels": "<i8", "hashes": "<u8"}


@dataclass(frozen=True, kw_only=True)
class NliOptions:
    """Options for turning raw text into examples."""

    triplets: bool
    language: str
    """Language of the files whose names do not contain one."""
    cross_lingual: bool = False
    target_languages: list[str] = field(default_factory=list)
    """Languages that the tokenizer of the target side reads."""
    vocabulary_size: int = 16000
    """Number of subwords of the vocabulary that is trained if no tokenizers are given."""

    @property
    def columns(self) -> int:
        return 3 if self.triplets else 2

    def side(self, language: str) -> str:
        return "target" if language in self.target_languages else "source"


@dataclass(frozen=True)
class NliSplit:
    """The n examples of one split: one ``TokenColumn`` per column, ``languages`` [n, columns] (indices into
    ``NliData.languages``), ``labels`` int64 [n], and ``hashes`` uint64 [n, columns]."""

    columns: list[TokenColumn]
    languages: np.ndarray
    labels: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of the examples ``rows``, int64 [N], summed over its sentences."""
        return functools.reduce(np.add, (column.lengths(rows) for column in self.columns))


class NliData(TokenDirectory):
    """A directory opened for reading. Attributes: ``languages`` and ``splits`` (by name)."""

    kind = NLI

    def _open_splits(self) -> None:
        self.languages: list[str] = self.manifest["languages"]
        self.splits = {split: self._split(split, self.manifest["columns"]) for split in self.manifest["splits"]}

    def _split(self, split: str, columns: int) -> NliSplit:
        widths = {"languages": columns, "labels": 0, "hashes": columns}
        arrays = {name: self._array(f"{split}.{name}", dtype, widths[name]) for name, dtype in _ARRAYS.items()}
        return NliSplit([self._column(f"{split}.{column}") for column in range(columns)], **arrays)


def prepare_nli(
    path: str | Path, options: NliOptions, tokenizers: Tokenizers | None, log: Callable[[str], None] = print
) -> NliData:
    """Read and tokenise inference data (layouts: ``xrep.text.nli_readers``) unless this was done before, and open it.

    Args:
        tokenizers: Tokenizers by side; None to train one on the training text.

    Raises:
        UserError: For the same reasons as ``discover_nli`` and ``read_nli``, or if no example is left.
    """
    files = discover_nli(path, options.language)

    def build(folder: Path, place: Path) -> None:
        log(f"tokenising {path} (once; kept in {place})")
        _Writer(folder, files, options, log).write(tokenizers)

    read = [path for some in files.values() for file in some for path in file.paths]
    return NliData.open(build_cached("nli", NLI, asdict(options), read, build, tokenizers))


class _Writer:
    """Writer of the directory ``output``."""

    def __init__(
        self, output: Path, files: dict[str, list[NliFile]], options: NliOptions, log: Callable[[str], None]
    ) -> None:
        self.output, self.files, self.options, self.log = output, files, options, log
        self._places: dict[str, int] = {}

    def write(self, tokenizers: Tokenizers | None) -> None:
        tokenizers = tokenizers or self._train_tokenizer()
        save_tokenizers(tokenizers, self.output / TOKENIZER_DIRECTORY)
        size = max(tokenizer.vocabulary_size for tokenizer in tokenizers.values())
        rows = {split: self._write_split(split, tokenizers, size) for split in self.files}
        facts = {"columns": self.options.columns, "languages": list(self._places), "splits": rows}
        write_manifest(self.output, NLI, size, {**facts, "options": asdict(self.options)})

    def _read(self, split: str, counts: Counter[str] | None = None) -> Iterator[Example]:
        options = self.options
        triplets, crossed = options.triplets, options.cross_lingual
        return read_nli(self.files[split], triplets=triplets, cross_lingual=crossed, counts=counts)

    def _train_tokenizer(self) -> Tokenizers:
        def sentences() -> Iterator[tuple[str, str]]:
            for example in self._read("train"):
                yield from zip(example.languages, example.sentences, strict=True)

        if next(sentences(), None) is None:
            raise self._nothing("train")
        size, place = self.options.vocabulary_size, self.output / TOKENIZER_DIRECTORY
        return {SHARED: train_vocabulary(sentences, size, place, self.log)}

    def _write_split(self, split: str, tokenizers: Tokenizers, vocabulary_size: int) -> int:
        counts, hashes, rows = Counter[str](), HashSet(), 0
        examples, numbers = self._read(split, counts), range(self.options.columns)
        with ExitStack() as stack:
            enter = stack.enter_context
            columns = [enter(ColumnWriter(self.output, f"{split}.{n}", vocabulary_size)) for n in numbers]
            files = {name: enter((self.output / f"{split}.{name}").open("xb")) for name in _ARRAYS}
            while chunk := list(itertools.islice(examples, _CHUNK)):
                rows += len(chunk)
                for number, column in enumerate(columns):
                    sentences = [example.sentences[number] for example in chunk]
                    languages = [example.languages[number] for example in chunk]
                    column.append(self._encode(sentences, languages, tokenizers))
                arrays = self._arrays(chunk)
                hashes.add(arrays["hashes"].ravel())
                for name, dtype in _ARRAYS.items():
                    files[name].write(arrays[name].astype(dtype).tobytes())
        if not rows:
            raise self._nothing(split)
        if split == "train":
            np.save(self.output / TRAINING_HASHES_FILE, hashes.to_array(), allow_pickle=False)
        unit = "triplets" if self.options.triplets else "pairs"
        left_out = "".join(f", {count:,} left out ({why})" for why, count in counts.items() if why != "read")
        self.log(f"{split}: {rows:,} {unit} of {counts['read']:,} examples{left_out}")
        return rows

    def _arrays(self, chunk: list[Example]) -> dict[str, np.ndarray]:
        languages = [[self._places.setdefault(code, len(self._places)) for code in e.languages] for e in chunk]
        sides = zip(*(example.sentences for example in chunk), strict=True)
        return {
            "languages": np.array(languages),
            "labels": np.array([-1 if example.label is None else example.label for example in chunk]),
            "hashes": np.stack([sentence_hashes(side) for side in sides], 1),
        }

    def _encode(self, sentences: list[str], languages: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        """Return the ids of each sentence, from the tokenizer of the side that its language belongs to."""
        ids_of: list[list[int]] = [[]] * len(sentences)
        sides = [self.options.side(language) for language in languages]
        for side in set(sides):
            rows = [row for row, own in enumerate(sides) if own == side]
            encoded = tokenizer_of(tokenizers, side).encode([sentences[row] for row in rows])
            for row, ids in zip(rows, encoded, strict=True):
                ids_of[row] = ids
        return ids_of

    def _nothing(self, split: str) -> UserError:
        what = (
            "triplet (an entailment and a contradiction of one premise)" if self.options.triplets else "labelled pair"
        )
        return UserError(f"no {what} for {split}", path=self.files[split][0].paths[0], cure="check the files")

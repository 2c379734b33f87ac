"""Tokenised natural language inference data on disk: labelled pairs or triplets, in one or several languages.

A directory is built once for the same files and options, in ``$XREP_HOME/nli/``. Its columns are premise and
hypothesis, or anchor, positive and negative. Besides the files of every directory of tokenised text
(``xrep.data.store``), it has::

    {split}.{columns}.languages    uint8 [n, columns], indices into the manifest's languages
    {split}.{columns}.labels       int64 [n], classes; -1 in triplets
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.building import build_cached, train_vocabulary
from xrep.data.hash_runs import HashRuns
from xrep.data.store import (
    TOKENIZER_DIRECTORY,
    DataDirectory,
    DirectoryWriter,
    Kind,
    joined,
    misfit,
    vocabulary_size,
    write_manifest,
)
from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.nli_readers import LABELS, Example, NliFile, discover_nli, read_nli
from xrep.text.sides import SHARED, Tokenizers, save_tokenizers, tokenizer_of

NLI = Kind("xrep-nli", 3, "remove its directory; it is made again", "columns", ("hashes", "languages", "labels"))
_CHUNK = 8192


@dataclass(frozen=True, kw_only=True)
class NliOptions:
    """Options for turning raw text into examples."""

    triplets: bool
    language: str
    """Language of the files whose names do not contain one."""
    cross_lingual: bool = False
    target_languages: list[str] = field(default_factory=list)
    """Languages that the tokenizer of the target side reads."""
    vocabulary_size: int | None = None
    """Number of subwords of the vocabulary that is trained if no tokenizers are given.
    None: 16,000, or fewer if the text is too small."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return ("anchor", "positive", "negative") if self.triplets else ("premise", "hypothesis")

    def side(self, language: str) -> str:
        return "target" if language in self.target_languages else "source"


class NliData(DataDirectory):
    """A directory opened for reading, whose manifest has ``languages``, too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, NLI)
        if problem := misfit("manifest", self.manifest, {"languages": [str]}):
            raise self._damaged(f"the manifest {problem}")
        self.languages: list[str] = self.manifest["languages"]
        for split, corpora in self.splits.items():
            if len(corpora) != 1:
                raise self._damaged(f"the manifest has {len(corpora)} sets of {split}")
            self.check_below(corpora[0], "languages", len(self.languages))
            self.check_below(corpora[0], "labels", len(LABELS))


def prepare_nli(path: str | Path, options: NliOptions, tokenizers: Tokenizers) -> NliData:
    """Read and tokenise inference data (layouts: ``xrep.text.nli_readers``) unless this was done before, and open it.

    Args:
        tokenizers: Tokenizers by side; empty to train one on the training text.

    Raises:
        UserError: For the same reasons as ``discover_nli`` and ``read_nli``, or if no example is left.
    """
    files = discover_nli(path, options.language)

    def build(folder: Path, place: Path) -> None:
        print(f"tokenising {path} (once; kept in {place})")
        _Writer(folder, files, options).write(tokenizers)

    read = [path for some in files.values() for file in some for path in file.paths]
    return NliData(build_cached("nli", NLI, asdict(options), read, build, tokenizers))


class _Writer:
    """Writer of the directory ``output``."""

    def __init__(self, output: Path, files: dict[str, list[NliFile]], options: NliOptions) -> None:
        self.output, self.files, self.options = output, files, options
        self._places: dict[str, int] = {}
        self._training = HashRuns(output)

    def write(self, tokenizers: Tokenizers) -> None:
        tokenizers = tokenizers or self._train_tokenizer()
        save_tokenizers(tokenizers, self.output / TOKENIZER_DIRECTORY)
        splits = {split: [self._write_split(split, tokenizers)] for split in self.files}
        facts = {"languages": list(self._places), "splits": splits, "options": asdict(self.options)}
        write_manifest(self.output, NLI, tokenizers, self._training, facts)

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
        return {SHARED: train_vocabulary(sentences, size, place, print)}

    def _write_split(self, split: str, tokenizers: Tokenizers) -> dict[str, Any]:
        counts, names, size = Counter[str](), self.options.columns, vocabulary_size(tokenizers)
        examples = self._read(split, counts)
        with DirectoryWriter(self.output, split, names, NLI.arrays, size) as writer:
            while chunk := list(itertools.islice(examples, _CHUNK)):
                texts = list(zip(*(example.sentences for example in chunk), strict=True))
                codes = list(zip(*(example.languages for example in chunk), strict=True))
                arrays = {
                    "hashes": np.stack([sentence_hashes(column) for column in texts], 1),
                    "languages": np.array([[self._place(code) for code in example.languages] for example in chunk]),
                    "labels": np.array([-1 if example.label is None else example.label for example in chunk]),
                }
                columns = [self._encode(*column, tokenizers) for column in zip(texts, codes, strict=True)]
                writer.append(list(map(joined, columns)), arrays)
                if split == "train":
                    self._training.add(arrays["hashes"].ravel())
        if not writer.rows:
            raise self._nothing(split)
        unit = "triplets" if self.options.triplets else "pairs"
        left_out = "".join(f", {count:,} left out ({why})" for why, count in counts.items() if why != "read")
        print(f"{split}: {writer.rows:,} {unit} of {counts['read']:,} examples{left_out}")
        return {"columns": list(names), **writer.facts}

    def _place(self, language: str) -> int:
        return self._places.setdefault(language, len(self._places))

    def _encode(self, sentences: Sequence[str], languages: Sequence[str], tokenizers: Tokenizers) -> list[list[int]]:
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
        triplets = "triplet (an entailment and a contradiction of one premise)"
        problem = f"no {triplets if self.options.triplets else 'labelled pair'} for {split}"
        return UserError(problem, path=self.files[split][0].paths[0], cure="check the files")

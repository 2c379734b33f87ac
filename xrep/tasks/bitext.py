"""Translation pairs: the data of every objective that contrasts sentences with their translations."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np

from xrep.config.fields import Count, Share
from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary, pad
from xrep.data.negatives import NegativeStore, prepare_negatives
from xrep.data.order import ExampleOrder, by_group
from xrep.data.plan import TokenBudget
from xrep.data.preprocess import PreprocessOptions, prepare
from xrep.data.table import Column, DataDirectory, Table, gather_rows
from xrep.errors import UserError
from xrep.tasks.stored import StoredTask, ids_of, rows_by_length
from xrep.tasks.task import ParallelTask, Pool
from xrep.text.cleaning import HashSet
from xrep.text.corpora import find_resource
from xrep.text.sides import SIDES, Tokenizers, load_tokenizers, same_tokenizers, tokenizer_of

T = TypeVar("T")
SCANNED_TOKENS = 1 << 24
"""Number of tokens held in memory at a time when all training text is read."""
SCANNED_ROWS = 1 << 20
"""Number of pairs whose hashes are."""


class BitextTask(StoredTask, ParallelTask):
    """Pairs of sentences in one or several language pairs, read from a data directory or from raw text.

    Raises:
        UserError: the data is missing or damaged, or has other tokenizers.
    """

    @dataclass(kw_only=True)
    class Config:
        data: str | None = None
        """Directory made by xrep-preprocess, or a directory of raw text, which is preprocessed once and cached. It can
        also be given as the first argument of xrep-train. none: the demo corpus."""
        batch_size: Count = 128
        """Number of pairs in a batch. With in-batch negatives, each sentence is compared with this number of
        sentences."""
        max_length: Annotated[int, "[3, inf)"] = 128
        """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""
        sampling_alpha: Share = 1.0
        """Language pairs are drawn with p proportional to n ** sampling_alpha, where n is their number of pairs. 1
        takes every pair once per epoch; smaller values repeat small corpora."""
        vocab_size: Annotated[int, "[8, 1e9]"] | None = None
        """Raw text only: number of subwords in the vocabulary that is trained on it. none: 16,000, or fewer if the text
        is too small."""
        exclude: list[str] = field(default_factory=list)
        """Raw text only: files or directories of evaluation sets. Training pairs with a sentence that occurs there are
        dropped."""
        negatives: list[str] = field(default_factory=list)
        """Files of hard negatives, as xrep-mine negatives writes them: lines source, target, negative and any number of
        further negatives, separated by tabs. Each pair of the training text is compared with its own ones as well.
        Sentences that occur in `exclude` are left out."""

    def __init__(self, config: Config, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config = config
        data = _read(config, self._by_side(tokenizers or {}))
        self._splits, path = data.splits, data.path
        self._train, self.has_validation = self._pairs("train"), bool(self._pairs("valid"))
        if not self._train:
            raise UserError("has no split 'train'", path=path, cure="preprocess the text with that split")
        self.tokenizers: Tokenizers = self._by_side(data.tokenizers)
        self.text = TextSpec(
            vocabularies={side: Vocabulary.of(tokenizer) for side, tokenizer in self.tokenizers.items()},
            max_length=config.max_length,
            source_languages=sorted({pair.languages[0] for pair in self._train}),
            target_languages=sorted({pair.languages[1] for pair in self._train}),
        )
        order = ExampleOrder(
            [len(pair) for pair in self._train],
            config.sampling_alpha,
            seed,
            lambda corpus, rows: self._train[corpus].lengths(rows),
        )
        self._open(data, order, self._size_of_batches(), "pairs", path)
        self._negatives = self._read_negatives() if config.negatives else None
        self.has_hard_negatives = self._negatives is not None

    def _read_negatives(self) -> NegativeStore:
        files = self.config.negatives
        store = prepare_negatives(files, tokenizer_of(self.tokenizers, "target"), self.config.exclude)
        found = (np.count_nonzero(store.counts(block)) for pair in self._train for block in _blocks(pair.hashes))
        self._with_negatives = sum(found)
        if not self._with_negatives:
            problem = "none of its pairs is in the training text"
            raise UserError(problem, path=files[0], cure="mine negatives of the text that you train on")
        return store

    def _size_of_batches(self) -> int | TokenBudget:
        return self.config.batch_size

    @property
    def language_pairs(self) -> list[tuple[str, str]]:
        return [(pair.languages[0], pair.languages[1]) for pair in self._train]

    def subwords(self, language: str) -> np.ndarray:
        columns = [
            pair[side].values
            for pair in self._train
            for name, side in zip(pair.languages, SIDES, strict=True)
            if name == language
        ]
        seen = np.zeros(max(vocabulary.size for vocabulary in self.text.vocabularies.values()), dtype=bool)
        for tokens in columns:
            for start in range(0, len(tokens), SCANNED_TOKENS):
                seen[tokens[start : start + SCANNED_TOKENS]] = True
        return np.flatnonzero(seen)

    def hashes(self) -> Iterator[np.ndarray]:
        return (pair.hashes for pair in self._train)

    def make(self, what: np.ndarray) -> Batch:
        batch = self._batch(self._train, what)
        if self._negatives is None:
            return batch
        return replace(batch, negatives=self._negatives.of(batch.ids.numpy().view(np.uint64), self.text))

    def fingerprint(self) -> str:
        return super().fingerprint() + (f" {self._negatives.data.fingerprint}" if self._negatives is not None else "")

    def statistics(self) -> dict[str, Any]:
        if self._negatives is None:
            return super().statistics()
        negatives = {"sentences": len(self._negatives), "pairs": self._with_negatives}
        return {**super().statistics(), "negatives": negatives}

    def write_training_hashes(self, path: Path) -> None:
        """Write the hashes of both sides of the pairs and of the hard negatives.

        With hard negatives they are in memory meanwhile: 8 bytes a sentence, or 16 during a merge.
        """
        super().write_training_hashes(path)
        if self._negatives is not None:
            hashes = HashSet()
            hashes.add(np.load(path, allow_pickle=False))
            hashes.add(np.load(self._negatives.data.training_hashes, allow_pickle=False))
            with open(path, "wb") as file:  # np.save would add a suffix to the name
                np.save(file, hashes.to_array())

    def _describe(self, corpus: int, row: int) -> str:
        pair = self._train[corpus]
        source = tokenizer_of(self.tokenizers, "source").decode(pair["source"][row])
        target = tokenizer_of(self.tokenizers, "target").decode(pair["target"][row])
        return f"{pair.name} pair {row}: {source!r} ||| {target!r}"

    def validation_pools(self, max_pool_size: int) -> list[Pool]:
        def batches(pair: Table) -> Iterator[Batch]:
            for rows in rows_by_length(pair.lengths(np.arange(min(len(pair), max_pool_size)))):
                yield self._batch([pair], np.stack([np.zeros_like(rows), rows], axis=1))

        pools = [
            Pool(pair.name, pair.languages[0], pair.languages[1], partial(batches, pair))
            for pair in self._pairs("valid")
        ]
        if not pools:
            cure = "preprocess the text with that split"
            raise UserError("has no split 'valid'", path=self._place, cure=cure)
        return pools

    def validation_batches(self) -> Iterator[Batch]:
        pools = self.validation_pools(sys.maxsize) if self.has_validation else []
        return (batch for pool in pools for batch in pool.batches())

    def references(self, batch: Batch) -> list[str]:
        tokenizer = tokenizer_of(self.tokenizers, "target")
        rows = zip(batch.target.tokens.tolist(), batch.target.host_lengths.tolist(), strict=True)
        leading = self.text.vocabulary("target").leading_count
        return [tokenizer.decode(ids[leading : length - 1]) for ids, length in rows]

    def _by_side(self, given: Mapping[str, T]) -> Mapping[str, T]:
        """Map values by side of the data to values by side of a batch, or the other way round."""
        return given

    def _pairs(self, split: str) -> list[Table]:
        return [pair for pair in self._splits.get(split, []) if len(pair)]

    def _batch(self, pairs: list[Table], examples: np.ndarray) -> Batch:
        """Collate (corpus, row) examples, int64 [N, 2]."""
        corpora, rows = examples.T
        starts = np.cumsum([0, *(len(pair) for pair in pairs)])
        ids = by_group(corpora, lambda corpus, places: ids_of(pairs[corpus], rows[places]))
        known = {language: place for place, language in enumerate(self.text.languages)}
        languages = np.array([[known[language] for language in pair.languages] for pair in pairs], dtype=np.int64)
        sides = {name: self._side(name, [pair[name] for pair in pairs], examples) for name in SIDES}
        return Batch.of(sides, ids=ids, indices=starts[corpora] + rows, languages=languages[corpora])

    def _side(self, name: str, columns: list[Column], examples: np.ndarray) -> TokenBatch:
        vocabulary = self.text.vocabulary(name)
        most = self.text.max_length - vocabulary.special_count
        return pad(*gather_rows(columns, examples[:, 0], examples[:, 1], most), vocabulary)


def _blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[start : start + SCANNED_ROWS] for start in range(0, len(rows), SCANNED_ROWS))


def _read(config: BitextTask.Config, tokenizers: Mapping[str, str]) -> DataDirectory:
    options = PreprocessOptions(vocabulary_size=config.vocab_size, tokenizers=dict(tokenizers), exclude=config.exclude)
    data = DataDirectory(prepare(find_resource("demo").get() if config.data is None else config.data, options))
    given = load_tokenizers(tokenizers, partial=True) if tokenizers else {}
    if not same_tokenizers(given, {side: own for side, own in data.tokenizers.items() if side in given}):
        named = " ".join(f"--{side}-tokenizer {path}" for side, path in tokenizers.items()).replace("--shared-", "--")
        raise UserError(
            "was tokenised with another vocabulary than that of the pretrained encoder",
            path=data.path,
            cure=f"name the raw text, or preprocess it with {named}",
        )
    return data

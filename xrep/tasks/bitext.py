"""Translation pairs: the data of every objective that contrasts sentences with their translations."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from xrep.data.batching import PairBatch, TextSpec, TokenBatch, Vocabulary, pad
from xrep.data.order import ExampleOrder
from xrep.data.plan import check_size, plan_batches
from xrep.data.preprocess import PreprocessOptions, prepare
from xrep.data.store import DataDirectory, PairSplit
from xrep.data.stream import Plan
from xrep.errors import UserError
from xrep.tasks.task import ParallelTask, Pool
from xrep.text.corpora import find_resource
from xrep.text.sides import Tokenizers, load_tokenizers, same_tokenizers, tokenizer_of

T = TypeVar("T")
VALIDATION_BATCH_SIZE = 128
SCANNED_TOKENS = 1 << 24
"""Number of tokens held in memory at a time when all training text is read."""


class BitextTask(ParallelTask):
    """Pairs of sentences in one or several language pairs, read from a data directory or from raw text.

    Raises:
        UserError: the data is missing or damaged, or has other tokenizers.
    """

    @dataclass(kw_only=True)
    class Config:
        data: str | None = None
        """Directory made by xrep-preprocess, or a directory of raw text, which is preprocessed once and cached. It can
        also be given as the first argument of xrep-train. none: the demo corpus."""
        batch_size: int = 128
        """Number of pairs in a batch. With in-batch negatives, each sentence is compared with this number of
        sentences."""
        max_length: int = 128
        """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""
        sampling_alpha: float = 1.0
        """Language pairs are drawn with p proportional to n ** sampling_alpha, where n is their number of pairs. 1
        takes every pair once per epoch; smaller values repeat small corpora."""
        vocab_size: int = 16000
        """Raw text only: number of subwords in the vocabulary that is trained on it."""
        exclude: list[str] = field(default_factory=list)
        """Raw text only: files or directories of evaluation sets. Training pairs with a sentence that occurs there are
        dropped."""

        def problems(self) -> list[str]:
            least = {"batch_size": 1, "max_length": 3, "vocab_size": 8}
            given = {name: value for name in least if (value := getattr(self, name)) is not None}
            problems = [
                f"{name} must be at least {least[name]}, not {x}" for name, x in given.items() if x < least[name]
            ]
            if not 0 <= self.sampling_alpha <= 1:
                problems.append(f"sampling_alpha must lie in [0, 1], not {self.sampling_alpha}")
            return problems

    def __init__(self, config: Config, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config = config
        self._data = _open(config, self._by_side(tokenizers or {}))
        self._train = self._pairs("train")
        self.examples = sum(len(pair) for pair in self._train)
        self.tokenizers: Tokenizers = self._by_side(self._data.tokenizers)
        self.text = _text_spec(self.tokenizers, self._train, config.max_length)
        self._order = ExampleOrder([len(pair) for pair in self._train], config.sampling_alpha, seed, self._lengths)

    @property
    def examples_per_batch(self) -> int | Fraction:
        return self.config.batch_size

    def check_size(self, world_size: int) -> None:
        check_size(self.examples, "pairs", self.config.batch_size, world_size, self._data.path)

    def write_training_hashes(self, path: Path) -> None:
        shutil.copyfile(self._data.training_hashes_path, path)

    @property
    def language_pairs(self) -> list[tuple[str, str]]:
        return [pair.languages for pair in self._train]

    def subwords(self, language: str) -> np.ndarray:
        columns = [
            column
            for pair in self._train
            for name, column in zip(pair.languages, (pair.source, pair.target), strict=True)
            if name == language
        ]
        seen = np.zeros(max(vocabulary.size for vocabulary in self.text.vocabularies.values()), dtype=bool)
        for column in columns:
            for start in range(0, len(column.tokens), SCANNED_TOKENS):
                seen[column.tokens[start : start + SCANNED_TOKENS]] = True
        return np.flatnonzero(seen)

    def hashes(self) -> Iterator[np.ndarray]:
        return (pair.hashes for pair in self._train)

    def fingerprint(self) -> str:
        return self._data.fingerprint

    def plan(
        self, cursor: int | None = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]:
        return plan_batches(self._order, self.config.batch_size, cursor, rank, world_size, stop)

    def make(self, what: np.ndarray) -> PairBatch:
        return self._batch(self._train, what)

    def describe(self, batch: PairBatch, limit: int = 3) -> str:
        starts = np.cumsum([0, *(len(pair) for pair in self._train)])
        lines = []
        for index in batch.indices[:limit].tolist():
            corpus = int(np.searchsorted(starts, index, side="right")) - 1
            pair, row = self._train[corpus], int(index - starts[corpus])
            source = tokenizer_of(self.tokenizers, "source").decode(pair.source[row])
            target = tokenizer_of(self.tokenizers, "target").decode(pair.target[row])
            lines.append(f"{pair.name} pair {row}: {source!r} ||| {target!r}")
        return "; ".join(lines) or "no examples"

    def validation_pools(self, max_pool_size: int) -> list[Pool]:
        pools = []
        for pair in self._pairs("valid"):
            rows = np.arange(min(len(pair), max_pool_size))
            rows = rows[np.argsort(_pair_lengths(pair, rows), kind="stable")]
            pools.append(Pool(pair.name, *pair.languages, lambda pair=pair, rows=rows: self._pool_batches(pair, rows)))
        return pools

    @property
    def has_validation(self) -> bool:
        return any(len(pair) for pair in self._data.splits.get("valid", []))

    def validation_batches(self) -> Iterator[PairBatch]:
        pools = self.validation_pools(sys.maxsize) if self.has_validation else []
        return (batch for pool in pools for batch in pool.batches())

    def references(self, batch: PairBatch) -> list[str]:
        tokenizer = tokenizer_of(self.tokenizers, "target")
        rows = zip(batch.target.tokens.tolist(), batch.target.host_lengths.tolist(), strict=True)
        return [tokenizer.decode(ids[1 : length - 1]) for ids, length in rows]

    def _pool_batches(self, pair: PairSplit, rows: np.ndarray) -> Iterator[PairBatch]:
        for start in range(0, len(rows), VALIDATION_BATCH_SIZE):
            some = rows[start : start + VALIDATION_BATCH_SIZE]
            yield self._batch([pair], np.stack([np.zeros_like(some), some], axis=1))

    def _by_side(self, given: Mapping[str, T]) -> Mapping[str, T]:
        """Map values by side of the data to values by side of a batch, or the other way round."""
        return given

    def _pairs(self, split: str) -> list[PairSplit]:
        pairs = [pair for pair in self._data.splits.get(split, []) if len(pair)]
        if not pairs:
            raise UserError(f"has no split {split!r}", path=self._data.path, cure="preprocess the text with that split")
        return pairs

    def _lengths(self, corpus: int, rows: np.ndarray) -> np.ndarray:
        return _pair_lengths(self._train[corpus], rows)

    def _batch(self, pairs: list[PairSplit], examples: np.ndarray) -> PairBatch:
        """Collate (corpus, row) examples, int64 [N, 2], read corpus by corpus."""
        corpora = np.unique(examples[:, 0]).tolist() or [0]
        places = [np.flatnonzero(examples[:, 0] == corpus) for corpus in corpora]
        back = np.argsort(np.concatenate(places))
        some = [(pairs[corpus], examples[place, 1]) for corpus, place in zip(corpora, places, strict=True)]
        keep = self.text.max_length - 2
        starts = np.cumsum([0, *(len(pair) for pair in pairs)])
        hashes = np.concatenate([pair.hashes[rows] for pair, rows in some])[back]
        return PairBatch(
            self._side("source", [pair.source.gather(rows, keep) for pair, rows in some], back),
            self._side("target", [pair.target.gather(rows, keep) for pair, rows in some], back),
            torch.from_numpy(hashes.view(np.int64)),
            torch.from_numpy(starts[examples[:, 0]] + examples[:, 1]),
            torch.from_numpy(self._languages(pairs)[examples[:, 0]]),
        )

    def _languages(self, pairs: list[PairSplit]) -> np.ndarray:
        """Return the places in ``text.languages`` of the languages of each pair: int64 [pairs, 2]."""
        known = {language: place for place, language in enumerate(self.text.languages)}
        return np.array([[known[language] for language in pair.languages] for pair in pairs], dtype=np.int64)

    def _side(self, name: str, gathered: list[tuple[np.ndarray, np.ndarray]], order: np.ndarray) -> TokenBatch:
        ids, lengths = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
        return pad(ids, lengths, self.text.vocabulary(name)).select(order)


def _open(config: BitextTask.Config, tokenizers: Mapping[str, str]) -> DataDirectory:
    options = PreprocessOptions(vocabulary_size=config.vocab_size, tokenizers=dict(tokenizers), exclude=config.exclude)
    data = DataDirectory.open(prepare(find_resource("demo").get() if config.data is None else config.data, options))
    given = load_tokenizers(tokenizers, partial=True) if tokenizers else {}
    if not same_tokenizers(given, {side: own for side, own in data.tokenizers.items() if side in given}):
        named = " ".join(f"--{side}-tokenizer {path}" for side, path in tokenizers.items()).replace("--shared-", "--")
        raise UserError(
            "was tokenised with another vocabulary than that of the pretrained encoder",
            path=data.path,
            cure=f"name the raw text, or preprocess it with {named}",
        )
    return data


def _text_spec(tokenizers: Tokenizers, pairs: list[PairSplit], max_length: int) -> TextSpec:
    return TextSpec(
        vocabularies={side: Vocabulary.of(tokenizer) for side, tokenizer in tokenizers.items()},
        max_length=max_length,
        source_languages=sorted({pair.languages[0] for pair in pairs}),
        target_languages=sorted({pair.languages[1] for pair in pairs}),
    )


def _pair_lengths(pair: PairSplit, rows: np.ndarray) -> np.ndarray:
    return pair.source.lengths(rows) + pair.target.lengths(rows)

"""A translator whose probabilities are all random, and short plain versions of the searches."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from xrep.data.batch import TokenBatch, Vocabulary, collate
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.hypotheses import Hypothesis

VOCABULARY = Vocabulary(size=7, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
"""Ids 5 and 6 are words, and so is unk, 1."""
WORDS = (1, 5, 6)


class ToyModel:
    """A model whose logits are a function of the source sentence, the language and the translation so far."""

    def __init__(self, seed: int, max_target_length: int = 4, eos: float = 0.0) -> None:
        self.seed, self.max_target_length, self.eos = seed, max_target_length, eos
        self.source_vocabulary = self.target_vocabulary = VOCABULARY
        self.calls: list[tuple[int, int]] = []
        """Numbers of sentences and hypotheses of each step."""

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        draw = random.Random(f"{self.seed} {source} {prefix}")
        logits = [draw.gauss(0, 2) for _ in range(VOCABULARY.size)]
        logits[VOCABULARY.eos_id] += self.eos
        return logits

    def log_probabilities(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> list[float]:
        logits = self.logits(source, prefix)
        normaliser = math.log(sum(map(math.exp, logits)))
        return [logit - normaliser for logit in logits]

    def begin(self, source: TokenBatch, languages: Tensor) -> ToyDecoding:
        rows = zip(source.tokens.tolist(), source.lengths.tolist(), languages.tolist(), strict=True)
        return ToyDecoding(self, [(*tokens[:length], language) for tokens, length, language in rows])


class ToyDecoding:
    def __init__(self, model: ToyModel, sources: list[tuple[int, ...]]) -> None:
        self.model, self.sources = model, sources
        self.prefixes: list[list[tuple[int, ...]]] = [[()] for _ in sources]

    def next(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        if tokens is not None:
            extended = zip(self.prefixes, tokens.tolist(), parents.tolist(), strict=True)
            self.prefixes = [
                [(*before[parent], token) for token, parent in zip(*new, strict=True)] for before, *new in extended
            ]
        self.model.calls.append((len(self.prefixes), len(self.prefixes[0])))
        rows = zip(self.sources, self.prefixes, strict=True)
        return torch.tensor([[self.model.logits(source, prefix) for prefix in some] for source, some in rows])

    def keep(self, rows: Tensor) -> None:
        self.sources = [self.sources[row] for row in rows.tolist()]
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]


def sources_of(count: int, longest: int = 6) -> TokenBatch:
    """Return different sentences of 1 to ``longest`` words."""
    draw = random.Random(count)
    sentences = [np.array([draw.choice((5, 6)) for _ in range(1 + i % longest)]) for i in range(count)]
    return collate(sentences, VOCABULARY, 32)


def source_key(batch: TokenBatch, row: int, language: int = 0) -> tuple[int, ...]:
    return (*batch.tokens[row, : batch.lengths[row]].tolist(), language)


def best_of_all(model: ToyModel, source: tuple[int, ...], options: DecodingOptions) -> list[tuple[float, list[int]]]:
    """Return all translations, best first."""
    found = []
    for length in range(model.max_target_length):
        for words in itertools.product(WORDS, repeat=length):
            total = sum(model.log_probabilities(source, words[:place])[word] for place, word in enumerate((*words, 3)))
            found.append((total / options.penalty(length + 1), list(words)))
    return sorted(found, reverse=True)


def plain_search(model: ToyModel, source: tuple[int, ...], options: DecodingOptions) -> list[tuple[float, list[int]]]:
    """Search by fairseq's rule for one sentence at a time: of 2 · beam candidates those with eos among the first
    ``beam`` finish; the first ``beam`` of the others continue."""
    limit = min(int(options.max_length_a * (len(source) - 3) + options.max_length_b) + 1, model.max_target_length)
    going: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        candidates = []
        for score, prefix in going:
            follow = model.log_probabilities(source, prefix)
            words: Sequence[int] = (3,) if length == limit else WORDS if length <= options.min_length else (3, *WORDS)
            candidates += [(score + follow[word], prefix, word) for word in words]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * options.beam]
        for score, prefix, word in candidates[: options.beam]:
            if word == 3 and len(finished) < options.beam:
                finished.append((score / options.penalty(length), list(prefix)))
        if len(finished) == options.beam:
            break
        going = [(score, (*prefix, word)) for score, prefix, word in candidates if word != 3][: options.beam]
    return sorted(finished, key=lambda found: -found[0])[: options.nbest]


def assert_model_scores(model: ToyModel, source: tuple[int, ...], found: Sequence[Hypothesis]) -> None:
    """Assert that the scores of the tokens are the model's."""
    for hypothesis in found:
        words = (*hypothesis.tokens, 3)
        follow = [model.log_probabilities(source, words[:place])[word] for place, word in enumerate(words)]
        assert hypothesis.token_scores == pytest.approx(follow, rel=1e-5, abs=1e-5)

"""Sampling: the distribution is the model's, and the draws of a sentence do not depend on its batch."""

import math
from collections import Counter

import pytest
import torch

from tests.inference.generation.toys import WORDS, ToyModel, assert_model_scores, source_key, sources_of
from xrep.data.batch import TokenBatch
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.hypotheses import Hypothesis


def drawn_by(
    model: object, source: TokenBatch, numbers: torch.Tensor | None = None, **options: object
) -> list[list[Hypothesis]]:
    languages = torch.zeros(len(source), dtype=torch.int64)
    return search(model, source, languages, DecodingOptions(sampling=True, **options), numbers)


def likelihood(model: ToyModel, source: tuple[int, ...], words: tuple[int, ...]) -> float:
    """Return the probability of a whole translation among the tokens that may be drawn; eos is certain at the end."""
    total = 0.0
    for place, word in enumerate((*words, 3)):
        if place < model.max_target_length - 1:
            follow = model.log_probabilities(source, words[:place])
            total += follow[word] - math.log(sum(math.exp(follow[other]) for other in (*WORDS, 3)))
    return math.exp(total)


def test_translations_come_as_often_as_the_model_says() -> None:
    model, source, count = ToyModel(3, max_target_length=3), sources_of(1), 4000
    (drawn,) = drawn_by(model, source, nbest=count)
    counts = Counter(tuple(h.tokens) for h in drawn)
    squares = 0.0
    for words in {(), *((a,) for a in WORDS), *((a, b) for a in WORDS for b in WORDS)}:
        expected = count * likelihood(model, source_key(source, 0), words)
        squares += (counts.pop(words, 0) - expected) ** 2 / expected
    assert not counts
    assert squares < 32.9  # 0.1% quantile of chi-square with 12 degrees of freedom


def test_scores_are_the_models_own() -> None:
    """Scores are not those of the narrower distribution of the draws."""
    model, source = ToyModel(1, max_target_length=8), sources_of(6)
    options = {"nbest": 5, "temperature": 0.7, "top_k": 3, "top_p": 0.9, "length_penalty": 0.5}
    for row, drawn in enumerate(drawn_by(model, source, **options)):
        assert [h.score for h in drawn] == sorted((h.score for h in drawn), reverse=True) and len(drawn) == 5
        assert_model_scores(model, source_key(source, row), drawn)
        for hypothesis in drawn:
            expected = sum(hypothesis.token_scores) / (len(hypothesis.tokens) + 1) ** 0.5
            assert hypothesis.score == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_one_candidate_is_greedy_search() -> None:
    model, source = ToyModel(2, max_target_length=9), sources_of(8)
    greedy = search(model, source, torch.zeros(8, dtype=torch.int64), DecodingOptions(beam=1))
    for options in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
        drawn = drawn_by(model, source, nbest=3, **options)
        assert [[h.tokens for h in some] for some in drawn] == [[best.tokens] * 3 for (best,) in greedy]


def test_draws_depend_on_the_seed_and_the_number_of_a_sentence_and_not_on_the_others() -> None:
    model, source, numbers = ToyModel(4, max_target_length=20, eos=1), sources_of(24), torch.arange(24) * 7
    together = drawn_by(model, source, numbers, nbest=3, seed=2)
    assert len({size for size, _ in model.calls}) > 3
    for row in range(24):
        (alone,) = drawn_by(model, source.rows(row, row + 1), numbers[row : row + 1], nbest=3, seed=2)
        assert [h.tokens for h in together[row]] == [h.tokens for h in alone]
    other = drawn_by(model, source, numbers, nbest=3, seed=3)
    pairs = [[[h.tokens for h in some] for some in two] for two in zip(together, other, strict=True)]
    assert sum(a == b for a, b in pairs) < 12 and sum(a[0] == a[1] == a[2] for a, _ in pairs) < 12


def test_lengths_and_repeats_are_bounded() -> None:
    source = sources_of(12)
    drawn = drawn_by(
        ToyModel(0, max_target_length=20, eos=1), source, nbest=4, min_length=3, max_length_a=0.0, max_length_b=6
    )
    assert {len(h.tokens) for some in drawn for h in some} == {3, 4, 5, 6}
    model = ToyModel(0, max_target_length=20, eos=-3)
    for some in drawn_by(model, source, nbest=4, no_repeat_ngram_size=2):
        for tokens in (h.tokens for h in some):
            pairs = list(zip(tokens, tokens[1:], strict=False))
            assert len(pairs) == len(set(pairs))

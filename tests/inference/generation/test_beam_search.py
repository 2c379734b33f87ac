"""Beam search against all possible translations, against a plain search, and against the model itself."""

import pytest
import torch

from tests.inference.generation.toys import (
    ToyModel,
    assert_model_scores,
    best_of_all,
    plain_search,
    source_key,
    sources_of,
)
from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.hypotheses import Hypothesis

FORMS = ("fairseq", "gnmt")


def first(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int64)


def found_by(model: object, source: TokenBatch, **options: object) -> list[list[Hypothesis]]:
    return search(model, source, first(len(source)), DecodingOptions(**options))


def assert_same(some: list[list[Hypothesis]], others: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(some, others, strict=True):
        assert_found(ours, [(hypothesis.score, hypothesis.tokens) for hypothesis in theirs])


def assert_found(best: list[Hypothesis], expected: list[tuple[float, list[int]]]) -> None:
    assert [h.tokens for h in best] == [words for _, words in expected]
    assert [h.score for h in best] == pytest.approx([score for score, _ in expected], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.5])
def test_a_beam_as_wide_as_the_tree_finds_the_true_best(form: str, penalty: float) -> None:
    source = sources_of(3)
    for seed in range(2):
        model = ToyModel(seed)
        options = DecodingOptions(beam=3**4, nbest=8, length_penalty=penalty, length_penalty_form=form)
        for row, best in enumerate(search(model, source, first(3), options)):
            assert_found(best, best_of_all(model, source_key(source, row), options)[:8])


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("eos", [-1.0, 2.0])
def test_narrow_beams_follow_the_rule(beam: int, eos: float) -> None:
    source = sources_of(12)
    for seed in range(3):
        model = ToyModel(seed, max_target_length=9, eos=eos)
        for more in (
            {}, {"min_length": 5}, {"min_length": 12}, {"max_length_b": 7},
            {"max_length_a": 0.5, "max_length_b": 1, "length_penalty_form": "gnmt"},
        ):  # fmt: skip
            options = DecodingOptions(beam=beam, nbest=beam, **more)
            for row, best in enumerate(search(model, source, first(12), options)):
                assert_found(best, plain_search(model, source_key(source, row), options))
                assert_model_scores(model, source_key(source, row), best)


def test_the_language_reaches_the_model() -> None:
    model, source = ToyModel(1), sources_of(4)
    mixed = search(model, source, torch.tensor([0, 1, 0, 1]), DecodingOptions())
    apart = [search(model, source, torch.full((4,), language), DecodingOptions()) for language in (0, 1)]
    assert_same(mixed, [apart[row % 2][row] for row in range(4)])
    assert any(a != b for a, b in zip(*apart, strict=True))


def test_finished_sentences_leave_the_batch() -> None:
    """A sentence has the steps that it needs, apart from waiting until enough sentences are done."""
    source = sources_of(24)
    options = {"beam": 2, "max_length_a": 2.0, "max_length_b": 0}
    alone = 0
    for row in range(24):
        model = ToyModel(3, max_target_length=40, eos=-30)
        found_by(model, source.rows(row, row + 1), **options)
        assert len(model.calls) == 2 * (row % 6 + 1) + 1  # the longest translation, and eos
        alone += len(model.calls)
    model = ToyModel(3, max_target_length=40, eos=-30)
    found_by(model, source, **options)
    sizes = [sentences for sentences, _ in model.calls]
    assert sizes == [24] * 3 + [20] * 2 + [16] * 2 + [12] * 2 + [8] * 2 + [4] * 2
    assert sum(sizes) == alone


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_is_repeated(size: int) -> None:
    source, model = sources_of(10), ToyModel(2, max_target_length=16, eos=-4)
    free, bound = (found_by(model, source, beam=3, nbest=3, no_repeat_ngram_size=n) for n in (0, size))

    def repeats(best: list[Hypothesis]) -> int:
        grams = [[tuple(h.tokens[i : i + size]) for i in range(len(h.tokens) - size + 1)] for h in best]
        return sum(len(some) - len(set(some)) for some in grams)

    assert sum(map(repeats, free)) > 20 and sum(map(repeats, bound)) == 0
    for row, best in enumerate(bound):  # banned tokens keep their share of the probability
        assert_model_scores(model, source_key(source, row), best)


def test_logits_of_special_tokens_and_of_no_number() -> None:
    class Loud(ToyModel):
        def logits(self, source, prefix):
            logits = super().logits(source, prefix)
            return [logit + 20 * (word in (0, 2, 4)) for word, logit in enumerate(logits)]

    class Broken(ToyModel):
        def logits(self, source, prefix):
            return [float("nan")] * 7

    for best in found_by(Loud(0, max_target_length=8), sources_of(8), beam=4, nbest=4):
        assert all(token in (1, 5, 6) for h in best for token in h.tokens)
    for options in ({}, {"beam": 1}, {"sampling": True}):
        with pytest.raises(UserError, match="probabilities that are not finite; check its training"):
            found_by(Broken(0), sources_of(3), **options)


@pytest.mark.parametrize("semantic_bias", [False, True])
def test_steps_with_a_cache_score_as_the_whole_model_does(make_model, lines, semantic_bias):
    """Incremental decoding of a padded batch equals teacher forcing, in float64 except for the logits."""
    model = make_model(semantic_bias=semantic_bias).double()
    options = DecodingOptions(beam=4, nbest=3, max_length_a=1.0, max_length_b=4, length_penalty=0.6)
    found = search(model, lines.source, first(len(lines)), options)
    assert lines.source.is_padded and len({len(h.tokens) for best in found for h in best}) > 1
    bos, eos = model.target_vocabulary.bos_id, model.target_vocabulary.eos_id
    for row, best in enumerate(found):
        for hypothesis in best:
            words = torch.tensor([[bos, *hypothesis.tokens, eos]])
            target = token_batch(words, torch.tensor([words.numel()]))
            with torch.no_grad():
                whole = model.predict(lines.source.rows(row, row + 1), target, first(1))
                logits = whole.vectors @ whole.matrix.t()
                follow = (logits if whole.bias is None else logits + whole.bias[whole.sentences]).log_softmax(1)
            assert (whole.bias is not None) == semantic_bias
            expected = follow.gather(1, whole.labels.unsqueeze(1)).squeeze(1).tolist()
            assert hypothesis.token_scores == pytest.approx(expected, rel=1e-5, abs=1e-5)
            assert hypothesis.score == pytest.approx(sum(expected) / options.penalty(len(expected)), rel=1e-5, abs=1e-5)

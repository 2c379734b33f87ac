"""BLEU by hand, and against sacrebleu on sentences with changed, missing, swapped and added words."""

import math
import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from tests.support.corpus import sentence_pairs
from xrep.metrics.bootstrap import resampled
from xrep.metrics.translation import bleu, chrf, multi_bleu, resampled_bleu, usual_tokenizer

ENGLISH = [english for _, english in sentence_pairs(300)]
OTHERS = [english for _, english in sentence_pairs(300, seed=1)]


def noisy(sentences: list[str], seed: int, rate: float) -> list[str]:
    """Return translations of a poor system, in which words are missing, swapped or from another sentence."""
    draw, found = random.Random(seed), []
    for words, other in zip(map(str.split, sentences), map(str.split, OTHERS), strict=False):
        kept = [draw.choice(other) if draw.random() < rate else word for word in words if draw.random() > rate / 4]
        if draw.random() < rate:
            kept[:2] = kept[1::-1]
        found.append(" ".join(kept))
    return found


def test_by_hand() -> None:
    # 7 words, "the" counts twice of 3 times: 5/7; "the cat" "cat is" "on the": 3/6 ("the the" and "is the" are wrong);
    # "the cat is": 1/5; 4-grams 0/4
    found = multi_bleu(["the cat is the on the mat"], ["the cat is on the rug"])
    assert str(found) == "BLEU = 0.00 71.4/50.0/20.0/0.0 (BP = 1.000 ratio = 1.167 hyp_len = 7 ref_len = 6)"
    short = multi_bleu(["a b c d"], ["a b c d e f"])
    assert short.score == pytest.approx(100 * math.exp(1 - 6 / 4)) and short.precisions == [100] * 4
    assert str(short) == "BLEU = 60.65 100.0/100.0/100.0/100.0 (BP = 0.607 ratio = 0.667 hyp_len = 4 ref_len = 6)"


def test_text_without_spaces_is_not_one_word() -> None:
    """A translation that differs in one character has a BLEU of its own in each of these languages."""
    texts = {"zh": "我今天很喜欢这本书", "ja": "わたしはこの本が好きです", "de": "das ist nun das Haus"}
    for language, text in texts.items():
        found, _ = bleu([text[:-1]], [text], usual_tokenizer(language))
        assert 50 < found.score < 100, language


def test_words_are_what_is_between_white_space_of_ascii() -> None:
    assert multi_bleu(["  a\tb  c\u00a0d e\n"], ["a b c\u00a0d e"]).precisions == [100] * 4
    assert multi_bleu(["a b c\u00a0d e"], ["a b c d e"]).sys_len == 4
    assert multi_bleu(["A b"], ["a b"]).precisions[0] == 50


@pytest.mark.parametrize("tokenize", ["none", "13a", "intl", "zh", "char"])
def test_it_is_bleu_of_sacrebleu_without_smoothing(tokenize: str) -> None:
    hypotheses, references, others = (
        [f"{text[0].upper()}{text[1:]}, 3.5 (né) 我喜欢!" for text in side]
        for side in (noisy(ENGLISH[:60], 3, 0.4), ENGLISH[:60], noisy(ENGLISH[:60], 4, 0.2))
    )
    for streams in ([references], [references, others]):
        expected = BLEU(tokenize=tokenize, smooth_method="none").corpus_score(hypotheses, streams)
        found = multi_bleu(hypotheses, streams, tokenize)
        assert vars(found) == vars(expected)
        assert bleu(hypotheses, streams, tokenize)[0].score == expected.score  # nothing is smoothed
    alone = multi_bleu(hypotheses, references, tokenize)  # one stream is a list of strings
    assert vars(alone) == vars(multi_bleu(hypotheses, [references], tokenize))
    assert tokenize == "none" or alone.score != pytest.approx(multi_bleu(hypotheses, references).score)


@pytest.mark.slow
def test_scores_of_sacrebleu_with_their_signatures() -> None:
    hypotheses = noisy(ENGLISH, 1, 0.3)
    found, signature = bleu(hypotheses, ENGLISH)
    assert found.name == "BLEU" and found.score == BLEU().corpus_score(hypotheses, [ENGLISH]).score
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert bleu(hypotheses, [ENGLISH, OTHERS], "none")[1].startswith("nrefs:2|case:mixed|eff:no|tok:none|")
    characters, signature = chrf(hypotheses, ENGLISH)
    assert characters.score == CHRF().corpus_score(hypotheses, [ENGLISH]).score > found.score
    assert characters.name == "chrF2" and signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|")
    assert bleu(ENGLISH, ENGLISH)[0].score == pytest.approx(100) and chrf(ENGLISH, ENGLISH)[0].score == 100


def test_empty_translations_are_scored() -> None:
    hypotheses, references = ["a b c x e f"], ["a b c d e f"]
    assert multi_bleu(hypotheses, references).score == 0 and bleu(hypotheses, references)[0].score > 10
    found = multi_bleu(["", ""], ["a b", "c"])
    assert str(found) == "BLEU = 0.00 0.0/0.0/0.0/0.0 (BP = 0.000 ratio = 0.000 hyp_len = 0 ref_len = 3)"
    assert multi_bleu([""], [""]).ratio == 0 and bleu(["", "a b c d"], ["x", "a b c d"])[0].score < 100
    with pytest.raises(ValueError, match="2 hypotheses and 1 references"):
        multi_bleu(["a", "b"], ["a"])


def test_resampled_bleu_is_that_of_the_drawn_sentences() -> None:
    references = ENGLISH[:30]
    hypotheses = noisy(references, seed=1, rate=0.3)
    found = resampled_bleu(hypotheses, references, resamples=20)

    def score(rows: np.ndarray) -> float:
        return bleu([hypotheses[row] for row in rows], [references[row] for row in rows])[0].score

    np.testing.assert_allclose(found, resampled(score, 30, resamples=20))

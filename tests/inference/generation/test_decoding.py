"""Errors in the options of a search are reported before it begins."""

import pytest

from xrep.config import problems_of
from xrep.errors import ConfigError
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.settings import check_options

PROBLEMS: list[tuple[str, dict[str, object]]] = [
    ("max_length_a must be a finite number, not nan", {"max_length_a": float("nan")}),
    ("length_penalty must lie in [-10, 10], not -11.0", {"length_penalty": -11.0}),
    ("length_penalty_form must be fairseq or gnmt, not 'marian'", {"length_penalty_form": "marian"}),
    ("seed must be between -2**63 and 2**63, not 9223372036854775808", {"seed": 2**63, "sampling": True}),
    ("beam 7 is for beam search; nbest is the number of samples", {"beam": 7, "sampling": True}),
    ("temperature is an option of sampling, which is off", {"temperature": 0.5}),
]
SIGNED = ("min_length", "max_length_b", "no_repeat_ngram_size", "top_k", "seed")
PROBLEMS += [(f"{name} must be at least 0, not -1", {name: -1, "sampling": True}) for name in SIGNED]


def test_problems() -> None:
    for problem, given in PROBLEMS:
        assert problems_of(DecodingOptions(**given)) == [problem]
    assert len(problems_of(DecodingOptions(beam=0, min_length=-1, top_p=2))) == 4
    with pytest.raises(ConfigError, match="`beam` must be at least 1, not 0\n`nbest` must"):
        check_options(DecodingOptions(beam=0, nbest=0))


def test_penalties() -> None:
    assert (
        problems_of(DecodingOptions()) == [] and problems_of(DecodingOptions(sampling=True, nbest=50, top_p=0.9)) == []
    )
    assert DecodingOptions(length_penalty=0.6).penalty(7) == pytest.approx(7**0.6)
    gnmt = DecodingOptions(length_penalty=0.6, length_penalty_form="gnmt")
    assert gnmt.penalty(1) == 1 and gnmt.penalty(7) == pytest.approx(2**0.6)

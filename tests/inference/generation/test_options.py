"""Errors in the options of a search are reported before it begins."""

from __future__ import annotations

import pytest

from xrep.errors import ConfigError
from xrep.inference.generation.options import SearchOptions

PROBLEMS: list[tuple[str, dict[str, object]]] = [
    ("beam must be at least 1, not 0", {"beam": 0}),
    ("nbest must be at least 1, not 0", {"nbest": 0}),
    ("nbest 6 is more than the 5 hypotheses of the beam", {"nbest": 6}),
    ("min_length 9 is more than the greatest length 8", {"min_length": 9, "max_length_b": 8}),
    ("length_penalty must lie in [-10, 10], not -11.0", {"length_penalty": -11.0}),
    ("length_penalty_form must be fairseq or gnmt, not marian", {"length_penalty_form": "marian"}),
    ("top_p must lie in (0, 1], not 0.0", {"top_p": 0.0, "sampling": True}),
    ("temperature must be above 0, not 0.0", {"temperature": 0.0, "sampling": True}),
    ("seed must be below 2**63", {"seed": 2**63, "sampling": True}),
    ("top_k is an option of sampling, which is off", {"top_k": 5}),
]
SIGNED = ("min_length", "max_length_a", "max_length_b", "no_repeat_ngram_size", "top_k", "seed")
PROBLEMS += [(f"{name} must be at least 0, not -1", {name: -1, "sampling": True}) for name in SIGNED]
PROBLEMS += [(f"{name} must be finite, not nan", {name: float("nan")}) for name in ("max_length_a", "length_penalty")]


def test_problems() -> None:
    for problem, given in PROBLEMS:
        assert SearchOptions(**given).problems() == [problem]
        with pytest.raises(ConfigError, match="^[^\n]+$"):
            SearchOptions(**given).check()
    assert len(SearchOptions(beam=0, min_length=-1, top_p=2).problems()) == 4


def test_penalties() -> None:
    assert SearchOptions().problems() == [] and SearchOptions(sampling=True, nbest=50, top_p=0.9).problems() == []
    assert SearchOptions(length_penalty=0.6).penalty(7) == pytest.approx(7**0.6)
    gnmt = SearchOptions(length_penalty=0.6, length_penalty_form="gnmt")
    assert gnmt.penalty(1) == 1 and gnmt.penalty(7) == pytest.approx(2**0.6)

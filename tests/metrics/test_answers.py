"""Exact match and F1 of answers on cases made by hand after the rules of SQuAD and MLQA."""

from __future__ import annotations

import pytest

from xrep.metrics.answers import exact_match, f1, normalise


@pytest.mark.parametrize(("answer", "language", "form", "words"), [
    ("The  Eiffel-Tower!", "en", "squad", ["eiffeltower"]),
    ("an apple a day", "en", "mlqa", ["apple", "day"]),
    ("Der Turm von der Stadt", "de", "mlqa", ["turm", "von", "stadt"]),
    ("Der Turm", "de", "squad", ["der", "turm"]),
    ("los “niños”", "es", "mlqa", ["niños"]),
    ("“Zitat”", "en", "squad", ["“zitat”"]),
    ("北京 2008年", "zh", "mlqa", ["北", "京", "2008", "年"]),
    ("北京。", "zh", "squad", ["北京。"]),
    ("البيت", "ar", "mlqa", ["بيت"]),
    ("những cái nhà", "vi", "mlqa", ["nhà"]),
    ("a b", "fi", "mlqa", ["a", "b"]),
    ("", "en", "mlqa", []),
])  # fmt: skip
def test_normalisation(answer: str, language: str, form: str, words: list[str]) -> None:
    assert normalise(answer, language, form) == words  # pyright: ignore[reportArgumentType]


def test_the_best_gold_answer_counts() -> None:
    assert f1("in the old town", ["Old Town", "elsewhere"], "en") == pytest.approx(2 * 2 / (3 + 2))
    assert exact_match("the Old Town.", ["x", "old town"], "en") == 1
    assert f1("x", ["y"], "en") == f1("x", [], "en") == exact_match("x", [], "en") == 0
    assert f1("年年", ["年"], "zh") == pytest.approx(2 / 3)
    assert f1("the", ["a"], "en") == 0

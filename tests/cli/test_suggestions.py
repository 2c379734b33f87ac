"""Advice on options that a command does not have."""

from __future__ import annotations

import pytest

from tests.cli.test_options import CHOSEN, problems
from xrep_cli import encode, eval, generate


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("--output-dir", "--save-dir is the option for that"),
        ("--learning_rate", "--lr is the option for that"),
        ("--num-train-epochs", "--max-epochs is the option for that"),
        ("--early-stopping", "--patience is the option for that"),
        ("--gradient-accumulation-steps", "--update-freq is the option for that"),
        ("--bf16", "--precision is the option for that"),
        ("--queue-sise", "did you mean '--queue-size'?"),
        ("--banana", "--help lists the options of the chosen parts"),
    ],
)
def test_of_training(given: str, advice: str) -> None:
    (problem,) = problems("data/", *CHOSEN, given, "1")
    assert problem.startswith(f"unknown option {given}") and problem.endswith(advice)


def test_patience_is_an_option_itself() -> None:
    from tests.cli.test_options import values

    assert values("data/", *CHOSEN, "--patience", "3")["trainer"]["patience"] == 3


@pytest.mark.parametrize(
    ("main", "line", "advice"),
    [
        (encode.main, "--path a --input b --output c.npy --batch-size 3", "--batch-tokens is the option for that"),
        (encode.main, "--path a --input b --output c.npy --language de", "--lang is the option for that"),
        (generate.main, "--path a --input b --num-beams 5", "--beam is the option for that"),
        (eval.main, "tatoeba --path a --data b --languages de", "--langs is the option for that"),
        (eval.main, "tatoeba --path a --data b --banana", "xrep-eval --help lists the options"),
    ],
)
def test_of_other_commands(main: object, line: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(main) and main(line.split()) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert "unrecognized arguments" in printed and printed.endswith(f"; {advice}")

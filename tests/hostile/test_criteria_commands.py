"""Values of a criterion's options that xrep-train refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.corpus import write_corpus

SMALL = "--layers 1 --hidden-size 16 --heads 2 --feedforward-size 32 --max-steps 1 --vocab-size 120"


def train(options: str, message: str) -> Case:
    return Case("train", f"raw --task bitext --save-dir run {SMALL} {options}", message)


CASES = [
    train("--criterion dual_moco --queue-size 1000000000000", "lower --queue-size"),
    train("--criterion dual_moco --queue-size 1000000000000 --queue-dtype bfloat16", "TB of memory"),
    train("--criterion frozen_source --towers separate --queue-size 1000000000000", "lower --queue-size"),
    train("--criterion dual_moco --queue-size -1", "must be at least 0, not -1"),
    train("--criterion dual_moco --queue-size 1e400", "queue_size must be an integer"),
    train(
        "--criterion dual_moco --queue-size 1000000000000000000000000000000", "queue_size must be an integer between"
    ),
    train("--criterion dual_moco --temperature nan", "temperature"),
    train("--criterion dual_moco --temperature 0", "must lie in [0.0001, 10000], not 0.0"),
    train("--criterion dual_moco --momentum inf", "momentum"),
    train("--criterion translation_ranking --margin 1e400", "margin"),
    train("--criterion translation_ranking --margin-scale x", "margin_scale must be similarity or logit, not 'x'"),
    train("--criterion mlm --mask-rate 0", "mask_rate must lie in (0, 1), not 0.0"),
    train("--criterion cmlm --projections 1000000000000", "projections must lie in [1, 1000]"),
    train("--criterion dap --pivot-language=", "pivot_language must be a string of at least one"),
    train("--criterion hictl --slack 1", "slack must lie in (0, 1), not 1.0"),
    train("--criterion frozen_source --cache-source=", "cache_source must be a string of at least one"),
    train("--criterion nli", "the criterion reads labelled pairs, and the task gives translations"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    write_corpus(folder / "raw")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_options_are_refused_in_one_line(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)

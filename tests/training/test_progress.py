"""The line of progress: what it shows while queues fill, between validations, and in steps that take long."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import compose_run
from xrep.training.progress import Progress
from xrep.training.run import train


def lines_of(data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[str]:
    """Train and return each line of progress, also those that would be shown too soon after another one."""
    lines: list[str] = []
    monkeypatch.setattr(Progress, "line", lambda _, text: lines.append(text))
    train(compose_run(data, folder, **{"log_every": 1000, **given}))
    return lines


def test_a_queue_fills_before_loss_and_accuracy_are_shown(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = lines_of(data_directory, tmp_path / "run", monkeypatch, max_steps=8, validate_every=3, queue_size=100)
    steps = [line for line in lines if not line.endswith("encoded")]
    assert len(steps) == 8
    filled = [re.findall(r"queue (\d+) of 100 filled", line) for line in steps]
    assert filled == [["30"], ["60"], ["90"], [], [], [], [], []]
    assert all(
        ("loss" in line) == ("accuracy " in line.split("validation")[0]) == (not full)
        for line, full in zip(steps, filled, strict=True)
    )
    assert ["validation accuracy" in line for line in steps] == [False] * 3 + [True] * 5
    # The numbers move at every step, and validations count what they have encoded.
    assert len({tuple(re.findall(r"loss [0-9.]+", line)) for line in steps[3:]}) == 5
    counted = [int(line.split("validating: ")[1].split()[0].replace(",", "")) for line in lines if "validating" in line]
    assert counted[:4] == sorted(counted[:4]) and len(counted) > 4 and counted[0] > 1


def test_a_step_of_several_batches_shows_that_it_goes_on(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"criterion": "translation_ranking", "max_steps": 2, "update_freq": 3, "validate_every": 0}
    lines = lines_of(data_directory, tmp_path / "run", monkeypatch, **given)
    done = [
        re.findall("step in progress: (\\d+) sentences encoded", line) for line in lines if "validating" not in line
    ]
    assert done == [*([str(60 * batch)] for batch in (1, 2, 3)), [], *([str(60 * batch)] for batch in (1, 2, 3)), []]
    assert all("queue" not in line for line in lines)

"""Schedules of the learning rate against their formulas."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xrep.registry import LR_SCHEDULERS

LOW = 0.1
DECAYS: dict[str, tuple[dict[str, float], Callable[[float, float], float]]] = {
    "cosine": ({"min_lr_ratio": LOW}, lambda rest, _: LOW + (1 - LOW) * 0.5 * (1 + math.cos(math.pi * rest))),
    "linear": ({"min_lr_ratio": LOW}, lambda rest, _: 1 - (1 - LOW) * rest),
    "inverse_sqrt": ({}, lambda _, elapsed: elapsed**-0.5),
    "constant": ({}, lambda *_: 1.0),
}
"""Options of each schedule, and its rate by the share of the time after warm-up, and by the time in warm-ups."""


def factor(name: str, step: int, progress: float, warmup_end: float, **options: Any) -> float:
    schedule = LR_SCHEDULERS.load(name)
    return schedule(schedule.Config(**options)).factor(step, progress, warmup_end)


@pytest.mark.parametrize("name", LR_SCHEDULERS.names())
@settings(max_examples=40)
@given(warmup=st.integers(0, 10), total=st.integers(12, 40), step=st.integers(0, 60))
def test_warm_up_then_decay(name: str, warmup: int, total: int, step: int) -> None:
    """Warm-up is counted in steps; the decay reaches its end with the budget, and stays there."""
    options, decay = DECAYS[name]
    found = factor(name, step, step / total, warmup / total, warmup_steps=warmup, **options)
    elapsed, rest = (step + 1) / max(warmup, 1), min(max((step - warmup) / (total - warmup), 0), 1)
    assert found == pytest.approx(elapsed if elapsed < 1 else decay(rest, elapsed))


@pytest.mark.parametrize("name", LR_SCHEDULERS.names())
@pytest.mark.parametrize("progress", [0.0, 0.05, 0.15, 0.2, 0.6, 1.0])
def test_warm_up_for_a_share_of_the_budget(name: str, progress: float) -> None:
    """The rate depends on the share of the budget and not on the step, also if the budget is given in minutes."""
    options, decay = DECAYS[name]
    expected = progress / 0.2 if progress < 0.2 else decay((progress - 0.2) / 0.8, progress / 0.2)
    assert factor(name, 7, progress, 0.9, warmup_steps=4, warmup_ratio=0.2, **options) == pytest.approx(expected)

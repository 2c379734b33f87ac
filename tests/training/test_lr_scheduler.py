"""Learning rates at points worked out by hand."""

import json
import math

import pytest

from tests.support.runs import compose_run
from xrep.registry import LR_SCHEDULERS
from xrep.training.run import train


def factor(name, step, progress, warmup_end=0.2, **options):
    schedule = LR_SCHEDULERS.load(name)
    return schedule(schedule.Config(warmup_steps=4, **options)).factor(step, progress, warmup_end)


@pytest.mark.parametrize(
    ("name", "halfway", "end"),
    [
        ("cosine", 0.55, 0.1),
        ("linear", 0.55, 0.1),
        ("inverse_sqrt", math.sqrt(4 / 12), math.sqrt(4 / 20)),
        ("constant", 1, 1),
        ("polynomial", 0.1 + 0.9 * 0.5**2, 0.1),
    ],
)
def test_warm_up_then_decay(name, halfway, end):
    options = {"min_lr_ratio": 0.1} if name in ("cosine", "linear", "polynomial") else {}
    warming = [factor(name, step, step / 20, **options) for step in range(4)]
    assert warming == pytest.approx([0.25, 0.5, 0.75, 1.0])
    # 20 steps with 4 of warm-up: step 12 is half of the rest, step 20 (which is not made) its end.
    assert factor(name, 11 if name == "inverse_sqrt" else 12, 12 / 20, **options) == pytest.approx(halfway)
    assert factor(name, 19, 1.0, **options) == pytest.approx(end)
    assert factor(name, 30, 1.5, **options) <= factor(name, 19, 1.0, **options)


def test_cosine_quarter():
    assert factor("cosine", 8, 8 / 20) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


def test_no_warm_up_starts_at_the_peak():
    for name in LR_SCHEDULERS.names():
        schedule = LR_SCHEDULERS.load(name)
        assert schedule(schedule.Config(warmup_steps=0)).factor(0, 0.0, 0.0) == pytest.approx(1.0)


@pytest.mark.parametrize("name", LR_SCHEDULERS.names())
def test_warm_up_for_a_share_of_the_budget(name):
    """The rate depends on the share of the budget and not on the step, also if the budget is given in minutes."""

    def at(progress, step=7):
        return factor(name, step, progress, 0.9, warmup_ratio=0.2)

    assert [at(share) for share in (0.0, 0.05, 0.1, 0.15)] == pytest.approx([0.0, 0.25, 0.5, 0.75])
    assert at(0.2) == pytest.approx(1.0)
    after = {"constant": 1.0, "cosine": 0.5, "linear": 0.5, "polynomial": 0.25, "inverse_sqrt": math.sqrt(0.2 / 0.6)}
    assert at(0.6) == at(0.6, step=1000) == pytest.approx(after[name])


def test_powers_of_the_share_that_is_left():
    assert factor("polynomial", 8, 8 / 20, power=3.0) == pytest.approx(0.75**3)
    assert factor("polynomial", 8, 8 / 20, power=1.0, min_lr_ratio=0.2) == factor("linear", 8, 8 / 20, min_lr_ratio=0.2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"warmup_steps": -1}, "warmup_steps must be at least 0, not -1"),
        ({"warmup_ratio": 0.0}, "warmup_ratio must lie in (0, 1), not 0.0"),
        ({"warmup_ratio": 1.0}, "warmup_ratio must lie in (0, 1), not 1.0"),
        ({"min_lr_ratio": 2.0}, "min_lr_ratio must lie in [0, 1], not 2.0"),
        ({"power": 0.0}, "power must be above 0, not 0.0"),
    ],
)
def test_refused_options(options, problem):
    assert LR_SCHEDULERS.load("polynomial").Config(**options).problems() == [problem]


def test_rates_of_a_run(data_directory, tmp_path):
    run = compose_run(
        data_directory, tmp_path / "run", max_steps=10, warmup_steps=2, lr=0.01, lr_scheduler="linear", log_every=1
    )
    train(run)
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [record["learning_rate"] for record in records if record["kind"] == "train"]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.00875, 0.0075, 0.00625, 0.005, 0.00375, 0.0025, 0.00125])


def test_fairseqs_inverse_square_root_is_one_step_behind() -> None:
    """fairseq calls ``step_update`` with the number of updates that are done."""

    def fairseq(done: int, warmup: int) -> float:
        return done / warmup if done < warmup else (warmup / done) ** 0.5

    ours = [factor("inverse_sqrt", step, step / 20) for step in range(20)]
    assert [fairseq(done, 4) for done in range(20)] == pytest.approx([0, *ours[:-1]])
    assert ours[3] == 1  # the fourth update has the peak rate
    assert "which is one step behind" in str(LR_SCHEDULERS.load("inverse_sqrt").__doc__)

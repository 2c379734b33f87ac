"""A run that stops and goes on is the run that never stopped, bit by bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import compose_run, going_on_is_never_stopping
from xrep.training.run import train

pytestmark = pytest.mark.slow
RUNS: dict[str, dict[str, Any]] = {
    "queues, dropout and validations": {"validate_every": 1, "save_every": 2},
    "masks and data workers": {"criterion": "mlm", "data_workers": 2},
    "pieces": {"criterion": "translation_ranking", "micro_batch": 8},
    "accumulation": {"update_freq": 2, "activation_checkpointing": None},
    "LoRA": {"lora_rank": 3},
    "LAMB": {"optimizer": "lamb", "lr_multipliers": "*_embedding=0.5", "weight_decay": 0.1},
    "SGD": {"optimizer": "sgd", "nesterov": None, "layer_decay": 0.5},
    "thawing": {"freeze": "encoders.shared.layers.0,*.token_embedding@4", "layers": 2},
    "bf16": {"precision": "bf16"},
    "two towers": {"towers": "separate", "projection_size": 8},
}


@pytest.mark.parametrize("name", RUNS)
def test_going_on_is_never_stopping(data_directory: Path, tmp_path: Path, name: str) -> None:
    # Every run validates at its end, and has a warm-up that ends before it.
    given = {"validate_every": 3, "warmup_steps": 2, **RUNS[name]}
    run = going_on_is_never_stopping(data_directory, tmp_path, **given)
    once, twice = (json.loads((place / "summary.json").read_text()) for place in (tmp_path / "once", run))
    assert (once["steps"], once["examples"], once["best"]) == (twice["steps"], twice["examples"], twice["best"])
    assert once["steps"] == 6 and once["examples"] == 180 * RUNS[name].get("update_freq", 1)


def test_another_batch_size_misses_and_repeats_nothing(data_directory, two_terms, tmp_path):
    run = {"criterion": "two_terms", "save_dir": tmp_path / "run"}
    train(compose_run(data_directory, **run, batch_size=70, max_steps=4))
    before = two_terms.seen
    train(compose_run(data_directory, **run, batch_size=50, update_freq=2, max_epochs=1))
    after = two_terms.seen
    assert {len(batch) for batch in before} == {70} and [len(batch) for batch in after] == [50] * 7
    assert sorted(index for batch in before + after for index in batch) == list(range(630))

"""A run that stops and goes on is the same as one that never stops, and what its checkpoints have of the objective."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import going_on_is_never_stopping
from xrep.models.directory import open_checkpoint

HEAD = {f"masked_lm.heads.shared.{name}" for name in
        ("bias", "dense.bias", "dense.weight", "norm.bias", "norm.weight")}  # fmt: skip
QUEUE = {"queue.vectors", "queue.ids", "queue.count"}
RUNS: dict[str, tuple[dict[str, Any], set[str], str]] = {
    "cmlm": ({"projections": 3}, HEAD | {f"spaces.perceptrons.{space}.{layer}.{name}" for space in (0, 1)
                                         for layer in (0, 2, 4) for name in ("weight", "bias")}, "cmlm"),
    "dap": ({"rtl_layers": 1, "rtl_direction": "both", "rtl_vocabulary": "target-language",
             "reconstruction_ratio": 0.5},
            {"head.bias", "head.language_embedding.weight"}, "translation_ranking rtl_to_pivot rtl_from_pivot"),
    "frozen_source": ({"towers": "separate", "queue_size": 50}, QUEUE | {"theta"}, "frozen_source"),
    "hictl": ({"temperature": 0.1, "word_samples": 20, "max_positions": 64, "word_query": "unmasked"},
              HEAD | {"hardness.history", "hardness.steps"}, "tlm sentence word"),
    "tlm": ({"max_positions": 64}, HEAD, "tlm"),
}  # fmt: skip
"""Options, the tensors that are saved (of a head of layers, those beside the layers), and the terms, by criterion."""


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_going_on_is_the_same_as_never_stopping(data_directory: Path, tmp_path: Path, name: str) -> None:
    """Masks, drawn tokens and words, dropout, queues and histories continue exactly."""
    given, saved, terms = RUNS[name]
    run = going_on_is_never_stopping(
        data_directory, tmp_path, criterion=name, warmup_steps=1, validate_every=3, **given
    )
    found = open_checkpoint(run / "last").tensors("criterion.safetensors")
    assert {tensor for tensor in found if ".layers." not in tensor} == saved
    assert all(found[tensor].any() for tensor in saved)
    logged = {key for line in (run / "metrics.jsonl").read_text().splitlines() for key in json.loads(line)}
    assert {f"loss_{term}" for term in terms.split()} <= logged or len(terms.split()) == 1

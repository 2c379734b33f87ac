"""Trains on CUDA until a loss or a gradient of step 3 is not a number, and writes what happened as JSON.

The arguments of ``main`` are a folder of data and the file to write; ``tests.cuda.commands`` calls it.
"""

# ruff: noqa: E402
import os

if os.path.exists("/dev/nvidiactl"):
    from contextlib import nullcontext as device
else:
    from tests.cuda.device import EmulatedDevice as device
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.support.runs import TwoTerms, compose_run, make_trainer
from xrep.criteria.criterion import Loss, Planned, Term
from xrep.errors import TrainingError
from xrep.registry import CRITERIA
from xrep.training.distributed import alone


class Poisoned(TwoTerms):
    """A criterion whose loss, or only its gradient, is not a number in batches with a certain example."""

    kind, example = "", -1

    def forward(self, model: Any, planned: Planned) -> Loss:
        loss = super().forward(model, planned)
        if Poisoned.example in planned.batch.indices.tolist():
            term = loss.terms["pairs"].sum
            # The root of 0 is finite, and its derivative is not.
            loss.terms["pairs"] = Term(term * torch.nan if Poisoned.kind == "loss" else term + (0 * term).sqrt())
        return loss


def train(data: Path, steps: int, kind: str = "", example: int = -1) -> tuple[str, dict[str, torch.Tensor]]:
    """Return how training ended, and the weights."""
    Poisoned.kind, Poisoned.example = kind, example
    with tempfile.TemporaryDirectory() as folder:
        given = {"criterion": "poisoned", "max_steps": steps, "dropout": 0, "attention_dropout": 0, "save_every": 0}
        run = compose_run(
            data, Path(folder), **given, device="cuda", precision="float32", lr_scheduler="constant", warmup_steps=0
        )
        trainer, end = make_trainer(run, Path(folder), world=alone(torch.device("cuda", 0))), ""
        try:
            trainer.train()
        except TrainingError as error:
            end = str(error)
        return end, {name: tensor.cpu() for name, tensor in trainer.pair.model.state_dict().items()}


def main(arguments: list[str]) -> None:
    CRITERIA.add("poisoned", f"{Poisoned.__module__}:{Poisoned.__qualname__}")
    data, output, found = *map(Path, arguments), {}
    with device():
        _, expected = train(data, 2)
        _, later = train(data, 5)
        example = TwoTerms.seen[2][0]
        assert not any(example in batch for batch in TwoTerms.seen[:2])
        for kind in ("loss", "gradient"):
            end, weights = train(data, 5, kind, example)
            kept = all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
            found[kind] = {"end": end, "kept": kept}
        found["changes"] = not all(torch.equal(later[name], tensor) for name, tensor in expected.items())
    output.write_text(json.dumps(found), encoding="utf-8")

"""The work of one rank in the tests of several ranks: it trains small runs and writes the results to a file.

Each rank runs ``python -m tests.training.rank_job DATA FOLDER CASE ...``; for a world of one, a test calls ``train``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.runs import TwoTerms, compose_run, make_trainer
from xrep.registry import CRITERIA
from xrep.training.distributed import World, leave, start

ROWS = 40
"""Number of rows of a step over all ranks."""
EXACT = {"dropout": 0, "attention_dropout": 0, "lr_scheduler": "constant", "warmup_steps": 0, "log_every": 1}
CASES: dict[str, dict[str, Any]] = {
    "dual_moco": {"criterion": "dual_moco", "optimizer": "sgd", "lr": 0.1, "max_steps": 10},
    "ranking": {"criterion": "translation_ranking", "optimizer": "sgd", "lr": 0.1, "max_steps": 10},
    "two_terms": {"criterion": "two_terms", "optimizer": "sgd", "lr": 0.01, "max_steps": 10},
    "adamw": {"criterion": "dual_moco", "optimizer": "adamw", "max_steps": 10},
    # 403 of 630 examples: the last step has three rows, fewer than four ranks.
    "ragged": {"criterion": "dual_moco", "optimizer": "sgd", "lr": 0.1, "max_epochs": 402.5 / 630},
    "ragged ranking": {"criterion": "translation_ranking", "optimizer": "sgd", "lr": 0.1, "max_epochs": 402.5 / 630},
    "ragged dap": {"criterion": "dap", "rtl_layers": 1, "rtl_direction": "both", "rtl_vocabulary": "target-language",
                   "optimizer": "sgd", "lr": 0.1, "max_epochs": 402.5 / 630},
    # Two batches in a step; the last batch has three rows.
    "accumulated": {"criterion": "two_terms", "optimizer": "sgd", "lr": 0.01, "max_epochs": 302.5 / 630, "rows": 20},
    "frozen": {"criterion": "dual_moco", "optimizer": "adamw", "max_steps": 6, "freeze": "encoders.*.layers@3"},
    "pooled below": {"criterion": "dual_moco", "optimizer": "sgd", "lr": 0.1, "max_steps": 4, "pooled_layer": 0},
    "lora": {"criterion": "translation_ranking", "optimizer": "sgd", "lr": 0.1, "max_steps": 10, "lora_rank": 2},
    "checkpointed": {"criterion": "dual_moco", "optimizer": "sgd", "lr": 0.1, "max_steps": 4,
                     "activation_checkpointing": None},
}  # fmt: skip


def train(case: str, data: Path, folder: Path, world: World) -> dict[str, Any]:
    """Return weights, buffers, last gradients and the cursor after a run."""
    given = {**EXACT, **CASES[case]}
    rows = given.pop("rows", ROWS)
    if rows != ROWS:
        given["update_freq"] = ROWS // rows
    run = compose_run(data, folder / "run", batch_size=rows // world.size, check_every=2, **given)
    trainer = make_trainer(run, folder / f"{case}-{world.rank}", world=world)
    state = trainer.train()
    return {
        "state": trainer.module.state_dict(),
        "gradients": {name: p.grad for name, p in trainer.module.named_parameters() if p.grad is not None},
        "cursor": [state.step, state.examples, state.cursor],
    }


def register_two_terms() -> None:
    CRITERIA._targets["two_terms"] = f"{TwoTerms.__module__}:TwoTerms"


def main() -> None:
    data, folder, *cases = sys.argv[1:]
    torch.set_default_dtype(torch.float64)
    register_two_terms()
    run = compose_run(Path(data), Path(folder) / "x", max_steps=1)
    world = start(run.configs["distributed"], "cpu")
    found = {case: train(case, Path(data), Path(folder), world) for case in cases}
    torch.save(found, Path(folder) / f"{os.environ['RANK']}.pt")
    leave(world)


if __name__ == "__main__":
    main()

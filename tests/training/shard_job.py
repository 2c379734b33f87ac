"""The work of one rank in the tests of sharded optimizers: it trains runs of every objective twice and compares them.

python -m tests.training.shard_job DATA FOLDER CASE...
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.cuda.cases import CASES, MODEL, VARIANTS, command_line
from xrep.config import compose
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import Distributed, World, leave, start
from xrep.training.progress import Quiet
from xrep.training.sharding import local_optimizer, whole_state
from xrep.training.trainer import Trainer
from xrep_cli.options import parse

GIVEN: dict[str, dict[str, Any]] = {
    **{name: {} for name in CASES},
    "dual_moco, in pieces": {},
    "dual_moco, accumulated": {},
    "translation_ranking, LAMB": {},
    "translation_ranking, SGD": {},
    "dual_moco, thawed": {"freeze": "encoders.*.layers@2", "clip_norm": 0.1},
    "dual_moco, LoRA": {"lora_rank": 2},
    "dual_moco, bf16": {"precision": "bf16", "layers": 3},
    "dual_moco, parts": {},
}
"""The cases, and options beside those of the case of this name, or of the criterion alone."""


PARTS = """
parts:
- task: {{name: bitext, data: {data}, max_length: 24}}
  criterion: {{name: dual_moco, queue_size: 40}}
  batch_size: 6
- task: {{name: bitext, data: {data}, max_length: 24}}
  criterion: translation_ranking
  batch_size: 6
"""


class Unsaved(Checkpoints):
    def save(self, *arguments: Any, **named: Any) -> None:
        self.optimizer = named.get("training_state", {}).get("optimizer")


def train(case: str, data: Path, world: World, **given: Any) -> tuple[Trainer, dict[str, Tensor], dict[str, Any]]:
    """Return the trainer of a finished run, its weights, and the state of the whole optimizer on rank 0."""
    known = case if case in {**CASES, **VARIANTS} else case.partition(",")[0]
    with tempfile.TemporaryDirectory() as folder:
        line = command_line(known, data, Path(folder), **{"max_steps": 4, **GIVEN[case], **given, "device": "cpu"})
        if case == "dual_moco, parts":
            (Path(folder) / "parts.yaml").write_text(PARTS.format(data=data / "pairs"), encoding="utf-8")
            settings = {**MODEL, "max_steps": 4, "save_dir": folder, "save_every": 0}
            settings |= {"validate_every": 0, "device": "cpu", **given}
            words = ([f"--{name.replace('_', '-')}", str(value)] for name, value in settings.items())
            line = ["--config", f"{folder}/parts.yaml", "--no-tensorboard", *sum(words, [])]
        parsed = parse(line)
        run = compose(parsed.layers, parsed.problems)
        torch.manual_seed(run.seed)
        task = world.in_turn(lambda: run.classes["task"](run.configs["task"], run.seed))
        model = run.classes["model"](run.configs["model"], task.text)
        criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
        criterion.prepare(task)
        checkpoints = Unsaved(run.configs["checkpoint"], Path(folder))
        trainer = Trainer(run, task, model, criterion, checkpoints, Quiet(), None, world)
        trainer.train()
    return trainer, trainer.module.state_dict(), whole_state(trainer.engine.optimizer, world)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return a == b


def numbers(trainer: Trainer) -> int:
    """Return how many numbers the state of the optimizer has on this rank."""
    states = local_optimizer(trainer.engine.optimizer).state.values()
    return sum(value.numel() for state in states for value in state.values() if isinstance(value, Tensor))


def compare(case: str, data: Path, world: World) -> dict[str, Any]:
    """Return whether the optimizer's shards give the same, and the share of the state on this rank."""
    whole, weights, state = train(case, data, world)
    sharded, sharded_weights, sharded_state = train(case, data, world, shard="optimizer")
    sizes = [p.numel() for group in whole.engine.optimizer.param_groups for p in group["params"]]
    return {
        "weights": same(weights, sharded_weights),
        "state": same(state, sharded_state),
        "share": numbers(sharded) / numbers(whole),
        "largest": max(sizes) / sum(sizes),
    }


def compress(case: str, data: Path, world: World) -> dict[str, Any]:
    """Return how far weights are from those of uncompressed gradients, and the bytes that were sent by type."""
    sent, send = Counter[str](), dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        sent[str(tensor.dtype)] += tensor.numel() * tensor.element_size()
        return send(tensor, *arguments, **named)

    _, weights, _ = train(case, data, world)
    dist.all_reduce = counted
    try:
        trainer, compressed, _ = train(case, data, world, gradient_compression="bf16")
    finally:
        dist.all_reduce = send
    apart = max(float((tensor.double() - compressed[name].double()).abs().max()) for name, tensor in weights.items())
    trained = sum(p.numel() for p in trainer.module.parameters() if p.requires_grad)
    digest = {name: float(tensor.double().sum()) for name, tensor in compressed.items()}
    return {"apart": apart, "sent": sent, "trained": trained, "steps": trainer.state.step, "digest": digest}


def main() -> None:
    data, folder, *cases = sys.argv[1:]
    world = start(Distributed.Config(), "cpu")
    found = {case: compare(case, Path(data), world) for case in cases}
    found["compressed"] = compress("dual_moco", Path(data), world)
    (Path(folder) / f"{world.rank}.json").write_text(json.dumps(found), encoding="utf-8")
    leave(world)


if __name__ == "__main__":
    main()

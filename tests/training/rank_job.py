"""The work of one rank in the tests of several ranks, whose results it writes to a file.

Each of two ranks runs ``python -m tests.training.rank_job DATA FOLDER``.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support import guide
from tests.support.runs import TwoTerms, compose_run, make_trainer
from xrep.errors import UserError
from xrep.registry import CRITERIA
from xrep.training.distributed import World, leave, start
from xrep.training.sharding import local_optimizer, whole_state
from xrep.training.validator import OverRanks

ROWS = 40
"""Number of rows of a step over all ranks."""
EXACT = {"dropout": 0, "attention_dropout": 0, "lr_scheduler": "constant", "warmup_steps": 0, "log_every": 1}
MOCO = {"criterion": "dual_moco", "optimizer": "sgd", "lr": 0.1, "max_steps": 6}
RANKING = {**MOCO, "criterion": "translation_ranking"}
TWO_TERMS = {**MOCO, "criterion": "two_terms", "lr": 0.01}
ADAM = {**MOCO, "optimizer": "adamw", "lr": 3e-3}
CASES: dict[str, dict[str, Any]] = {
    "dual_moco": MOCO,
    "two_terms": TWO_TERMS,
    # The last step has three rows, or one, of which a rank has none.
    "ragged": {**MOCO, "max_epochs": 161 / 630},
    "ragged ranking": {**RANKING, "max_epochs": 163 / 630},
    "of one language pair": {**RANKING, "batch_by": "language_pair", "max_epochs": 163 / 630},
    "ragged dap": {**MOCO, "criterion": "dap", "rtl_layers": 1, "rtl_direction": "both",
                   "rtl_vocabulary": "target-language", "max_epochs": 161 / 630},
    # Two batches in a step; the last batch has three rows.
    "accumulated": {**TWO_TERMS, "max_epochs": 103 / 630, "rows": 20},
    "pooled below": {**MOCO, "pooled_layer": 0},
    "lora": {**RANKING, "lora_rank": 2},
    "checkpointed": {**MOCO, "activation_checkpointing": None},
    "adamw": {**ADAM, "clip_norm": 0.1},
    "lamb": {**RANKING, "optimizer": "lamb", "lr": 0.01},
    "thawed": {**ADAM, "freeze": "encoders.*.layers@3", "clip_norm": 0.1},
    "in pieces": {**ADAM, "micro_batch": 7},
    "dap in pieces": {**MOCO, "criterion": "dap", "rtl_layers": 1, "micro_batch": 7},
    "adamw and lora": {**ADAM, "lora_rank": 2},
    # The objectives of the guide, which know nothing of ranks and pieces.
    "hardest_negative": {**MOCO, "criterion": "hardest_negative", "max_epochs": 161 / 630},
    "sigmoid": {**MOCO, "criterion": "sigmoid", "lr": 0.01},
    "sigmoid in pieces": {**MOCO, "criterion": "sigmoid", "lr": 0.01, "micro_batch": 7},
}  # fmt: skip
SHARDED = ["dual_moco", "accumulated", "adamw", "lamb", "thawed", "in pieces", "adamw and lora"]


@contextmanager
def settings() -> Iterator[None]:
    """The type and the criteria of the runs of this file."""
    with pytest.MonkeyPatch.context() as patch:
        for name, target in {"two_terms": f"{TwoTerms.__module__}:TwoTerms", **guide.TARGETS}.items():
            patch.setitem(CRITERIA._targets, name, target)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def train(case: str, data: Path, folder: Path, world: World, **more: Any) -> dict[str, Any]:
    """Return weights, buffers, last gradients, the cursor and the state of the optimizer after a run."""
    given = {**EXACT, **CASES[case], **more}
    rows = given.pop("rows", ROWS)
    if rows != ROWS:
        given["update_freq"] = ROWS // rows
    if "max_epochs" in given:
        del given["max_steps"]
    own = folder / f"{case}-{'-'.join(more)}-{world.rank}"
    run = compose_run(data, folder / "run", batch_size=rows // world.size, check_every=2, **given)
    trainer = make_trainer(run, own, world=world)
    state = trainer.train()
    optimizer = trainer.step.update.optimizer
    kept = [value for own in local_optimizer(optimizer).state.values() for value in own.values()]
    sizes = [p.numel() for group in optimizer.param_groups for p in group["params"]]
    return {
        "state": trainer.pair.state_dict(),
        "gradients": {name: p.grad for name, p in trainer.pair.named_parameters() if p.grad is not None},
        "cursor": [state.step, state.examples, state.cursor],
        "optimizer": whole_state(optimizer, world),
        "numbers": sum(value.numel() for value in kept if isinstance(value, Tensor)),
        "largest": max(sizes) / sum(sizes),
        "trained": sum(p.numel() for p in trainer.pair.parameters() if p.requires_grad),
    }


def compressed(data: Path, folder: Path, world: World) -> dict[str, Any]:
    """Return a run with compressed gradients, the same without, and the bytes that were sent by type."""
    sent, send = Counter[str](), dist.all_reduce

    def counted(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        sent[str(tensor.dtype)] += tensor.numel() * tensor.element_size()
        return send(tensor, *arguments, **named)

    found = {"whole": train("dual_moco", data, folder, world, shard="optimizer")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", counted)
        found["compressed"] = train("dual_moco", data, folder, world, gradient_compression="bf16")
    return {**found, "sent": dict(sent)}


def exchange(world: World) -> list[list[float]]:
    """Check what a rank receives, and return sums; several messages are under way at a time."""
    rank, size = world.rank, world.size
    sums = [world.sums_later([1.0, rank * number]) for number in range(3)]
    told = world.from_main({"from": rank, "text": "a" * 1000})
    everyone = world.gather(torch.tensor([rank]))
    assert told == {"from": 0, "text": "a" * 1000} and [int(tensor) for tensor in everyone] == list(range(size))
    computed = list[int]()
    over_ranks = OverRanks(world)
    assert over_ranks(range(11), lambda n: computed.append(n) or n * n) == [n * n for n in range(11)]
    assert computed == list(range(rank, 11, size))  # each rank did its part
    with pytest.raises(UserError, match="x.txt: item 3"):
        over_ranks(range(11), refuse)
    return [wait() for wait in sums]


def refuse(number: int) -> int:
    if number == 3:
        raise UserError("item 3", path="x.txt")
    return number


def main() -> None:
    data, folder = map(Path, sys.argv[1:])
    world = start(World.Config(), "cpu")
    found: dict[str, Any] = {"sums": exchange(world)}
    with settings():
        found["trained"] = {case: train(case, data, folder, world) for case in CASES}
        found["sharded"] = {case: train(case, data, folder, world, shard="optimizer") for case in SHARDED}
    found["bf16"] = compressed(data, folder, world)
    torch.save(found, folder / f"rank-{world.rank}-of-{world.size}.pt")
    leave(world)


if __name__ == "__main__":
    main()

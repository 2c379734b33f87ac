"""The state of an optimizer, shared out among the ranks (ZeRO, stage 1), with the checkpoints of an unsharded one.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". Each rank has the state
of some parameters, which it alone updates and sends to the others (``torch.distributed.optim``). A parameter is never
divided, so the rank of the largest one, often the token embedding, may have more than its share.
"""

from __future__ import annotations

import logging
import warnings
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map_only

from xrep.errors import UserError
from xrep.training.distributed import World


def sharded_optimizer(groups: list[dict[str, Any]], build: Any) -> Optimizer:
    """Return an optimizer of which every rank has a part; it computes what the whole one would.

    Args:
        groups, build: parameter groups, and the function that makes an optimizer of such groups.

    Raises:
        UserError: the parameters are of several types.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what it imports calls what torch itself deprecates
        from torch.distributed.optim import ZeroRedundancyOptimizer  # takes a second, so only who needs it waits for it

    if len(kinds := {str(p.dtype) for group in groups for p in group["params"]}) > 1:
        problem = f"`shard` is optimizer, and the parameters are of several types: {', '.join(sorted(kinds))}"
        raise UserError(problem, cure="set `shard` to none")
    # It warns whenever parameters thaw, which is meant.
    logging.getLogger(ZeroRedundancyOptimizer.__module__).setLevel(logging.ERROR)
    # The parameters of a rank lie together in memory, so that they are sent together.
    return ZeroRedundancyOptimizer(groups, build, parameters_as_bucket_view=True)


def local_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that has the state of this rank: the optimizer itself, unless it is sharded."""
    return getattr(optimizer, "optim", optimizer)  # so it is called in ZeroRedundancyOptimizer


def whole_state(optimizer: Optimizer, world: World) -> dict[str, Any]:
    """Return the state of the whole optimizer on rank 0, and nothing on the others. All ranks must call this.

    (``consolidate_state_dict`` of torch needs memory on the device for all that a rank has, twice.)
    """
    if (local := local_optimizer(optimizer)) is optimizer:
        return optimizer.state_dict() if world.is_main else {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    mine = {number: local.state[parameter] for number, parameter in enumerate(parameters) if parameter in local.state}
    state = dict(mine)

    def sent(source: int, tensor: Tensor) -> Tensor | None:
        """Return on rank 0 the tensor of another rank; ranks that do not have it know its shape and type."""
        here = torch.empty(tensor.shape, dtype=tensor.dtype, device=world.device) if tensor.is_meta else tensor
        dist.broadcast(here.to(world.device), src=source)
        return here.cpu() if world.is_main else None

    described = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), mine)
    for rank, known in enumerate(world.gather(described)[1:], start=1):
        state |= tree_map_only(Tensor, partial(sent, rank), mine if rank == world.rank else known)
    groups = Optimizer.state_dict(optimizer)["param_groups"]
    return {"state": dict(sorted(state.items())), "param_groups": groups} if world.is_main else {}

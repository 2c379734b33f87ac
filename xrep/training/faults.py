"""Diagnosis of a failed step: where a NaN first appeared, or what did not fit into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from xrep.criteria.criterion import Loss, Planned
from xrep.errors import TrainingError
from xrep.training.distributed import World
from xrep.training.results import Numbers
from xrep.training.step import Step


def not_finite(step: Step, numbers: Numbers, batches: list[Planned], describe: Callable[[Any], str]) -> str:
    """Say where a loss or a gradient that is not finite came from: which module, on which rank, in which batch.

    Every rank must make this call: the forward passes of the step are run again, and may communicate with other ranks.

    Args:
        numbers: the results of the step.
        describe: returns the beginning of a batch as text.
    """
    world, where, batch = step.world, "", batches[0]
    if math.isfinite(numbers.loss):
        problem = f"the norm of the gradient is {numbers.norm}"
        named = step.pair.named_parameters()
        where = next((f"the gradient of {name}" for name, p in named if any(p is bad for bad in numbers.bad)), "")
    else:
        problem = f"the loss is {numbers.loss}"
        for batch in batches:
            where = _bad_module(step.pair, lambda batch=batch: step.forward(batch))
            if world.sums([float(bool(where))])[0]:
                break
    everyone = world.gather((where, describe(batch.batch)))
    rank = next((rank for rank, (where, _) in enumerate(everyone) if where), 0)
    where, text = everyone[rank]
    of_rank = f" (rank {rank})" if world.size > 1 else ""
    begins = f"it begins in {where}" if where else "the forward pass is finite"
    return f"{problem}{of_rank}; {begins}; the batch begins with {text}"


def _bad_module(module: nn.Module, forward: Callable[[], Any]) -> str:
    """Run a forward pass again; name what has the first NaN or infinity, a weight or a module, or return nothing."""
    names, found = {part: name or "the whole" for name, part in module.named_modules()}, list[str]()

    def look(part: nn.Module, inputs: Any, output: Any) -> None:
        if not found and not _finite(output):
            cause = "from finite inputs" if _finite(inputs) else "its inputs are not finite either"
            found.append(f"{names[part]} ({cause})")

    # Compiled layers would not call the hooks of the modules inside them.
    with ExitStack() as hooks, torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for part in names:
            hooks.callback(part.register_forward_hook(look).remove)
        forward()
    weights = [f"the weights of {name}" for name, parameter in module.named_parameters() if not _finite(parameter)]
    return next(iter([*weights, *found]), "")


def _finite(value: Any) -> bool:
    if isinstance(value, Loss):
        value = [term.sum for term in value.terms.values()]
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


@contextmanager
def explain_memory(world: World, batches: list[Planned], failed: Callable[[str], TrainingError]) -> Iterator[None]:
    """Context manager that raises what ``failed`` returns of a message if memory runs out, on a GPU or on the host."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        said = any(text in str(error) for text in ("can't allocate memory", "out of memory"))
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and not said:
            raise
        rank = f"rank {world.rank}, " if world.size > 1 else ""
        sizes = "; ".join(f"{len(batch)} examples of {batch.token_count:,} tokens" for batch in batches)
        cure = "lower `batch_size` or `max_tokens` (and raise `update_freq`), `micro_batch` or `max_length`, or set "
        cure += "`activation_checkpointing`, or `precision` to bf16"
        raise failed(f"{rank}{world.device}: out of memory with {sizes}; {cure}") from None

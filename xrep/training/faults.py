"""Diagnosis of a failed step: where a NaN first appeared, or what did not fit into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from xrep.criteria.criterion import Loss, Planned
from xrep.training.results import Numbers
from xrep.training.step import Step

BEGINS = "it begins in "


def not_finite(step: Step, numbers: Numbers, batches: list[Planned], describe: Callable[[Any], str]) -> str:
    """Say where a loss or a gradient that is not finite came from: which module, on which rank, in which batch.

    Every rank must make this call: the forward passes of the step are run again, and may communicate with other ranks.

    Args:
        numbers: the results of the step.
        describe: returns the beginning of a batch as text.
    """
    world, where, batch = step.world, "", batches[0]
    if math.isfinite(numbers.loss):
        named = step.pair.named_parameters()
        bad = next((name for name, p in named if any(p is other for other in numbers.bad)), None)
        where, problem = f"{BEGINS}the gradient of {bad}", f"the norm of the gradient is {numbers.norm}"
    else:
        problem = f"the loss is {numbers.loss}"
        for batch in batches:
            where = _bad_module(step.pair, lambda batch=batch: step.forward(batch))
            if world.sums([float(where.startswith(BEGINS))])[0]:
                break
    everyone = world.gather(f"{where}; the batch begins with {describe(batch.batch)}")
    rank = next((number for number, text in enumerate(everyone) if text.startswith(BEGINS)), 0)
    return f"{problem}{f' (rank {rank})' if world.size > 1 else ''}; {everyone[rank]}"


def _bad_module(module: nn.Module, forward: Callable[[], Any]) -> str:
    """Run a forward pass again and name the module in which a NaN or an infinity first appears."""
    names = {part: name or "the whole" for name, part in module.named_modules()}
    modules: list[str] = []

    def look(part: nn.Module, inputs: Any, output: Any) -> None:
        if not modules and not _finite(output):
            cause = "from finite inputs" if _finite(inputs) else "its inputs are not finite either"
            modules.append(f"{names[part]} ({cause})")

    # Compiled layers would not call the hooks of the modules inside them.
    with ExitStack() as hooks, torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for part in names:
            hooks.callback(part.register_forward_hook(look).remove)
        forward()
    parameter = next((name for name, parameter in module.named_parameters() if not _finite(parameter)), None)
    if parameter is not None:
        return f"{BEGINS}the weights of {parameter}"
    return f"{BEGINS}{modules[0]}" if modules else "the forward pass is finite"


def _finite(value: Any) -> bool:
    if isinstance(value, Loss):
        value = [term.sum for term in value.terms.values()]
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a GPU or on the host."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
    )


def out_of_memory(batches: list[Planned]) -> str:
    """Return the message that memory ran out on these batches: how large they are, and what to change."""
    shapes = "; ".join(_shape_of(batch.batch) for batch in batches)
    return (
        f"out of memory with {shapes}; lower `batch_size` or `max_tokens` (and raise `update_freq`), `micro_batch` or "
        "`max_length`, or set `activation_checkpointing`, or `precision` to bf16"
    )


def _shape_of(batch: Any) -> str:
    shapes = [tuple(leaf.shape) for leaf in _tensors(batch) if leaf.ndim == 2]
    return f"{len(batch)} examples, tensors of {', '.join(map(str, sorted(set(shapes), reverse=True)))}"


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))

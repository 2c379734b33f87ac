"""The training state of a checkpoint, and its check before a run goes on from it.

The checksums of a checkpoint tell that it is complete, not that it belongs to this run: whatever a file holds that was
written with right checksums, it is used if it fits this run, or refused in one line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.registry import one_line
from xrep.training.sharding import local_optimizer


@dataclass
class TrainingState:
    """The state of a run, which is saved with every checkpoint."""

    step: int = 0
    examples: int = 0
    """Number of examples that all ranks have consumed since the start."""
    cursor: Any = None
    """The position from which the order of data goes on."""
    seconds: float = 0.0
    best: float | None = None
    """Value of the validation metric at ``best_step``."""
    best_step: int | None = None


FIELDS = {*vars(TrainingState()), "data", "optimizer", "scaler", "random"}


@contextmanager
def reading_state(path: Path) -> Iterator[None]:
    """Context manager in which an error of reading becomes a UserError that names the file.

    Raises:
        UserError: the block raised an error of a kind that unfit values lead to.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        cure = "delete its checkpoint to go on from the one before, or set `init` to start from its weights"
        raise UserError(f"not the training state of this run ({one_line(error)})", path=path, cure=cure) from None


def state_of(saved: Any, step: int) -> TrainingState:
    """Return the state of the run, from the content of a training state.

    Args:
        step: step of the checkpoint.

    Raises:
        ValueError: fields are missing or unknown, or a number is none or out of its range.
    """
    _check(isinstance(saved, dict) and saved.keys() == FIELDS, "it has other fields")
    state = TrainingState(**{name: saved[name] for name in vars(TrainingState())})
    _check(_is_count(state.step) and state.step == step, "`step` is not that of the checkpoint")
    _check(_is_count(state.examples), "`examples` is not a count")
    _check(_is_number(state.seconds) and 0 <= state.seconds < math.inf, "`seconds` is not a time")
    _check(state.best is None or _is_number(state.best), "`best` is not a number")
    _check(state.best_step is None or _is_count(state.best_step), "`best_step` is not a count")
    return state


def check_cursor(cursor: Any, sample: Any, top: bool = True) -> None:
    """Raise ValueError unless a cursor is built like ``sample``, that of a first batch; there may be further parts."""
    if isinstance(sample, dict):
        _check(isinstance(cursor, dict) and (not top or cursor.keys() == sample.keys()), "`cursor` has other fields")
        for name, value in cursor.items():
            check_cursor(value, sample.get(name, next(iter(sample.values()), None)), top=False)
    else:
        _check(type(cursor) is type(sample), "`cursor` is of another type")
        _check(not isinstance(sample, int) or _is_count(cursor), "`cursor` is not a count")


def load_optimizer(
    optimizer: torch.optim.Optimizer, saved: Any, build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
) -> None:
    """Load the state of an optimizer, or this rank's part of it; the groups of parameters stay as they are.

    Args:
        build: makes such an optimizer of other groups.

    Raises:
        ValueError: it is the state of another optimizer, or of other parameters.
    """
    sample = _state_of_a_vector(optimizer, build)
    own = torch.optim.Optimizer.state_dict(optimizer)["param_groups"]  # that of a sharded one needs all ranks
    _check(isinstance(saved, dict) and saved.keys() == {"state", "param_groups"}, "`optimizer` has other fields")
    _check([group["params"] for group in saved["param_groups"]] == [group["params"] for group in own],
           "`optimizer` is that of other parameters")  # fmt: skip
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    _check(isinstance(saved["state"], dict), "`optimizer` has no state")
    for number, state in saved["state"].items():
        _check(_is_count(number) and number < len(parameters), "`optimizer` has a parameter too many")
        _check(isinstance(state, dict) and state.keys() == sample.keys(), "`optimizer` is of another kind")
        for name, value in state.items():
            expected = sample[name]
            if isinstance(expected, Tensor):
                shape = parameters[number].shape if expected.ndim else expected.shape
                _check(_is_plain(value, torch.is_floating_point) and value.shape == shape,
                       f"`{name}` of parameter {number} in `optimizer` has another shape or type")  # fmt: skip
                state[name] = value.clone(memory_format=torch.contiguous_format)  # it may share memory with others
            else:
                _check(type(value) is type(expected), f"`{name}` in `optimizer` is of another type")
    local, numbers = local_optimizer(optimizer), {parameter: number for number, parameter in enumerate(parameters)}
    mine = [numbers[parameter] for group in local.param_groups for parameter in group["params"]]
    state = {place: saved["state"][number] for place, number in enumerate(mine) if number in saved["state"]}
    local.load_state_dict({"state": state, "param_groups": local.state_dict()["param_groups"]})


def load_scaler(scaler: torch.amp.GradScaler, saved: Any) -> None:
    """Load the state of a loss scaler if this run uses one and the saved run did.

    Raises:
        ValueError: it is not the state of a loss scaler.
    """
    own = scaler.state_dict()
    _check(isinstance(saved, dict), "`scaler` is not a state")
    if own and saved:
        _check(saved.keys() == own.keys() and all(_is_number(value) for value in saved.values()),
               "`scaler` is not a state")  # fmt: skip
        scaler.load_state_dict(saved)


def check_random(saved: Any) -> None:
    """Raise ValueError unless these are states of random generators, one of each rank."""
    _check(isinstance(saved, list) and len(saved) > 0, "`random` is not a list")
    size = torch.get_rng_state().shape
    for state in saved:
        _check(isinstance(state, dict) and {"cpu"} <= state.keys() <= {"cpu", "cuda"}, "`random` has other fields")
        _check(all(_is_plain(value, lambda tensor: tensor.dtype == torch.uint8) for value in state.values())
               and state["cpu"].shape == size, "`random` is not the state of a generator")  # fmt: skip
        torch.Generator().set_state(state["cpu"])  # raises RuntimeError if the generator cannot have it


def _check(right: bool, problem: str) -> None:
    if not right:
        raise ValueError(problem)


def _is_plain(value: Any, kind: Callable[[Tensor], bool]) -> bool:
    """Return whether a value is a tensor of this kind, in memory and not sparse."""
    return isinstance(value, Tensor) and value.device.type == "cpu" and value.layout == torch.strided and kind(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _state_of_a_vector(
    optimizer: torch.optim.Optimizer, build: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
) -> dict[str, Any]:
    """Return what such an optimizer keeps of a vector after a step."""
    group = optimizer.param_groups[0]
    vector = torch.zeros(2, device=group["params"][0].device, requires_grad=True)
    vector.grad = torch.zeros_like(vector)
    other = build([{**group, "params": [vector]}])
    other.step()
    return other.state[vector]

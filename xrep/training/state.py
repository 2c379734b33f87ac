"""The training state of a checkpoint, from which a run goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

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


@contextmanager
def reading_state(path: Path) -> Iterator[None]:
    """Context manager in which an error of reading becomes a UserError that names the file."""
    try:
        yield
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        cure = "delete its checkpoint to go on from the one before, or set `init` to start from its weights"
        raise UserError(f"not the training state of this run ({one_line(error)})", path=path, cure=cure) from None


def state_of(saved: dict[str, Any]) -> TrainingState:
    """Return the state of the run, from the content of a training state."""
    return TrainingState(**{name: saved[name] for name in vars(TrainingState())})


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load the state of an optimizer, or this rank's part of it; the groups of parameters stay as they are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    local, numbers = local_optimizer(optimizer), {parameter: number for number, parameter in enumerate(parameters)}
    mine = [numbers[parameter] for group in local.param_groups for parameter in group["params"]]
    state = {place: saved["state"][number] for place, number in enumerate(mine) if number in saved["state"]}
    local.load_state_dict({"state": state, "param_groups": local.state_dict()["param_groups"]})


def load_scaler(scaler: torch.amp.GradScaler, saved: dict[str, Any]) -> None:
    """Load the state of a loss scaler if this run uses one and the saved run did."""
    if scaler.state_dict() and saved:
        scaler.load_state_dict(saved)

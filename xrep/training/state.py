"""The training state of a checkpoint, from which a run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

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


def restore(saved: dict[str, Any], optimizer: Optimizer, scaler: torch.amp.GradScaler, path: Path) -> TrainingState:
    """Return the state of the run, and load that of the optimizer, or this rank's part of it, and of the loss scaler.

    Args:
        saved: the content of the training state at ``path``.

    Raises:
        UserError: it is not the state of this run.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    local, numbers = local_optimizer(optimizer), {parameter: number for number, parameter in enumerate(parameters)}
    own = enumerate(numbers[parameter] for group in local.param_groups for parameter in group["params"])
    try:
        held = saved["optimizer"]["state"]
        state = {place: held[number] for place, number in own if number in held}
        local.load_state_dict({"state": state, "param_groups": local.state_dict()["param_groups"]})
        if saved["scaler"]:
            scaler.load_state_dict(saved["scaler"])
        return TrainingState(**{name: saved[name] for name in vars(TrainingState())})
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        cure = "delete its checkpoint to go on from the one before, or set `init` to start from its weights"
        raise UserError(f"not the training state of this run ({one_line(error)})", path=path, cure=cure) from None

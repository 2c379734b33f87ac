"""The training state of a checkpoint, from which a run goes on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from xrep.errors import UserError
from xrep.hashing import seed_of
from xrep.models.directory import CRITERION, MODEL, STATE, Checkpoint
from xrep.nn.weights import fitting
from xrep.registry import one_line
from xrep.tasks.task import Task
from xrep.training.numbers import random_state, restore_random_state
from xrep.training.sharding import local_optimizer, whole_state
from xrep.training.step import Pair
from xrep.training.update import Update


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
    worse: int = 0
    """Number of validations since the best one."""

    def improved(self, value: float, maximize: bool) -> bool:
        """Return whether a validation is the best so far, and keep its value if it is.

        Of equal values the later one counts as better, because its learning rate has decayed further.
        """
        best = self.best
        better = best is None or math.isnan(best) or (value >= best if maximize else value <= best)
        self.worse += 1
        if better:
            self.best, self.best_step, self.worse = value, self.step, 0
        return better


def collect(state: TrainingState, task: Task, update: Update) -> dict[str, Any]:
    """Return what a checkpoint keeps beside the tensors, on rank 0. All ranks must call this."""
    return {
        **vars(state),
        "data": task.fingerprint(),
        "random": update.world.gather(random_state(update.world.device)),
        "optimizer": whole_state(update.optimizer, update.world),
        "scaler": update.scaler.state_dict(),
    }


def restore(checkpoint: Checkpoint, saved: dict[str, Any], pair: Pair, update: Update, seed: int) -> TrainingState:
    """Return the state of the run, and load the tensors, the state of the optimizer, or this rank's part of it, and
    those of the loss scaler and of the random generators. These are seeded anew if the number of ranks is another one.

    Args:
        saved: the training state of the checkpoint, as ``collect`` made it.

    Raises:
        UserError: tensors or state are not those of this run.
    """
    for module, file in ((pair.model, MODEL), (pair.criterion, CRITERION)):
        with fitting(checkpoint.path / file):
            module.load_state_dict(checkpoint.tensors(file))
    optimizer, world = update.optimizer, update.world
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    local, numbers = local_optimizer(optimizer), {parameter: number for number, parameter in enumerate(parameters)}
    own = enumerate(numbers[parameter] for group in local.param_groups for parameter in group["params"])
    try:
        held = saved["optimizer"]["state"]
        mine = {place: held[number] for place, number in own if number in held}
        local.load_state_dict({"state": mine, "param_groups": local.state_dict()["param_groups"]})
        if saved["scaler"]:
            update.scaler.load_state_dict(saved["scaler"])
        state = TrainingState(**{name: saved[name] for name in vars(TrainingState())})
        everyone = saved["random"]
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        cure = "delete its checkpoint to go on from the one before, or set `init` to start from its weights"
        problem = f"not the training state of this run ({one_line(error)})"
        raise UserError(problem, path=checkpoint.path / STATE, cure=cure) from None
    if len(everyone) == world.size:
        restore_random_state(everyone[world.rank], world.device)
    else:
        torch.manual_seed(seed_of(seed, world.rank, state.step))
    return state

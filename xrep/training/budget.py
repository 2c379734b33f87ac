"""The budget of a run (steps, epochs, minutes), and the learning rate, which depends on the share that is spent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from xrep.training.lr_scheduler import Schedule
from xrep.training.state import TrainingState

EPOCHS = 15.0
"""Epochs of a run without any bound."""
SHORTENED = 0.1
"""Share of a run that is warm-up if it has no more than ``warmup_steps``, and the largest share of its minutes."""


class Budget:
    """What ends a run: a number of steps, epochs or minutes, whichever is reached first.

    Args:
        config: Options of the trainer; without a bound, there are 15 epochs.
        examples: Number of examples in an epoch.
        examples_a_step: Number of examples of the first step.
        schedule: Schedule of the learning rate. If its warm-up has at least as many steps as the run, it is shortened.

    Attributes:
        max_epochs: Number of epochs after which training ends, if it is bounded.
        warnings: What a user should know.
    """

    def __init__(self, config: Any, examples: int, examples_a_step: int, schedule: Schedule) -> None:
        self.max_steps, self.max_epochs, self.max_minutes = config.max_steps, config.max_epochs, config.max_minutes
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            self.max_epochs = EPOCHS
        self.examples, self.schedule, self.warnings = examples, schedule, list[str]()
        self._by_share = type(schedule)(replace(schedule.config, warmup_ratio=SHORTENED))
        steps = min(self.max_steps or math.inf, (self.max_epochs or math.inf) * examples / max(examples_a_step, 1))
        warmup = schedule.config.warmup_steps
        if schedule.config.warmup_ratio is None and 0 < warmup and warmup >= steps:
            short = math.ceil(SHORTENED * steps)
            self.schedule = type(schedule)(replace(schedule.config, warmup_steps=short))
            problem = f"the warm-up of {warmup} steps would last for all {math.ceil(steps)} steps of this run"
            self.warnings.append(f"{problem}; it is shortened to {short}")

    def spent(self, state: TrainingState) -> float:
        """Return the share of the budget that is spent."""
        return max(self._shares(state.step, state.examples, state.seconds))

    def rate(self, state: TrainingState, examples: float) -> float:
        """Return the factor of the peak learning rate at the next step, after which ``examples`` are consumed.

        Steps may have different numbers of examples and take different times, so that their means so far count.
        """
        config, schedule = self.schedule.config, self.schedule
        warmup = config.warmup_steps
        seconds = warmup * state.seconds / max(state.step, 1)
        end = max(self._shares(warmup, warmup * examples / (state.step + 1), seconds))
        # How many steps the minutes have is not known, so that warm-up also ends with a share of the minutes.
        if self.max_minutes is not None and config.warmup_ratio is None and warmup:
            if seconds / 60 / self.max_minutes > SHORTENED:
                schedule = self._by_share
        return schedule.factor(state.step, self.spent(state), min(end, 1.0))

    def _shares(self, step: float, examples: float, seconds: float) -> list[float]:
        shares = [0.0]
        if self.max_steps is not None:
            shares.append(step / self.max_steps)
        if self.max_epochs is not None:
            shares.append(examples / (self.max_epochs * self.examples))
        if self.max_minutes is not None:
            shares.append(seconds / 60 / self.max_minutes)
        return shares

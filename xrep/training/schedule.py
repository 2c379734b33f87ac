"""The budget of a run, and schedules of its learning rate: linear warm-up, then a decay over the rest of the budget.

The budget is whatever ends the run first: steps, epochs or minutes. A schedule depends on the share of the budget that
is spent, so a cosine reaches its end whichever of them limits the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from xrep.config.fields import CountOrZero, Share

if TYPE_CHECKING:  # the options are read for --help, which does not wait for torch
    from xrep.training.state import TrainingState

EPOCHS = 15.0
"""Epochs of a run without any bound."""
SHORTENED = 0.1
"""Share of a run that is warm-up if it has no more than ``warmup_steps``, and the largest share of its minutes."""


@dataclass(kw_only=True)
class WarmUp:
    """Options of every schedule."""

    warmup_steps: CountOrZero = 400
    """Number of steps of linear warm-up. It is shortened to a tenth of the run if the run is not longer than this, or
    to a tenth of its minutes if it is bounded by max_minutes and these steps would take longer."""
    warmup_ratio: Annotated[float, "(0, 1)"] | None = None
    """Share of the training budget that is used for warm-up, instead of warmup_steps. The rate rises with the share of
    the budget that is spent, from 0 at the first step. none: use warmup_steps."""


@dataclass(kw_only=True)
class Decay(WarmUp):
    """Options of the schedules that fall to a share of the peak."""

    min_lr_ratio: Share = 0.0
    """Learning rate at the end, as a share of the peak rate."""


class Schedule(ABC):
    """The factor by which the peak learning rate is multiplied at each step."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def factor(self, step: int, spent: float, warmup_share: float) -> float:
        """Return the factor at optimizer step ``step`` (counted from 0).

        Args:
            spent: share of the budget that is spent, in [0, 1].
            warmup_share: share that is spent after ``warmup_steps`` steps, where the decay starts.
        """
        ratio = self.config.warmup_ratio
        if ratio is None:
            elapsed = (step + 1) / max(self.config.warmup_steps, 1)
        else:
            elapsed, warmup_share = spent / ratio, ratio
        if elapsed < 1:
            return elapsed
        rest = (spent - warmup_share) / max(1.0 - warmup_share, 1e-9)
        return self.decay(elapsed, min(max(rest, 0.0), 1.0))

    @abstractmethod
    def decay(self, elapsed: float, rest: float) -> float:
        """Return the factor after warm-up.

        Args:
            elapsed: time since the start, divided by the time of the warm-up: at least 1.
            rest: share of the budget after warm-up that is spent, in [0, 1].
        """


class Cosine(Schedule):
    """Half a cosine from the peak rate to ``min_lr_ratio`` of it."""

    Config = Decay

    def decay(self, elapsed: float, rest: float) -> float:
        low = self.config.min_lr_ratio
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * rest))


class LinearDecay(Schedule):
    """A straight line from the peak rate to ``min_lr_ratio`` of it (fairseq's polynomial_decay)."""

    Config = Decay

    def decay(self, elapsed: float, rest: float) -> float:
        return 1 - (1 - self.config.min_lr_ratio) * rest


class InverseSqrt(Schedule):
    """The peak rate times sqrt(warm-up / time since the start), as in fairseq, which is one step behind.

    fairseq sets the rate after each update. Its first update has the rate 0, or that of its option warmup-init-lr, and
    each later one the rate of the update before it here.
    """

    @dataclass(kw_only=True)
    class Config(WarmUp):
        warmup_steps: CountOrZero = 4000
        """Number of steps of linear warm-up; it is also the time scale of the decay."""

    def decay(self, elapsed: float, rest: float) -> float:
        return 1 / math.sqrt(elapsed)


class Constant(Schedule):
    """The peak rate until the end."""

    @dataclass(kw_only=True)
    class Config(WarmUp):
        warmup_steps: CountOrZero = 0
        """Number of steps of linear warm-up."""

    def decay(self, elapsed: float, rest: float) -> float:
        return 1.0


class Budget:
    """What ends a run: a number of steps, epochs or minutes, whichever is reached first.

    Args:
        config: options of the trainer; without a bound, there are 15 epochs.
        examples: number of examples in an epoch.
        examples_a_step: mean number of examples of the first steps.
        schedule: of the learning rate. If its warm-up has at least as many steps as the run, it is shortened.

    Attributes:
        max_epochs: number of epochs after which training ends, if it is bounded.
        warnings: what a user should know.
    """

    def __init__(self, config: Any, examples: int, examples_a_step: float, schedule: Schedule) -> None:
        self.max_steps, self.max_epochs, self.max_minutes = config.max_steps, config.max_epochs, config.max_minutes
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            self.max_epochs = EPOCHS
        self.examples, self.warnings, given = examples, list[str](), schedule.config
        steps = min(self.max_steps or math.inf, (self.max_epochs or math.inf) * examples / max(examples_a_step, 1))
        if given.warmup_ratio is None and 0 < given.warmup_steps and given.warmup_steps >= steps:
            count, short = math.ceil(steps), math.ceil(SHORTENED * steps)
            problem = f"the warm-up of {given.warmup_steps} steps would last for all {count} steps of this run"
            self.warnings.append(f"{problem}; it is shortened to {short}")
            given = replace(given, warmup_steps=short)
        self.schedule = type(schedule)(given)
        self._by_share = type(schedule)(replace(given, warmup_ratio=SHORTENED))

    def spent(self, state: TrainingState) -> float:
        """Return the share of the budget that is spent."""
        return self._share(state.step, state.examples, state.seconds)

    def rate(self, state: TrainingState, examples: float) -> float:
        """Return the factor of the peak learning rate at the next step, after which ``examples`` are consumed.

        Steps may have different numbers of examples and take different times, so that their means so far count.
        """
        config, schedule = self.schedule.config, self.schedule
        warmup = config.warmup_steps
        seconds = warmup * state.seconds / max(state.step, 1)
        end = self._share(warmup, warmup * examples / (state.step + 1), seconds)
        # How many steps the minutes have is not known, so that warm-up also ends with a share of the minutes.
        if self.max_minutes is not None and config.warmup_ratio is None and warmup:
            if seconds / 60 / self.max_minutes > SHORTENED:
                schedule = self._by_share
        return schedule.factor(state.step, self.spent(state), min(end, 1.0))

    def _share(self, step: float, examples: float, seconds: float) -> float:
        epoch = self.examples
        used = [(step, self.max_steps, 1), (examples, self.max_epochs, epoch), (seconds / 60, self.max_minutes, 1)]
        return max(done / (most * unit) for done, most, unit in used if most is not None)

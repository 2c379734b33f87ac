"""Learning-rate schedules: linear warm-up, then a decay over the rest of the training budget.

The budget is whatever ends the run first: steps, epochs or minutes. A schedule depends on the share of the budget that
is spent, so a cosine reaches its end whichever of them limits the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

from xrep.config.fields import CountOrZero, Positive, Share


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

    def factor(self, step: int, progress: float, warmup_end: float) -> float:
        """Return the factor at optimizer step ``step`` (counted from 0).

        Args:
            progress: share of the budget that is spent, in [0, 1].
            warmup_end: share of the budget that is spent after ``warmup_steps`` steps, where the decay starts.
        """
        ratio = self.config.warmup_ratio
        if ratio is None:
            elapsed = (step + 1) / max(self.config.warmup_steps, 1)
        else:
            elapsed, warmup_end = progress / ratio, ratio
        if elapsed < 1:
            return elapsed
        rest = (progress - warmup_end) / max(1.0 - warmup_end, 1e-9)
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


class Linear(Schedule):
    """A straight line from the peak rate to ``min_lr_ratio`` of it."""

    Config = Decay

    def decay(self, elapsed: float, rest: float) -> float:
        return 1 - (1 - self.config.min_lr_ratio) * rest


class Polynomial(Schedule):
    """A power of the remaining share, from the peak rate to ``min_lr_ratio`` of it (fairseq's polynomial_decay)."""

    @dataclass(kw_only=True)
    class Config(Decay):
        power: Positive = 2.0
        """Exponent of the remaining share of the budget: 1 is a straight line, higher values fall faster at first."""

    def decay(self, elapsed: float, rest: float) -> float:
        low = self.config.min_lr_ratio
        return low + (1 - low) * (1 - rest) ** self.config.power


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

"""Learning-rate schedules: linear warm-up, then a decay over the rest of the training budget.

The budget is whatever ends the run first: steps, epochs or minutes. ``progress`` is the share of it that is spent, so
a cosine reaches its end whether a run is bounded by ``--max-steps`` or by ``--max-minutes``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass


class _Schedule(ABC):
    """Factor of the peak learning rate at a step."""

    def __init__(self, config) -> None:
        self.config = config

    def factor(self, step: int, progress: float, warmup_end: float) -> float:
        """Factor at optimizer step ``step`` (from 0).

        Args:
            progress: share of the budget spent, in [0, 1].
            warmup_end: that share at the end of warm-up, from where the decay starts.
        """
        if step < self.config.warmup_steps:
            return (step + 1) / self.config.warmup_steps
        rest = (progress - warmup_end) / max(1.0 - warmup_end, 1e-9)
        return self.decay(step, min(max(rest, 0.0), 1.0))

    @abstractmethod
    def decay(self, step: int, rest: float) -> float:
        """Factor after warm-up, at the share ``rest`` in [0, 1] of what remains of the budget."""


def _problems(warmup_steps: int, min_lr_ratio: float = 0.0) -> list[str]:
    found = [f"warmup_steps must not be negative: {warmup_steps}"] if warmup_steps < 0 else []
    if not 0 <= min_lr_ratio <= 1:
        found.append(f"min_lr_ratio must lie in [0, 1], not {min_lr_ratio}")
    return found


class _Decaying(_Schedule):
    """A schedule that falls to a share of the peak."""

    @dataclass(kw_only=True)
    class Config:
        warmup_steps: int = 400
        """Steps of linear warm-up."""
        min_lr_ratio: float = 0.0
        """Share of the peak rate that is left at the end."""

        def problems(self) -> list[str]:
            return _problems(self.warmup_steps, self.min_lr_ratio)


class Cosine(_Decaying):
    """Half a cosine from the peak to ``min_lr_ratio`` of it."""

    def decay(self, step: int, rest: float) -> float:
        low = self.config.min_lr_ratio
        return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * rest))


class Linear(_Decaying):
    """A straight line from the peak to ``min_lr_ratio`` of it."""

    def decay(self, step: int, rest: float) -> float:
        return 1 - (1 - self.config.min_lr_ratio) * rest


class InverseSqrt(_Schedule):
    """The peak times sqrt(warmup_steps / step), as in fairseq."""

    @dataclass(kw_only=True)
    class Config:
        warmup_steps: int = 4000
        """Steps of linear warm-up; also the scale of the decay."""

        def problems(self) -> list[str]:
            return _problems(self.warmup_steps)

    def decay(self, step: int, rest: float) -> float:
        return math.sqrt(max(self.config.warmup_steps, 1) / (step + 1))


class Constant(_Schedule):
    """The peak rate to the end."""

    @dataclass(kw_only=True)
    class Config:
        warmup_steps: int = 0
        """Steps of linear warm-up."""

        def problems(self) -> list[str]:
            return _problems(self.warmup_steps)

    def decay(self, step: int, rest: float) -> float:
        return 1.0

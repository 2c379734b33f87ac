"""Averages of numbers between two log records, and the memory in use."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict

import torch


class Meters:
    """Sums of weighted numbers since the last record."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._weights: dict[str, float] = defaultdict(float)
        self._totals: dict[str, float] = defaultdict(float)

    def add(self, values: dict[str, float], weight: float = 1.0) -> None:
        """Add numbers that are averaged with this weight."""
        for name, value in values.items():
            self._sums[name] += value * weight
            self._weights[name] += weight

    def count(self, **values: float) -> None:
        """Add numbers that are summed."""
        for name, value in values.items():
            self._totals[name] += value

    def means(self) -> dict[str, float]:
        return {name: total / self._weights[name] for name, total in self._sums.items() if self._weights[name]}

    def total(self, name: str) -> float:
        return self._totals[name]

    def clear(self) -> None:
        for numbers in (self._sums, self._weights, self._totals):
            numbers.clear()


def memory_megabytes(device: torch.device) -> float:
    """Return the peak memory so far: what torch allocated on a GPU, or the resident size of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # Linux counts in KiB

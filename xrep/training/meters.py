"""Averages of numbers between two log records, and the memory in use."""

from __future__ import annotations

import resource
import sys
from collections import defaultdict

import torch


class Meters:
    """Means and totals of numbers since the last record."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.totals, self._sums, self._counts = (defaultdict[str, float](float) for _ in range(3))

    def add(self, values: dict[str, float]) -> None:
        """Add numbers that are averaged."""
        for name, value in values.items():
            self._sums[name] += value
            self._counts[name] += 1

    def count(self, **values: float) -> None:
        """Add numbers that are summed."""
        for name, value in values.items():
            self.totals[name] += value

    def means(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items()}


def memory_megabytes(device: torch.device) -> float:
    """Return the peak memory so far: what torch allocated on a GPU, or the resident size of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6  # Linux counts in KiB

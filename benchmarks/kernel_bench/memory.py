"""Measures the peak memory of one call in this process."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def peak_of(call: Callable[[], Any], device: str) -> tuple[Any, float, str]:
    """Return the result of ``call``, its peak memory in MB above what was held before, and the source of the peak."""
    if device == "cpu":
        source = reset_peak()
        before = read_peak(source)
        result = call()
        return result, (read_peak(source) - before) / 1e6, source
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    return result, (torch.cuda.max_memory_allocated() - before) / 1e6, "torch.cuda.max_memory_allocated"


def reset_peak() -> str:
    """Reset the process's peak resident size if the system permits it, and return the source to read the peak from."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # otherwise a call could use memory that the allocator has kept, unseen
        trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return "ru_maxrss"
    return "VmHWM"


def read_peak(source: str) -> int:
    """Return the largest resident size since ``reset_peak``, in bytes."""
    if source == "ru_maxrss":
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 1024 * _kilobytes("/proc/self/status", source)


def room(device: str) -> float:
    """Return the bytes that a process may use without harm to others. On CUDA, using too many only raises an error."""
    if device != "cpu":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return 0.7 * 1024 * _kilobytes("/proc/meminfo", "MemAvailable")
    except OSError:
        return float("inf")


def _kilobytes(path: str, key: str) -> int:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))

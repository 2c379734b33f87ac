"""The choice of the implementation of the kernels: it depends on the device and can be set."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

PATHS = ("auto", "reference", "chunked", "triton")
"""``reference``: the formulas as they are written, in float64, with everything materialised. ``chunked``: blockwise in
plain torch, on any device. ``triton``: blockwise with fused CUDA kernels. ``auto``: triton on CUDA if its kernels agree
with the reference there (``first_use``), else chunked."""

_chosen = "auto"
kernel_check: Callable[[torch.device], str | None] = lambda device: None  # noqa: E731
"""Returns what is wrong with fused kernels on a GPU, or None. ``first_use`` sets it; it cannot be imported here: it
calls the kernels, which call this module."""


def set_path(path: str) -> None:
    """Choose the implementation for the rest of the process.

    Raises:
        ValueError: the path is unknown, or not available on this machine.
    """
    global _chosen
    if path not in PATHS:
        raise ValueError(f"no kernel path {path!r}; there are {', '.join(PATHS)}")
    if path == "triton" and (problem := triton_problem()):
        raise ValueError(f"the triton path cannot run here: {problem}")
    _chosen = path


@contextmanager
def use_path(path: str) -> Iterator[None]:
    """Context manager that chooses one implementation (``set_path``) and restores the previous one at its end."""
    before = _chosen
    set_path(path)
    try:
        yield
    finally:
        set_path(before)


@functools.cache
def triton_problem() -> str | None:
    """Return why fused kernels cannot run on this machine, or None if they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not torch.cuda.is_available() and not interpreting():
        return "there is no CUDA GPU"
    return None


def interpreting() -> bool:
    """Return whether Triton interprets its kernels on the CPU (for tests; it is very slow)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def path_for(device: torch.device) -> str:
    """Return the path that runs for tensors on this device: ``reference``, ``chunked`` or ``triton``."""
    if _chosen == "auto":
        return "triton" if device.type == "cuda" and _problem_on(device) is None else "chunked"
    if _chosen == "triton" and device.type != "cuda" and not interpreting():
        raise ValueError(f"the triton path needs tensors on a GPU, not on {device}")
    return _chosen


def _problem_on(device: torch.device) -> str | None:
    """Return why fused kernels are not chosen for a GPU, or None if they are."""
    return triton_problem() or kernel_check(device)


def steps_for(device: torch.device) -> ModuleType:
    """Return the module that does the work on one block of similarities, for tensors on this device."""
    if path_for(device) == "triton":
        from xrep.kernels import triton_steps

        return triton_steps
    from xrep.kernels import chunked_steps

    return chunked_steps


def describe(device: torch.device) -> str:
    """Return one line for logs: the path and, if it is not the fastest one, the reason."""
    from xrep.kernels.precision import takes_fast_product

    path = path_for(device)
    if path == "chunked" and device.type == "cuda" and _chosen == "auto":
        return f"{path} ({_problem_on(device)})"
    if path == "chunked" and device.type == "cpu":
        fast = takes_fast_product(torch.empty(0))
        return f"{path}, {'fast' if fast else 'default'} float32 products"
    return path

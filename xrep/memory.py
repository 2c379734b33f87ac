"""The memory of this machine, and a check before something is allocated that it can hold it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from xrep.errors import UserError

if TYPE_CHECKING:
    from torch import nn

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files that hold the limit of a container, in versions 2 and 1 of cgroups."""

TRIM_THRESHOLD, MOST_MAPPINGS = -1, -4
"""Options of ``mallopt`` in the GNU C library."""


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees for what it allocates next, if its C library is GNU's.

    A training step allocates the same arrays as the one before. By default the library returns large ones to the
    system, and every new page then has to be filled with zeros when it is first used.
    """
    with suppress(AttributeError, OSError, TypeError):  # no such function, or no such library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MOST_MAPPINGS, 0)
        mallopt(TRIM_THRESHOLD, -1)  # never


def machine_memory(device: str = "cpu") -> int:
    """Return the bytes of memory that a process on a device can have.

    On a CPU this is all of it, not what is free at the moment, and on a GPU, whose memory no other process gives back,
    what is free and what torch has reserved for this process.

    Args:
        device: ``cpu``, or a device of torch such as ``cuda:1``. A device of another kind counts as the CPU.
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or the word "max"
            limits.append(int(Path(file).read_text(encoding="ascii")))
    return min(limits)


def check_memory(needed: int, what: str, *, device: str = "cpu", cure: str) -> None:
    """Check that the machine can hold something, before it is allocated.

    Args:
        needed: Its bytes, as a Python integer, which cannot overflow.
        what: What it is, at the start of the message: "a queue of 10,000,000 vectors of 768 numbers".
        device: Where it will be.
        cure: What the user can change.

    Raises:
        UserError: It needs more than ``machine_memory``.
    """
    present = machine_memory(device)
    if needed > present:
        owner = "this machine" if device == "cpu" else device
        raise UserError(f"{what} needs {size_of(needed)} of memory, and {owner} has {size_of(present)}", cure=cure)


def check_move(module: nn.Module, device: str, *, gradients: bool, cure: str) -> None:
    """Check that a device can hold a module, before it is moved there: parameters, buffers and perhaps ``gradients``.

    Raises:
        UserError: It needs more than ``machine_memory``.
    """
    parameters = list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad] if gradients else []
    needed = sum(tensor.numel() * tensor.element_size() for tensor in [*parameters, *module.buffers(), *trained])
    count = sum(parameter.numel() for parameter in parameters)
    check_memory(needed, f"a model with {count:,} parameters", device=device, cure=cure)


def size_of(count: int) -> str:
    """Return a number of bytes for a message, such as ``12.5 GB``."""
    for unit, name in ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}" if count < 10**21 else f"over 1,000,000 {name}"
    return f"{count:,} bytes"

"""The memory of this machine, and a check before something is allocated that it can hold it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from xrep.errors import UserError

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files that hold the limit of a container, in versions 2 and 1 of cgroups."""


def machine_memory(device: str = "cpu") -> int:
    """Return the bytes of memory that a process on a device can have: all of it, not what is free at the moment.

    Args:
        device: ``cpu``, or a device of torch such as ``cuda:1``. A device of another kind counts as the CPU.
    """
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_properties(torch.device(device)).total_memory
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
        UserError: It needs more than the whole memory of the machine.
    """
    present = machine_memory(device)
    if needed > present:
        raise UserError(f"{what} needs {size_of(needed)} of memory, and this machine has {size_of(present)}", cure=cure)


def size_of(count: int) -> str:
    """Return a number of bytes for a message, such as ``12.5 GB``."""
    for unit, name in ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}" if count < 10**21 else f"over 1,000,000 {name}"
    return f"{count:,} bytes"

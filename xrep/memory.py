"""The memory of this machine, and a check before something is allocated that it can hold it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from xrep.errors import UserError


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees for what it allocates next, if its C library is GNU's.

    A training step allocates the same arrays as the one before. By default the library returns large ones to the
    system, and every new page then has to be filled with zeros when it is first used.
    """
    with suppress(AttributeError, OSError, TypeError):  # no such function, or no such library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)  # M_MMAP_MAX: no array is mapped
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: nothing is returned


def machine_memory(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that a process of this machine, container or cluster job can have, free or not.

    Args:
        groups: The file that names the control groups of the process, in lines NUMBER:CONTROLLERS:PATH.
        root: The folder of all control groups, of which one may be limited by any that it is in.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):  # version 2, version 1
            top, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
            group = top / path.lstrip("/")
            for folder in (group, *group.parents)[: len(group.relative_to(top).parts) + 1]:
                with suppress(OSError, ValueError):  # no such file, or the word "max"
                    limits.append(int((folder / name).read_text(encoding="ascii")))
    return min(limits)


def check_memory(needed: int, what: str, *, cure: str) -> None:
    """Check that the machine can hold something before it is allocated: the system kills a process without a word.

    Args:
        needed: Its bytes, as a Python integer, which cannot overflow.
        what: What it is, at the start of the message: "a queue of 10,000,000 vectors of 768 numbers".
        cure: What the user can change.

    Raises:
        UserError: It needs more than ``machine_memory``.
    """
    present = machine_memory()
    if needed > present:
        problem = f"{what} needs {needed / 1e9:,.1f} GB of memory, and this machine has {present / 1e9:,.1f} GB"
        raise UserError(problem, cure=cure)

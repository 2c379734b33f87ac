"""Processes that together compute the losses between two sides of a batch."""

import datetime
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.kernels.problems import Draw, Results, blocks
from tests.kernels.table import KERNELS
from tests.support.programs import PATIENCE, warm_context
from xrep.kernels.gather import current_group, gather_rows, rank_sizes

Found = list[dict[str, Results]]
"""The results by rank and case."""


@dataclass(frozen=True)
class Case:
    """A call of a kernel of the table, ``kernel``.

    Attributes:
        sizes: Number of pairs of each rank.
        draw: What the batch of all ranks is drawn by.
        learning: The inputs that get a gradient; none: all.
        directions: Weights of the losses of the two directions.
        members: The ranks of each group.
    """

    kernel: str
    sizes: tuple[int, ...]
    draw: dict[str, Any] = field(default_factory=dict)
    learning: tuple[str, ...] = ()
    directions: tuple[float, ...] = (1.0, 1.0)
    members: tuple[tuple[int, ...], ...] | None = None
    block: str = "small"

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return self.members or (tuple(range(len(self.sizes))),)

    def rows(self, rank: int) -> slice:
        """Return the slice of all pairs that belongs to a rank."""
        start = sum(self.sizes[:rank])
        return slice(start, start + self.sizes[rank])

    def run(self, rows: Tensor | slice, group: dist.ProcessGroup | None) -> Results:
        """Return the results of these pairs, and the gradients of a weighted sum of their losses."""
        count = sum(self.sizes)
        problem = KERNELS[self.kernel](Draw(batch=count, seed=count, sentences=9, **self.draw))
        leaves = {
            name: (tensor if name == "tau" else tensor[rows])
            .clone()
            .requires_grad_(name in self.learning or not self.learning)
            for name, tensor in problem.inputs.items()
        }
        given: dict[str, Any] = {"rows": rows, "group": group}
        if group is not None and self.draw.get("columns"):  # in other cases the processes tell each other
            given["sizes"] = [self.sizes[rank] for rank in dist.get_process_group_ranks(group)]
        with blocks(self.block):
            loss, *others = problem.kernel(**leaves, **given)
            weights = torch.randn(2, count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
            weights *= torch.tensor(self.directions).unsqueeze(1)
            (loss * weights[: loss.dim(), rows].view(loss.shape)).sum().backward()
        found = {"loss": loss.detach(), **{f"result {number}": other for number, other in enumerate(others)}}
        return found | {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


SIZES = {2: {"equal": (5, 5), "unequal": (7, 3), "one empty": (0, 6)},
         4: {"equal": (3, 3, 3, 3), "unequal": (1, 6, 2, 4), "one empty": (5, 4, 0, 2)}}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "variant": {"draw": {"flag": True}},
    "whole": {"block": "whole"},
    "large": {"block": "large"},
    "float32": {"draw": {"dtype": torch.float32}},
    "bfloat16": {"draw": {"dtype": torch.bfloat16}},
    "forward alone": {"directions": (1.0, 0.0)},
    "x alone": {"learning": ("x", "anchor")},
    "y alone": {"learning": ("y", "positive")},
    "temperature alone": {"learning": ("tau",)},
}


def cases(world: int) -> dict[str, Case]:
    found = {}
    for kernel in ("in-batch", "hard", "triplets"):
        for name, counts in SIZES[world].items():
            found[f"{kernel}, {name}"] = Case(kernel, counts)
            found[f"{kernel}, ids, {name}"] = Case(kernel, counts, {"columns": 2})
            found |= {f"{kernel}, {judge}, {name}": Case(kernel, counts, {"judge": judge}) for judge in JUDGES}
        counts = SIZES[world]["unequal"]
        found |= {f"{kernel}, {name}": Case(kernel, counts, **given) for name, given in VARIANTS.items()}
        found[f"{kernel}, two groups"] = Case(kernel, counts, members=((0, 2), (1, 3)) if world == 4 else ((0,), (1,)))
    return found


JUDGES = ("absolute", "guide")
KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool)


def shapes(rank: int) -> list[tuple[int, ...]]:
    """Numbers of the rows that a rank gives to ``gather_rows``."""
    return [(3 - rank % 3, 2), (rank, 2, 3), (2,), (0, 5)]


def rows_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 5
    return values > 0 if dtype == torch.bool else values.to(dtype)


def weights_of(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Factors of a rank for all rows, exact in bfloat16; their sums are exact in float32, not in half precision."""
    generator = torch.Generator().manual_seed(100 + rank)
    factors, powers = (torch.randint(*span, shape, generator=generator) for span in ((64, 128), (-6, 7)))
    return (factors * 2.0**powers).to(dtype)


def gather(rank: int) -> Results:
    """Return the result of ``gather_rows`` for unequal numbers of rows, and its gradient of a weighted sum."""
    group, found = current_group(), {}
    assert group is not None
    for number, shape in enumerate(shapes(rank)):
        sizes = rank_sizes(shape[0], torch.device("cpu"), group)
        found[f"sizes {number}"] = torch.tensor(sizes)
        for dtype in KINDS:
            rows = rows_of(rank, shape, dtype).requires_grad_(dtype.is_floating_point)
            everyone = gather_rows(rows, sizes, group)
            found[f"rows {number} {dtype}"] = everyone.detach()
            if dtype.is_floating_point:
                weights = weights_of(rank, everyone.shape, dtype)
                # The gradient of the rows is not contiguous on some ranks, and it is also that of ``other``.
                other = torch.zeros_like(everyone, requires_grad=True)
                factor = weights.movedim(0, -1) if rank % 2 else weights.movedim(0, -1).contiguous()
                turned = (everyone + other).movedim(0, -1) * factor
                gradients = torch.autograd.grad(turned.sum(), (rows, other))
                found |= dict(zip((f"gradient {number} {dtype}", f"other {number} {dtype}"), gradients, strict=True))
    return found


def losses(rank: int, world: int) -> dict[str, Results]:
    """Return the results of a rank for each case."""
    found = {"gather": gather(rank)}
    groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {tuple(range(world)): dist.group.WORLD}
    for name, case in cases(world).items():
        for members in case.groups:
            if members not in groups:
                groups[members] = dist.new_group(members)  # the other ranks divide by it, too
        mine = next(members for members in case.groups if rank in members)
        found[name] = case.run(case.rows(rank), groups[mine])
    return found


def work(rank: int, world: int, folder: Path, task: bytes) -> None:
    """The work of one process, which writes its results to a file."""
    try:
        torch.set_num_threads(1)
        store, limit = f"file://{folder / 'store'}", datetime.timedelta(seconds=PATIENCE / 2)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=limit)
        compute, arguments = pickle.loads(task)
        torch.save(compute(rank, world, *arguments), folder / f"{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        raise


def run_ranks(world: int, folder: Path, compute: Callable[..., dict[str, Results]], *arguments: Any) -> Found:
    """Run ``compute(rank, world, *arguments)``, a function of a module, in each of ``world`` processes.

    Raises:
        RuntimeError: A process failed, or they did not end in time.
    """
    context = warm_context()  # ranks are forked from a process with the needed imports
    task = pickle.dumps((compute, arguments))
    processes = [context.Process(target=work, args=(rank, world, folder, task), daemon=True) for rank in range(world)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + PATIENCE
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        if any(process.exitcode for process in processes):
            break
        time.sleep(0.05)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    if any(code != 0 for code in codes):
        traces = "\n".join(path.read_text() for path in sorted(folder.glob("*.txt")))
        raise RuntimeError(f"{world} processes ended with {codes} (None: never)\n{traces}")
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]

"""Processes that together compute the losses between two sides of a batch."""

from __future__ import annotations

import datetime
import pickle
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.kernels.pairs import make_ids, tiles
from tests.support.programs import PATIENCE, warm_context
from xrep.kernels.gather import current_group, gather_rows, rank_sizes
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce

Results = dict[str, Tensor]
Found = list[dict[str, Results]]
"""The results by rank and case."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of a loss.

    Attributes:
        sizes: Number of pairs of each rank.
        hard: Whether the loss is ``hard_infonce``.
        options: Options of the loss.
        sentences: Number of different sentences in the ids; None: no ids.
        learning: Whether x, y and the temperature get a gradient.
        directions: Weights of the losses of the two directions.
        members: The ranks of each group.
    """

    sizes: tuple[int, ...]
    hard: bool = False
    options: tuple[tuple[str, object], ...] = ()
    sentences: int | None = None
    dtype: torch.dtype = torch.float64
    learning: tuple[bool, bool, bool] = (True, True, True)
    directions: tuple[float, float] = (1.0, 1.0)
    tile: tuple[int, int] = (3, 4)
    kept: bool = True
    members: tuple[tuple[int, ...], ...] | None = None

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        return self.members or (tuple(range(len(self.sizes))),)

    def rows(self, rank: int) -> slice:
        """Return the slice of all pairs that belongs to a rank."""
        start = sum(self.sizes[:rank])
        return slice(start, start + self.sizes[rank])

    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return x and y [N, D], random weights [2, N] of all ranks' losses, and ids [N, 2]."""
        generator = torch.Generator().manual_seed(sum(self.sizes))
        count = sum(self.sizes)
        x, noise = torch.randn(2, count, 6, generator=generator, dtype=torch.float64) / 2
        weights = torch.randn(2, count, generator=generator, dtype=torch.float64)
        weights *= torch.tensor(self.directions).unsqueeze(1)
        ids = None if self.sentences is None else make_ids(count, 2, self.sentences, generator)
        return x.to(self.dtype), (x + 0.7 * noise).to(self.dtype), weights, ids

    def run(self, rows: Tensor | slice, group: dist.ProcessGroup | None) -> Results:
        """Return the results of the loss of these pairs, and the gradients of the weighted sum."""
        x, y, weights, ids = self.data()
        tau = torch.tensor(0.3, dtype=torch.float64)
        inputs = zip((x[rows], y[rows], tau), self.learning, strict=True)
        leaves = [tensor.clone().requires_grad_(wanted) for tensor, wanted in inputs]
        function = hard_infonce if self.hard else inbatch_infonce
        with tiles(self.tile, self.kept):
            given = dict(self.options, ids=None if ids is None else ids[rows], group=group)
            if group is not None and ids is not None:  # in other cases the processes tell each other
                given["sizes"] = [len(x[self.rows(rank)]) for rank in dist.get_process_group_ranks(group)]
            result = function(*leaves, **given)
            (result.forward * weights[0, rows] + result.backward * weights[1, rows]).sum().backward()
        found = {name: field.detach() for name, field in result._asdict().items()}
        gradients = zip(("x", "y", "tau"), leaves, strict=True)
        return found | {name: leaf.grad for name, leaf in gradients if leaf.grad is not None}


SIZES = {2: {"equal": (5, 5), "unequal": (7, 3), "one empty": (0, 6)},
         4: {"equal": (3, 3, 3, 3), "unequal": (1, 6, 2, 4), "one empty": (5, 4, 0, 2)}}  # fmt: skip


def cases(world: int) -> dict[str, Case]:
    sizes = SIZES[world]
    margin, hard = (("margin", 0.2),), (("exponent", 0.7),)
    found = {}
    for name, counts in sizes.items():
        found[f"in-batch, {name}"] = Case(sizes=counts, options=margin, kept=name != "equal")
        found[f"in-batch, ids, {name}"] = Case(sizes=counts, options=margin, sentences=9)
        found[f"hard, {name}"] = Case(sizes=counts, hard=True, options=hard, kept=name != "equal")
        found[f"hard, ids, {name}"] = Case(sizes=counts, hard=True, options=hard, sentences=9)
    counts = sizes["unequal"]
    found["in-batch, all one sentence"] = Case(sizes=counts, sentences=1)
    found["in-batch, untiled"] = Case(sizes=counts, tile=(64, 64))
    found["hard, normalised"] = Case(sizes=counts, hard=True, options=(("exponent", 0.9), ("normalize", True)))
    for kind, options in (("in-batch", margin), ("hard", hard)):
        common = {"sizes": counts, "hard": kind == "hard", "options": options}
        found[f"{kind}, float32"] = Case(**common, dtype=torch.float32)
        found[f"{kind}, bfloat16"] = Case(**common, dtype=torch.bfloat16)
        found[f"{kind}, forward alone"] = Case(**common, directions=(1.0, 0.0))
        found[f"{kind}, x alone"] = Case(**common, learning=(True, False, False))
        found[f"{kind}, y alone"] = Case(**common, learning=(False, True, False))
        found[f"{kind}, temperature alone"] = Case(**common, learning=(False, False, True))
        found[f"{kind}, two groups"] = Case(**common, members=((0, 2), (1, 3)) if world == 4 else ((0,), (1,)))
    return found


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
    return (
        torch.randint(64, 128, shape, generator=generator) * 2.0 ** torch.randint(-6, 7, shape, generator=generator)
    ).to(dtype)


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

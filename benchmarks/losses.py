"""The time and memory of our losses beside plain torch and beside their matrix products alone.

  python benchmarks/losses.py                                 # every loss at a small size, a minute on a CPU
  python benchmarks/losses.py --size paper --cases queue      # as large as in the papers; a GPU can take all of them

A time is that of one forward and backward pass, by turns on the same random inputs: in float32 on CPUs, where all have
the precision of our products, and in bfloat16 on GPUs. Memory is the peak above the inputs, gradients included: on GPUs
what torch allocates, on CPUs the growth of a process of its own for each contestant.

Beside ours stand plain torch, which writes all similarities out ("torch"), the same compiled and, if it is installed,
Liger-Kernel (both on GPUs), and the matrix products that the loss and its gradient need, computed in blocks.
"""

import argparse
import ctypes
import math
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import Turns, say_absent, take_turns
from results import report
from torch import Tensor

from xrep.kernels.fused import describe
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.judge import Judge
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.precision import allow_tf32, fast_products
from xrep.kernels.queue_infonce import queue_infonce
from xrep.memory import keep_freed_memory
from xrep_cli.command import HelpFormatter

PRODUCTS = "matrix products only"
TILE = {"cpu": (1024, 2048), "cuda": (8192, 8192)}
"""Rows and columns of a block of similarities, which stays in cache between two products."""
MOST = 2**30
"""Most similarities that plain torch computes on a CPU, where a process that takes too much memory is killed."""


@dataclass
class Contest:
    """A loss: ``ours`` and ``plain`` are functions of the arguments that return the losses of the rows, or their mean.

    The first two arguments are the sides, [R, D] and [C, D], which are multiplied.
    """

    ours: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    arguments: tuple[Tensor, ...]

    @property
    def sides(self) -> tuple[Tensor, ...]:
        return self.arguments[:2]

    @property
    def leaves(self) -> list[Tensor]:
        """The arguments that get a gradient."""
        return [each for each in self.arguments if each.requires_grad]

    @property
    def products(self) -> int:
        """The number of products of matrices: that of the sides, and one for the gradient of each side."""
        return 1 + sum(side.requires_grad for side in self.sides)


def vectors(count: int, width: int, like: Tensor) -> Tensor:
    """Return random vectors of length 1 in the type of ``like``, [count, width]."""
    return F.normalize(torch.randn(count, width, device=like.device), dim=1).to(like.dtype).requires_grad_()


def queue(query: Tensor, keys: Tensor, tau: Tensor) -> Contest:
    """Dual momentum contrast."""
    given = query, keys.detach(), vectors(*query.shape, query), tau
    return Contest(lambda query, keys, own, tau: queue_infonce(query, own, keys, tau).loss, plain_queue, given)


def judged_queue(query: Tensor, keys: Tensor, tau: Tensor) -> Contest:
    """The same, where negatives that are much nearer to the query than the positive do not count: there are none."""

    def ours(query: Tensor, keys: Tensor, own: Tensor, tau: Tensor) -> Tensor:
        return queue_infonce(query, own, keys, tau, judge=Judge(0.5)).loss

    return Contest(ours, partial(plain_queue, margin=0.5), queue(query, keys, tau).arguments)


def inbatch(x: Tensor, y: Tensor, tau: Tensor) -> Contest:
    """Translation ranking. Equal sentences are masked, as in training, though there are none."""
    given = x, y, tau, torch.arange(len(x), device=x.device).unsqueeze(1)
    return Contest(lambda x, y, tau, ids: torch.cat(inbatch_infonce(x, y, tau, ids=ids)[:2]), plain_inbatch, given)


def vocabulary(hidden: Tensor, weight: Tensor, _: Tensor) -> Contest:
    """The cross-entropy of a language model."""
    given = hidden, weight, torch.randint(len(weight), (len(hidden),), device=hidden.device)
    return Contest(lambda *given: linear_cross_entropy(*given).loss / len(hidden), plain_vocabulary, given)


def plain_queue(query: Tensor, keys: Tensor, positive: Tensor, tau: Tensor, margin: float = math.inf) -> Tensor:
    similar = torch.cat([(query * positive).sum(1, keepdim=True), query @ keys.t()], 1).float()
    logits = similar / tau
    if margin < math.inf:
        logits = logits.masked_fill(similar > similar[:, :1] + margin, float("-inf"))
    return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.int64, device=query.device), reduction="none")


def plain_inbatch(x: Tensor, y: Tensor, tau: Tensor, ids: Tensor) -> Tensor:
    own = torch.arange(len(x), device=x.device)
    itself = own.unsqueeze(1) == own
    logits = ((x @ y.t()).float() / tau).masked_fill((ids == ids.t()) & ~itself, float("-inf"))
    with torch.no_grad():  # a training step also reports how many positives beat all negatives
        others = logits.masked_fill(itself, float("-inf"))
        _ = [logits.diagonal() > others.amax(dim) for dim in (0, 1)]
    return torch.cat([F.cross_entropy(side, own, reduction="none") for side in (logits, logits.t())])


def plain_vocabulary(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), target)


def liger(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()(weight, hidden, target)


OF_QUEUE = {"tiny": (8, 300, 32), "small": (64, 65536, 768), "paper": (256, 409600, 768)}
CASES: dict[str, tuple[Callable[..., Contest], dict[str, tuple[int, int, int]]]] = {
    "queue": (queue, OF_QUEUE),
    "queue-judged": (judged_queue, OF_QUEUE),
    "inbatch": (inbatch, {"tiny": (9, 9, 32), "small": (256, 256, 768), "paper": (1024, 1024, 768)}),
    "inbatch-large": (inbatch, {"tiny": (20, 20, 32), "small": (1024, 1024, 768), "paper": (8192, 8192, 768)}),
    "vocabulary": (vocabulary, {"tiny": (40, 90, 32), "small": (1024, 8000, 768), "paper": (8192, 250002, 768)}),
}
"""The losses, and their sizes: rows, columns and width of the similarities."""


def make(case: str, size: str, device: str) -> Contest:
    """Return the random inputs of a case."""
    build, sizes = CASES[case]
    rows, columns, width = sizes[size]
    torch.manual_seed(0)
    like = torch.empty(0, device=device, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    return build(vectors(rows, width, like), vectors(columns, width, like), torch.tensor(0.04, device=device))


def multiply(contest: Contest) -> list[Tensor]:
    """Compute only the matrix products of a loss and its gradient, in blocks of similarities."""
    left, right = (side.detach() for side in contest.sides)
    height, width = TILE[left.device.type]
    results = [torch.zeros_like(side) for side in contest.sides if side.requires_grad]
    for rows in (slice(n, n + height) for n in range(0, len(left), height)):
        for columns in (slice(n, n + width) for n in range(0, len(right), width)):
            block = left[rows] @ right[columns].t()
            results[0][rows].addmm_(block, right[columns])
            if contest.products == 3:
                results[1][columns].addmm_(block.t(), left[rows])
    return results


def contestants(contest: Contest, only: str = "") -> dict[str, Callable[[Any], Any]]:
    """Return those who can run here (or ``only`` one), after a pass of each, and say who cannot; errors of ours are
    raised. A contestant ignores its argument, and returns losses and gradients."""
    device = contest.sides[0].device
    on_gpu, plain = device.type == "cuda", contest.plain
    losses = {"ours": contest.ours, "torch": plain}
    if on_gpu:
        losses["torch.compile"] = torch.compile(plain, dynamic=False)
        losses |= {"Liger": liger} if plain is plain_vocabulary else {}
    elif len(contest.sides[0]) * len(contest.sides[1]) > MOST:
        del losses["torch"]

    def run(name: str, _: Any) -> Any:
        with allow_tf32(device) if on_gpu else nullcontext() if name == "ours" else fast_products(contest.sides[0]):
            if name == PRODUCTS:
                return None, multiply(contest)
            found = losses[name](*contest.arguments)
            return found.detach(), torch.autograd.grad(found.mean(), contest.leaves)

    able: dict[str, Callable[[Any], Any]] = {}
    for name in [only] if only else [*losses, PRODUCTS]:
        try:
            run(name, None)
            able[name] = partial(run, name)
        except Exception as error:
            if name == "ours":
                raise
            say_absent(name, f"{type(error).__name__}: {error}")
    return able


def peak_megabytes(case: str, size: str, device: str, name: str) -> float:
    """Return the peak memory of a contestant's pass above what is held before it."""
    run = contestants(make(case, size, device), name)[name]
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(None)
        return (torch.cuda.max_memory_allocated() - before) / 1e6

    def peak() -> float:
        return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text("ascii"))[0]) * 1.024e-3

    ctypes.CDLL(None).malloc_trim(0)  # what the first pass has left would be used again, unseen
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = peak()
    run(None)
    return peak() - before


def measure(case: str, size: str, device: str, rounds: int) -> tuple[Turns, dict[str, float]]:
    """Return the times of the contestants, ours first, and their peak memory in megabytes."""
    turns, peaks = take_turns(contestants(make(case, size, device)), range(rounds + 1), device=device), {}
    for name in [name for name in turns.seconds if name != PRODUCTS]:
        with ProcessPoolExecutor(1, get_context("spawn")) if device == "cpu" else nullcontext() as apart:
            given = case, size, device, name
            with suppress(AttributeError, OSError):  # only Linux tells the peak of a process
                peaks[name] = apart.submit(peak_megabytes, *given).result() if apart else peak_megabytes(*given)
    return turns, peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add, here = parser.add_argument, "cuda" if torch.cuda.is_available() else "cpu"
    add("--size", choices=("tiny", "small", "paper"), default="small", help="how large the inputs are")
    add("--cases", nargs="+", choices=CASES, default=list(CASES), help="which losses")
    add("--device", choices=("cpu", "cuda"), default=here, help="where to measure")
    add("--repeats", type=int, default=5, help="rounds after the warm-up")
    add("--csv", metavar="FILE", help="append the rows to this file")
    options = parser.parse_args()
    keep_freed_memory()  # as xrep-train does
    for case in options.cases:
        turns, peaks = measure(case, options.size, options.device, options.repeats)
        shape = " x ".join(f"{number:,}" for number in CASES[case][1][options.size])
        for name, seconds in turns.medians().items():
            memory = f", {peaks[name]:.0f} MB" if name in peaks else ""
            print(f"{case} {shape}, {name}: {1000 * seconds:.2f} ms{memory}")
        pairs = {"ours": [name for name in turns.seconds if name != "ours"]}
        report(f"losses, {case}", shape, turns.seconds, pairs, options.csv)
    print(describe(torch.device(options.device)))


if __name__ == "__main__":
    main()

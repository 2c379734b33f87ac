"""The cost of our kernels: time, peak memory and accuracy, beside plain torch and beside the matrix products alone.

  python benchmarks/kernels.py                                   # every usual case: a quarter of an hour on CPUs
  python benchmarks/kernels.py --cases queue-small,inbatch --precision fast --threads 1
  python benchmarks/kernels.py --scale 0.1 --no-memory           # a quick look

Each figure is that of one forward and backward pass. The contestants of a case take turns on the same random inputs, in
an order that rotates, and the process keeps freed memory, as that of xrep-train does. The first round warms up, and a
figure is the median of the others. The table has ratios, because these hardly depend on the machine:

  ours/floor    our time over that of the floor, which is the matrix products alone
  plain/floor   the time of plain torch, which writes all similarities out, over that of the floor
  ours/plain    below 1: ours is faster
  peak MB       memory above the inputs at the worst moment, their gradients included; each contestant is measured in a
                process of its own (of the floors, the fastest)

A queue, which gets no gradient, needs two products; the other losses need three. The floor is measured in tiles that
stay in cache and with whole matrices, and the faster one counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from harness import markdown_table, progress, record, write_json
from kernel_bench.cases import CASES, Case

from xrep.errors import UserError
from xrep.memory import keep_freed_memory
from xrep_cli.command import HelpFormatter, console_script

if TYPE_CHECKING:
    from kernel_bench.contestants import Contest, Run
    from torch import Tensor

PRECISIONS = ("default", "fast")
PEERS = ("plain", "compiled", "liger")
CACHES = 2**28
"""Bytes of inputs that no cache holds. Sets of inputs are made until they reach it, at most ``SETS``."""
SETS = 4
STEADY = 1.3
"""Times of one contestant that differ by a larger factor are reported, because the machine was busy."""
EXACT_QUERIES = 16
"""Number of queries whose loss is computed in float64."""


def choose(given: str, known: Sequence[str], what: str) -> list[str]:
    """Return the names in a comma-separated list.

    Raises:
        UserError: A name is not known; the message names the nearest.
    """
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names or [given]:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            cure = f"did you mean {near[0]}?" if near else f"one of: {', '.join(known)}"
            raise UserError(f"unknown {what} {name!r}", cure=cure)
    return list(dict.fromkeys(names))


def products_as(precision: str, name: str, device: str) -> AbstractContextManager[Any]:
    """Return the context of a contestant's float32 products: on CUDA that of training, which reads TF32. Only ours
    choose the fast ones of CPUs themselves."""
    import torch

    from xrep.kernels.precision import allow_tf32, exact_products, fast_products

    if device == "cuda":
        return allow_tf32(torch.device(device))
    if precision == "default":
        return exact_products()
    return nullcontext() if name == "ours" else fast_products(torch.empty(0, device=device))


def seconds(run: Run, device: str) -> tuple[float, Tensor | None]:
    """Return the time of a forward and backward pass, and the losses."""
    import torch

    if device == "cpu":
        # The processor time of one thread does not grow when other processes run.
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        losses, _ = run()
        return clock() - start, losses
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    events[0].record()
    losses, _ = run()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1000, losses


def absent(case: Case, contest: Contest, names: Sequence[str], device: str) -> dict[str, str]:
    """Return those of ``names`` that need more than this machine has, with the reason."""
    from kernel_bench.memory import room

    # A floor keeps its array while the others compete.
    arrays = {"floor-whole": 8, "plain": contest.arrays, "compiled": contest.arrays}
    size = 4 * len(contest.sides[0]) * len(contest.sides[1])
    reason = f"too little memory for arrays of {size / 1e9:.1f} GB"
    if case.once:
        return dict.fromkeys((name for name in names if name in arrays), "would write all similarities out")
    return {name: reason for name in names if arrays.get(name, 0) * size > room(device)}


def excusable(name: str, error: Exception) -> bool:
    """Return whether a failure is no fault of our code: that of a peer, or of too little memory."""
    import torch

    too_small = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    return name in PEERS or (too_small and name in ("ours", "floor-whole"))


def compete(case_name: str, precision: str, contests: list[Contest], options: argparse.Namespace) -> dict[str, Any]:
    """Time all contestants by turns. The sets of inputs rotate as well, so that none finds its own in cache."""
    case, device = CASES[case_name], options.device
    names = [name for name in contests[0].names() if name != "compiled" or options.compile or device != "cpu"]
    missing = absent(case, contests[0], names, device)
    runs: dict[str, list[Run]] = {}
    times: dict[str, list[float]] = {name: [] for name in names}
    losses: dict[str, Tensor] = {}
    for turn in range(1 if case.once else options.repeats + 1):
        first = turn % len(names)
        for place, name in enumerate(names[first:] + names[:first]):
            if name in missing:
                continue
            which = (turn + place) % len(contests) if turn else 0
            try:
                with products_as(precision, name, device):
                    runs[name] = runs.get(name) or [contest.prepare(name) for contest in contests]
                    taken, found = seconds(runs[name][which], device)
            except Exception as error:
                if not excusable(name, error):
                    raise
                missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
                progress(f"{case_name}, {precision}: no {name}: {missing[name]}")
                continue
            if turn or case.once:
                times[name].append(taken)
            if not turn and found is not None:
                losses[name] = found
            label = f"round {turn} of {options.repeats}" if turn else "once" if case.once else "warm-up"
            progress(f"{case_name}, {precision}, {label}: {name} {taken:.4f} s")
    medians = {name: statistics.median(times[name]) for name in names if name not in missing}
    result = {"case": case_name, "precision": precision, **summary(medians, contests[0]), "missing": missing}
    result["rounds"] = {name: times[name] for name in medians}
    record(title=f"{case_name}, {precision}", seconds=result["rounds"], absent=missing)
    result["loss"] = {name: float(found.double().mean()) for name, found in losses.items() if name in medians}
    result["loss_error"] = accuracy(contests[0], losses)
    return result


def summary(medians: dict[str, float], contest: Contest) -> dict[str, Any]:
    rows, columns = (len(side) for side in contest.sides)
    width = contest.sides[0].size(1)
    floors = {name: taken for name, taken in medians.items() if name.startswith("floor")}
    floor = min(floors, key=floors.__getitem__)
    ratios = {f"{name}/floor": taken / floors[floor] for name, taken in medians.items() if name not in floors}
    if "ours" in medians and "plain" in medians:
        ratios["ours/plain"] = medians["ours"] / medians["plain"]
    return {
        "size": [rows, columns, width],
        "dtypes": [str(side.dtype).removeprefix("torch.") for side in contest.sides],
        "seconds": medians,
        "floor": floor,
        "floor_tflops": 2 * contest.products * rows * columns * width / floors[floor] / 1e12,
        "ratios": ratios,
    }


def accuracy(contest: Contest, losses: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest error (in nats) of some queries' losses against float64."""
    import torch

    count = len(contest.sides[0])
    some = torch.linspace(0, count - 1, min(EXACT_QUERIES, count), device=contest.sides[0].device).long()
    exact = contest.exact(some)
    if exact is None:
        return {}
    return {name: float((found[some].double() - exact).abs().max()) for name, found in losses.items()}


def memory_here(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the peak of one contestant in this process, after a pass over tiny inputs, which loads libraries."""
    from kernel_bench.contestants import build
    from kernel_bench.memory import peak_of

    case_name, _, name = options.memory_of.partition(":")
    (case_name,) = choose(case_name, list(CASES), "case")
    case, precision, device = CASES[case_name], options.precision[-1], options.device
    tiny = build(case, device, scale=0)
    choose(name, tiny.names(), f"contestant of {case_name}")
    with products_as(precision, name, device):
        tiny.prepare(name)()
        run = build(case, device, options.scale).prepare(name)
        if name == "compiled":
            run()  # the memory of the compiler is not that of the loss
        (_, gradients), peak, source = peak_of(run, device)
    size = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
    return {"peak_mb": peak, "gradients_mb": size / 1e6, "source": source}


def memory_of(case: str, name: str, precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure the peak of one contestant in a process of its own."""
    command = [sys.executable, __file__, "--memory-of", f"{case}:{name}", "--precision", precision]
    command += ["--device", options.device, "--scale", str(options.scale)]
    command += ["--threads", str(options.threads)] if options.threads else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"]
        progress(f"{case}, {precision}, peak memory: no {name}: {lines[-1]}")
        return {"missing": lines[-1][:160]}
    found = json.loads(done.stdout)
    progress(f"{case}, {precision}, peak memory: {name} {found['peak_mb']:.1f} MB")
    return found


def measure_case(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one result for each precision."""
    from kernel_bench.contestants import build

    case = CASES[name]
    progress(f"{name}: makes its inputs")
    contests = [build(case, options.device, options.scale)]
    size = sum(side.numel() * side.element_size() for side in contests[0].sides)
    sets = 1 if case.once else min(SETS, -(-CACHES // size))
    contests += [build(case, options.device, options.scale, seed) for seed in range(1, sets)]
    results = [compete(name, precision, contests, options) for precision in options.precision]
    del contests  # the processes that follow need the memory
    if not options.no_memory:
        for result in results:
            holders = {name: name for name in ("ours", *PEERS) if name in result["seconds"]} | {
                "floor": result["floor"]
            }
            result["memory"] = {
                key: memory_of(result["case"], holder, result["precision"], options) for key, holder in holders.items()
            }
    return results


def table(results: list[dict[str, Any]]) -> list[str]:
    """Return the results as a table in Markdown."""
    ratios = ["ours/floor", "plain/floor", "ours/plain"]
    ratios += [f"{peer}/floor" for peer in ("compiled", "liger") if any(peer in found["seconds"] for found in results)]
    holders = ["ours", "floor", "plain"] if any("memory" in result for result in results) else []
    head = ["case", "size", "precision", *ratios, "floor", *(f"peak MB: {name}" for name in holders)]
    rows = [head]
    for result in results:
        peaks = [result.get("memory", {}).get(name, {}).get("peak_mb") for name in holders]
        how = f"{result['floor'].removeprefix('floor-')}, {result['floor_tflops']:.2f} TFLOP/s"
        rows.append(
            [result["case"], " x ".join(map(str, result["size"])), result["precision"]]
            + [f"{result['ratios'][name]:.2f}" if name in result["ratios"] else "-" for name in ratios]
            + [how, *("-" if peak is None else f"{peak:.3g}" if peak < 100 else f"{peak:.0f}" for peak in peaks)]
        )
    return markdown_table(rows)


def foot(results: list[dict[str, Any]]) -> list[str]:
    """Return the lines below the table, for which it has no column."""
    lines = []
    for result in results:
        said = []
        if result["loss_error"]:
            errors = ", ".join(f"{name} {error:.1e}" for name, error in result["loss_error"].items())
            said.append(f"largest error of a loss against float64: {errors}")
        if (rounded := "bfloat16-products/floor") in result["ratios"]:
            said.append(f"products in bfloat16, results rounded to it: {result['ratios'][rounded]:.2f} of the floor")
        spread = max(max(rounds) / min(rounds) for rounds in result["rounds"].values())
        if spread > STEADY:
            said.append(f"unsteady, times of one contestant differ {spread:.1f}-fold: measure on a machine at rest")
        memory = result.get("memory", {})
        if "gradients_mb" in memory.get("ours", {}):
            said.append(f"gradients of the inputs, in every peak: {memory['ours']['gradients_mb']:.3g} MB")
        said += [f"no peak memory of {name}: {peak['missing']}" for name, peak in memory.items() if "missing" in peak]
        said += [f"no {name}: {reason}" for name, reason in result["missing"].items()]
        lines += [f"{result['case']}, {result['precision']}: {line}" for line in said]
    return lines


def parse(argv: Sequence[str]) -> argparse.Namespace:
    cases = "\n".join(f"  {name:18} {case.summary}" for name, case in CASES.items())
    description = f"{__doc__}\nCases:\n{cases}"
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), help="where to measure (default: cuda if there is a GPU)")
    add("--cases", metavar="NAMES", help="which, with commas between (default: those usual on the device)")
    add(
        "--precision",
        metavar="NAMES",
        default="default,fast",
        help="float32 products on CPUs: torch's, and the kernels'",
    )
    add("--scale", type=float, default=1.0, help="multiplies rows and columns of every case, for a quick look")
    add("--repeats", type=int, help="rounds after the warm-up (default: 5, on CUDA 20)")
    add("--threads", type=int, help="CPU threads (default: torch's choice)")
    add("--compile", action="store_true", help="let torch.compile of plain torch compete on CPUs, too")
    add("--no-memory", action="store_true", help="leave out the processes that measure memory")
    add("--json", metavar="FILE", help="write all figures as JSON; - prints JSON alone on stdout")
    add("--memory-of", metavar="CASE:CONTESTANT", help="only measure this one's peak memory, and print it as JSON")
    return parser.parse_args(argv)


def complete(options: argparse.Namespace) -> None:
    """Check the options and fill in those that depend on the device."""
    options.precision = choose(options.precision, PRECISIONS, "precision")
    options.cases = None if options.cases is None else choose(options.cases, list(CASES), "case")
    for name in ("scale", "repeats", "threads"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"--{name} is {value}", cure="give a positive number")
    import torch

    from xrep.kernels.precision import fast_float32_is_exact

    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA GPU", cure="--device cpu")
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    options.repeats = options.repeats or (5 if options.device == "cpu" else 20)
    options.cases = options.cases or [name for name, case in CASES.items() if options.device in case.usual]
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda":
        options.precision = ["default"]
    elif "fast" in options.precision and not fast_float32_is_exact():
        if options.memory_of is None:  # otherwise the process that started this one has reported it
            progress("this CPU has no faster float32 product as exact as torch's: fast is left out")
        options.precision = ["default"]


@console_script("benchmarks/kernels.py")
def main(argv: Sequence[str]) -> None:
    options = parse(argv)
    complete(options)
    if options.memory_of is not None:
        print(json.dumps(memory_here(options)))
        return
    keep_freed_memory()
    import torch

    from xrep.kernels.fused import describe

    device = torch.device(options.device)
    machine = {
        "torch": torch.__version__,
        "device": "cpu" if options.device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
        "kernels": describe(device),
    }
    results = [result for name in options.cases for result in measure_case(name, options)]
    figures = {"machine": machine, "scale": options.scale, "results": results}
    if options.json == "-":
        print(json.dumps(figures, indent=2))
        return
    write_json(options.json, figures)
    print("\n".join([*table(results), "", "; ".join(f"{key} {value}" for key, value in machine.items())]))
    print("\n".join(foot(results)))


if __name__ == "__main__":
    sys.exit(main())

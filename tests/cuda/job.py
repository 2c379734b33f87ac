"""Runs cases on the CPU and on CUDA, as one rank or as one of several, and writes what rank 0 found as JSON.

The arguments of ``main`` are a folder of data (``write_data``), the file to write, and PRECISION/CASE for each case;
``tests.cuda.commands`` calls it. Without a GPU, CUDA is the emulated device of device.py.
"""

# ruff: noqa: E402
from __future__ import annotations

import os

GPU = os.path.exists("/dev/nvidiactl")
if not GPU:
    from tests.cuda.device import EmulatedDevice, held
import json
import tempfile
import warnings
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.cuda.cases import command_line
from tests.cuda.commands import choose_triton
from tests.cuda.table import DEEP
from xrep.config import runs_of
from xrep.nn.queue import Queue
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import World, leave, start
from xrep.training.log import Quiet
from xrep.training.trainer import Trainer
from xrep_cli.options import parse

FIRST, LAST = 2, 4
"""Numbers of steps between which everything is counted: the first steps allocate, and the last one is waited for."""


SUMMED = "launches", "float32_products", "collectives", "exchanged"
STAND_INS = {
    "normalise_rows": lambda x, change, weight, bias, total, normed, *rest: (total.copy_(x), normed.copy_(x)),
    "differentiate_rows": lambda of_normed, of_total, total, weight, mean, scale, of_x, of_change, parts, *rest: [
        gradient.zero_() for gradient in (of_x, of_change, parts)
    ],
    "add_parts": lambda parts, result, *rest: result.zero_(),
}
"""What is computed instead of the kernels that take the interpreter longest, where launches are only counted."""


class NoCheckpoints(Checkpoints):
    def save(self, *arguments: Any, **named: Any) -> None:
        pass


class Watcher(Quiet):
    """Counts steps by the lines of progress, and keeps the means of the run."""

    def __init__(self, counts: Any) -> None:
        self.counts, self.steps, self.values, self.found = counts, 0, {}, {}

    def line(self, text: str) -> None:
        if "encoded" in text or self.counts is None:  # in the middle of a step
            return
        self.steps += 1
        if self.steps == FIRST:
            self.counts.clear()
        elif self.steps == LAST:
            share = LAST - FIRST
            self.found = {
                "syncs": {place: count / share for place, count in self.counts.syncs.items()},
                **{name: sum(vars(self.counts)[name].values()) / share for name in SUMMED},
            }

    def record(self, step: int, values: dict[str, Any], kind: str) -> None:
        self.values = values


def train(
    line: list[str], world: World, counts: Any, *, with_full_queues: bool = False
) -> tuple[Watcher, dict[str, torch.Tensor]]:
    """Train as a command line says; return what was counted, and the weights."""
    parsed = parse(line)
    run = runs_of(parsed.layers, parsed.problems)[0]
    torch.manual_seed(run.seed)
    task = world.in_turn(lambda: run.classes["task"](run.configs["task"], run.seed))
    model = run.classes["model"](run.configs["model"], task.text)
    criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
    criterion.prepare(task)
    watcher, checkpoints = Watcher(counts), NoCheckpoints(run.configs["checkpoint"], Path("."))
    trainer = Trainer(run, task, model, criterion, checkpoints, watcher, None, world)
    if with_full_queues:
        for queue in [part for part in trainer.pair.modules() if isinstance(part, Queue)]:
            queue.enqueue(queue.vectors.clone(), queue.ids.clone())
    trainer.train()
    state = trainer.pair.state_dict()
    return watcher, {name: (tensor.cpu() if GPU else held(tensor)).double() for name, tensor in state.items()}


class WarnedSyncs:
    """The counts of a real device: the synchronisations that torch warns of."""

    def __init__(self, caught: list[warnings.WarningMessage]) -> None:
        self.caught = caught
        self.launches = self.float32_products = self.collectives = self.exchanged = dict[str, int]()

    def clear(self) -> None:
        self.caught.clear()

    @property
    def syncs(self) -> dict[str, int]:
        places = [f"{w.filename}:{w.lineno}" for w in self.caught if "synchronizing" in str(w.message)]
        return {place: places.count(place) for place in places}


def of_case(name: str, data: Path, precision: str, world: World, results: dict[str, Any]) -> dict[str, Any]:
    """Return how far the run on CUDA is from that on the CPU, and what was counted.

    Args:
        results: the results of earlier runs of the case, by device; new ones are added.
    """
    for device, precision_there in (("cpu", "float32"), ("cuda", precision)):
        if device == "cpu" and (device in results or name == DEEP):
            continue
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            counts, here = None, replace(world, device=torch.device(device))
            if device == "cuda" and GPU:
                here = replace(world, device=torch.device("cuda", world.local_rank % torch.cuda.device_count()))
                torch.cuda.set_device(here.device)
                caught = stack.enter_context(warnings.catch_warnings(record=True))
                assert caught is not None
                counts = WarnedSyncs(caught)
                warnings.simplefilter("always")
                stack.callback(torch.cuda.set_sync_debug_mode, "default")
                torch.cuda.set_sync_debug_mode("warn")
            elif device == "cuda":
                counts = stack.enter_context(EmulatedDevice(**(STAND_INS if name == DEEP else {}))).counts
                here = replace(world, device=torch.device("cuda", 0))
            line = command_line(name, data, Path(folder), device=device, precision=precision_there)
            results[device] = train(line, here, counts, with_full_queues=name == DEEP)
    if name == DEEP:  # it has dropout
        return results["cuda"][0].found
    (watcher, weights), (expected, exact) = results["cuda"], results["cpu"]
    found = {**watcher.found, "loss": watcher.values["loss"]}
    found["losses apart"] = abs(found["loss"] / expected.values["loss"] - 1)
    if precision == "float32":
        apart = [(weights[key] - tensor).abs().max() for key, tensor in exact.items() if tensor.numel()]
        found["weights apart"] = float(max(apart))
    return found


def main(arguments: list[str]) -> None:
    data, output, *cases = arguments
    world = start(World.Config(backend="gloo"), "cpu")
    found, results = dict[str, Any](), dict[str, Any]()
    for case in cases:
        precision, _, name = case.partition("/")
        with choose_triton(name == DEEP):  # the kernels take long to interpret, and have tests of their own
            found[case] = of_case(name, Path(data), precision, world, results.setdefault(name, {}))
    if world.is_main:
        Path(output).write_text(json.dumps(found, indent=1), encoding="utf-8")
    leave(world)

#!/usr/bin/env python3
"""What `--cache-source` saves: whole training steps of frozen_source with the teacher, and with its vectors from disk.

  python benchmarks/frozen.py --data data-bin/de-en_frozen --teacher all-MiniLM-L6-v2/

--data is tokenised for the teacher on its target side (examples/frozen_source/README.md has the command). The steps
take turns on the same batches, whose vectors are on disk: those of a second epoch. Printed are medians, the gain (one
over the other), and the ideal gain, (teacher + student step) / (student step): the student's step is the cached one
without the reading of vectors, the teacher's part is measured on its own.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from xrep.criteria.criterion import Planned
from xrep.criteria.frozen_source import FrozenSource
from xrep.data.batching import PairBatch
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.training.distributed import alone, pick_device
from xrep.training.freezing import Freezing
from xrep.training.step import Engine, TrainingModule

WARM_UP = 3


def engine(model: DualEncoder, criterion: FrozenSource, device: str) -> Engine:
    module = TrainingModule(model, criterion)
    world = alone(device)
    module.to(world.device)
    freezing = Freezing(list(criterion.frozen))
    optimizer = torch.optim.AdamW([p for _, p in freezing.ever_trained(module)], lr=1e-3, fused=True)
    made = Engine(module, optimizer, freezing, world, precision="float32", clip_norm=10.0)
    made.prepare(0)
    made.train_mode()
    return made


def measured(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Median milliseconds of the parts."""
    task = BitextTask(BitextTask.Config(data=options.data, batch_size=options.batch_size, max_length=64), seed=1)
    sizes = {"layers": 2, "hidden_size": 256, "heads": 4, "feedforward_size": 1024, "max_positions": 64}
    config = DualEncoder.Config(
        towers="separate", target_encoder=options.teacher, dropout=0.0, attention_dropout=0.0, **sizes
    )
    model = DualEncoder(config, task.text)
    engines = {}
    for name, cache in (("plain", None), ("cached", str(folder / "vectors"))):
        given = FrozenSource.Config(source_side="target", queue_size=options.queue_size, cache_source=cache)
        own = copy.deepcopy(model)
        engines[name] = engine(own, FrozenSource(given, own, task.text), options.device)
    batches = [task.make(plan.what) for plan, _ in zip(task.plan(), range(WARM_UP + options.steps), strict=False)]
    for batch in batches:  # the first epoch
        step(engines["cached"], batch)
    times: dict[str, list[float]] = {}
    for number, batch in enumerate(batches):
        moved = plan(engines["plain"], batch).to(engines["plain"].world.device)
        for name, run in parts(engines, batch, moved):
            begun = time.perf_counter()
            run()
            if moved.batch.ids.is_cuda:
                torch.cuda.synchronize()
            if number >= WARM_UP:
                times.setdefault(name, []).append(1000 * (time.perf_counter() - begun))
    return {name: statistics.median(values) for name, values in times.items()}


def parts(engines: dict[str, Engine], batch: PairBatch, moved: Planned) -> Iterator[tuple[str, Callable[[], object]]]:
    for name, made in engines.items():
        yield name, lambda made=made: step(made, batch)
    for name, made in (("teacher", engines["plain"]), ("reading", engines["cached"])):
        criterion, model = made.module.criterion, made.module.model
        yield name, torch.no_grad()(lambda criterion=criterion, model=model: criterion.constants(model, moved))


def plan(made: Engine, batch: PairBatch) -> Planned:
    return made.module.criterion.plan(batch, torch.Generator())


def step(made: Engine, batch: PairBatch) -> None:
    planned = plan(made, batch)
    made.run([planned], planned.sizes, lambda: None)


def main(arguments: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", required=True, help="directory made by xrep-preprocess")
    made.add_argument("--teacher", required=True, help="directory of the pretrained encoder of the target side")
    made.add_argument("--steps", type=int, default=20, help="batches that are measured (default: 20)")
    made.add_argument("--batch-size", type=int, default=128)
    made.add_argument("--queue-size", type=int, default=4096)
    made.add_argument("--device", default="auto")
    options = made.parse_args(arguments)
    options.device = pick_device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(options, Path(folder))
    student = found["cached"] - found["reading"]
    gain, ideal = found["plain"] / found["cached"], (found["teacher"] + student) / student
    print(
        f"step {found['plain']:.0f} ms, with vectors from disk {found['cached']:.0f} (teacher {found['teacher']:.0f}, "
        f"reading {found['reading']:.1f}): gain {gain:.2f} of an ideal {ideal:.2f}, {gain / ideal:.0%}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

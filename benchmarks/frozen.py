#!/usr/bin/env python3
r"""The time that `--teacher-vectors` saves: training steps of frozen_source with the teacher, and with stored vectors.

  xrep-encode --path all-MiniLM-L6-v2/ --input english.txt --lang en --output english.npy
  python benchmarks/frozen.py --data data-bin/de-en_frozen --teacher all-MiniLM-L6-v2/ --vectors english.npy \
      --text english.txt

--data is tokenised for the teacher on its target side (examples/frozen_source/README.md has the command), and --text
has its English sentences. Whole steps take turns on the same batches. The script prints the medians, the gain (the
ratio of the two steps), and the ideal gain, (teacher + student step) / (student step). The student's step is that with
stored vectors without reading them; the teacher's part is measured on its own.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys

import torch
from harness import make_parser, make_step, run_step, take_turns, write_json

from xrep.criteria.frozen_source import FrozenSource
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.training.distributed import pick_device

WARM_UP = 3


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Return the median milliseconds of the two steps, of the teacher and of reading its vectors."""
    task = BitextTask(BitextTask.Config(data=options.data, batch_size=options.batch_size, max_length=64), seed=1)
    sizes = {"layers": 2, "hidden_size": 256, "heads": 4, "feedforward_size": 1024, "max_positions": 64}
    config = DualEncoder.Config(
        towers="separate", target_encoder=options.teacher, dropout=0.0, attention_dropout=0.0, **sizes
    )
    model = DualEncoder(config, task.text)
    steps = {}
    known = {"teacher_vectors": options.vectors, "teacher_text": options.text}
    for name, chosen in (("plain", {}), ("stored", known)):
        given = FrozenSource.Config(source_side="target", queue_size=options.queue_size, **chosen)
        own = copy.deepcopy(model)
        criterion = FrozenSource(given, own, task.text)
        steps[name] = make_step(own, criterion, options.device, lr=1e-3, clip_norm=10.0)
    plain, stored = steps["plain"], steps["stored"]
    batches = [task.make(plan.rows) for plan in itertools.islice(task.plan(), WARM_UP + options.steps)]

    def read(both):
        return stored.pair.criterion.plan(both[0], torch.Generator())

    def plan(batch):
        return plain.pair.criterion.plan(batch, torch.Generator()).to(plain.world.device)

    def constants(planned):
        with torch.no_grad():
            return plain.pair.criterion.constants(plain.pair.model, planned)

    contestants = {
        "plain": lambda both: run_step(plain, both[0]),
        "stored": lambda both: run_step(stored, both[0]),
        "teacher": lambda both: constants(both[1]),
        "reading": read,
    }
    inputs = ((batch, plan(batch)) for batch in batches)
    turns = take_turns(contestants, inputs, warm_up=WARM_UP, device=options.device)
    return {name: 1000 * seconds for name, seconds in turns.medians().items()}


def main(arguments: list[str] | None = None) -> int:
    made = make_parser(__doc__)
    made.add_argument("--data", required=True, help="directory made by xrep-preprocess")
    made.add_argument("--teacher", required=True, help="directory of the pretrained encoder of the target side")
    made.add_argument("--vectors", required=True, help="the teacher's vectors of the lines of --text, by xrep-encode")
    made.add_argument("--text", required=True, help="the sentences of the target side, one a line")
    made.add_argument("--steps", type=int, default=20, help="batches that are measured")
    made.add_argument("--batch-size", type=int, default=128, help="pairs in a step")
    made.add_argument("--queue-size", type=int, default=4096, help="vectors in the queue")
    made.add_argument("--device", default="auto", help="cpu, cuda or auto")
    options = made.parse_args(arguments)
    options.device = pick_device(options.device)
    found = measured(options)
    student = found["stored"] - found["reading"]
    gain, ideal = found["plain"] / found["stored"], (found["teacher"] + student) / student
    print(
        f"step {found['plain']:.0f} ms, with vectors from disk {found['stored']:.0f} (teacher {found['teacher']:.0f}, "
        f"reading {found['reading']:.1f}): gain {gain:.2f} of an ideal {ideal:.2f}, {gain / ideal:.0%}"
    )
    write_json(options.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

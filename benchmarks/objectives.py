"""What one objective costs beside another: steps of training with each, on the same pairs.

An arm is a name and options of xrep-train, or a recipe (``--config``). The others are compared with the first one. By
default they are translation ranking, and objectives that do more: dual-alignment pre-training (dap), HiCTL (hictl), and
with --teacher one that reads the vectors of a pretrained encoder (frozen_source). A ratio of 0.5 means that a step of
the arm takes twice the time of a step of the first one. That is no contest: the arms learn different things.
It is printed for the time of the processor, too, which other programs disturb less.

  python benchmarks/objectives.py --teacher $(xrep-data get minilm --print-path)
  python benchmarks/objectives.py --arm "TR=--criterion translation_ranking" --arm "DAP=--config dap/small"
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
from pathlib import Path

from harness import make_parser, progress, read_pairs, take_turns, texts_of, write_corpus
from results import Row, compare, report
from train import configured, training

from xrep.memory import keep_freed_memory

ARMS = [
    "translation_ranking=--towers shared --pooling cls --criterion translation_ranking --directions forward",
    "dap=--towers shared --pooling cls --criterion dap",
    "hictl=--towers shared --pooling cls --criterion hictl --no-normalize",
]
TEACHER = "frozen_source=--towers separate --criterion frozen_source --source-side target --queue-size 4096"


def measure(options: argparse.Namespace, kind: str, folder: Path) -> list[Row]:
    corpus = write_corpus(read_pairs(kind, data=options.data), folder / "text")
    sizes = {name.replace("_", "-"): getattr(options, name) for name in ("batch_size", "max_length")}
    sizes |= {"layers": options.layers, "hidden-size": options.width, "heads": options.width // 64}
    sizes |= {"feedforward-size": 4 * options.width, "max-steps": options.steps}
    contestants = {}
    for arm in options.arms:
        name, _, words = arm.partition("=")
        given = (
            [] if "--config" in words else [word for size, value in sizes.items() for word in (f"--{size}", str(value))]
        )
        run, task = configured([str(corpus), "--task", "bitext", *given, *shlex.split(words)], folder / name)
        contestants[name] = training(run, task)
    turns = take_turns(contestants, range(options.repeats + 1), title=f"objectives, {kind} text")
    first, *others = contestants
    chosen = [(name, first) for name in others]
    for row in compare("processor time", kind, turns.processor, chosen):
        progress(f"processor time, {row.ours} beside {row.beside}: {row.ratio:.2f} ({row.low} to {row.high})")
    return compare("objectives, cost of a step", kind, turns.seconds, chosen)


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--arm", action="append", dest="arms", metavar="NAME=OPTIONS", help="options of xrep-train; can be repeated")
    add("--teacher", metavar="ENCODER", help="a pretrained encoder of English, for frozen_source")
    add("--steps", type=int, default=10, help="training steps of each turn")
    add("--batch-size", type=int, default=64, help="pairs in a step")
    add("--max-length", type=int, default=128, help="longest sentence in subwords")
    add("--layers", type=int, default=2, help="layers of the encoder")
    add("--width", type=int, default=192, help="width of its token vectors")
    options = parser.parse_args()
    teacher = [f"{TEACHER} --target-encoder {options.teacher}"] if options.teacher else []
    options.arms = options.arms or [*ARMS, *teacher]
    keep_freed_memory()  # as xrep-train does
    for kind, _ in texts_of(options, 0):
        with tempfile.TemporaryDirectory() as folder:
            report(measure(options, kind, Path(folder)), options.csv)


if __name__ == "__main__":
    main()

"""What one objective costs beside another: steps of training with each, on the same pairs.

An arm is a name and options of xrep-train, or a recipe (``--config``). The others are compared with the first one. By
default they are translation ranking, and objectives that do more: dual-alignment pre-training (dap), HiCTL (hictl), and
with --teacher one that reads the vectors of a pretrained encoder (frozen_source). A ratio of 0.5 means that a step of
the arm takes twice the time of a step of the first one. That is no contest: the arms learn different things.

  python benchmarks/objectives.py --teacher $(xrep-data get minilm --print-path)
  python benchmarks/objectives.py --arm "TR=--criterion translation_ranking" --arm "DAP=--config dap/small"
"""

import argparse
import shlex
from pathlib import Path

from harness import contest, make_parser, read_pairs, texts_of, write_corpus
from train import MAX_LENGTH, configured, training

from xrep.memory import keep_freed_memory

ARMS = [
    "translation_ranking=--towers shared --pooling cls --criterion translation_ranking --directions forward",
    "dap=--towers shared --pooling cls --criterion dap",
    "hictl=--towers shared --pooling cls --criterion hictl --no-normalize",
]
TEACHER = "frozen_source=--towers separate --criterion frozen_source --source-side target --queue-size 4096"


def measure(options: argparse.Namespace, kind: str, folder: Path) -> None:
    corpus = write_corpus(read_pairs(kind, data=options.data), folder / "text")
    sizes = f"--batch-size {options.batch_size} --max-length {MAX_LENGTH} --max-steps {options.steps} "
    sizes += f"--layers {options.layers} --hidden-size {options.width} --heads {options.width // 64} "
    sizes += f"--feedforward-size {4 * options.width}"
    contestants = {}
    for arm in options.arms:
        name, _, words = arm.partition("=")
        given = words if "--config" in words else f"{sizes} {words}"
        run, task = configured([str(corpus), "--task", "bitext", *shlex.split(given)], folder / name)
        contestants[name] = training(run, task)
    first, *others = contestants
    contest(options, "objectives, cost of a step", kind, contestants, {name: [first] for name in others})


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--arm", action="append", dest="arms", metavar="NAME=OPTIONS", help="options of xrep-train; can be repeated")
    add("--teacher", metavar="ENCODER", help="a pretrained encoder of English, for frozen_source")
    add("--steps", type=int, default=10, help="training steps of each turn")
    add("--batch-size", type=int, default=64, help="pairs in a step")
    add("--layers", type=int, default=2, help="layers of the encoder")
    add("--width", type=int, default=192, help="width of its token vectors")
    options = parser.parse_args()
    teacher = [f"{TEACHER} --target-encoder {options.teacher}"] if options.teacher else []
    options.arms = options.arms or [*ARMS, *teacher]
    keep_freed_memory()  # as xrep-train does
    for kind, _, folder in texts_of(options):
        measure(options, kind, folder)


if __name__ == "__main__":
    main()

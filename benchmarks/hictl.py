"""What HiCTL's contrastive losses cost over the forward passes that they read.

Whole training steps take turns on the same batches; printed are the medians in milliseconds (on
CPUs of processor time, so set OMP_NUM_THREADS=1) and their ratios:

- passes: sentences are encoded, and read together for the language model, whose loss is computed; in place of the
  contrastive losses stands the sum of the sentence vectors, so that the backward pass is the same;
- plain: the contrastive losses with the sentences of the batch as negatives, without equations 5 and 6;
- hictl: everything.

  python benchmarks/hictl.py --data data-bin/hictl_small           # examples/hictl/hictl_small.yaml
  python benchmarks/hictl.py --layers 12 --hidden-size 768 --heads 12 --feedforward-size 3072 \\
      --vocabulary-size 250002 --length 64 --device cuda --precision bf16 --steps 30       # random sentences
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from dap_cost import WARM_UP, engine, run_step, text_of
from torch import Tensor

from xrep.criteria.criterion import Loss, Planned, Term
from xrep.criteria.hictl import HiCTL
from xrep.files import write_aside
from xrep.kernels.pairwise import negatives
from xrep.kernels.precision import scalar
from xrep.models.dual_encoder import DualEncoder
from xrep.training.distributed import pick_device


class Passes(HiCTL):
    """The forward passes of HiCTL and its language model."""

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        return Loss({"sentence": Term(torch.stack([side.sum() for side in vectors]).sum())})

    def _add_words(self, *given: object) -> None:
        pass


class Plain(HiCTL):
    """HiCTL with a sweep over the plain negatives."""

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        x, y = (F.normalize(side.float(), dim=1) for side in vectors)
        tau = scalar(self.config.temperature, torch.float32, x.device)
        positive = ((x * y).sum(1) / tau).repeat(2)
        pair = torch.arange(len(x), device=x.device).repeat(2)
        found = negatives(
            *(torch.cat([x, y]), torch.cat([x, y]), tau),
            row_shift=positive.detach(),
            column_shift=None,
            excluded=torch.stack([pair, pair + len(x)], 1),
        )
        return Loss({"sentence": Term(F.softplus(found.rows + positive.detach() - positive).sum())})


CRITERIA = {"passes": Passes, "plain": Plain, "hictl": HiCTL}


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of a step of each kind."""
    text, batches = text_of(options)
    torch.manual_seed(0)
    sizes = {name: getattr(options, name) for name in ("layers", "hidden_size", "heads", "feedforward_size")}
    places = {"max_positions": max(512, 2 * options.length)}
    config = DualEncoder.Config(towers="shared", pooling="cls", normalize=False, **places, **sizes)
    model = DualEncoder(config, text)
    given = HiCTL.Config(temperature=options.temperature, word_temperature=options.temperature)
    engines = {}
    for name, kind in CRITERIA.items():
        criterion = kind(given, model, text)
        assert criterion.hardness is not None
        criterion.hardness.history[0], criterion.hardness.steps[...] = 0.7, 1  # some negatives are moved
        engines[name] = engine(options, copy.deepcopy(model), criterion)
    times: dict[str, list[float]] = {name: [] for name in engines}
    for number, batch in enumerate(itertools.islice(batches, WARM_UP + options.steps)):
        # Each goes first equally often.
        order = list(engines)[number % 3 :] + list(engines)[: number % 3]
        for name in order:
            begun = clock(options)
            run_step(engines[name], batch)
            if number >= WARM_UP:
                times[name].append(1000 * (clock(options) - begun))
    return {name: statistics.median(values) for name, values in times.items()}


def clock(options: argparse.Namespace) -> float:
    """Seconds: on CPUs those that this process had of them, which others that run cannot lengthen."""
    if options.device == "cpu":
        return time.process_time()
    torch.cuda.synchronize(options.device)
    return time.perf_counter()


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.device = pick_device(options.device)
    found = measured(options)
    ratios = {"hictl over passes": ("hictl", "passes"), "hictl over plain": ("hictl", "plain")}
    report = found | {name: found[one] / found[other] for name, (one, other) in ratios.items()}
    for name, value in report.items():
        print(f"{name:>18}  {value:.3f}")
    if options.json:
        with write_aside(Path(options.json)) as aside:
            aside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--layers", type=int, default=2, help="of the encoder (default: the small recipe, as all sizes)")
    add("--hidden-size", type=int, default=192)
    add("--heads", type=int, default=4)
    add("--feedforward-size", type=int, default=768)
    add("--vocabulary-size", type=int, default=16000)
    add("--length", type=int, default=32, help="tokens of a sentence, special ones included")
    add("--batch-size", type=int, default=128, help="pairs in a step")
    add("--temperature", type=float, default=0.05)
    add("--steps", type=int, default=60, help="of each kind")
    add("--data", help="directory made by xrep-preprocess, for sentences of real lengths; else full random ones")
    add("--clip-norm", type=float, default=1.0)
    add("--precision", choices=("float32", "bf16", "fp16"), default="float32")
    add("--device", default="auto")
    add("--json", help="file for the figures")
    return made


if __name__ == "__main__":
    sys.exit(main())

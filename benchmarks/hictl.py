"""The cost of HiCTL's contrastive losses over the forward passes that they read.

Whole training steps take turns on the same batches. The script prints their medians in milliseconds (of processor time
on CPUs, so set OMP_NUM_THREADS=1) and the ratios of the medians:

- passes: the sentences are encoded, and read together for the language model, whose loss is computed; the sum of the
  sentence vectors replaces the contrastive losses, so that the backward pass is the same;
- plain: the contrastive losses with the sentences of the batch as negatives, without equations 5 and 6;
- hictl: all of HiCTL.

  python benchmarks/hictl.py --data data-bin/hictl_small           # hictl/hictl_small
  python benchmarks/hictl.py --layers 12 --hidden-size 768 --heads 12 --feedforward-size 3072 \\
      --vocabulary-size 250002 --length 64 --device cuda --precision bf16 --steps 30       # random sentences
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import time

import torch
import torch.nn.functional as F
from dap_cost import WARM_UP, text_of
from harness import add_training_options, make_parser, make_step, run_step, take_turns, write_json
from torch import Tensor

from xrep.criteria.criterion import Loss, Planned, Term
from xrep.criteria.hictl import HiCTL
from xrep.models.dual_encoder import DualEncoder
from xrep.training.distributed import pick_device


class Passes(HiCTL):
    """The forward passes of HiCTL and its language model."""

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        return Loss({"sentence": Term(torch.stack([side.sum() for side in vectors]).sum())})


class Plain(HiCTL):
    """HiCTL with plain negatives only."""

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        x, y = (F.normalize(side.float(), dim=1) for side in vectors)
        both, own = torch.cat([x, y]), torch.arange(2 * len(x), device=x.device)
        logits = (both @ both.T / self.config.temperature).masked_fill(own == own.unsqueeze(1), float("-inf"))
        return Loss({"sentence": Term(F.cross_entropy(logits, own.roll(len(x)), reduction="sum"))})


CRITERIA = {"passes": Passes, "plain": Plain, "hictl": HiCTL}


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of a step of each kind."""
    text, batches = text_of(options)
    torch.manual_seed(0)
    sizes = {name: getattr(options, name) for name in ("layers", "hidden_size", "heads", "feedforward_size")}
    places = {"max_positions": max(512, 2 * options.length)}
    config = DualEncoder.Config(towers="shared", pooling="cls", normalize=False, **places, **sizes)
    model = DualEncoder(config, text)
    steps = {}
    for name, kind in CRITERIA.items():
        temperatures = {"temperature": options.temperature, "word_temperature": options.temperature}
        given = HiCTL.Config(word_contrast=kind is not Passes, **temperatures)
        own = copy.deepcopy(model)
        criterion = kind(given, own, text)
        assert criterion.hardness is not None
        criterion.hardness.history[0], criterion.hardness.steps[...] = 0.7, 1  # so that some negatives are moved
        precision = {"precision": options.precision, "clip_norm": options.clip_norm}
        steps[name] = make_step(own, criterion, options.device, **precision)
    steps = {name: lambda batch, step=step: run_step(step, batch) for name, step in steps.items()}
    # The processor time of this process does not grow when other processes run.
    clock = time.process_time if options.device == "cpu" else time.perf_counter
    chosen = itertools.islice(batches, WARM_UP + options.steps)
    turns = take_turns(steps, chosen, warm_up=WARM_UP, device=options.device, clock=clock)
    return {name: 1000 * seconds for name, seconds in turns.medians().items()}


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.device = pick_device(options.device)
    medians = measured(options)
    ratios = {f"hictl over {name}": medians["hictl"] / medians[name] for name in ("passes", "plain")}
    for name, value in (medians | ratios).items():
        print(f"{name:>18}  {value:.3f}")
    write_json(options.json, medians | ratios)
    return 0


def parser() -> argparse.ArgumentParser:
    made = make_parser(__doc__)
    sizes = {"layers": 2, "hidden_size": 192, "heads": 4, "feedforward_size": 768, "vocabulary_size": 16000}
    add_training_options(made, **sizes, batch_size=128)  # the sizes of the small recipe
    made.add_argument("--temperature", type=float, default=0.05, help="temperature of both contrastive losses")
    made.add_argument("--steps", type=int, default=60, help="training steps of each kind")
    return made


if __name__ == "__main__":
    sys.exit(main())

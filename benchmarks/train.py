"""Training steps of xrep beside loops that others would write, with the same model and objective.

Contestants take turns of a few steps in one process. The script prints their times over xrep's, as ratios of medians
(above 1: xrep is faster):

- dual momentum contrast from scratch, beside a plain loop: padded batches in the order of the corpus, the same layers
  with torch's default float32 products, a momentum encoder that is updated parameter by parameter, all similarities
  with the queue written out, torch's default AdamW;
- the same with a checkpoint every 50 steps, and with two processes that make batches (and how long training waits);
- with --encoder (such as that of xrep-data get minilm), translation ranking from pretrained weights, beside
  sentence-transformers' MultipleNegativesRankingLoss with its defaults, and fed with xrep's batches of similar length.
  Both sides have the dropout, the fused AdamW and the clipping of their defaults. They compute in float32, and where
  the processor multiplies bfloat16 also in bfloat16, with autocast.

  python benchmarks/train.py --data data-bin --encoder $(xrep-data get minilm --print-path)
"""

from __future__ import annotations

import argparse
import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import make_parser, take_turns, write_json

from xrep.config import RunConfig, runs_of
from xrep.kernels.precision import exact_products, fast_products
from xrep.memory import keep_freed_memory
from xrep.precision import TrainingPrecision
from xrep.tasks.bitext import BitextTask
from xrep.training.batches import steps_ahead
from xrep.training.checkpoint import Checkpoints
from xrep.training.device import type_on
from xrep.training.distributed import alone, pick_device
from xrep.training.log import Quiet
from xrep.training.trainer import Trainer
from xrep_cli.options import parse

Turn = Callable[[int], None]
"""Trains a number of steps."""


class Unsaved(Checkpoints):
    """Checkpoints that are not written, for runs in which saving is not measured."""

    def snapshot(self, **facts: Any) -> Any:
        return None

    def save(self, snapshot: Any, best: bool, final: bool = False) -> None:
        pass


def configured(options: argparse.Namespace, folder: Path, *given: str) -> RunConfig:
    line = parse([
        *([options.data] if options.data else []), "--task", "bitext", "--batch-size", str(options.batch_size),
        "--max-length", "64", "--towers", "shared", "--lr", "1e-4",
        "--log-every", "1000000", "--max-steps", "1000000", "--no-tensorboard", "--device", options.device,
        "--save-dir", str(folder), *given,
    ])  # fmt: skip
    return runs_of(line.layers, line.problems)[0]


def trainer_of(run: RunConfig, folder: Path, saving: bool = False) -> Trainer:
    torch.manual_seed(1)
    task = run.classes["task"](run.configs["task"], run.seed, run.configs["model"].tokenizers())
    model = run.classes["model"](run.configs["model"], task.text)
    criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
    checkpoints = (Checkpoints if saving else Unsaved)(run.configs["checkpoint"], folder)
    world = alone(pick_device(run.configs["trainer"].device))
    return Trainer(run, task, model, criterion, checkpoints, Quiet(), None, world)


class Ours:
    """The turns of an xrep trainer. Each turn goes on in the data where the last one stopped."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.waited, self.busy = trainer, 0.0, 0.0
        trainer.step.train_mode()
        trainer._started = time.monotonic()
        self.groups = steps_ahead(trainer.read(), trainer.world, trainer.pair.criterion, trainer.status)

    def __call__(self, steps: int) -> None:
        trainer = self.trainer
        for _ in range(steps):
            before = time.monotonic()
            group = next(self.groups)
            self.waited += time.monotonic() - before
            trainer.run_step(group, before)
            self.busy += time.monotonic() - before
            every = trainer.checkpoints.config.save_every
            if every and trainer.state.step % every == 0:
                trainer._save(best=False)


def plain_loop(options: argparse.Namespace, trainer: Trainer, queue_size: int) -> Turn:
    """Return a plain loop of dual momentum contrast, on the model and the text of ``trainer``."""
    task, device = trainer.task, trainer.world.device
    model = copy.deepcopy(trainer.pair.model)
    for part in model.modules():
        if isinstance(part, torch.nn.Embedding):
            part.sparse = False  # torch's own optimizer takes dense gradients alone
    momentum = copy.deepcopy(model).requires_grad_(False)
    queues = [F.normalize(torch.randn(queue_size, model.output_size, device=device), dim=1) for _ in range(2)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = corpus_order(task, options.batch_size)
    place = 0

    def step() -> None:
        nonlocal place
        batch = next(batches).to(device)
        sides = (batch.source, batch.target)
        queries = [model.encode("shared", side)[0] for side in sides]
        with torch.no_grad():
            keys = [momentum.encode("shared", side)[0] for side in sides]
        loss = torch.zeros((), device=device)
        for query, key, queue in ((queries[0], keys[1], queues[1]), (queries[1], keys[0], queues[0])):
            logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.t()], dim=1) / 0.04
            loss = loss + F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(momentum.parameters(), model.parameters(), strict=True):
                ours.mul_(0.999).add_(theirs, alpha=0.001)
        for queue, key in zip(queues, keys, strict=True):
            queue[place : place + len(key)] = key
        place = (place + options.batch_size) % (queue_size - queue_size % options.batch_size)
        loss.item()

    def turn(steps: int) -> None:
        with exact_products(), padded():
            for _ in range(steps):
                step()

    return turn


def corpus_order(task: BitextTask, batch_size: int) -> Iterator[Any]:
    """Yield batches of consecutive pairs of the first language pair, over and over."""
    rows = itertools.cycle(range(len(task.train[0])))
    while True:
        chosen = [(0, row, row) for row in itertools.islice(rows, batch_size)]
        yield task.make(np.array(chosen))


def sorted_order(task: BitextTask) -> Iterator[Any]:
    """Return the batches that xrep trains on, whose sentences have similar lengths."""
    return (task.make(plan.rows) for plan in task.plan())


class padded:
    """A context in which every position of a padded batch is computed, because nothing is packed."""

    def __enter__(self) -> None:
        from xrep.nn import layers

        self.module, self.before = layers, layers.PACKED_BELOW
        layers.PACKED_BELOW = 0.0

    def __exit__(self, *_: object) -> None:
        self.module.PACKED_BELOW = self.before


def texts_of(task: BitextTask, batches: Iterator[Any], count: int) -> list[tuple[list[str], list[str]]]:
    """Return the sentences of the next batches."""
    tokenizer = task.tokenizers["shared"]
    found = []
    for batch in itertools.islice(batches, count):
        sides = [[tokenizer.decode(row[1 : n - 1]) for row, n in zip(side.tokens, side.lengths, strict=True)]
                 for side in (batch.source, batch.target)]  # fmt: skip
        found.append((sides[0], sides[1]))
    return found


def sentence_transformers_loop(
    path: str, texts: list[tuple[list[str], list[str]]], device: str, half: bool, fast: bool
) -> Turn:
    """Return a loop with MultipleNegativesRankingLoss, which does what its trainer does in a step.

    Args:
        half: whether it computes in bfloat16, as its trainer does with ``bf16``; otherwise in float32.
        fast: whether its float32 products are those of xrep.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(path, device=device)
    model.max_seq_length = 64
    loss_of = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model.train()
    endless = itertools.cycle(texts)

    def turn(steps: int) -> None:
        for sides in itertools.islice(endless, steps):
            features = [model.preprocess(side) for side in sides]
            features = [{k: v.to(device) for k, v in f.items() if torch.is_tensor(v)} for f in features]
            with fast_products(torch.empty(0, device=device)) if fast else nullcontext():
                with torch.autocast(device, torch.bfloat16, enabled=half):
                    loss = loss_of(features, torch.zeros(len(sides[0]), device=device))
                optimizer.zero_grad()
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()

    return turn


def contestants(options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Turn]]:
    """Return groups of contestants. The ratios of a group are those to its first contestant."""
    moco = ["--dropout", "0", "--attention-dropout", "0", "--clip-norm", "0", "--criterion", "dual_moco",
            "--queue-size", str(options.queue_size), "--layers", str(options.layers),
            "--hidden-size", str(options.width), "--heads", str(options.width // 64),
            "--feedforward-size", str(4 * options.width)]  # fmt: skip
    ours = trainer_of(configured(options, folder / "a", *moco), folder / "a")
    saving = trainer_of(configured(options, folder / "b", *moco, "--save-every", "50"), folder / "b", saving=True)
    workers = trainer_of(configured(options, folder / "c", *moco, "--data-workers", "2"), folder / "c")
    (folder / "b").mkdir()
    groups: dict[str, dict[str, Turn]] = {
        "dual momentum contrast": {
            "xrep": Ours(ours),
            "plain loop": plain_loop(options, ours, options.queue_size),
            "xrep, checkpoint every 50 steps": Ours(saving),
            "xrep, 2 data workers": Ours(workers),
        }
    }
    for precision in precisions(ours.world.device) if options.encoder else ():
        given = ["--criterion", "translation_ranking", "--encoder", options.encoder, "--precision", precision]
        ranking = trainer_of(configured(options, folder / precision, *given), folder / precision)
        count, half = options.steps * (options.repeats + 1), precision == "bf16"
        device, turns = ranking.world.device.type, {"xrep": Ours(ranking)}
        orders = {"": corpus_order(ranking.task, options.batch_size), ", our batches": sorted_order(ranking.task)}
        for name, batches in orders.items():
            texts = texts_of(ranking.task, batches, count)
            turn = sentence_transformers_loop(options.encoder, texts, device, half, fast=bool(name))
            turns[f"sentence-transformers{name}"] = turn
        groups[f"translation ranking from pretrained weights, {precision}"] = turns
    return groups


def precisions(device: torch.device) -> list[TrainingPrecision]:
    """Return the precisions whose products a device has."""
    return ["float32", *(["bf16"] if type_on(device, "bf16") == torch.bfloat16 else [])]


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--data", help="raw text or a directory of xrep-preprocess; default: the demo corpus")
    add("--encoder", help="a sentence-transformers directory")
    add("--batch-size", type=int, default=128, help="pairs in a step")
    add("--queue-size", type=int, default=16384, help="vectors in the queue")
    add("--layers", type=int, default=4, help="layers of the encoder")
    add("--width", type=int, default=256, help="width of its token vectors")
    add("--steps", type=int, default=50, help="steps of a turn; checkpoints need a multiple of 50 to be counted")
    add("--repeats", type=int, default=5, help="turns after the warm-up")
    add("--only", default="", metavar="PREFIX", help="contestants whose names begin so ('xrep': ours alone)")
    add("--device", default="auto", help="cpu, cuda or auto")
    options = parser.parse_args()
    keep_freed_memory()  # as xrep-train does
    device = pick_device(options.device)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for title, turns in contestants(options, Path(folder)).items():
            turns = {name: turn for name, turn in turns.items() if name.startswith(options.only)}
            rounds = [options.steps] * (options.repeats + 1)
            seconds = take_turns(turns, rounds, device=device, verbose=True, title=title).medians()
            first = seconds["xrep"]
            found[title] = {name: value / first for name, value in seconds.items()}
            print(f"\n{title}: time over xrep's ({options.batch_size} pairs, {torch.get_num_threads()} threads)")
            for name, ratio in found[title].items():
                print(f"  {name:48} {ratio:6.3f}")
            for name, turn in turns.items():
                if isinstance(turn, Ours):
                    turn.trainer.checkpoints.wait()
                    found[title][f"{name}: share of time waiting for data"] = turn.waited / turn.busy
                    print(f"  {name}: waits for data {100 * turn.waited / turn.busy:.2f}% of the time")
    write_json(options.json, found)


if __name__ == "__main__":
    main()

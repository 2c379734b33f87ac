"""Training beside the loops that others would write, on the same pairs.

- An epoch of translation ranking from a pretrained encoder, beside the trainer of sentence-transformers with
  MultipleNegativesRankingLoss and its defaults, and beside the same trainer when it gets batches of similar length, as
  xrep's are. Both sides have AdamW and clip gradients. In float32, and in bfloat16 where the processor multiplies it.
- Steps of dual momentum contrast from scratch, beside a plain loop: torch.nn.TransformerEncoder with the same sizes on
  padded batches, a momentum encoder updated parameter by parameter, all similarities with the queue written out.

Time is counted from the first batch that is asked for to the end of the last step. Loading a model and saving it do not
count, nor does that xrep splits text into subwords once before it trains, while sentence-transformers does so in every
step. Every turn begins anew with the same pairs.

  python benchmarks/train.py --encoder $(xrep-data get minilm --print-path)
"""

import argparse
import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from harness import Taken, contest, make_parser, multiplies_bfloat16, read_pairs, texts_of, write_corpus
from torch import Tensor, nn
from torch.utils.data import BatchSampler, SequentialSampler

from xrep.config import RunConfig, runs_of
from xrep.memory import keep_freed_memory
from xrep.tasks.task import Task
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import alone
from xrep.training.log import Quiet
from xrep.training.trainer import Trainer
from xrep_cli.train_options import parse

MAX_LENGTH, QUEUE_SIZE = 128, 4096
"""Subwords of the longest sentence, and vectors in each queue."""
Turn = Callable[[Any], Taken]


class Clock(Quiet):
    """A log that keeps the records, and the time of the last one."""

    def __init__(self) -> None:
        self.records = list[dict[str, float]]()

    def record(self, step: int, values: dict[str, float], kind: str) -> None:
        self.records.append(values)
        self.time = time.perf_counter()


class Unsaved(Checkpoints):
    """Checkpoints that are not written, because saving is not measured."""

    def save(self, best: bool, final: bool, **facts: Any) -> None:
        pass


def configured(words: Sequence[str], folder: Path) -> tuple[RunConfig, Task]:
    """Return the run that ``xrep-train`` would make of ``words``, and its task."""
    own = ["--log-every", "1", "--validate-every", "0", "--device", "cpu", "--no-tensorboard"]
    line = parse([*own, *words, "--save-dir", str(folder)])
    run = runs_of(line.layers, line.problems)[0]
    return run, run.classes["task"](run.configs["task"], run.seed, run.configs["model"].tokenizers())


def trainer_of(run: RunConfig, task: Task, log: Quiet) -> Trainer:
    """Return a trainer of a new model that saves nothing."""
    torch.manual_seed(1)
    model = run.classes["model"](run.configs["model"], task.text)
    criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
    criterion.prepare(task)
    checkpoints, device = Unsaved(run.configs["checkpoint"], run.directory), run.configs["trainer"].device
    return Trainer(run, task, model, criterion, checkpoints, log, None, alone(torch.empty(0, device=device).device))


def training(run: RunConfig, task: Task) -> Turn:
    """Return what trains a new model by ``Trainer.train()``, whose record of each step gives the time."""

    def turn(_: Any) -> Taken:
        clock = Clock()
        trainer, began = trainer_of(run, task, clock), time.perf_counter()
        trainer.train()
        return Taken(clock.time - began)

    return turn


class PlainEncoder(nn.Module):
    """torch's own encoder layers behind an embedding, and the mean over the tokens."""

    def __init__(self, words: int, options: argparse.Namespace) -> None:
        super().__init__()
        width = options.width
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, options.layers, enable_nested_tensor=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return vectors of length 1 [B, D] of tokens [B, N], of which those in the mask are real."""
        x = self.layers(self.words(tokens) + self.places.weight[: tokens.size(1)], src_key_padding_mask=~mask)
        return F.normalize((x * mask.unsqueeze(-1)).sum(1), dim=1)


def plain_loop(options: argparse.Namespace, task: Any, steps: int) -> Turn:
    """Return steps of dual momentum contrast on the pairs that xrep trains on, in batches that are drawn at random."""
    planned = np.concatenate([plan.rows for plan in itertools.islice(task.plan(), steps)])
    drawn = np.array_split(np.random.default_rng(1).permutation(planned), steps)

    def turn(_: Any) -> Taken:
        torch.manual_seed(1)
        model = PlainEncoder(task.text.vocabulary("shared").size, options)
        momentum = copy.deepcopy(model).requires_grad_(False)
        queues = [F.normalize(torch.randn(QUEUE_SIZE, options.width), dim=1) for _ in range(2)]
        optimizer, place = torch.optim.AdamW(model.parameters(), lr=1e-4), 0
        began = time.perf_counter()
        for rows in drawn:
            batch = task.make(rows)
            sides = [(side.tokens, side.mask) for side in (batch.source, batch.target)]
            queries = [model(*side) for side in sides]
            with torch.no_grad():
                keys = [momentum(*side) for side in sides]
            loss = torch.zeros(())
            for query, key, queue in ((queries[0], keys[1], queues[1]), (queries[1], keys[0], queues[0])):
                logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.T], dim=1) / 0.04
                loss = loss + F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for mine, new in zip(momentum.parameters(), model.parameters(), strict=True):
                    mine.mul_(0.999).add_(new, alpha=0.001)
            for queue, key in zip(queues, keys, strict=True):
                queue[torch.arange(place, place + len(key)) % len(queue)] = key
            place += len(rows)
            loss.item()
        return Taken(time.perf_counter() - began)

    return turn


def sentence_transformers(options: argparse.Namespace, pairs: list[tuple[str, ...]], half: bool, order: Any) -> Turn:
    """Return an epoch of the trainer of sentence-transformers, on batches in this order."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    dataset = Dataset.from_list([{"anchor": source, "positive": target} for source, target in pairs])
    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.gettempdir(), num_train_epochs=1, per_device_train_batch_size=options.batch_size,
        learning_rate=1e-4, bf16=half, use_cpu=True, save_strategy="no", logging_strategy="no", report_to=[],
        disable_tqdm=True, batch_sampler=order,
    )  # fmt: skip

    def turn(_: Any) -> Taken:
        model = SentenceTransformer(options.encoder, device="cpu")
        model.max_seq_length = MAX_LENGTH
        loss = MultipleNegativesRankingLoss(model)
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=dataset, loss=loss)
        return Taken(trainer.train().metrics["train_runtime"])

    return turn


def in_order(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> BatchSampler:
    """Return batches of consecutive pairs."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def in_batches(task: Any) -> Iterator[tuple[str, ...]]:
    """Yield the pairs of an epoch in the order in which xrep trains on them, as text."""
    decode = task.tokenizers["shared"].decode
    for plan in task.plan(stop=task.examples):
        batch = task.make(plan.rows)
        for row in range(len(batch)):
            sides = (side.tokens[row, 1 : side.lengths[row] - 1] for side in (batch.source, batch.target))
            yield tuple(decode(tokens.tolist()) for tokens in sides)


def ranking(options: argparse.Namespace, kind: str, count: int, folder: Path, words: list[str]) -> None:
    corpus = write_corpus(read_pairs(kind, count + 16, options.data), folder / "text")
    words = [str(corpus), *words, *"--criterion translation_ranking --max-epochs 1 --encoder".split(), options.encoder]
    orders = {"sentence-transformers": "batch_sampler", "sentence-transformers, batches by length": in_order}
    for half in [False, True] if multiplies_bfloat16() else [False]:
        run, task = configured([*words, "--precision", "bf16" if half else "float32"], folder / "run")
        ours, pairs = "xrep, bfloat16" if half else "xrep, float32", [*in_batches(task)]
        contestants = {ours: training(run, task)}
        contestants |= {name: sentence_transformers(options, pairs, half, order) for name, order in orders.items()}
        contest(options, "train, translation_ranking", kind, contestants, {ours: list(orders)})


def momentum_contrast(options: argparse.Namespace, kind: str, steps: int, folder: Path, words: list[str]) -> None:
    corpus = write_corpus(read_pairs(kind, data=options.data), folder / "all")
    chosen = f"--criterion dual_moco --queue-size {QUEUE_SIZE} --layers {options.layers} --max-steps {steps} "
    chosen += f"--hidden-size {options.width} --heads {options.width // 64} --feedforward-size {4 * options.width} "
    chosen += "--dropout 0 --attention-dropout 0"
    run, task = configured([str(corpus), *words, *chosen.split()], folder / "moco")
    contestants = {"xrep": training(run, task), "plain loop": plain_loop(options, task, steps)}
    contest(options, "train, dual_moco", kind, contestants, {"xrep": ["plain loop"]})


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--encoder", help="a sentence-transformers directory; without it only dual momentum contrast is measured")
    add("--pairs", type=int, default=1024, help="pairs on which all train; a fifth of that if long")
    add("--batch-size", type=int, default=32, help="pairs in a step")
    add("--layers", type=int, default=4, help="layers of the encoder of dual momentum contrast")
    add("--width", type=int, default=256, help="width of its token vectors")
    options = parser.parse_args()
    words = f"--task bitext --towers shared --batch-size {options.batch_size} --max-length {MAX_LENGTH} --lr 1e-4"
    keep_freed_memory()  # as xrep-train does
    for kind, count, folder in texts_of(options, options.pairs):
        if options.encoder:
            ranking(options, kind, count, folder, words.split())
        momentum_contrast(options, kind, max(1, count // options.batch_size), folder, words.split())


if __name__ == "__main__":
    main()

"""Fine-tuning and use of a classifier beside transformers, with the same encoder and texts, in float32.

Contestants take turns in one process. The script prints their times over xrep's, as ratios of medians (above 1: xrep is
faster):

- training steps with the batches of transformers' Trainer (rows in random order, padded to the longest): xrep without
  the padding beside the Trainer, fed with the same batches;
- training steps with xrep's own batches (rows of equal length) beside the Trainer as it comes, and fed with them;
- labels of texts beside transformers' pipeline, with batches of 32, and with its default, one text at a time.

  pip install accelerate
  python benchmarks/classify.py --encoder $(xrep-data get minilm --print-path) --data xnli/
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import make_parser, progress, take_turns, write_json
from train import Ours, trainer_of

from xrep.config import RunConfig, runs_of
from xrep.data.batch import Batch
from xrep.training.trainer import Trainer
from xrep.understanding import SentenceClassifier
from xrep.understanding.annotated import AnnotatedTask
from xrep_cli.train_options import parse


def configured(options: argparse.Namespace, folder: Path) -> RunConfig:
    line = parse([
        options.data, "--task", "classification", "--criterion", "classification", "--languages", "all",
        "--encoder", options.encoder, "--batch-size", str(options.batch_size), "--max-length", str(options.max_length),
        "--lr", "2e-5", "--clip-norm", "1", "--log-every", "1000000", "--max-steps", "1000000", "--no-tensorboard",
        "--device", options.device, "--save-dir", str(folder),
    ])  # fmt: skip
    return runs_of(line.layers, line.problems)[0]


def their_trainer(options: argparse.Namespace, task: Any, batches: Iterator[Batch] | None) -> Callable:
    """Return turns of transformers' Trainer, with its own batches or with given ones."""
    import transformers

    transformers.logging.set_verbosity_error()
    labels = task.text.annotation.labels
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.encoder, num_labels=len(labels))
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.encoder)
    texts = list(task.examples_of("train"))
    encoded = tokenizer(
        *([example.sentences[column] for example in texts] for column in range(len(texts[0].sentences))),
        truncation=True, max_length=options.max_length,
    )  # fmt: skip
    rows = [
        {**{name: values[row] for name, values in encoded.items()}, "labels": labels.index(texts[row].label)}
        for row in range(len(texts))
    ]

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if batches is None else map(_fields, batches)

    def turn(steps: int) -> None:
        arguments = transformers.TrainingArguments(
            output_dir=tempfile.gettempdir(), max_steps=steps, per_device_train_batch_size=options.batch_size,
            learning_rate=2e-5, save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True,
            use_cpu=options.device == "cpu",
        )  # fmt: skip
        collator = transformers.DataCollatorWithPadding(tokenizer)
        Trainer(model, arguments, train_dataset=rows, data_collator=collator).train()

    return turn


def _fields(batch: Batch) -> dict[str, torch.Tensor]:
    tokens = batch.tokens
    types = torch.zeros_like(tokens.tokens) if tokens.types is None else tokens.types
    return {
        "input_ids": tokens.tokens,
        "attention_mask": tokens.mask.long(),
        "token_type_ids": types,
        "labels": batch.labels,
    }


def annotated(trainer: Trainer) -> AnnotatedTask:
    assert isinstance(trainer.task, AnnotatedTask)
    return trainer.task


def batches_of(task: AnnotatedTask) -> Iterator[Batch]:
    return (task.make(plan.rows) for plan in task.plan())


def training(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    by_length = trainer_of(configured(options, folder / "run"), folder / "run")
    at_random = trainer_of(configured(options, folder / "random"), folder / "random")
    task = annotated(at_random)
    # Where all rows seem equally long, the order of the rows is random, as in transformers' Trainer.
    task.lengths = lambda table, numbers: np.ones((len(numbers), 1), dtype=np.int64)
    contestants = {
        "xrep": Ours(by_length),
        "xrep with random batches": Ours(at_random),
        "Trainer": their_trainer(options, task, None),
        "Trainer with the same random batches": their_trainer(options, task, batches_of(task)),
        "Trainer with xrep's batches": their_trainer(options, task, batches_of(annotated(by_length))),
    }
    medians = take_turns(contestants, [options.steps] * (options.repeats + 1), verbose=True, title="training").medians()
    ratios = {name: value / medians["xrep"] for name, value in medians.items()}
    same = "Trainer with the same random batches"
    ratios[f"{same}, over xrep with them"] = medians[same] / medians["xrep with random batches"]
    return ratios


def predicting(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    import transformers

    saved = folder / "classifier"
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.encoder, num_labels=3)
    model.save_pretrained(saved)
    transformers.AutoTokenizer.from_pretrained(options.encoder).save_pretrained(saved)
    ours = SentenceClassifier.load(saved, device=options.device)
    task = annotated(trainer_of(configured(options, folder / "other"), folder / "other"))
    texts = [example.sentences[0] for example in islice(task.examples_of("train"), options.texts)]
    theirs = transformers.pipeline("text-classification", model=str(saved), device=options.device)

    def batched(size: int) -> Callable[[Any], Any]:
        return lambda _: [row["label"] for row in theirs(texts, batch_size=size, truncation=True)]

    contestants = {
        "xrep": lambda _: ours.predict(texts)[0],
        "pipeline": batched(1),
        "pipeline with batches of 32": batched(32),
    }
    turns = take_turns(contestants, range(options.repeats + 1), verbose=True, title="labels")
    agreed = np.mean([a == b for a, b in zip(turns.results["xrep"], turns.results["pipeline"], strict=True)])
    print(f"{100 * agreed:.1f}% of the labels are the same")
    medians = turns.medians()
    return {name: value / medians["xrep"] for name, value in medians.items()}


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--encoder", required=True, help="a directory of a BERT, such as minilm's")
    add("--data", required=True, help="labelled text with training and dev files")
    add("--batch-size", type=int, default=32, help="rows in a step")
    add("--max-length", type=int, default=128, help="longest row in subwords")
    add("--steps", type=int, default=10, help="training steps of a turn")
    add("--texts", type=int, default=1000, help="texts that are labelled in a turn")
    add("--repeats", type=int, default=5, help="rounds after the warm-up")
    add("--device", default="cpu", help="cpu or cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    begun, figures = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in {"training": training, "labels": predicting}.items():
            figures[name] = measure(options, Path(folder))
            for contestant, ratio in figures[name].items():
                print(f"{name}: {contestant} {ratio:.2f}")
    progress(f"{time.monotonic() - begun:.0f} s")
    write_json(options.json, figures)


if __name__ == "__main__":
    main()

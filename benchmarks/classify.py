"""Fine-tuning and use of a classifier beside transformers, with the same encoder and texts, in float32.

- An epoch of fine-tuning beside transformers' Trainer with its defaults, and beside the same Trainer when it groups
  rows of similar length, as xrep does. Time is counted as in ``train.py``.
- Labels of texts beside transformers' pipeline with its default, one text at a time, and with batches of 32.

The label of a line says whether it has more words than most, because only speed is measured.

  python benchmarks/classify.py --encoder $(xrep-data get minilm --print-path)
"""

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from harness import Taken, contest, make_parser, progress, read_pairs, texts_of
from train import MAX_LENGTH, Turn, configured, training

from xrep.memory import keep_freed_memory
from xrep.understanding import SentenceClassifier

LABELS = ["few", "many"]
TRAINER, PIPELINE = "transformers' Trainer", "transformers' pipeline"


def write_labelled(lines: list[str], folder: Path) -> list[int]:
    """Write labelled text, and return the labels of all lines but the first 20, which are the development set."""
    folder.mkdir()
    words = [len(line.split()) for line in lines]
    labels = [int(count > statistics.median(words)) for count in words]
    rows = [f"{LABELS[label]}\t{line}\n" for label, line in zip(labels, lines, strict=True)]
    for name, some in {"train": rows[20:], "dev": rows[:20]}.items():
        (folder / f"{name}-en.tsv").write_text("".join(some), encoding="utf-8")
    return labels[20:]


def their_trainer(options: argparse.Namespace, lines: list[str], labels: list[int], sampling: str) -> Turn:
    """Return an epoch of transformers' Trainer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.encoder)
    encoded = tokenizer(lines, truncation=True, max_length=MAX_LENGTH)
    names = [*encoded, "labels"]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*encoded.values(), labels, strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(), num_train_epochs=1, per_device_train_batch_size=options.batch_size,
        learning_rate=2e-5, save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        train_sampling_strategy=sampling,
    )  # fmt: skip

    def turn(_: Any) -> Taken:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(options.encoder, num_labels=len(LABELS))
        collator = transformers.DataCollatorWithPadding(tokenizer)
        trainer = transformers.Trainer(model, arguments, collator, train_dataset=rows)
        return Taken(trainer.train().metrics["train_runtime"])

    return turn


def measure_training(options: argparse.Namespace, kind: str, lines: list[str], folder: Path) -> None:
    labels = write_labelled(lines, folder / "text")
    words = f"--task classification --criterion classification --languages all --batch-size {options.batch_size} "
    words += f"--lr 2e-5 --clip-norm 1 --max-length {MAX_LENGTH} --max-epochs 1"
    line = [str(folder / "text"), "--encoder", options.encoder, *words.split()]
    contestants = {"xrep": training(*configured(line, folder / "run"))}
    for name, sampling in {TRAINER: "random", f"{TRAINER}, rows by length": "group_by_length"}.items():
        contestants[name] = their_trainer(options, lines[20:], labels, sampling)
    contest(options, "classify, training", kind, contestants, {"xrep": list(contestants)[1:]})


def measure_labels(options: argparse.Namespace, kind: str, lines: list[str], folder: Path) -> None:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.encoder)
    model.save_pretrained(folder / "classifier")
    transformers.AutoTokenizer.from_pretrained(options.encoder).save_pretrained(folder / "classifier")
    ours = SentenceClassifier.load(folder / "classifier", device="cpu")
    theirs = transformers.pipeline("text-classification", model=str(folder / "classifier"), device="cpu")

    def label(size: int, _: Any) -> list[str]:
        return [row["label"] for row in theirs(lines, batch_size=size, truncation=True)]

    batched = f"{PIPELINE}, batches of 32"
    contestants = {"xrep": lambda _: ours.predict(lines)[0], PIPELINE: partial(label, 1), batched: partial(label, 32)}
    found = contest(options, "classify, labels", kind, contestants, {"xrep": [PIPELINE, batched]}).results
    same = statistics.fmean(a == b for a, b in zip(found["xrep"], found[PIPELINE], strict=True))
    progress(f"{100 * same:.1f}% of the labels are the same")


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--encoder", required=True, help="a directory of a BERT, such as minilm's")
    add("--lines", type=int, default=1000, help="short lines that are learnt and labelled; a fifth of that if long")
    add("--batch-size", type=int, default=16, help="rows in a step")
    options = parser.parse_args()
    keep_freed_memory()  # as xrep-train does
    for kind, count, folder in texts_of(options, options.lines):
        lines = [english for _, english in read_pairs(kind, count + 20, options.data)]
        measure_training(options, kind, lines, folder)
        measure_labels(options, kind, lines, folder)


if __name__ == "__main__":
    main()

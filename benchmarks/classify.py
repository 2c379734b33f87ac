"""Fine-tuning and use of a classifier beside transformers, with the same encoder and texts, in float32.

- An epoch of fine-tuning beside transformers' Trainer with its defaults, and beside the same Trainer when it groups
  rows of similar length, as xrep does. Time is counted as in ``train.py``.
- Labels of texts beside transformers' pipeline with its default, one text at a time, and with batches of 32.

The label of a line says whether it has more words than most, because only speed is measured.

  python benchmarks/classify.py --encoder $(xrep-data get minilm --print-path)
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Taken, make_parser, progress, read_pairs, take_turns, texts_of
from results import Row, compare, report
from train import callback, configured, training

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


def their_trainer(
    options: argparse.Namespace, lines: list[str], labels: list[int], by_length: bool
) -> Callable[[Any], Taken]:
    """Return an epoch of transformers' Trainer."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(options.encoder)
    encoded = tokenizer(lines, truncation=True, max_length=options.max_length)
    rows = [
        {**{name: values[row] for name, values in encoded.items()}, "labels": label} for row, label in enumerate(labels)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(), num_train_epochs=1, per_device_train_batch_size=options.batch_size,
        learning_rate=2e-5, save_strategy="no", logging_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
        train_sampling_strategy="group_by_length" if by_length else "random",
    )  # fmt: skip

    def turn(_: Any) -> Taken:
        model = transformers.AutoModelForSequenceClassification.from_pretrained(options.encoder, num_labels=len(LABELS))
        clock, collator = callback(), transformers.DataCollatorWithPadding(tokenizer)
        transformers.Trainer(model, arguments, collator, train_dataset=rows, callbacks=[clock]).train()
        return clock.taken()

    return turn


def measure(options: argparse.Namespace, kind: str, count: int, folder: Path) -> list[Row]:
    import transformers

    lines = [english for _, english in read_pairs(kind, count + 20, options.data)]
    labels = write_labelled(lines, folder / "text")
    words = [str(folder / "text"), "--task", "classification", "--criterion", "classification", "--languages", "all"]
    words += ["--encoder", options.encoder, "--batch-size", str(options.batch_size), "--lr", "2e-5", "--clip-norm", "1"]
    run, task = configured([*words, "--max-length", str(options.max_length), "--max-epochs", "1"], folder / "run")
    grouped = f"{TRAINER}, rows by length"
    contestants = {"xrep": training(run, task), TRAINER: their_trainer(options, lines[20:], labels, by_length=False)}
    contestants[grouped] = their_trainer(options, lines[20:], labels, by_length=True)
    turns = take_turns(contestants, range(options.repeats + 1), title=f"classify, training, {kind} text")
    found = compare("classify, training", kind, turns.seconds, [("xrep", TRAINER), ("xrep", grouped)])

    saved = str(folder / "classifier")
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: row for row, label in enumerate(LABELS)}}
    model = transformers.AutoModelForSequenceClassification.from_pretrained(options.encoder, **names)
    model.save_pretrained(saved)
    transformers.AutoTokenizer.from_pretrained(options.encoder).save_pretrained(saved)
    ours = SentenceClassifier.load(saved, device="cpu")
    theirs = transformers.pipeline("text-classification", model=saved, device="cpu")
    batched = f"{PIPELINE}, batches of 32"
    contestants = {"xrep": lambda _: ours.predict(lines)[0]}
    for name, size in {PIPELINE: 1, batched: 32}.items():
        contestants[name] = lambda _, size=size: [
            row["label"] for row in theirs(lines, batch_size=size, truncation=True)
        ]
    turns = take_turns(contestants, range(options.repeats + 1), title=f"classify, labels, {kind} text")
    same = statistics.fmean(a == b for a, b in zip(turns.results["xrep"], turns.results[PIPELINE], strict=True))
    progress(f"{100 * same:.1f}% of the labels are the same")
    return found + compare("classify, labels", kind, turns.seconds, [("xrep", PIPELINE), ("xrep", batched)])


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--encoder", required=True, help="a directory of a BERT, such as minilm's")
    add("--lines", type=int, default=1000, help="short lines that are learnt and labelled; a fifth of that if long")
    add("--batch-size", type=int, default=16, help="rows in a step")
    add("--max-length", type=int, default=128, help="longest row in subwords")
    options = parser.parse_args()
    keep_freed_memory()  # as xrep-train does
    for kind, count in texts_of(options, options.lines):
        with tempfile.TemporaryDirectory() as folder:
            report(measure(options, kind, count, Path(folder)), options.csv)


if __name__ == "__main__":
    main()

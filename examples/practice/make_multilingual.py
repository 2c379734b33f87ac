"""Make a student multilingual with the trainer of sentence-transformers and its MSELoss, to compare what it learns.

  xrep-encode --path all-MiniLM-L6-v2 --input english.txt --output vectors.npy      # the teacher's, of every line
  python examples/practice/make_multilingual.py --student start --vectors vectors.npy --english english.txt \\
      --bitext de-en=de.tsv --minutes 3 --output peer

This is the documented way of sentence-transformers ("make multilingual"): a data set for each language pair, with the
columns english, non_english and label, the teacher's vector of the English sentence, which both sides learn. Minutes
are those of this process on the processor. Without ``--rate``, the learning rate of ``--lr`` that is best on dev is
written to the file ``--output``, which ``--rate`` reads. ``scripts/replicate practice`` compares such students with
xrep's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.metrics.retrieval import right_answers
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext

DEV, WARMUP = 100, 0.1


def read(spec: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the different pairs of a text in a fixed random order, and those that are held out."""
    pairs = sorted({(source, target) for _, source, target in read_pairs(parse_bitext(spec))})
    mixed = [pairs[place] for place in np.random.default_rng(0).permutation(len(pairs))]
    return mixed[DEV:], mixed[:DEV]


def train(options: argparse.Namespace, lr: float, seed: int, data: Any) -> tuple[Any, int]:
    """Train for the minutes; the rate rises in their first tenth and then falls to 0. Return model and steps."""
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers.sentence_transformer.losses import MSELoss
    from sentence_transformers.sentence_transformer.training_args import SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    model, start = SentenceTransformer(options.student, device="cpu"), list[float]()
    model.max_seq_length = options.max_length

    def spent() -> float:
        return (time.process_time() - start[0]) / 60 / options.minutes if start else 0.0

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            start.append(time.process_time())  # the first counts: what the trainer prepares costs nothing

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = spent() >= 1

    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda _: max(0.0, min(spent() / WARMUP, (1 - spent()) / (1 - WARMUP)))
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            folder, max_steps=1_000_000, per_device_train_batch_size=options.batch_size, bf16=options.bf16,
            use_cpu=True, seed=seed, save_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model, arguments, data, loss=MSELoss(model), optimizers=(optimizer, schedule), callbacks=[Clock()]
        )
        trainer.train()
    return model.eval(), trainer.state.global_step


def main() -> None:
    from datasets import Dataset, DatasetDict

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", required=True, help="directory of sentence-transformers to start from")
    parser.add_argument("--vectors", required=True, help="the teacher's vectors of the English lines, .npy")
    parser.add_argument("--english", required=True, type=Path, help="all English sentences, a line each")
    parser.add_argument("--bitext", required=True, action="append", help="parallel text as xrep-preprocess reads it")
    parser.add_argument("--output", required=True, type=Path, help="directory of the student, or file of the best rate")
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of the processor for each learning rate")
    parser.add_argument("--lr", type=float, nargs="+", help="learning rates to try")
    parser.add_argument("--rate", type=Path, help="file with the learning rate")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--bf16", action="store_true", help="compute products in bfloat16")
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="the search takes the mean of several")
    options = parser.parse_args()
    lines = options.english.read_text(encoding="utf-8").splitlines()
    vectors, row = np.load(options.vectors), {line: number for number, line in enumerate(lines)}
    texts, dev, data = {spec.partition("=")[0]: read(spec) for spec in options.bitext}, list[tuple[str, str]](), {}
    for name, (pairs, held_out) in texts.items():
        dev += held_out
        labels = vectors[[row[english] for _, english in pairs]]
        columns = {"english": [pair[1] for pair in pairs], "non_english": [pair[0] for pair in pairs], "label": labels}
        data[name] = Dataset.from_dict(columns)
    best, rates = -1.0, [float(options.rate.read_text())] if options.rate else options.lr
    for lr in rates:
        found = 0.0
        for seed in options.seed:
            model, steps = train(options, lr, seed, DatasetDict(data))
            sides = (model.encode([pair[side] for pair in dev], normalize_embeddings=True) for side in (0, 1))
            found += 100 * float(right_answers(*sides).mean()) / len(options.seed)
            print(f"lr {lr}, seed {seed}: {steps} steps, mean on dev {found:.2f}", flush=True)
        if found > best:
            best = found
            options.output.write_text(str(lr)) if not options.rate else model.save(str(options.output))


if __name__ == "__main__":
    main()

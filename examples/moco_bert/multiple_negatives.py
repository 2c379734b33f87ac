"""Train an encoder from scratch by sentence-transformers' MultipleNegativesRankingLoss, to compare what it learns.

  xrep-export --path run1/best --output shape                # architecture and tokenizer; the weights are drawn anew
  python examples/moco_bert/multiple_negatives.py --shape shape --bitext de-en=deu-eng.tsv:2,1 --minutes 5 --output peer
  xrep-eval tatoeba --path peer --data tatoeba/ --langs de

Each learning rate trains for these minutes with the same pairs in the same order, and the model with the best dev
accuracy is written. ``scripts/replicate moco_bert`` compares it with dual_moco at equal minutes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.metrics.retrieval import right_answers
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext

DEV, WARMUP = 1000, 0.05
Pairs = list[tuple[str, str]]


def read(specs: list[str]) -> tuple[Pairs, Pairs]:
    """Return the different pairs of all texts in a fixed random order, and those that are held out."""
    pairs = sorted({(source, target) for spec in specs for _, source, target in read_pairs(parse_bitext(spec))})
    order = np.random.default_rng(0).permutation(len(pairs))
    mixed = [pairs[place] for place in order if all(pairs[place])]
    return mixed[DEV:], mixed[:DEV]


def random_model(shape: str, seed: int, max_length: int) -> Any:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    model = SentenceTransformer(shape, device="cpu")
    model.max_seq_length = max_length
    torch.manual_seed(seed)
    inner: Any = model[0].auto_model
    inner.load_state_dict(AutoModel.from_config(inner.config).state_dict(), strict=False)
    return model


def train(options: argparse.Namespace, lr: float, pairs: Pairs) -> tuple[Any, int]:
    """Train for ``options.steps`` steps, or ``options.minutes``; the rate rises in the first twentieth and falls to 0.
    Return model and steps."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = random_model(options.shape, options.seed, options.max_length)
    model.train()
    loss_of = MultipleNegativesRankingLoss(model, scale=1 / options.temperature)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    draw, steps, size = np.random.default_rng(options.seed), 0, options.batch_size
    order, start, limit = np.empty(0, dtype=np.int64), time.process_time(), 60 * options.minutes
    while (spent := steps / options.steps if options.steps else (time.process_time() - start) / limit) < 1:
        if len(order) < size:
            order = draw.permutation(len(pairs))
        rows, order = order[:size], order[size:]
        for group in optimizer.param_groups:
            group["lr"] = lr * min(spent / WARMUP, (1 - spent) / (1 - WARMUP))
        features = [model.preprocess([pairs[row][side] for row in rows]) for side in (0, 1)]
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bf16"):
            loss = loss_of(features, torch.zeros(size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    return model.eval(), steps


def accuracy(model: Any, pairs: Pairs) -> float:
    """Return the share of sentences whose nearest neighbour is their translation, both ways, in percent."""
    sides = (model.encode([pair[side] for pair in pairs], normalize_embeddings=True) for side in (0, 1))
    return 100 * float(right_answers(*sides).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help="directory of sentence-transformers with the architecture")
    parser.add_argument("--bitext", required=True, action="append", help="parallel text as xrep-preprocess reads it")
    parser.add_argument("--output", required=True, type=Path, help="directory of the trained encoder")
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes of the processor for each learning rate")
    parser.add_argument("--steps", type=int, help="steps for each learning rate, in place of minutes")
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 2e-3], help="learning rates to try")
    parser.add_argument("--temperature", type=float, default=0.05, help="1 / scale of the loss (its default: 0.05)")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--precision", choices=["float32", "bf16"], default="float32", help="type of matrix products")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pairs, dev = read(options.bitext)
    best = -1.0
    for lr in options.lr:
        model, steps = train(options, lr, pairs)
        found = accuracy(model, dev)
        print(f"lr {lr}: {steps} steps, dev {found:.2f}", flush=True)
        if found > best:
            best = found
            model.save(str(options.output))


if __name__ == "__main__":
    main()

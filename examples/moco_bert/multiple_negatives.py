"""Trains an encoder from scratch by sentence-transformers' MultipleNegativesRankingLoss, for learning_curve.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from xrep.metrics.retrieval import right_answers
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext

DEV, WARMUP = 1000, 0.05
BATCH_SIZE, MAX_LENGTH, TEMPERATURE = 64, 32, 0.05
Pairs = list[tuple[str, str]]


def read(specs: list[str]) -> tuple[Pairs, Pairs]:
    """Return the different pairs of all texts in a fixed random order, and those that are held out."""
    pairs = sorted({(source, target) for spec in specs for _, source, target in read_pairs(parse_bitext(spec))})
    order = np.random.default_rng(0).permutation(len(pairs))
    mixed = [pairs[place] for place in order if all(pairs[place])]
    return mixed[DEV:], mixed[:DEV]


def random_model(shape: Path, seed: int) -> Any:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    model = SentenceTransformer(str(shape), device="cpu")
    model.max_seq_length = MAX_LENGTH
    torch.manual_seed(seed)
    inner: Any = model[0].auto_model
    inner.load_state_dict(AutoModel.from_config(inner.config).state_dict(), strict=False)
    return model


def train(shape: Path, lr: float, steps: int, seed: int, pairs: Pairs) -> Any:
    """Train an encoder with the architecture and the tokenizer of a directory of sentence-transformers, whose weights
    are drawn anew. The rate rises in the first twentieth of the steps and then falls to 0."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = random_model(shape, seed)
    model.train()
    loss_of = MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    draw, order = np.random.default_rng(seed), np.empty(0, dtype=np.int64)
    for step in range(steps):
        if len(order) < BATCH_SIZE:
            order = draw.permutation(len(pairs))
        rows, order = order[:BATCH_SIZE], order[BATCH_SIZE:]
        for group in optimizer.param_groups:
            group["lr"] = lr * min(step / steps / WARMUP, (1 - step / steps) / (1 - WARMUP))
        features = [model.preprocess([pairs[row][side] for row in rows]) for side in (0, 1)]
        loss = loss_of(features, torch.zeros(BATCH_SIZE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def accuracy(model: Any, pairs: Pairs) -> float:
    """Return the share of sentences whose nearest neighbour is their translation, both ways, in percent."""
    sides = (model.encode([pair[side] for pair in pairs], normalize_embeddings=True) for side in (0, 1))
    return 100 * float(right_answers(*sides).mean())

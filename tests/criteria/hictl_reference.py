"""HiCTL's equations 2-9, computed in plain loops, for tests."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tests.support.planning import token_batch
from xrep.criteria.hictl import HiCTL
from xrep.data.batching import PairBatch, TokenBatch
from xrep.data.masking import Masked
from xrep.models.dual_encoder import DualEncoder


class Expected(NamedTuple):
    """The mean losses, how often equation 5 took its first and its second case, and the mean lambda
    of a query, averaged over queries."""

    losses: dict[str, Tensor]
    farther: int
    nearer: int
    mixing: float


def score(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / (a.norm() * b.norm())


def sentence_loss(x: list[Tensor], y: list[Tensor], tau: float, exponent: float, same: Tensor) -> Expected:
    """Compute equations 2-6.

    Args:
        same: Bool [n, n], pairs that are not negatives of each other.
    """
    n, total, cases, mixing = len(x), torch.zeros((), dtype=torch.float64), [0, 0], []
    for queries, keys in ((x, y), (y, x)):
        for i in range(n):
            q, positive = queries[i], keys[i]
            nearness = (positive - q).norm().detach()
            scores, mixed = [], []
            for k in [side[j] for side in (x, y) for j in range(n) if not same[i, j]]:
                distance = (k - q).norm().detach()
                if distance > nearness:
                    mix = float((nearness / distance) ** exponent)
                    scores.append(score(q, q + mix * (k - q)))
                else:
                    mix = 1.0
                    scores.append(score(q, k))
                cases[distance <= nearness] += 1
                mixed.append(mix)
            mixing.append(sum(mixed) / len(mixed))
            found = (score(q, positive) / tau).exp()
            total = total - (found / (found + sum((s / tau).exp() for s in scores))).log()
    return Expected({"sentence": total / (2 * n)}, *cases, sum(mixing) / len(mixing))


def word_loss(queries: Tensor, embedding: Tensor, texts: list[list[int]], specials: set[int], tau: float) -> Tensor:
    """Compute equations 7 and 8, where S is the set of all words that can be sampled."""
    total = torch.zeros((), dtype=torch.float64)
    for query, text in zip(queries, texts, strict=True):
        bag = {*text} - specials
        scores = {word: (score(query, embedding[word]) / tau).exp() for word in {*range(len(embedding))} - specials}
        negative = sum(scores[word] for word in scores if word not in bag)
        total = total - sum((scores[word] / (scores[word] + negative)).log() for word in bag) / len(bag)
    return total / len(texts)


def language_loss(hidden: Tensor, hictl: HiCTL, embedding: Tensor, masked: Masked) -> Tensor:
    head = hictl.language.heads["shared"]
    vectors = hidden.flatten(0, 1)[masked.positions]
    logits = head(vectors) @ embedding.T + head.bias
    return torch.nn.functional.cross_entropy(logits, masked.labels)


def put_together(batch: PairBatch, pad_id: int) -> TokenBatch:
    """[CLS] x [SEP] y [SEP]."""
    rows = []
    for i in range(len(batch)):
        x, y = (side.tokens[i, : side.lengths[i]] for side in (batch.source, batch.target))
        rows.append(torch.cat([x, y[1:]]))
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
    return token_batch(tokens, torch.tensor([len(row) for row in rows]))


def reference(model: DualEncoder, hictl: HiCTL, batch: PairBatch, masked: Masked | None, same: Tensor) -> Expected:
    """Compute the losses of a criterion whose ``word_samples`` cover the whole vocabulary, one sentence at a time."""
    config, encoder = hictl.config, model.encoders["shared"]
    vocabulary = hictl._vocabulary
    embedding = encoder.token_embedding.weight
    specials = {vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.mask_id}
    losses: dict[str, Tensor] = {}
    found = Expected({}, 0, 0, 1.0)
    if masked is not None:
        losses["mlm" if config.monolingual else "tlm"] = language_loss(encoder(masked.batch), hictl, embedding, masked)
    if config.sentence_contrast:
        sides = [[model.encode("shared", side.rows(i, i + 1))[0][0] for i in range(len(batch))]
                 for side in (batch.source, batch.target)]  # fmt: skip
        exponent = 0.0 if hictl.hardness is None else 0.9 * float(hictl.hardness.history[:3].mean())
        found = sentence_loss(*sides, config.temperature, exponent, same)
        losses |= found.losses
    if config.word_contrast:
        together = put_together(batch, vocabulary.pad_id)
        by_tlm = masked is not None and not config.monolingual and config.word_query == "masked"
        seen = masked.batch if by_tlm else together
        queries = [encoder(seen.rows(i, i + 1))[0, 0] for i in range(len(batch))]
        texts = [row.tolist() for row in together.tokens]
        losses["word"] = word_loss(torch.stack(queries), embedding, texts, specials, config.word_temperature)
    return found._replace(losses=losses)

"""Conditional masked language modelling by the formulas of the paper: one pair at a time, in plain torch, unpadded."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.criteria.dap_reference import layer, layer_norm
from tests.support.planning import token_batch
from xrep.criteria.cmlm import CMLM
from xrep.criteria.criterion import Planned
from xrep.data.batching import PairBatch, TextSpec, TokenBatch
from xrep.data.masking import Masked
from xrep.models.dual_encoder import DualEncoder


def reference(model: DualEncoder, cmlm: CMLM, sentences: TokenBatch, masked: Masked) -> Tensor:
    """Return the summed loss of a batch with s1 ``sentences`` and the masked s2."""
    encoder, kind = model.encoders["shared"], cmlm.config.vector_embedding
    width, total = masked.batch.tokens.size(1), torch.zeros((), dtype=torch.float64)
    for row, (one, other) in enumerate(zip(rows(sentences), rows(masked.batch), strict=True)):
        views = projected(model, cmlm, sentence_vector(model, one))
        before = len(views) if kind == "positioned" else 0
        front = views
        if kind != "raw":
            front = embedded(encoder, views, range(before) if before else None)
        tokens = embedded(encoder, encoder.token_embedding.weight[other], range(before, before + len(other)))
        states = through(encoder, torch.cat([front, tokens]), len(encoder.layers))[len(views) :]
        for place, label in zip(masked.positions.tolist(), masked.labels.tolist(), strict=True):
            if place // width == row:
                total = total - log_probability(encoder, cmlm, states[place % width], views)[label]
    return total


def rows(batch: TokenBatch) -> list[Tensor]:
    return [tokens[:length] for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True)]


def embedded(encoder: nn.Module, vectors: Tensor, positions: range | None) -> Tensor:
    """Return the input of the first layer for embeddings [T, H]."""
    if positions is not None:
        vectors = vectors + torch.stack([encoder.position_embedding.weight[position] for position in positions])
    return vectors if encoder.norm_first else layer_norm(vectors, encoder.norm)


def through(encoder: nn.Module, x: Tensor, layers: int) -> Tensor:
    for own in encoder.layers[:layers]:
        x = layer(x, own)
    return layer_norm(x, encoder.norm) if encoder.norm_first and layers == len(encoder.layers) else x


def sentence_vector(model: DualEncoder, tokens: Tensor) -> Tensor:
    """Return v, [H]."""
    encoder, pooling, layers = model.encoders["shared"], model.pooling["shared"], model.config.pooled_layer
    x = embedded(encoder, encoder.token_embedding.weight[tokens], range(len(tokens)))
    x = through(encoder, x, len(encoder.layers) if layers is None else layers)
    v = {"mean": x.mean(0), "max": x.max(0).values, "cls": x[0]}[pooling]
    projection = model.projections["shared"] if len(model.projections) else None
    return projection.weight @ v + projection.bias if isinstance(projection, nn.Linear) else v


def projected(model: DualEncoder, cmlm: CMLM, v: Tensor) -> Tensor:
    """Return P(v), [N, H] (appendix C)."""
    own = cmlm.spaces if cmlm.spaces is not None else model.projections["shared"].spaces
    found = [v]
    for first, _, second, _, third in own.perceptrons:
        x = (first.weight @ v + first.bias).clamp(min=0)
        x = (second.weight @ x + second.bias).clamp(min=0)
        found.append(third.weight @ x + third.bias)
    return torch.stack(found)


def log_probability(encoder: nn.Module, cmlm: CMLM, state: Tensor, views: Tensor) -> Tensor:
    """Return the logits of all words at a masked place, [V]."""
    head = cmlm.language.heads["shared"]
    if cmlm.skip is not None:  # a linear layer on the concatenation, whose part for the state itself is the identity
        weight = torch.cat([torch.eye(len(state), dtype=torch.float64), cmlm.skip.weight], dim=1)
        state = weight @ torch.cat([state, *views])
    inner = layer_norm(F.gelu(head.dense.weight @ state + head.dense.bias), head.norm)
    logits = encoder.token_embedding.weight @ inner + head.bias
    return logits - logits.exp().sum().log()


class SteadyCMLM(CMLM):
    """cmlm with equal weights on all ranks, and with equal masks for a pair in any part of a batch."""

    def __init__(self, config: CMLM.Config, model: nn.Module, text: TextSpec) -> None:
        torch.manual_seed(1)
        super().__init__(config, model, text)

    def plan(self, batch: PairBatch, generator: torch.Generator) -> Planned:
        planned = super().plan(batch, generator)
        tokens, width = batch.target.tokens.clone(), batch.target.tokens.size(1)
        positions, labels = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
        for row, number in enumerate(batch.indices.tolist()):
            own = torch.Generator().manual_seed(number)
            alone = self.language.mask(self._tower, batch.target.rows(row, row + 1), own)
            tokens[row, : alone.batch.tokens.size(1)] = alone.batch.tokens
            positions.append(row * width + alone.positions)
            labels.append(alone.labels)
        hidden = token_batch(tokens, batch.target.lengths)
        masked = Masked(hidden, torch.cat(positions), torch.cat(labels), planned.details.size)
        return dataclasses.replace(planned, details=masked)

"""A transformer encoder by its equations: one sentence at a time, in plain torch, without padding."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.data.batch import TokenBatch
from xrep.data.masking import Masked

SEED = 5
"""Seed of every plan that is compared with an equation, and of dropout."""


@dataclass
class Expected:
    """What an objective gives for a batch: the sums of its terms, the number of items in each, and metrics."""

    terms: dict[str, Tensor] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, value: Tensor, count: int = 1) -> None:
        self.terms[name] = self.terms.get(name, 0) + value
        self.sizes[name] = self.sizes.get(name, 0) + count


def layer_norm(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def layer(x: Tensor, own: nn.Module) -> Tensor:
    """Return the output of a transformer layer on [T, H]."""

    def attention(x: Tensor) -> Tensor:
        heads = []
        q, k, v = (x @ own.attention.qkv.weight.T + own.attention.qkv.bias).chunk(3, dim=1)
        size = q.size(1) // own.attention.heads
        for part in (slice(h * size, (h + 1) * size) for h in range(own.attention.heads)):
            scores = (q[:, part] @ k[:, part].T / size**0.5).exp()
            heads.append(scores / scores.sum(1, keepdim=True) @ v[:, part])
        return torch.cat(heads, dim=1) @ own.attention.output.weight.T + own.attention.output.bias

    def feedforward(x: Tensor) -> Tensor:
        inner = F.gelu(x @ own.feedforward_in.weight.T + own.feedforward_in.bias)
        return inner @ own.feedforward_out.weight.T + own.feedforward_out.bias

    if own.norm_first:
        x = x + attention(layer_norm(x, own.attention_norm))
        return x + feedforward(layer_norm(x, own.feedforward_norm))
    x = layer_norm(x + attention(x), own.attention_norm)
    return layer_norm(x + feedforward(x), own.feedforward_norm)


def embedded(encoder: nn.Module, vectors: Tensor, positions: Tensor | None) -> Tensor:
    """Return the input [T, H] of the first layer for token vectors [T, H]."""
    vectors = vectors if positions is None else vectors + encoder.position_embedding.weight[positions]
    return vectors if encoder.norm_first else layer_norm(vectors, encoder.norm)


def through(encoder: nn.Module, x: Tensor, layers: int | None = None) -> Tensor:
    """Return the output of the first ``layers`` layers (None: all) on [T, H]."""
    for own in encoder.layers[:layers]:
        x = layer(x, own)
    return layer_norm(x, encoder.norm) if encoder.norm_first and layers in (None, len(encoder.layers)) else x


def read(encoder: nn.Module, tokens: Tensor) -> Tensor:
    """Return the token vectors [T, H] of a sentence."""
    return through(encoder, embedded(encoder, encoder.token_embedding.weight[tokens], torch.arange(len(tokens))))


def rows(batch: TokenBatch) -> list[Tensor]:
    return [tokens[:length] for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True)]


def masked_words(
    encoder: nn.Module, head: nn.Module, masked: Masked, states: Callable[[int, Tensor], Tensor]
) -> list[tuple[Tensor, bool]]:
    """Return the loss of each masked token by BERT's formula, and whether it has the largest logit.

    Args:
        states: Returns the vectors [T, H] of the tokens of a row.
    """
    width, found = masked.batch.tokens.size(1), []
    of_row = [states(row, tokens) for row, tokens in enumerate(rows(masked.batch))]
    for place, label in zip(masked.positions.tolist(), masked.labels.tolist(), strict=True):
        state = of_row[place // width][place % width]
        inner = layer_norm(F.gelu(head.dense.weight @ state + head.dense.bias), head.norm)
        logits = encoder.token_embedding.weight @ inner + head.bias
        found.append((logits.exp().sum().log() - logits[label], int(logits.argmax()) == label))
    return found


def language_model(name: str, found: list[tuple[Tensor, bool]]) -> Expected:
    """Return the term and the metrics of masked tokens."""
    total, count = sum((loss for loss, _ in found), torch.zeros((), dtype=torch.float64)), len(found)
    right = 100 * sum(right for _, right in found) / count
    return Expected({name: total}, {name: count}, {"accuracy": right, "nll": float(total.detach() / count)})

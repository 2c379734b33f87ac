"""Dual-alignment pre-training by its equations: one pair at a time, in plain torch, without padding."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.planning import token_batch
from xrep.criteria.dap import DAP
from xrep.data.batching import PairBatch, TokenBatch
from xrep.models.dual_encoder import DualEncoder

Chosen = dict[tuple[int, int, int], bool]
"""Whether a token is predicted, by side, row and position."""


@dataclass
class Sums:
    """L_TR and the two directions of L_RTL as sums, and the number of items in each sum."""

    loss: dict[str, Tensor] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: Tensor) -> None:
        self.loss[name] = self.loss.get(name, 0) + value
        self.count[name] = self.count.get(name, 0) + 1


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


def reference(
    model: DualEncoder, dap: DAP, batch: PairBatch, pivot: int, chosen: Chosen, subwords: dict[int, set[int]] | None
) -> Sums:
    """Return the terms of a batch.

    Args:
        chosen: The tokens that are predicted.
        subwords: The subwords of the softmax, by language; None: all. Others are masked, but no term has them.
    """
    config, encoder, found = dap.config, model.encoders["shared"], Sums()
    sides = (batch.source, batch.target)
    encoded = [[_encode(model, side, row) for row in range(len(batch))] for side in sides]
    for i in range(len(batch)):
        scores = [(encoded[0][i][0] @ encoded[1][j][0]) / config.temperature for j in range(len(batch))]
        found.add("translation_ranking", -torch.log(scores[i].exp() / sum(score.exp() for score in scores)))
    for i in range(len(batch)):
        languages = batch.languages[i].tolist()
        away = config.rtl_direction == "from_pivot" or (config.rtl_direction == "both" and int(batch.indices[i]) % 2)
        of_y = next(side for side in (1, 0) if (languages[side] == pivot) != bool(away))
        of_x = 1 - of_y
        name = ("rtl_from_pivot" if away else "rtl_to_pivot") if config.rtl_direction == "both" else "rtl"
        rows, places = list(_language(dap, encoded[of_x][i][1][1:], languages[of_x])), {}
        tokens = sides[of_y].tokens[i]
        for position in range(1, int(sides[of_y].lengths[i])):
            vector = encoded[of_y][i][1][position]
            if chosen[of_y, i, position]:
                places[position] = len(rows)
                vector = _mask(encoder, dap, position)
            rows.extend(_language(dap, vector[None], languages[of_y]))
        x = torch.stack(rows)
        for own in dap.head.layers:
            x = layer(x, own)
        if dap.head.norm is not None:
            x = layer_norm(x, dap.head.norm)
        words = sorted(subwords[languages[of_y]]) if subwords else list(range(len(dap.head.bias)))
        losses = []
        for position, place in places.items():
            if int(tokens[position]) not in words:
                continue
            logits = encoder.token_embedding.weight[words] @ x[place] + dap.head.bias[words]
            share = logits.exp() / logits.exp().sum()
            losses.append(-torch.log(share[words.index(int(tokens[position]))]))
        if config.rtl_average == "sentences" and losses:
            found.add(name, sum(losses) / len(losses))  # equation 6
        elif config.rtl_average == "tokens":
            for loss in losses:
                found.add(name, loss)
    return found


def _encode(model: DualEncoder, side: TokenBatch, row: int) -> tuple[Tensor, Tensor]:
    """Sentence vector [D] and token vectors [T, H] of one sentence."""
    alone = token_batch(side.tokens[row : row + 1, : int(side.lengths[row])], side.lengths[row : row + 1])
    sentence, tokens = model.encode("shared", alone)
    return sentence[0], tokens[0]


def _language(dap: DAP, rows: Tensor, language: int) -> Tensor:
    table = dap.head.language_embedding
    return rows if table is None else rows + table.weight[language]


def _mask(encoder: nn.Module, dap: DAP, position: int) -> Tensor:
    x = encoder.token_embedding.weight[dap._vocabulary.mask_id]
    if dap.config.mask_positions == "target":
        x = x + encoder.position_embedding.weight[position]
    return x if encoder.norm_first else layer_norm(x, encoder.norm)

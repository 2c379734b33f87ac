"""Building blocks of the transformer: linear layers, packed batches, self-attention, encoder layer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.data.batch import TokenBatch, on_device
from xrep.errors import UserError
from xrep.kernels.attention import attention, attention_by_length, packed_attention
from xrep.kernels.dropout import dropout
from xrep.kernels.fused import fuses_residuals
from xrep.kernels.int8 import Int8Product, quantise, rows_in_cache
from xrep.kernels.linear import PackedWeight, fused_linear, linear, linear_and_input
from xrep.kernels.residual_norm import residual_norm
from xrep.nn.shape import Activation, DecoderShape, EncoderShape


class Linear(nn.Linear):
    """``nn.Linear`` that uses a faster float32 product on CPUs where that product is as exact.

    Attributes:
        packed: the weight in the order in which it is multiplied, if ``pack_weights`` was called.
    """

    packed: PackedWeight | None = None

    def forward(self, input: Tensor) -> Tensor:
        fused = fused_linear(input, self.weight, self.bias, packed=self.packed)
        return linear(input, self.weight, self.bias) if fused is None else fused

    def activated(self, input: Tensor, activation: Activation) -> Tensor:
        """Return the output after the activation function."""
        gelu = activation == "gelu"
        hidden = fused_linear(input, self.weight, self.bias, gelu=True, packed=self.packed) if gelu else None
        return activate(self(input), activation) if hidden is None else hidden


class Int8Linear(nn.Module):
    """A linear layer with a bias whose products are computed in int8 (``xrep.kernels.int8``), without gradient.

    Attributes:
        weight, scale, bias: int8 [D_out, D_in] and float32 [D_out] each.
    """

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, original: Linear) -> None:
        super().__init__()
        weight, scale = quantise(original.weight)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", original.bias.detach().float())
        self._product: Int8Product | None = None
        self.register_load_state_dict_post_hook(_forget_product)

    @property
    def product(self) -> Int8Product:
        """The product with these weights, which is prepared when it is first used."""
        if self._product is None:
            self._product = Int8Product(self.weight, self.scale, self.bias)
        return self._product

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input.flatten(0, -2)).unflatten(0, input.shape[:-1])

    def activated(self, input: Tensor, activation: Activation) -> Tensor:
        """Return the output after the activation function, of rows [N, D_in]."""
        if activation == "gelu":
            return self.product(input, gelu=True)
        return activate(self.product(input), activation)


def _forget_product(layer: Int8Linear, _: Any) -> None:
    layer._product = None


def quantise_layers(module: nn.Module) -> None:
    """Replace the linear layers of every transformer layer in a module by ``Int8Linear``, for inference.

    Raises:
        UserError: It has no transformer layers of xrep's own.
    """
    layers = [part for part in module.modules() if isinstance(part, TransformerLayer)]
    if not layers:
        problem = "int8 is for transformer layers that xrep computes, and this model has none"
        raise UserError(problem, cure="leave it in float32 or bfloat16")
    for owner in [part for layer in layers for part in layer.modules()]:
        for name, child in owner.named_children():
            if isinstance(child, Linear):
                setattr(owner, name, Int8Linear(child))


def is_quantised(module: nn.Module) -> bool:
    """Return whether ``quantise_layers`` has changed a module."""
    return any(isinstance(part, Int8Linear) for part in module.modules())


def pack_weights(module: nn.Module) -> None:
    """Prepare all linear layers of a module for many products with few rows; it takes the memory of their weights."""
    for layer in module.modules():
        if isinstance(layer, Linear):
            layer.packed = PackedWeight.of(layer.weight)


def activate(x: Tensor, activation: Activation) -> Tensor:
    """Apply the activation function of a feed-forward network; gelu_tanh is the tanh approximation of GELU."""
    if activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def with_input(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of a linear layer, and ``x`` for a residual connection (``linear_and_input``)."""
    if x.is_cuda and isinstance(layer, Linear):
        return linear_and_input(x, layer.weight, layer.bias)
    return layer(x), x


def feedforward(x: Tensor, inner: Linear | Int8Linear, outer: nn.Module, activation: Activation) -> Tensor:
    """Apply two linear layers with the activation function between them."""
    if isinstance(inner, Linear):
        return outer(inner.activated(x, activation))
    parts = x.flatten(0, -2).split(rows_in_cache(len(inner.bias)))  # the second layer finds its inputs in the cache
    return torch.cat([outer(inner.activated(part, activation)) for part in parts]).view(x.shape)


class Dropout(nn.Dropout):
    """``nn.Dropout`` that is faster on CPUs."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


class Packing:
    """The real tokens of a padded batch, concatenated; everything except attention is computed on them alone.

    Contrastive batches mix lengths, so padding would nearly double the work of the linear layers. Copies of the first
    token fill the pack up to one of a few sizes (at most an eighth or 7 tokens more). The CPU library compiles and
    caches a product for every size that it meets, which would take gigabytes if every batch had a different size.

    Args:
        rows: int64 [N], the position of each packed token in the flattened batch [B * T].
        mask: bool [B, T], True at real tokens.
    """

    def __init__(self, rows: Tensor, mask: Tensor) -> None:
        self.batch, self.length = mask.shape
        self.rows, self.packed_rows = rows, _filled(rows, 4)
        self.attention_mask = mask[:, None, None, :]

    @classmethod
    def of(cls, batch: TokenBatch) -> Packing:
        """Return the packing of a batch, sentence by sentence."""
        return cls(places_of(batch), batch.mask)

    def pack(self, padded: Tensor) -> Tensor:
        """Gather [B, T, ...] into [N, ...], where N is the number of real tokens, rounded up."""
        return padded.flatten(0, 1).index_select(0, self.packed_rows)

    def first(self, packed: Tensor) -> Tensor:
        """Gather the first token of each sentence, [B, ...], from [N, ...]."""
        places = self.rows.new_zeros(self.batch * self.length)
        places.index_copy_(0, self.rows, torch.arange(len(self.rows), device=self.rows.device))
        return packed.index_select(0, places[:: self.length])

    def pad(self, packed: Tensor) -> Tensor:
        """Scatter [N, ...] into [B, T, ...], with zeros at padding."""
        real = packed[: len(self.rows)]
        flat = real.new_zeros(self.batch * self.length, *real.shape[1:])
        return flat.index_copy_(0, self.rows, real).unflatten(0, (self.batch, self.length))


def places_of(batch: TokenBatch, order: np.ndarray | None = None) -> Tensor:
    """Return the places of the real tokens in the flattened batch, int64 [N], sentence by sentence in an order [B]."""
    order = np.arange(len(batch)) if order is None else order
    lengths = batch.host_lengths[order]
    # How far each sentence moves when it is packed. ``mask.nonzero()`` would wait for the GPU to learn its size.
    shift = order * batch.tokens.size(1) - (np.cumsum(lengths) - lengths)
    return on_device(np.arange(batch.real_tokens) + np.repeat(shift, lengths), batch.tokens.device)


def _filled(rows: Tensor, digits: int) -> Tensor:
    """Return rows, int64 [N], and copies of the first one, so that their number has at most ``digits`` binary digits
    before its zeros, or is a multiple of 8."""
    unit = 1 << max(3, len(rows).bit_length() - digits)
    return torch.cat([rows, rows[:1].expand(-len(rows) % unit)])


class Sentences(Packing):
    """A packing on a GPU that can compute the attention of packed tokens, so that nothing is ever padded.

    Attributes:
        offsets: int32 [B + 1], the first packed token of each sentence, and their number.
    """

    def __init__(self, batch: TokenBatch) -> None:
        self.batch, self.length = batch.tokens.shape
        self.rows = self.packed_rows = places_of(batch)
        self.offsets = on_device(np.cumsum([0, *batch.host_lengths], dtype=np.int32), batch.tokens.device)


class EqualLengths(Packing):
    """A packing on CPUs, in which the sentences of one length follow each other.

    Their attention is computed without padding and without a mask.

    Attributes:
        groups: The number of sentences of each length, and the length.
    """

    def __init__(self, batch: TokenBatch) -> None:
        lengths = batch.host_lengths
        self.batch, self.length = batch.tokens.shape
        self.rows = places_of(batch, np.argsort(lengths, kind="stable"))
        self.packed_rows = _filled(self.rows, 4 if torch.is_grad_enabled() else 6)
        kinds, counts = np.unique(lengths, return_counts=True)
        self.groups: list[tuple[int, int]] = list(zip(counts.tolist(), kinds.tolist(), strict=True))

    @staticmethod
    def is_faster(batch: TokenBatch) -> bool:
        """Return whether this layout is faster than ``layout_of``; it is one for CPUs."""
        if torch.is_grad_enabled() and torch.is_autocast_enabled("cpu"):
            return False  # attention computes in float32 then, and the casts of many parts take longer
        if batch.tokens.device.type != "cpu" or not batch.is_padded or batch.density == 1:
            return False  # a graph is traced with a density of 1, because its lengths are not known
        return batch.tokens.numel() - batch.real_tokens > TOKENS_OF_A_LENGTH * len(np.unique(batch.host_lengths))


class Masking:
    """A batch that is computed on all its positions, because it has little or no padding.

    Args:
        mask: bool [B, T], True at real tokens; None if there is no padding.
    """

    def __init__(self, mask: Tensor | None = None) -> None:
        self.attention_mask = None if mask is None else mask[:, None, None, :]

    def pack(self, padded: Tensor) -> Tensor:
        return padded

    def first(self, packed: Tensor) -> Tensor:
        return packed[:, 0]

    def pad(self, packed: Tensor) -> Tensor:
        return packed


Layout = Packing | Masking
"""The layout of a batch in memory."""

TOKENS_OF_A_LENGTH = 4
"""Number of padding tokens that cost about as much as the calls for the sentences of one length."""
PACKED_BELOW = 0.9
"""Batches with a smaller share of real tokens than this are packed."""


def layout_of(batch: TokenBatch) -> Layout:
    """Return the layout in which an encoder or decoder computes a batch."""
    if not batch.is_padded:
        return Masking()
    return Packing.of(batch) if batch.density < PACKED_BELOW else Masking(batch.mask)


class SelfAttention(nn.Module):
    """Multi-head self-attention over tokens in a layout, [B, T, H] or packed.

    Args:
        causal: each token attends only to itself and earlier tokens. Padding comes later, so no mask is needed.
    """

    def __init__(self, hidden_size: int, heads: int, dropout: float, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = Linear(hidden_size, 3 * hidden_size)
        self.output = Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, layout: Layout, first_only: bool = False) -> tuple[Tensor, Tensor]:
        """Return the attention, and ``x`` for the residual connection; or both of the first token of each row alone."""
        dropout, kept = self.dropout if self.training else 0.0, layout.first if first_only else lambda tokens: tokens
        if isinstance(layout, Sentences):
            qkv, x = with_input(self.qkv, x)
            qkv = qkv.unflatten(-1, (3, self.heads, -1))
            mixed = packed_attention(qkv, layout.offsets, layout.length, dropout).flatten(1)
            return self.output(kept(mixed)), kept(x)
        if isinstance(layout, EqualLengths):
            return self.output(kept(attention_by_length(self.qkv(x), layout.groups, self.heads, dropout))), kept(x)
        q, k, v = self.project(x, layout)
        mask = None if self.causal else layout.attention_mask
        if first_only:
            return self.output(attention(q[:, :, :1], k, v, mask, dropout).flatten(1)), kept(x)
        mixed = attention(q, k, v, mask, dropout, causal=self.causal).transpose(1, 2).flatten(2)
        return self.output(layout.pack(mixed)), x

    def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, heads, T, d] each."""
        q, k, v = layout.pad(self.qkv(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v


class TransformerLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection and layer normalisation."""

    def __init__(self, shape: EncoderShape | DecoderShape, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        size, epsilon = shape.hidden_size, shape.norm_epsilon
        self._add_attention(shape, attention_dropout)
        self.feedforward_in = Linear(size, shape.feedforward_size)
        self.feedforward_out = Linear(shape.feedforward_size, size)
        self.feedforward_norm = nn.LayerNorm(size, eps=epsilon)
        self.dropout = Dropout(dropout)
        self.norm_first = shape.norm == "pre"
        self.activation: Activation = shape.activation

    def _add_attention(self, shape: EncoderShape | DecoderShape, dropout: float) -> None:
        self.attention = SelfAttention(shape.hidden_size, shape.heads, dropout)
        self.attention_norm = nn.LayerNorm(shape.hidden_size, eps=shape.norm_epsilon)

    def _sublayers(self, x: Tensor, *steps: tuple[Any, ...]) -> Tensor:
        """Return the output of the layer.

        Each step is the normalisation of a sublayer, the sublayer, and its inputs besides the tokens. The sublayer
        returns the change of the tokens, and the tokens.
        """
        if not self.norm_first:
            for norm, change, *inputs in steps:
                changed, x = change(x, *inputs)
                x, _ = self._joined(changed, x, norm)
            return x
        normed = steps[0][0](x)
        for (_, change, *inputs), (norm, *_) in pairwise(steps):
            normed, x = self._joined(change(normed, *inputs)[0], x, norm, summed=True)
        _, change, *inputs = steps[-1]
        return x + self.dropout(change(normed, *inputs)[0])

    def _joined(self, change: Tensor, x: Tensor, norm: nn.LayerNorm, *, summed: bool = False) -> tuple[Tensor, Tensor]:
        """Return the normalisation of x + dropout(change), and that sum, which is undefined unless ``summed``."""
        if fuses_residuals(x, change):
            dropout = self.dropout.p if self.dropout.training else 0.0
            return residual_norm(x, change, norm.weight, norm.bias, norm.eps, dropout, summed=summed)
        x = x + self.dropout(change)
        return norm(x), x

    def _feedforward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner, outer = self.feedforward_in, self.feedforward_out
        if not x.is_cuda:
            return feedforward(x, inner, outer, self.activation), x
        hidden, x = with_input(inner, x)
        return outer(activate(hidden, self.activation)), x


class EncoderLayer(TransformerLayer):
    """A layer whose tokens attend to all tokens of their sentence."""

    def forward(self, x: Tensor, layout: Layout, first_only: bool = False) -> Tensor:
        """Return the states of all tokens in their layout; or of the first token of each row alone, [B, H]."""
        if first_only and self.norm_first:
            change, _ = self.attention(self.attention_norm(x), layout, True)
            normed, x = self._joined(change, layout.first(x), self.feedforward_norm, summed=True)
            return x + self.dropout(self._feedforward(normed)[0])
        attention = self.attention_norm, self.attention, layout, first_only
        return self._sublayers(x, attention, (self.feedforward_norm, self._feedforward))

"""Cross-entropy of a linear layer over a vocabulary, without the [N, V] array of its logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.arguments import check_tensors
from xrep.kernels.fused import steps_for
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add, operand_dtype, takes_fast_product


class CrossEntropy(NamedTuple):
    """The cross-entropy of tokens. Gradients flow through ``loss`` only.

    Attributes:
        loss: 0-d, summed over the tokens (nats).
        nll: [N], negative log-likelihood of the target of each token, without smoothing.
        correct: bool [N], whether no word has a higher logit than the target.
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    groups: Tensor | None = None,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> CrossEntropy:
    """Compute the cross-entropy of ``hidden @ weight.T + bias`` against ``target``, summed over tokens.

    A block consists of whole rows, so its gradient is known as soon as its logits are. This takes three matrix products
    in total, and a float32 gradient of the weight from the forward pass on. Sums are kept in float32 (float64 for
    float64 inputs). Under autocast the products read the autocast type, as ``torch.nn.functional.linear`` would.

    Args:
        hidden: [N, D].
        weight: [V, D], for example the embedding matrix.
        target: int64 [N], in [0, V) or ``ignore_index``.
        bias: [V], or [G, V] with ``groups``.
        groups: int64 [N], the row of ``bias`` for each token, for example that of its sentence.
        weights: [N], factor of the loss of each token, such as 1 / length of its sentence; without gradient.
        label_smoothing: ε. The target distribution is (1 - ε) · onehot + ε / V, as in torch. (fairseq spreads ε over
            the V - 1 other words: its ε is ours times (V - 1) / V.)
        ignore_index: tokens with this target have loss and gradient 0.

    Raises:
        ValueError: the shapes do not fit, or the smoothing is outside [0, 1].
    """
    check_tensors(
        hidden=(hidden, "float N D"),
        weight=(weight, "float V D"),
        target=(target, "int64 N"),
        bias=(bias, "float V" if groups is None else "float G V"),
        groups=(groups, "int64 N"),
        weights=(weights, "float N"),
    )
    if groups is not None and bias is None:
        raise ValueError("groups choose rows of bias: give both or only bias")
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in [0, 1], not {label_smoothing}")
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        half = torch.get_autocast_dtype(device)
        hidden, weight = (each if each.dtype == torch.float64 else each.to(half) for each in (hidden, weight))
    learn = torch.is_grad_enabled()
    wanted = [learn and tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)]
    given = target, groups, weights, label_smoothing, ignore_index
    with torch.autocast(device, enabled=False):
        return CrossEntropy(*_LinearCrossEntropy.apply(hidden, weight, bias, *given, wanted))


class _LinearCrossEntropy(torch.autograd.Function):
    """The loss, nll and correctness. The forward pass finds those gradients that are wanted, of the first three."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, target, groups, weights, smoothing, ignore_index, wanted):
        (of_hidden, of_weight, of_bias), steps = wanted, steps_for(hidden.device)
        accumulate, operand = accumulation_dtype(hidden), operand_dtype(hidden)
        count = max(128, steps.VOCABULARY_LOGITS // max(1, len(weight)) // 128 * 128)
        rows, columns, words = hidden.to(operand), weight.to(operand), len(weight)
        if operand != accumulate and words % steps.PADDING:
            columns = F.pad(columns, (0, 0, 0, -words % steps.PADDING))
        if extra := _filling(rows, count):
            rows, target = F.pad(rows, (0, 0, 0, extra)), F.pad(target, (0, extra), value=ignore_index)
            groups, weights = (None if each is None else F.pad(each, (0, extra)) for each in (groups, weights))
        nll = torch.zeros(len(rows), dtype=accumulate, device=hidden.device)
        correct, loss = torch.zeros_like(nll, dtype=torch.bool), nll.new_zeros(())
        for_hidden = nll.new_empty(rows.shape if of_hidden else 0)
        for_weight = (nll.new_empty if len(hidden) else nll.new_zeros)(columns.shape if of_weight else 0)
        for_bias = nll.new_zeros(bias.shape if of_bias else 0)
        room = nll.new_empty(min(count, len(rows)), len(columns))
        for start in range(0, len(rows), count):
            block = slice(start, min(start + count, len(rows)))
            logits = multiply(rows[block], columns.t(), out=room[: block.stop - start])[:, :words]
            if bias is not None:
                logits += bias if groups is None else bias[groups[block]]
            ignored = target[block] == ignore_index
            losses, nll[block], correct[block], gradient = steps.vocabulary_softmax(
                logits, target[block], smoothing, ignored, operand if any(wanted) else None
            )
            if weights is not None:
                losses = losses * weights[block]
                gradient = gradient.mul_(weights[block].unsqueeze(1)) if any(wanted) else gradient
            loss += losses.sum()
            if of_hidden:
                multiply(gradient, columns, out=for_hidden[block])
            if of_weight and start == 0:
                multiply(gradient.t(), rows[block], out=for_weight)
            elif of_weight:
                multiply_add(for_weight, gradient.t(), rows[block])
            if of_bias and groups is not None:
                for_bias.index_add_(0, groups[block], gradient[:, :words].to(accumulate))
            elif of_bias:
                for_bias += gradient[:, :words].sum(0, dtype=accumulate)
        nll, correct = nll[: len(hidden)], correct[: len(hidden)]
        found = for_hidden[: len(hidden)], for_weight[:words], for_bias
        ctx.save_for_backward(*(each if want else None for each, want in zip(found, wanted, strict=True)))
        ctx.types = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.mark_non_differentiable(nll, correct)
        ctx.set_materialize_grads(False)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, of_loss, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = zip(ctx.saved_tensors, ctx.types, strict=True)
        return *(None if each is None else (each * of_loss).to(dtype) for each, dtype in saved), *6 * (None,)


def _filling(rows: Tensor, block: int) -> int:
    """Return how many ignored rows to add so that blocks have one of few sizes.

    For each size, the CPU library's fast product makes and keeps a copy of the weight.
    """
    if not takes_fast_product(rows):
        return 0
    return -len(rows) % (1 << max(3, min(len(rows), block).bit_length() - 4))

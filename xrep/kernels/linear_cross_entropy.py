"""Cross-entropy of a linear layer over a vocabulary, without the [N, V] array of its logits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from xrep.kernels import reference
from xrep.kernels.paths import path_for, steps_for
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add


class CrossEntropy(NamedTuple):
    """``loss``: 0-d, summed over the tokens (nats). Without gradient, per token: ``nll`` [N], the negative
    log-likelihood of the target (no smoothing), and ``correct`` bool [N], whether no word has a higher logit."""

    loss: Tensor
    nll: Tensor
    correct: Tensor


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> CrossEntropy:
    """Cross-entropy of ``hidden @ weight.T + bias`` against ``target``, summed over tokens.

    Rows are taken in blocks, whole, so a block's gradient is known as soon as its logits are: three matrix products in
    all, and a float32 gradient of the weight from the forward pass on. Sums are kept in float32 (float64 for float64
    inputs); under autocast the products read its type, as ``torch.nn.functional.linear`` would.

    Args:
        hidden: [N, D].
        weight: [V, D], the embedding matrix, say.
        target: int64 [N], in [0, V) or ``ignore_index``.
        bias: [V].
        label_smoothing: ε: the target distribution is (1 - ε) · onehot + ε / V, as in torch (fairseq spreads ε over the
            V - 1 other words: its ε is ours times V / (V - 1)).
        ignore_index: tokens of this target have loss and gradient 0.

    Raises:
        ValueError: shapes that do not fit, smoothing outside [0, 1].
    """
    _check(hidden, weight, target, bias, label_smoothing)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        hidden, weight = (tensor.to(torch.get_autocast_dtype(device)) for tensor in (hidden, weight))
    if path_for(hidden.device) == "reference":
        loss, nll, correct = reference.linear_cross_entropy(hidden, weight, target, bias, label_smoothing, ignore_index)
        dtype = accumulation_dtype(hidden)
        return CrossEntropy(loss.to(dtype), nll.to(dtype), correct)
    wanted = [
        torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    ]
    loss, nll, correct, *_ = _sweep(hidden, weight, target, bias, label_smoothing, ignore_index, *wanted)
    return CrossEntropy(loss, nll, correct)


def _check(hidden: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, smoothing: float) -> None:
    fits = hidden.dim() == weight.dim() == 2 and hidden.size(1) == weight.size(1) and target.shape == hidden.shape[:1]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (hidden, weight, target, bias) if tensor is not None)
        raise ValueError(f"hidden, weight, target (and bias) must be [N, D], [V, D], [N] (and [V]), not {shapes}")
    if not 0 <= smoothing <= 1:
        raise ValueError(f"label_smoothing must lie in [0, 1], not {smoothing}")


@torch.library.custom_op("xrep::linear_cross_entropy", mutates_args=())
def _sweep(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    smoothing: float,
    ignore_index: int,
    of_hidden: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, nll, correctness and the gradients that are wanted, empty where not."""
    with torch.autocast(hidden.device.type, enabled=False):
        steps = steps_for(hidden.device)
        differentiable = of_hidden or of_weight or of_bias
        accumulate, operand = accumulation_dtype(hidden), steps.operand_dtype(hidden)
        rows, columns = hidden.to(operand), weight.to(operand)
        nll = torch.zeros(len(hidden), dtype=accumulate, device=hidden.device)
        correct = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
        loss = torch.zeros((), dtype=accumulate, device=hidden.device)
        for_hidden = torch.empty_like(rows, dtype=accumulate) if of_hidden else nll.new_empty(0)
        for_weight = torch.zeros_like(columns, dtype=accumulate) if of_weight else nll.new_empty(0)
        for_bias = torch.zeros_like(bias, dtype=accumulate) if of_bias else nll.new_empty(0)
        count = max(128, steps.VOCABULARY_LOGITS // max(1, len(weight)))
        for start in range(0, len(hidden), count):
            block = slice(start, start + count)
            logits = multiply(rows[block], columns.t())
            if bias is not None:
                logits += bias
            ignored = target[block] == ignore_index
            found = steps.vocabulary_softmax(
                logits, target[block], smoothing, ignored, operand if differentiable else None
            )
            loss += found[0].sum()
            nll[block], correct[block], gradient = found[1:]
            if of_hidden:
                multiply(gradient, columns, out=for_hidden[block])
            if of_weight:
                multiply_add(for_weight, gradient.t(), rows[block])
            if of_bias:
                for_bias += gradient.sum(0, dtype=accumulate)
    return loss, nll, correct, for_hidden, for_weight, for_bias


@_sweep.register_fake
def _(hidden, weight, target, bias, smoothing, ignore_index, of_hidden, of_weight, of_bias):
    tokens = hidden.new_empty(len(hidden), dtype=accumulation_dtype(hidden))
    return (
        tokens.new_empty(()),
        tokens,
        tokens.new_empty(len(hidden), dtype=torch.bool),
        tokens.new_empty(hidden.shape if of_hidden else 0),
        tokens.new_empty(weight.shape if of_weight else 0),
        tokens.new_empty(len(weight) if of_bias else 0),
    )


@torch.library.custom_op("xrep::linear_cross_entropy_backward", mutates_args=())
def _scale(gradient: Tensor, of_loss: Tensor, like: Tensor) -> Tensor:
    """The gradient of the forward pass times that of the loss, in the type of what it belongs to."""
    return (gradient * of_loss).to(like.dtype)


@_scale.register_fake
def _(gradient, of_loss, like):
    return torch.empty_like(like)


def _keep(ctx, inputs, output) -> None:
    hidden, weight, _, bias, *_, of_hidden, of_weight, of_bias = inputs
    _, nll, correct, *gradients = output
    pairs = zip((of_hidden, of_weight, of_bias), gradients, (hidden, weight, bias), strict=True)
    ctx.wanted = (of_hidden, of_weight, of_bias)
    ctx.save_for_backward(*(tensor for wanted, gradient, like in pairs if wanted for tensor in (gradient, like)))
    ctx.mark_non_differentiable(nll, correct, *gradients)


def _backward(ctx, of_loss, *_):
    saved = iter(ctx.saved_tensors)
    hidden, weight, bias = (_scale(next(saved), of_loss, next(saved)) if wanted else None for wanted in ctx.wanted)
    return hidden, weight, None, bias, None, None, None, None, None


_sweep.register_autograd(_backward, setup_context=_keep)

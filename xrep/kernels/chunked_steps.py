"""The work on one block of similarities, in plain torch. ``triton_steps`` has the same functions as fused kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from xrep.kernels.blocks import SMALLEST_SQUARE, Hardness, Pairs, PairStatistics, QueueSoftmax

NOTHING = float("-inf")
"""The logit of a pair that is not compared."""

QUEUE_ROWS = 4096
"""Rows of the queue in one block: few enough that the block stays in cache between the two products."""

TILE = (1024, 2048)
"""Rows and columns of one tile of pairs."""

STRIP = 2**16
"""Number of pairs of a tile that go through all steps after the product before the next ones do."""

KEPT_PAIRS = 2**26
"""Most similarities that are kept from the forward to the backward pass; if there are more, they are computed again."""

VOCABULARY_LOGITS = 2**25
"""Number of logits in one block of the vocabulary loss. A block consists of whole rows."""


def queue_rows(queries: int) -> int:
    """Return the rows of the queue in one block for a number of queries."""
    return QUEUE_ROWS


def absorb(scores: Tensor, state: QueueSoftmax, ids: tuple[Tensor, Tensor] | None) -> Tensor:
    """Add a block of the queue to the running softmax of each query.

    Args:
        scores: [B, n] similarities; overwritten.
        state: updated in place; its mixture is rescaled, so that the caller can add the block's rows by the weights.
        ids: ids of the queries [B, C] and of the block [n, C]; rows that are equal in any column are not negatives.

    Returns:
        exp(logit - maximum) [B, n], the weights of the block's rows, in the type ``state.operand``.
    """
    if state.scale is not None:
        scores *= state.scale
    if ids is not None:
        scores.masked_fill_(_equal(*ids), NOTHING)
    highest = scores.amax(1)
    torch.maximum(state.hardest, highest, out=state.hardest)
    raised = torch.maximum(state.maximum, highest)
    shrink = (state.maximum - raised).exp_()
    weights = scores.sub_(raised.unsqueeze(1)).exp_()
    state.total.mul_(shrink).add_(weights.sum(1))
    if state.mixture is not None:
        state.mixture *= shrink.unsqueeze(1)
    state.maximum.copy_(raised)
    return weights.to(state.operand)


def collect(similarities: Tensor, pairs: Pairs, statistics: PairStatistics) -> None:
    """Add a tile of similarities [r, c] to its statistics; it may be masked in place."""
    for strip in _strips(similarities):
        part, logits, of_strip = pairs.tile(*strip), similarities[strip], statistics.tile(*strip)
        maximum, total, *hard = of_strip.rows
        if hard:
            logits = _collect_hard(logits, part, *hard)
        else:
            logits = _mask(_scaled(logits, part), part, NOTHING)
        _update(maximum, total, logits, 1)
        if of_strip.columns:
            maximum, total = of_strip.columns
            _update(maximum, total, logits, 0)


def _scaled(similarities: Tensor, pairs: Pairs) -> Tensor:
    """Return the logits of similarities without hard negatives."""
    return similarities if pairs.scale is None else similarities * pairs.scale


def _strips(tile: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield rows of a tile that fit the fastest cache, with all columns."""
    rows, columns = tile.shape
    size = max(1, STRIP // columns)
    for start in range(0, rows, size):
        yield slice(start, start + size), slice(0, columns)


def _collect_hard(dot: Tensor, pairs: Pairs, best: Tensor, interpolation: Tensor, compared: Tensor) -> Tensor:
    """Update the statistics of hard negatives, and return their logits."""
    assert pairs.hard is not None and pairs.scale is not None
    excluded = _excluded(dot, pairs)
    cosine, mixed, _ = _harden(dot, pairs.hard)
    norms = pairs.hard.row_squares.rsqrt().unsqueeze(1) * pairs.hard.column_squares.rsqrt()
    plain = norms.mul_(dot).masked_fill_(excluded, NOTHING).amax(1) * pairs.scale
    torch.maximum(best, plain, out=best)
    interpolation += mixed.masked_fill_(excluded, 0).sum(1)
    compared += excluded.size(1) - excluded.sum(1)
    return cosine.mul_(pairs.scale).masked_fill_(excluded, NOTHING)


def _update(maximum: Tensor, total: Tensor, logits: Tensor, dim: int) -> None:
    raised = torch.maximum(maximum, logits.amax(dim))
    finite = raised.masked_fill(raised == NOTHING, 0)
    total.mul_((maximum - finite).exp_()).add_((logits - finite.unsqueeze(dim)).exp_().sum(dim))
    maximum.copy_(raised)


def differentiate(similarities: Tensor, pairs: Pairs, gradient: PairStatistics, out: Tensor) -> None:
    """Write the gradient towards a tile of similarities [r, c] into ``out``, without the factor 1 / temperature.

    With hard negatives, the sums in ``gradient`` are also updated in place.
    """
    for strip in _strips(similarities):
        part, logits, of_strip = pairs.tile(*strip), similarities[strip], gradient.tile(*strip)
        if part.hard is not None:
            offset, weight, of_squares, of_scale = of_strip.rows
            _differentiate_hard(logits, part, offset, weight, of_squares, of_scale, of_strip.columns[0], out[strip])
            continue
        offset, weight = of_strip.rows
        logits = _scaled(logits, part)
        room = out[strip] if out.dtype == logits.dtype else None
        weights = torch.sub(logits, offset.unsqueeze(1), out=room).exp_().mul_(weight.unsqueeze(1))
        if of_strip.columns:
            offset, weight = of_strip.columns
            weights.addcmul_((logits - offset).exp_(), weight)
        _mask(weights, part, 0.0)
        if room is None:
            out[strip] = weights


def _differentiate_hard(
    dot: Tensor,
    pairs: Pairs,
    offset: Tensor,
    weight: Tensor,
    of_row_squares: Tensor,
    of_scale: Tensor,
    of_column_squares: Tensor,
    out: Tensor,
) -> None:
    assert pairs.hard is not None and pairs.scale is not None
    cosine, interpolation, square = _harden(dot, pairs.hard)
    weight = (cosine * pairs.scale).sub_(offset.unsqueeze(1)).exp_().mul_(weight.unsqueeze(1))
    weight.masked_fill_(_excluded(dot, pairs), 0)
    of_scale += (weight * cosine).sum(1)
    # With a = |q|², b = |k|², u = q·k and N = |k̂|², the cosine is ((1 - λ) a + λ u) / √(a N). Its derivatives by a, b
    # and u follow.
    a, rest = pairs.hard.row_squares.unsqueeze(1), 1 - interpolation
    inverse = (a * square).rsqrt_()
    per_square = cosine / square
    of_a = (rest * inverse).sub_(cosine / (2 * a)).sub_(per_square * rest.square(), alpha=0.5)
    of_row_squares += of_a.mul_(weight).sum(1)
    of_column_squares -= (weight * per_square).mul_(interpolation.square()).sum(0) / 2
    torch.mul(weight, inverse.sub_(per_square.mul_(rest)).mul_(interpolation), out=out)


def vocabulary_softmax(
    logits: Tensor, target: Tensor, smoothing: float, ignored: Tensor, operand: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, negative log-likelihood, correctness [n] and gradient [n, V] of rows of logits [n, V] (overwritten).

    Args:
        target: int64 [n].
        smoothing: the target distribution is (1 - smoothing) · onehot + smoothing / V.
        ignored: bool [n], rows whose loss and gradient are 0.
        operand: type of the gradient; None if it is not wanted (the returned one is then meaningless).
    """
    index = target.masked_fill(ignored, 0).unsqueeze(1)
    maximum = logits.amax(1)
    at_target = logits.gather(1, index).squeeze(1)
    mean = logits.mean(1) if smoothing else at_target
    weights = logits.sub_(maximum.unsqueeze(1)).exp_()
    total = weights.sum(1)
    nll = (maximum - at_target) + total.log()
    loss = nll + smoothing * (at_target - mean)
    correct = (at_target == maximum) & ~ignored
    if operand is not None:
        weights *= total.reciprocal_().masked_fill_(ignored, 0).unsqueeze(1)
        counted = (~ignored).to(weights.dtype).unsqueeze(1)
        if smoothing:
            weights -= counted * (smoothing / logits.size(1))
        weights.scatter_add_(1, index, counted * (smoothing - 1))
        weights = weights.to(operand)
    return loss.masked_fill_(ignored, 0), nll.masked_fill_(ignored, 0), correct, weights


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Return whether rows of ``a`` [r, I] and ``b`` [c, I] are equal in any column: bool [r, c]."""
    result = a[:, :1] == b[:, 0]
    for column in range(1, a.size(1)):
        result |= a[:, column : column + 1] == b[:, column]
    return result


def _excluded(tile: Tensor, pairs: Pairs) -> Tensor:
    """Return which pairs are not compared, bool [r, c]."""
    return _mask(torch.zeros_like(tile, dtype=torch.bool), pairs, True)


def _mask(tile: Tensor, pairs: Pairs, value: float) -> Tensor:
    """Write ``value`` in place for the pairs that are not compared."""
    if pairs.ids is not None:
        tile.masked_fill_(_equal(*pairs.ids), value)
    # Columns outside of the tile get the value that they have, one listed column after the other. To find those inside,
    # a GPU would have to be waited for.
    for column in pairs.excluded.split(1, dim=1) if tile.size(1) else ():
        inside = column.clamp(0, tile.size(1) - 1)
        tile.scatter_(1, inside, tile.gather(1, inside).masked_fill_(inside == column, value))
    return tile


def _harden(dot: Tensor, hard: Hardness) -> tuple[Tensor, Tensor, Tensor]:
    """Return cos(q, k̂), λ and |k̂|² [r, c] of the harder negative k̂ = q + λ(k - q) (HiCTL, equations 5 and 6)."""
    a, b, positive = hard.row_squares.unsqueeze(1), hard.column_squares, hard.row_distance.unsqueeze(1)
    distance = (a + b).sub_(dot, alpha=2).clamp_(min=0)
    interpolation = torch.where(distance > positive, positive / distance, 1.0).pow_(hard.exponent / 2)
    rest = 1 - interpolation
    square = rest.square().mul_(a) + interpolation.square().mul_(b) + (2 * interpolation * rest).mul_(dot)
    square.clamp_(min=SMALLEST_SQUARE)
    cosine = (rest * a).addcmul_(interpolation, dot).mul_((a * square).rsqrt_())
    return cosine, interpolation, square

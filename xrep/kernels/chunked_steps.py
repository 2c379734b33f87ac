"""The work on one block of similarities, in plain torch. ``triton_steps`` has the same functions as fused kernels."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from xrep.kernels.blocks import SMALLEST_SQUARE, PairGradient, Pairs, PairStatistics, QueueSoftmax
from xrep.kernels.precision import accumulation_dtype

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


def operand_dtype(tensor: Tensor) -> torch.dtype:
    """Return the type in which products read such a tensor.

    It is float32 at least, because CPUs round a product to the type of its operands.
    """
    return accumulation_dtype(tensor)


def absorb(scores: Tensor, state: QueueSoftmax, ids: tuple[Tensor, Tensor] | None) -> Tensor:
    """Add a block of the queue to the running softmax of each query.

    Args:
        scores: [B, n] similarities; overwritten.
        state: updated in place; its mixture is rescaled, so that the caller can add the block's rows by the weights.
        ids: ids of the queries [B, C] and of the block [n, C]; rows that are equal in any column are not negatives.

    Returns:
        exp(logit - maximum) [B, n], the weights of the block's rows, in the type ``state.operand``.
    """
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
    return weights


def collect(similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, found: PairStatistics) -> None:
    """Add a tile of similarities [r, c] to the running statistics; without hard negatives it is masked in place."""
    for part, strip in _strips(rows, columns):
        _collect_strip(similarities[part], pairs, strip, columns, found)


def _strips(rows: slice, columns: slice) -> Iterator[tuple[slice, slice]]:
    """Yield row ranges of a tile that fit the fastest cache, counted from the tile's first row and from row 0."""
    size = max(1, STRIP // (columns.stop - columns.start))
    for start in range(rows.start, rows.stop, size):
        stop = min(start + size, rows.stop)
        yield slice(start - rows.start, stop - rows.start), slice(start, stop)


def _collect_strip(similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, found: PairStatistics) -> None:
    if pairs.exponent is None:
        logits = _mask(similarities, pairs, rows, columns, NOTHING)
    else:
        assert found.row_best is not None and found.interpolation is not None and found.compared is not None
        assert pairs.row_squares is not None and pairs.column_squares is not None and pairs.scale is not None
        excluded = _excluded(pairs, rows, columns)
        cosine, interpolation = _harden(similarities, pairs, rows, columns)[:2]
        norms = pairs.row_squares[rows].rsqrt().unsqueeze(1) * pairs.column_squares[columns].rsqrt()
        plain = norms.mul_(similarities).masked_fill_(excluded, NOTHING).amax(1) * pairs.scale
        torch.maximum(found.row_best[rows], plain, out=found.row_best[rows])
        found.interpolation[rows] += interpolation.masked_fill_(excluded, 0).sum(1)
        found.compared[rows] += excluded.size(1) - excluded.sum(1)
        logits = cosine.mul_(pairs.scale).masked_fill_(excluded, NOTHING)
    _update(found.row_maximum[rows], found.row_total[rows], logits, 1)
    if found.column_maximum is not None and found.column_total is not None:
        _update(found.column_maximum[columns], found.column_total[columns], logits, 0)


def _update(maximum: Tensor, total: Tensor, logits: Tensor, dim: int) -> None:
    raised = torch.maximum(maximum, logits.amax(dim))
    finite = raised.masked_fill(raised == NOTHING, 0)
    total.mul_((maximum - finite).exp_()).add_((logits - finite.unsqueeze(dim)).exp_().sum(dim))
    maximum.copy_(raised)


def differentiate(
    similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, wanted: PairGradient, out: Tensor
) -> None:
    """Write the gradient towards a tile of similarities [r, c] into ``out``, without the factor 1 / temperature.

    With hard negatives, the sums in ``wanted`` are also updated in place.
    """
    for part, strip in _strips(rows, columns):
        if pairs.exponent is None:
            _differentiate_plain(similarities[part], pairs, strip, columns, wanted, out[part])
        else:
            _differentiate_hard(similarities[part], pairs, strip, columns, wanted, out[part])


def _differentiate_plain(
    similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, wanted: PairGradient, out: Tensor
) -> None:
    torch.sub(similarities, wanted.row_offset[rows].unsqueeze(1), out=out)
    out.exp_().mul_(wanted.row_weight[rows].unsqueeze(1))
    if wanted.column_offset is not None and wanted.column_weight is not None:
        other = (similarities - wanted.column_offset[columns]).exp_()
        out.addcmul_(other, wanted.column_weight[columns])
    _mask(out, pairs, rows, columns, 0.0)


def _differentiate_hard(
    similarities: Tensor, pairs: Pairs, rows: slice, columns: slice, wanted: PairGradient, out: Tensor
) -> None:
    assert pairs.row_squares is not None and pairs.scale is not None and wanted.of_scale is not None
    assert wanted.of_row_squares is not None and wanted.of_column_squares is not None
    cosine, interpolation, square = _harden(similarities, pairs, rows, columns)
    weight = (cosine * pairs.scale).sub_(wanted.row_offset[rows].unsqueeze(1)).exp_()
    weight.mul_(wanted.row_weight[rows].unsqueeze(1)).masked_fill_(_excluded(pairs, rows, columns), 0)
    wanted.of_scale[rows] += (weight * cosine).sum(1)
    # With a = |q|², b = |k|², u = q·k and N = |k̂|², the cosine is ((1 - λ) a + λ u) / √(a N). Its derivatives by a, b
    # and u follow.
    a, rest = pairs.row_squares[rows].unsqueeze(1), 1 - interpolation
    inverse = (a * square).rsqrt_()
    per_square = cosine / square
    of_a = (rest * inverse).sub_(cosine / (2 * a)).sub_(per_square * rest.square(), alpha=0.5)
    wanted.of_row_squares[rows] += of_a.mul_(weight).sum(1)
    wanted.of_column_squares[columns] -= (weight * per_square).mul_(interpolation.square()).sum(0) / 2
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
    return loss.masked_fill_(ignored, 0), nll.masked_fill_(ignored, 0), correct, weights


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Return whether rows of ``a`` [r, I] and ``b`` [c, I] are equal in any column: bool [r, c]."""
    result = a[:, :1] == b[:, 0]
    for column in range(1, a.size(1)):
        result |= a[:, column : column + 1] == b[:, column]
    return result


def _excluded_places(pairs: Pairs, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
    """Return the rows and columns, within the tile, of the pairs that ``pairs.excluded`` lists."""
    listed = pairs.excluded[rows]
    row, which = ((listed >= columns.start) & (listed < columns.stop)).nonzero(as_tuple=True)
    return row, listed[row, which] - columns.start


def _excluded(pairs: Pairs, rows: slice, columns: slice) -> Tensor:
    if pairs.row_ids is not None and pairs.column_ids is not None:
        result = _equal(pairs.row_ids[rows], pairs.column_ids[columns])
    else:
        size = (rows.stop - rows.start, columns.stop - columns.start)
        result = torch.zeros(size, dtype=torch.bool, device=pairs.excluded.device)
    result[_excluded_places(pairs, rows, columns)] = True
    return result


def _mask(tile: Tensor, pairs: Pairs, rows: slice, columns: slice, value: float) -> Tensor:
    """Write ``value`` in place for the pairs that are not compared."""
    if pairs.row_ids is not None and pairs.column_ids is not None:
        tile.masked_fill_(_equal(pairs.row_ids[rows], pairs.column_ids[columns]), value)
    tile[_excluded_places(pairs, rows, columns)] = value
    return tile


def _harden(dot: Tensor, pairs: Pairs, rows: slice, columns: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return cos(q, k̂), λ and |k̂|² [r, c] of the harder negative k̂ = q + λ(k - q) (HiCTL, equations 5 and 6)."""
    assert pairs.row_squares is not None and pairs.column_squares is not None
    assert pairs.row_distance is not None and pairs.exponent is not None
    a, b = pairs.row_squares[rows].unsqueeze(1), pairs.column_squares[columns]
    positive = pairs.row_distance[rows].unsqueeze(1)
    distance = (a + b).sub_(dot, alpha=2).clamp_(min=0)
    farther = distance > positive
    interpolation = torch.where(farther, positive / distance, 1.0).pow_(pairs.exponent / 2)
    rest = 1 - interpolation
    square = rest.square().mul_(a) + interpolation.square().mul_(b) + (2 * interpolation * rest).mul_(dot)
    square.clamp_(min=SMALLEST_SQUARE)
    cosine = (rest * a).addcmul_(interpolation, dot).mul_((a * square).rsqrt_())
    return cosine, interpolation, square

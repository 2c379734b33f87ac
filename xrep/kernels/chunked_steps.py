"""The work on one block of similarities, in plain torch. ``triton_steps`` has the same functions as fused kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from xrep.kernels.blocks import SMALLEST_SQUARE, Hardness, Pairs, PairStatistics

NOTHING = float("-inf")
"""The logit of a pair that is not compared."""

HUGE = 1e30
"""Stands for infinity where infinity times 0 must be 0."""

TILE = (1024, 2048)
"""Rows and columns of one tile of pairs."""

WIDE_TILE = 2**25
"""Most pairs in a tile of whole rows, which hard negatives need."""

STRIP = 2**16
"""Number of pairs of a tile that go through all steps after the product before the next ones do, for each thread."""

KEPT_PAIRS = 2**26
"""Most similarities that are kept from the forward to the backward pass; if there are more, they are computed again."""

SMALL = 60.0
"""Logits of this size have exponentials whose sums are far from the limits of float32, on both sides."""


def tile(columns: int, hard: bool) -> tuple[int, int]:
    """Return the rows and columns of one tile of pairs."""
    return (max(1, min(TILE[0], WIDE_TILE // max(1, columns))), max(1, columns)) if hard else TILE


def collect(similarities: Tensor, pairs: Pairs, statistics: PairStatistics, beside: Tensor | None = None) -> None:
    """Add a tile of similarities [r, c] to its statistics. It is masked in place.

    Small logits are replaced by their exponentials, whose sums are collected as they are: rows, columns and gradient
    need no other ones, and nothing is rounded before the exponential.

    With hard negatives a tile has all columns, and ``beside`` [r, c] says that the gradient is wanted. The similarities
    are then replaced by what, multiplied by the row's weight in the loss, is the gradient towards them. ``beside`` gets
    the same of the squared norms of columns, but for the factor -1/2.
    """
    if pairs.hard is not None:
        _collect_hard(similarities, pairs, statistics.rows, beside)
        return
    logits = _mask(_scaled(similarities, pairs), pairs, NOTHING)
    for strip in _strips(similarities):
        part, of_strip = logits[strip], statistics.tile(*strip)
        sides = [(1, of_strip.rows), *([(0, of_strip.columns)] if of_strip.columns else [])]
        if not pairs.small:
            for dim, (maximum, total) in sides:
                _update(maximum, total, dim, part)
            continue
        for dim, (maximum, _) in sides:
            torch.maximum(maximum, part.amax(dim), out=maximum)
        part.exp_()
        for dim, (_, total) in sides:
            total += part.sum(dim)


def exponentials(similarities: Tensor, pairs: Pairs) -> Tensor:
    """Return the exponentials of a tile of small logits, in place; those of pairs that are not compared are 0."""
    return _mask(similarities, pairs, NOTHING).exp_()


def _scaled(similarities: Tensor, pairs: Pairs) -> Tensor:
    """Return the logits of similarities without hard negatives."""
    return similarities if pairs.scale is None else similarities * pairs.scale


def _strips(tile: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield rows of a tile that fit the fastest cache, with all columns."""
    rows, columns = tile.shape
    size = max(1, STRIP * torch.get_num_threads() // columns)
    for start in range(0, rows, size):
        yield slice(start, start + size), slice(0, columns)


def _room(tile: Tensor, count: int) -> list[Tensor]:
    """Return memory for ``count`` strips of a tile: to allocate it for each step would take as long as the step."""
    size = min(tile.numel(), max(STRIP * torch.get_num_threads(), tile.size(1)))
    return [tile.new_empty(size) for _ in range(count)]


def _fitting(room: list[Tensor], strip: Tensor) -> list[Tensor]:
    return [each[: strip.numel()].view(strip.shape) for each in room]


def _collect_hard(similarities: Tensor, pairs: Pairs, rows: Sequence[Tensor], beside: Tensor | None) -> None:
    """Compute the statistics of rows with hard negatives from all of their columns, and the gradient if wanted.

    With a = |q|², b = |k|², u = q·k, s = q·k̂, v = k·k̂ and N = |k̂|², the cosine is s / √(a N). Because s and N are
    (1 - λ) a + λ u and (1 - λ) s + λ v, its derivatives are λ² v / (N √(a N)) by u and -λ² s / (2 N √(a N)) by b. That
    by a follows from these two: if q and k get longer by the same factor, the cosine stays.
    """
    assert pairs.hard is not None and pairs.scale is not None
    room, width = _room(similarities, 6), similarities.size(1)
    of_rows, of_columns = pairs.hard.row_squares.rsqrt() * pairs.scale, pairs.hard.column_squares.rsqrt()
    for strip, places in zip(_strips(similarities), _not_compared(similarities, pairs), strict=True):
        dot, hard = similarities[strip], pairs.hard.rows(strip[0])
        maximum, total, best, interpolation, compared, of_squares, of_scale = (each[strip[0]] for each in rows)
        *four, logits, powers = _fitting(room, dot)
        mixed, along_query, along_key, square = _harden(dot, hard, four)
        scale, inverse = of_rows[strip[0]].unsqueeze(1), square.rsqrt_()
        plain = torch.mul(dot, of_columns, out=powers)
        torch.mul(along_query, inverse, out=logits).mul_(scale)
        for array, value in ((logits, NOTHING), (plain, NOTHING), (mixed, 0.0)):
            _fill(array, places, value)
        best.copy_(plain.amax(1) * scale.squeeze(1))
        interpolation.copy_(mixed.sum(1))
        masked = places.dtype == torch.bool
        compared.copy_(width - (places.sum(1) if masked else torch.bincount(places // width, minlength=len(dot))))
        maximum.copy_(logits.amax(1))
        torch.sub(logits, maximum.masked_fill(maximum == NOTHING, 0).unsqueeze(1), out=powers).exp_()
        total.copy_(powers.sum(1))
        if beside is None:
            continue
        _fill(logits, places, 0.0)  # their powers are 0
        of_scale.copy_(logits.mul_(powers).sum(1))
        weights = mixed.mul_(inverse).square_().mul_(inverse).mul_(powers)
        of_column = torch.mul(along_query, weights, out=beside[strip])
        along_key *= weights
        of_squares.copy_(of_column @ hard.column_squares / 2 - torch.mul(dot, along_key, out=logits).sum(1))
        of_squares /= hard.row_squares
        dot.copy_(along_key)


def _update(maximum: Tensor, total: Tensor, dim: int, logits: Tensor) -> None:
    raised = torch.maximum(maximum, logits.amax(dim))
    finite = raised.masked_fill(raised == NOTHING, 0)
    total.mul_((maximum - finite).exp_()).add_((logits - finite.unsqueeze(dim)).exp_().sum(dim))
    maximum.copy_(raised)


def differentiate(similarities: Tensor, pairs: Pairs, gradient: PairStatistics, out: Tensor) -> None:
    """Write the gradient towards a tile of similarities [r, c] into ``out``, without the factor 1 / temperature.

    With hard negatives, the sums in ``gradient`` are also updated in place.

    Args:
        similarities: with small logits, their exponentials.
    """
    if pairs.hard is not None:
        _differentiate_hard(similarities, pairs, gradient, out)
        return
    if pairs.small:
        _differentiate_small(similarities, gradient, out)
        return
    for strip in _strips(similarities):
        part, logits, of_strip = pairs.tile(*strip), similarities[strip], gradient.tile(*strip)
        offset, weight = of_strip.rows
        place = out[strip] if out.dtype == logits.dtype else torch.empty_like(logits)
        logits = _scaled(logits, part)
        weights = torch.sub(logits, offset.unsqueeze(1), out=place).exp_().mul_(weight.unsqueeze(1))
        if of_strip.columns:
            offset, weight = of_strip.columns
            weights.addcmul_((logits - offset).exp_(), weight)
        if out.dtype != logits.dtype:
            out[strip] = weights
    _mask(out, pairs, 0.0)


def _differentiate_small(powers: Tensor, gradient: PairStatistics, out: Tensor) -> None:
    rows, *columns = (side[1] * (-side[0]).exp() for side in (gradient.rows, gradient.columns) if side)
    for some, _ in _strips(powers):
        if columns:
            torch.add(rows[some].unsqueeze(1), columns[0], out=out[some]).mul_(powers[some])
        else:
            torch.mul(powers[some], rows[some].unsqueeze(1), out=out[some])


def _differentiate_hard(similarities: Tensor, pairs: Pairs, gradient: PairStatistics, out: Tensor) -> None:
    assert pairs.hard is not None
    offset, weight, of_row_squares, of_scale = gradient.rows
    rows, of_columns = [torch.zeros_like(weight) for _ in range(7)], torch.empty_like(similarities)
    _collect_hard(similarities, pairs, rows, of_columns)
    of_rows = [offset, weight * (rows[0] - offset).exp(), of_row_squares, of_scale]
    factor = weigh(pairs, PairStatistics(of_rows, gradient.columns), of_columns, torch.stack(rows[5:]))
    torch.mul(similarities, factor.unsqueeze(1), out=out)


def weigh(pairs: Pairs, gradient: PairStatistics, beside: Tensor, sums: Tensor) -> Tensor:
    """Return the factor [r] of each row of the gradient that ``collect`` found with hard negatives.

    The gradients of squared norms and temperature are added to ``gradient``.

    Args:
        beside, sums: [r, c] and [2, r], what ``collect`` found besides.
    """
    assert pairs.hard is not None and pairs.scale is not None
    _, weight, of_squares, of_scale = gradient.rows
    factor = weight * pairs.hard.row_squares.rsqrt()
    of_squares += sums[0] * factor
    of_scale += sums[1] * weight / pairs.scale
    gradient.columns[0].sub_(factor @ beside, alpha=0.5)
    return factor


def _not_compared(tile: Tensor, pairs: Pairs) -> list[Tensor]:
    """Return for each strip of a tile the pairs that are not compared: their places, or on GPUs a mask [r, c], because
    the host would wait for the number of places."""
    if tile.device.type == "cpu":
        return _by_strip(_holes(tile, pairs), tile)
    excluded = _mask(torch.zeros_like(tile, dtype=torch.bool), pairs, True)
    return [excluded[strip] for strip in _strips(tile)]


def _fill(array: Tensor, places: Tensor, value: float) -> None:
    """Set the numbers at the places of ``_not_compared``."""
    if places.dtype == torch.bool:
        array.masked_fill_(places, value)
    else:
        array.view(-1).index_fill_(0, places, value)


def _holes(tile: Tensor, pairs: Pairs) -> Tensor:
    """Return the places of the pairs that are not compared in a flattened tile, int64, ascending."""
    rows, columns = tile.shape
    inside = (pairs.excluded >= 0) & (pairs.excluded < columns)
    flat = (torch.arange(rows, device=tile.device).unsqueeze(1) * columns + pairs.excluded)[inside]
    if pairs.ids is not None:
        flat = torch.cat([flat, _equal(*pairs.ids).flatten().nonzero().squeeze(1)])
    return flat.unique()


def _by_strip(holes: Tensor, tile: Tensor) -> list[Tensor]:
    """Return for each strip of a tile the places in it, counted from its beginning."""
    first = torch.tensor([rows.start for rows, _ in _strips(tile)], device=holes.device) * tile.size(1)
    parts = holes.tensor_split(torch.searchsorted(holes, first[1:]).tolist())
    return [part - start for part, start in zip(parts, first.tolist(), strict=True)]


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Return whether rows of ``a`` [r, I] and ``b`` [c, I] are equal in any column: bool [r, c]."""
    result = a[:, :1] == b[:, 0]
    for column in range(1, a.size(1)):
        result |= a[:, column : column + 1] == b[:, column]
    return result


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


def _harden(dot: Tensor, hard: Hardness, room: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return λ, q·k̂, k·k̂ and |k̂|² [r, c] of the harder negative k̂ = q + λ(k - q) (HiCTL, equations 5 and 6).

    They are the first four arrays of ``room``, in this order.
    """
    mixed, along_query, along_key, square = room[:4]
    a, b, positive = hard.row_squares.unsqueeze(1), hard.column_squares, hard.row_distance.unsqueeze(1)
    # λ = (d⁺² / d⁻²)^(ζ p⁺ / 2), or 1 if d⁻ <= d⁺. A logarithm and an exponential take less time than a power.
    least = positive.clamp(min=torch.finfo(dot.dtype).tiny)
    slope = torch.full_like(positive, -0.5).masked_fill_(positive == 0, -0.5 * HUGE)  # with d⁺ = 0, λ is 0 or 1
    torch.add(b, dot, alpha=-2, out=mixed).add_(a)
    torch.maximum(mixed, least, out=mixed).log_().sub_(least.log()).mul_(slope * hard.exponent).exp_()
    # k̂ lies between q and k, and so do its products with both.
    torch.lerp(a, dot, mixed, out=along_query)
    torch.lerp(dot, b, mixed, out=along_key)
    torch.lerp(along_query, along_key, mixed, out=square).clamp_(min=SMALLEST_SQUARE)
    return mixed, along_query, along_key, square

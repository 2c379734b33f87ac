"""Helpers of the tests of the losses between two sides of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tests.support.closeness import error
from xrep.kernels import chunked_steps

Results = dict[str, Tensor]

TILES = [(7, 5), (16, 3), (9, 2), (64, 128)]
"""Rows and columns of a tile. None divides most batches, and the last is larger than any batch."""

SLACK = {torch.float64: 1e-9, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Tolerance by which an error may exceed one and a half times that of plain torch."""


@contextmanager
def tiles(shape: tuple[int, int], kept: bool = True) -> Iterator[None]:
    """A context in which tiles of similarities have this shape, and are kept for the backward pass or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_steps, "TILE", shape)
        patch.setattr(chunked_steps, "KEPT_PAIRS", 2**26 if kept else 0)
        yield


def differentiate(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, y: Tensor, tau: Tensor, weights: Tensor
) -> Results:
    """Return the losses [2, B] and the gradients of a weighted sum of them."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, y, tau)]
    losses = loss(*leaves)
    (losses * weights.to(losses.dtype)).sum().backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return dict(zip(("loss", "x", "y", "tau"), (losses.detach(), *gradients), strict=True))


def check(found: Results, plain: Results, exact: Results, slack: dict[str, float], units: dict[str, float]) -> None:
    """Check that no error exceeds that of plain torch by more than the slack; ``units`` are as in ``error``."""
    errors = {key: [error(results[key], exact[key], units[key]) for results in (found, plain)] for key in exact}
    assert all(mine <= 1.5 * torchs + slack[key] for key, (mine, torchs) in errors.items()), errors


def check_equal(found: Results, exact: Results) -> None:
    """Check results in float64, which differ only by the order of sums."""
    errors = {key: error(found[key], exact[key]) for key in exact}
    assert all(value <= 1e-12 for value in errors.values()), errors


def units_of(
    exact: Results, weights: Tensor, tau: Tensor, largest: float, slopes: tuple[float | Tensor, float | Tensor]
) -> dict[str, float]:
    """Return the size of the terms of the gradients, which may nearly cancel.

    Args:
        largest: The largest similarity.
        slopes: Largest derivatives of a similarity by an entry of x and of y, for each pair or as one number.
    """
    share, tau = weights.abs() * -torch.expm1(-exact["loss"]), float(tau)
    of_sides = (float((share * slope).max()) / tau for slope in slopes)
    units = dict(zip(("x", "y"), of_sides, strict=True), loss=0.0, tau=float(share.sum()) * largest / tau**2)
    return {key: max(unit, 1e-3) for key, unit in units.items()}


def make_ids(batch: int, columns: int, sentences: int, generator: torch.Generator) -> Tensor:
    """Return ids [B, columns] with ``sentences`` different values in each column."""
    return torch.randint(sentences, (batch, columns), generator=generator)


def same_sentences(ids: Tensor | None, batch: int) -> Tensor:
    """Return bool [B, B]: pairs that are not negatives of each other, including each pair with itself."""
    same = torch.eye(batch, dtype=torch.bool)
    return same if ids is None else same | (ids[:, None] == ids[None]).any(2)

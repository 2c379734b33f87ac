"""What the tests of the losses between two sides of a batch share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from xrep.kernels import chunked_steps

Results = dict[str, Tensor]

TILES = [(7, 5), (16, 3), (9, 2), (64, 128)]
"""Rows and columns of a tile: none divides most batches, the last holds any batch whole."""

SLACK = {torch.float64: 1e-9, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""By how much an error may exceed one and a half times that of plain torch."""


@contextmanager
def tiles(shape: tuple[int, int], kept: bool = True) -> Iterator[None]:
    """Context in which similarities are worked on in tiles of this shape, and kept for the backward pass or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_steps, "TILE", shape)
        patch.setattr(chunked_steps, "KEPT_PAIRS", 2**26 if kept else 0)
        yield


def differentiate(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor], x: Tensor, y: Tensor, tau: Tensor, weights: Tensor
) -> Results:
    """Losses [2, B] and the gradients of a weighted sum of them."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, y, tau)]
    losses = loss(*leaves)
    (losses * weights.to(losses.dtype)).sum().backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    return dict(zip(("loss", "x", "y", "tau"), (losses.detach(), *gradients), strict=True))


def error(found: Tensor, exact: Tensor, unit: float = 1e-3) -> float:
    """Largest difference, in units of the largest exact entry (of ``unit`` if that is larger)."""
    assert found.shape == exact.shape
    if not exact.numel():
        return 0.0
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp(min=unit))


def check(found: Results, plain: Results, exact: Results, slack: dict[str, float], units: dict[str, float]) -> None:
    """No error worse than that of plain torch, but for the slack; ``units`` as in ``error``."""
    errors = {key: [error(results[key], exact[key], units[key]) for results in (found, plain)] for key in exact}
    assert all(mine <= 1.5 * torchs + slack[key] for key, (mine, torchs) in errors.items()), errors


def check_equal(found: Results, exact: Results) -> None:
    """In float64, whatever was added up in another order."""
    errors = {key: error(found[key], exact[key]) for key in exact}
    assert all(value <= 1e-12 for value in errors.values()), errors


def units_of(
    exact: Results, weights: Tensor, tau: Tensor, largest: float, slopes: tuple[float | Tensor, float | Tensor]
) -> dict[str, float]:
    """How large the terms of the gradients are, which may nearly cancel.

    Args:
        largest: of the similarities.
        slopes: largest derivatives of a similarity by an entry of x and of y; of each pair, or one number.
    """
    share, tau = weights.abs() * -torch.expm1(-exact["loss"]), float(tau)
    of_sides = (float((share * slope).max()) / tau for slope in slopes)
    units = dict(zip(("x", "y"), of_sides, strict=True), loss=0.0, tau=float(share.sum()) * largest / tau**2)
    return {key: max(unit, 1e-3) for key, unit in units.items()}


def make_ids(batch: int, columns: int, sentences: int, generator: torch.Generator) -> Tensor:
    """Ids [B, columns], ``sentences`` different ones in each."""
    return torch.randint(sentences, (batch, columns), generator=generator)


def same_sentences(ids: Tensor | None, batch: int) -> Tensor:
    """bool [B, B]: pairs that are not each other's negatives, every pair itself among them."""
    same = torch.eye(batch, dtype=torch.bool)
    return same if ids is None else same | (ids[:, None] == ids[None]).any(2)

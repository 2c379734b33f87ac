"""Errors in proportion to the largest number, which are those that rounding makes.

A number that is small among large ones is a sum of terms that cancel. Its rounding error is that of the terms, and
depends on the order in which a processor adds them: a limit for the error that ignores the terms holds by chance.
"""

import numpy as np
import torch
from torch import Tensor


def error(found: Tensor, exact: Tensor, smallest: float = 1e-3) -> float:
    """Return the largest difference in units of the largest exact entry, or of ``smallest`` if that is larger."""
    assert found.shape == exact.shape
    if not exact.numel():
        return 0.0
    return float((found.detach().double() - exact).abs().max() / exact.abs().max().clamp(min=smallest))


def assert_near(found: Tensor | np.ndarray, exact: Tensor | np.ndarray, share: float = 1e-5, name: str = "") -> None:
    """Assert that the ``error`` is at most ``share``, by default that of some 80 roundings in float32."""
    wrong = error(torch.as_tensor(found), torch.as_tensor(exact).detach().double())
    assert wrong <= share, f"{name}: an error of {wrong:.2g} of the largest number"

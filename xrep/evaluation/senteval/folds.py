"""What the classifiers and the protocols share: folds of rows, fitted linear classifiers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Fold(NamedTuple):
    """Row numbers, int64: those to train on, and those to choose by (None: the classifier holds out its own)."""

    train: np.ndarray
    dev: np.ndarray | None = None


class Fitted(NamedTuple):
    """One linear classifier for each of F folds and R strengths of regularisation.

    Attributes:
        weights: float32 [F, R, D + 1, C]; the last row is the bias.
        scores: on the dev rows, float64 [F, R].
    """

    weights: np.ndarray
    scores: np.ndarray


class Classifier(Protocol):
    """A way to fit logistic regressions."""

    @property
    def name(self) -> str: ...

    @property
    def grid(self) -> tuple[float, ...]: ...

    def fit(self, x: np.ndarray, y: np.ndarray, classes: int, folds: list[Fold], grid: np.ndarray, seed: int) -> Fitted:
        """Fit on float32 [N, D] and classes [N]; ``grid`` [F, R] holds the strengths for each fold."""
        ...


def logits(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[N, C] of x [N, D] and weights [D + 1, C]."""
    return x @ weights[:-1] + weights[-1]

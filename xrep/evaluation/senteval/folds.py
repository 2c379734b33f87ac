"""Types that the classifiers and the protocols share: folds of rows, and fitted linear classifiers."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Fold(NamedTuple):
    """Row indices, int64: rows to train on, and dev rows (None: the classifier holds out some of the training rows)."""

    train: np.ndarray
    dev: np.ndarray | None = None


class Fitted(NamedTuple):
    """One linear classifier for each of F folds and R strengths of regularisation.

    Attributes:
        weights: Weights as float32 [F, R, D + 1, C]; the last row is the bias.
        scores: Scores on the dev rows, float64 [F, R].
    """

    weights: np.ndarray
    scores: np.ndarray


class Classifier(Protocol):
    """Protocol of the methods that fit logistic regressions."""

    @property
    def name(self) -> str: ...

    @property
    def grid(self) -> tuple[float, ...]: ...

    @property
    def folded_grid(self) -> tuple[float, ...]: ...

    def fit(self, x: np.ndarray, y: np.ndarray, classes: int, folds: list[Fold], grid: np.ndarray, seed: int) -> Fitted:
        """Fit classifiers for F folds.

        Args:
            x: Features, float32 [N, D].
            y: Classes, int64 [N].
            grid: Strengths of regularisation for each fold, [F, R].
        """
        ...


def logits(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the logits [N, C] of features x [N, D] with weights [D + 1, C]."""
    return x @ weights[:-1] + weights[-1]

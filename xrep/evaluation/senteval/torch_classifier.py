"""SentEval's own classifier: one linear layer, Adam, early stopping on held-out rows.

Many of them (folds times strengths of regularisation) are trained at once, each exactly as it would be alone: a step is
one product for all folds, and within a fold every strength sees the same batches, as SentEval's fixed seed has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from xrep.evaluation.senteval.folds import Fitted, Fold

BATCH = 64
_RATE, _BETA1, _BETA2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8  # torch's defaults for Adam, which SentEval keeps
_HELD_OUT = 0.05

Gradient = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Score = Callable[[torch.Tensor, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Stopping:
    """When training ends: after ``tenacity`` + 1 looks at the held-out rows without a new best score, in all, not in a
    row (SentEval's way), or past ``maximum`` epochs. The best weights count."""

    epochs: int = 4
    """Epochs between two looks."""
    tenacity: int = 5
    maximum: int = 200


@dataclass(frozen=True)
class TorchClassifier:
    """Logistic regression as SentEval trains it (nhid 0, Adam, batches of 64, epoch_size 4, tenacity 5)."""

    name: str = "senteval"
    grid: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    """Weight decays that are tried; the bias decays, too."""
    stopping: Stopping = field(default_factory=Stopping)

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, folds: Sequence[Fold], grid: np.ndarray, seed: int
    ) -> Fitted:
        """One classifier for each fold and strength.

        Args:
            x: float32 [N, D]. y: int64 [N].
            folds: a fold without dev rows holds out 5% of its training rows to stop by.
            grid: weight decays [F, R].
        """
        targets = np.eye(classes, dtype=np.float32)[y]

        def accuracy(logits: torch.Tensor, rows: np.ndarray) -> np.ndarray:
            return (logits.argmax(-1).numpy() == y[rows, None]).mean(0)

        return train(x, targets, folds, grid, seed, _cross_entropy_gradient, accuracy, self.stopping)


def _cross_entropy_gradient(probabilities: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return probabilities - targets


def squared_error_gradient(probabilities: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Of the mean over classes of (p - t)^2, with p a softmax, with regard to the logits."""
    slope = (probabilities - targets) * (2 / targets.shape[-1])
    return probabilities * (slope - (slope * probabilities).sum(-1, keepdim=True))


def train(
    x: np.ndarray,
    targets: np.ndarray,
    folds: Sequence[Fold],
    grid: np.ndarray,
    seed: int,
    gradient: Gradient,
    score: Score,
    stopping: Stopping,
) -> Fitted:
    """Train one linear layer for each fold and weight decay.

    Args:
        x: float32 [N, D]. targets: distributions over classes, float32 [N, C]. grid: weight decays [F, R].
        gradient: of an example's loss with regard to its logits, from probabilities and targets [..., C].
        score: of logits [n, R, C] on the n rows named: [R]; more is better.
    """
    generators = [np.random.default_rng(seed) for _ in folds]
    pairs = [_hold_out(fold, generator) for fold, generator in zip(folds, generators, strict=True)]
    inputs = torch.from_numpy(np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1))
    order = sorted(range(len(folds)), key=lambda fold: -len(pairs[fold][0]))  # see _Layers.epoch
    layers = _Layers(inputs, torch.from_numpy(targets), grid[order], seed, gradient)
    shape = (len(folds), grid.shape[1])
    best, misses, stopped = np.full(shape, -np.inf), np.zeros(shape, dtype=int), np.zeros(shape, dtype=bool)
    weights = np.zeros((*shape, inputs.shape[1], targets.shape[1]), dtype=np.float32)
    done = 0
    while order and done <= stopping.maximum:
        for _ in range(stopping.epochs):
            layers.epoch([generators[fold].permutation(pairs[fold][0]) for fold in order])
        done += stopping.epochs
        for place, fold in enumerate(order):
            rows = pairs[fold][1]
            scores = np.nan_to_num(score(layers.logits(place, rows), rows))
            better = (scores > best[fold]) & ~stopped[fold]
            best[fold, better] = scores[better]
            weights[fold, better] = layers.weights(place)[better]
            stopped[fold] |= ~better & (misses[fold] >= stopping.tenacity)
            misses[fold] += ~better
        keep = [place for place, fold in enumerate(order) if not stopped[fold].all()]
        if len(keep) < len(order):
            layers.keep(keep)
            order = [order[place] for place in keep]
    return Fitted(weights, best)


def _hold_out(fold: Fold, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    if fold.dev is not None:
        return fold.train, fold.dev
    rows, held = generator.permutation(fold.train), max(1, int(_HELD_OUT * len(fold.train)))
    return rows[held:], rows[:held]


class _Layers:
    """F linear layers of R * C outputs and their Adam; ``x`` [N, D + 1] ends in ones, so the last weight is a bias."""

    def __init__(self, x: torch.Tensor, targets: torch.Tensor, grid: np.ndarray, seed: int, gradient: Gradient) -> None:
        self._x, self._targets, self._gradient = x, targets, gradient
        (folds, strengths), (width, classes) = grid.shape, (x.shape[1], targets.shape[1])
        self._shape = strengths, classes
        bound = (width - 1) ** -0.5  # torch.nn.Linear's
        start = torch.empty(width, classes).uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
        self._w = start.repeat(1, strengths).expand(folds, -1, -1).clone()
        decay = torch.from_numpy(grid).float().repeat_interleave(classes, dim=1)[:, None]
        self._decay, self._steps = decay, np.zeros(folds, dtype=np.int64)
        self._mean, self._square = torch.zeros_like(self._w), torch.zeros_like(self._w)

    def weights(self, place: int) -> np.ndarray:
        """[R, D + 1, C]."""
        return self._w[place].unflatten(1, self._shape).transpose(0, 1).numpy()

    def logits(self, place: int, rows: np.ndarray) -> torch.Tensor:
        """[n, R, C]."""
        return (self._x[torch.from_numpy(rows)] @ self._w[place]).unflatten(1, self._shape)

    def keep(self, places: list[int]) -> None:
        for name in ("_w", "_decay", "_steps", "_mean", "_square"):
            setattr(self, name, getattr(self, name)[places])

    def epoch(self, orders: list[np.ndarray]) -> None:
        """One pass over the rows of each fold, in the order given.

        Folds are sorted by size, the largest first: those that still have a batch are the first ones.
        """
        sizes = np.array([len(order) for order in orders])
        steps = -(-sizes.max() // BATCH)
        rows = np.zeros((len(orders), steps * BATCH), dtype=np.int64)
        for fold, order in enumerate(orders):
            rows[fold, : len(order)] = order
        for step in range(steps):
            filled = np.clip(sizes - step * BATCH, 0, BATCH)
            count = int((filled > 0).sum())
            chosen = np.arange(BATCH) < filled[:count, None]
            shares = torch.from_numpy((chosen / filled[:count, None]).astype(np.float32))
            self._step(torch.from_numpy(rows[:count, step * BATCH : (step + 1) * BATCH]), shares)

    def _step(self, rows: torch.Tensor, shares: torch.Tensor) -> None:
        """A step of Adam for the first folds, on ``rows`` [k, B]; an example counts by its share (0 for padding)."""
        count = len(rows)
        weights, mean, square = self._w[:count], self._mean[:count], self._square[:count]
        x = self._x.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        probabilities = _normalized_exponentials(torch.bmm(x, weights).unflatten(2, self._shape))
        slope = self._gradient(probabilities, self._targets[rows][:, :, None]) * shares[:, :, None, None]
        gradient = torch.baddbmm(weights * self._decay[:count], x.transpose(1, 2), slope.flatten(2))
        self._steps[:count] += 1
        first, second = (1 - beta ** self._steps[:count] for beta in (_BETA1, _BETA2))
        mean.lerp_(gradient, 1 - _BETA1)
        square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        # w -= rate * (m / first) / (sqrt(v / second) + epsilon), with both corrections drawn into one factor
        factor = torch.from_numpy(_RATE * np.sqrt(second) / first).float()[:, None, None]
        epsilon = torch.from_numpy(_EPSILON * np.sqrt(second)).float()[:, None, None]
        weights.sub_(mean * factor / square.sqrt().add_(epsilon))


def _normalized_exponentials(logits: torch.Tensor) -> torch.Tensor:
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp_()
    return exponentials.div_(exponentials.sum(-1, keepdim=True))

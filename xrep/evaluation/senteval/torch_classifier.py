"""SentEval's own classifier: one linear layer, trained by Adam with early stopping on held-out rows.

Many classifiers (folds times strengths of regularisation) are trained at the same time, each exactly as it would be
alone. A step is one matrix product for all folds. Within a fold, every strength sees the same batches, as it does with
SentEval's fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from xrep.evaluation.senteval.folds import Fitted, Fold

BATCH = 64
_RATE, _BETA1, _BETA2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8  # PyTorch's defaults for Adam, as in SentEval
_HELD_OUT = 0.05

Gradient = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Score = Callable[[torch.Tensor, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Stopping:
    """Rule for ending training; the best weights are kept.

    Training ends when ``tenacity`` + 1 checks on the held-out rows have found no new best score (in total, not in
    succession, as in SentEval), or after more than ``maximum`` epochs.
    """

    epochs: int = 4
    """Number of epochs between two checks."""
    tenacity: int = 5
    maximum: int = 200


@dataclass(frozen=True)
class TorchClassifier:
    """Logistic regression as SentEval trains it (nhid 0, Adam, batches of 64, epoch_size 4, tenacity 5)."""

    name: str = "senteval"
    grid: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    """Weight decays that are tried; they apply to the bias as well."""
    folded_grid: tuple[float, ...] = grid
    stopping: Stopping = field(default_factory=Stopping)

    def fit(
        self, x: np.ndarray, y: np.ndarray, classes: int, folds: Sequence[Fold], grid: np.ndarray, seed: int
    ) -> Fitted:
        """Fit one classifier for each fold and weight decay, see ``Classifier``.

        Without dev rows, 5% of the training rows are held out for early stopping.
        """

        def accuracy(logits: torch.Tensor, rows: np.ndarray) -> np.ndarray:
            return (logits.argmax(-1).numpy() == y[rows, None]).mean(0)

        # The gradient of the cross-entropy is the difference between probabilities and targets.
        return train(x, np.eye(classes, dtype=np.float32)[y], folds, grid, seed, torch.sub, accuracy, self.stopping)


def squared_error_gradient(probabilities: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of the mean over classes of (p - t)^2 with respect to the logits; p is their softmax."""
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
        x: Features, float32 [N, D].
        targets: Distributions over classes, float32 [N, C].
        grid: Weight decays, [F, R].
        gradient: Function that computes the gradient of an example's loss with respect to its logits, from
            probabilities and targets [..., C].
        score: Function of logits [n, R, C] and the n row numbers they belong to, which returns scores [R]; higher is
            better.
    """
    generators, pairs = [np.random.RandomState(seed) for _ in folds], []  # the draws are those of SentEval
    for generator, (rows, dev) in zip(generators, folds, strict=True):
        mixed, held = (
            (rows, 0) if dev is not None else (generator.permutation(rows), max(1, int(_HELD_OUT * len(rows))))
        )
        pairs.append((mixed[held:], mixed[:held] if dev is None else dev))
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


class _Layers:
    """F linear layers of R * C outputs and their Adam state; the last column of ``x`` [N, D + 1] is 1 for the bias."""

    def __init__(self, x: torch.Tensor, targets: torch.Tensor, grid: np.ndarray, seed: int, gradient: Gradient) -> None:
        self._x, self._targets, self._gradient = x, targets, gradient
        (folds, strengths), (width, classes) = grid.shape, (x.shape[1], targets.shape[1])
        self._shape = strengths, classes
        bound, generator = (width - 1) ** -0.5, torch.Generator().manual_seed(seed)
        # torch.nn.Linear draws its weight and then its bias in this way, and SentEval sets the seed before.
        drawn = (torch.empty(classes, size).uniform_(-bound, bound, generator=generator) for size in (width - 1, 1))
        start = torch.cat(list(drawn), dim=1).T
        self._w = start.repeat(1, strengths).expand(folds, -1, -1).clone()
        decay = torch.from_numpy(grid).float().repeat_interleave(classes, dim=1)[:, None]
        self._decay, self._steps = decay, np.zeros(folds, dtype=np.int64)
        self._mean, self._square = torch.zeros_like(self._w), torch.zeros_like(self._w)

    def weights(self, place: int) -> np.ndarray:
        """Return the weights of one fold, [R, D + 1, C]."""
        return self._w[place].unflatten(1, self._shape).transpose(0, 1).numpy()

    def logits(self, place: int, rows: np.ndarray) -> torch.Tensor:
        """Return the logits of one fold for n rows, [n, R, C]."""
        return (self._x[torch.from_numpy(rows)] @ self._w[place]).unflatten(1, self._shape)

    def keep(self, places: list[int]) -> None:
        self._w, self._decay, self._steps = self._w[places], self._decay[places], self._steps[places]
        self._mean, self._square = self._mean[places], self._square[places]

    def epoch(self, orders: list[np.ndarray]) -> None:
        """Train for one pass over the rows of each fold, in the given order.

        Folds are sorted by size, the largest first, so the folds that still have a batch are always the first ones.
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
        """Take one Adam step for the first k folds on ``rows`` [k, B]; ``shares`` are example weights (0: padding)."""
        count = len(rows)
        weights, mean, square = self._w[:count], self._mean[:count], self._square[:count]
        x = self._x.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        values = torch.bmm(x, weights).unflatten(2, self._shape)
        probabilities = (values - values.amax(-1, keepdim=True)).exp_()  # torch's softmax is slow with few classes
        probabilities.div_(probabilities.sum(-1, keepdim=True))
        slope = self._gradient(probabilities, self._targets[rows][:, :, None]) * shares[:, :, None, None]
        gradient = torch.baddbmm(weights * self._decay[:count], x.transpose(1, 2), slope.flatten(2))
        self._steps[:count] += 1
        first, second = (1 - beta ** self._steps[:count] for beta in (_BETA1, _BETA2))
        mean.lerp_(gradient, 1 - _BETA1)
        square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        # w -= rate * (m / first) / (sqrt(v / second) + epsilon), with both bias corrections combined into one factor
        factor = torch.from_numpy(_RATE * np.sqrt(second) / first).float()[:, None, None]
        epsilon = torch.from_numpy(_EPSILON * np.sqrt(second)).float()[:, None, None]
        weights.sub_(mean * factor / square.sqrt().add_(epsilon))

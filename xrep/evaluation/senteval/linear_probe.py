"""SentEval's classifier: one linear layer (nhid 0), trained by Adam with early stopping on held-out rows.

Many classifiers (folds times weight decays) are trained at the same time, each exactly as it would be alone. A step is
one matrix product for all folds. Within a fold every weight decay sees the same batches, as with SentEval's fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

BATCH = 64
_RATE, _BETA1, _BETA2, _EPSILON = 1e-3, 0.9, 0.999, 1e-8  # PyTorch's defaults for Adam, as in SentEval
_HELD_OUT = 0.05

Fold = tuple[np.ndarray, np.ndarray | None]
"""Rows to train on, and rows for early stopping, int64; None: 5% of the training rows are held out."""


def logits(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the logits [N, C] of features x [N, D] with weights [D + 1, C]."""
    return x @ weights[:-1] + weights[-1]


def squared_error_gradient(probabilities: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of the mean over classes of (p - t)^2 with respect to the logits; p is their softmax."""
    slope = (probabilities - targets) * (2 / targets.shape[-1])
    return probabilities * (slope - (slope * probabilities).sum(-1, keepdim=True))


def fit(
    x: np.ndarray,
    targets: np.ndarray,
    folds: Sequence[Fold],
    grid: np.ndarray,
    seed: int,
    *,
    gradient: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = torch.sub,
    score: Callable[[torch.Tensor, np.ndarray], np.ndarray] | None = None,
    epochs: int = 4,
    tenacity: int = 5,
    maximum: int = 200,
) -> tuple[np.ndarray, np.ndarray]:
    """Train one linear layer for each of F folds and R weight decays, and keep the best weights.

    Every ``epochs`` epochs the rows for early stopping are scored. Training ends when ``tenacity`` + 1 scores were no
    new best one (in total, not in succession, as in SentEval), or after more than ``maximum`` epochs.

    Args:
        x, targets: Features, float32 [N, D], and distributions over classes, float32 [N, C].
        grid: Weight decays, [F, R]; they apply to the bias as well.
        gradient: Function from probabilities and targets [..., C] to the gradient of an example's loss with respect to
            its logits. That of the cross-entropy is their difference.
        score: Function of logits [n, R, C] and the n row numbers they belong to, which returns scores [R]; higher is
            better. None: the accuracy.

    Returns:
        Weights, float32 [F, R, D + 1, C], the last row of which is the bias; and their scores, float64 [F, R].
    """
    classes = targets.argmax(1)
    score = score or (lambda values, rows: (values.argmax(-1).numpy() == classes[rows, None]).mean(0))
    generators = [np.random.RandomState(seed) for _ in folds]  # the draws are those of SentEval
    parts = list[tuple[np.ndarray, np.ndarray]]()
    for (rows, dev), generator in zip(folds, generators, strict=True):
        if dev is None:
            dev, rows = np.split(generator.permutation(rows), [max(1, int(_HELD_OUT * len(rows)))])
        parts.append((rows, dev))
    running = sorted(range(len(folds)), key=lambda fold: -len(parts[fold][0]))  # see _Layers.epoch
    layers = _Layers(x, targets, grid[running], seed, gradient)
    best, misses, stopped = np.full(grid.shape, -np.inf), np.zeros(grid.shape, int), np.zeros(grid.shape, bool)
    weights = np.zeros((*grid.shape, x.shape[1] + 1, targets.shape[1]), dtype=np.float32)
    for _ in range(0, maximum + 1, epochs):
        for _ in range(epochs):
            layers.epoch([generators[fold].permutation(parts[fold][0]) for fold in running])
        for layer, fold in enumerate(running):
            rows = parts[fold][1]
            scores = np.nan_to_num(score(layers.logits(layer, rows), rows))
            better = (scores > best[fold]) & ~stopped[fold]
            best[fold, better] = scores[better]
            weights[fold, better] = layers.weights(layer)[better]
            stopped[fold] |= ~better & (misses[fold] >= tenacity)
            misses[fold] += ~better
        layers.keep([layer for layer, fold in enumerate(running) if not stopped[fold].all()])
        running = [fold for fold in running if not stopped[fold].all()]
        if not running:
            break
    return weights, best


class _Layers:
    """F linear layers of R * C outputs and their Adam state; to the features [N, D] a column of 1 is added."""

    def __init__(self, x: np.ndarray, targets: np.ndarray, grid: np.ndarray, seed: int, gradient: Callable) -> None:
        self._x = torch.from_numpy(np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1))
        self._targets, self._gradient = torch.from_numpy(targets), gradient
        (folds, decays), (width, classes) = grid.shape, (x.shape[1], targets.shape[1])
        self._outputs = decays, classes
        bound, generator = width**-0.5, torch.Generator().manual_seed(seed)
        # torch.nn.Linear draws its weight and then its bias in this way, and SentEval sets the seed before.
        drawn = [torch.empty(classes, size).uniform_(-bound, bound, generator=generator) for size in (width, 1)]
        weights = torch.cat(drawn, dim=1).T.repeat(1, decays).expand(folds, -1, -1)
        # The weights, and the running means of their gradients and of the squares of these.
        self._state = torch.stack([weights, torch.zeros_like(weights), torch.zeros_like(weights)])
        self._decay = torch.from_numpy(grid).float().repeat_interleave(classes, dim=1)[:, None]
        self._steps = np.zeros(folds, dtype=np.int64)

    def weights(self, layer: int) -> np.ndarray:
        """Return the weights of one fold, [R, D + 1, C]."""
        return self._state[0, layer].unflatten(1, self._outputs).transpose(0, 1).numpy()

    def logits(self, layer: int, rows: np.ndarray) -> torch.Tensor:
        """Return the logits of one fold for n rows, [n, R, C]."""
        return (self._x[torch.from_numpy(rows)] @ self._state[0, layer]).unflatten(1, self._outputs)

    def keep(self, layers: list[int]) -> None:
        if len(layers) < len(self._steps):
            self._state, self._decay, self._steps = self._state[:, layers], self._decay[layers], self._steps[layers]

    def epoch(self, orders: list[np.ndarray]) -> None:
        """Train for one pass over the rows of each fold, in the given order. Folds are sorted by size, the largest
        first, so the folds that still have a batch are always the first ones."""
        sizes = np.array([len(order) for order in orders])
        rows = np.zeros((len(orders), -(-sizes.max() // BATCH) * BATCH), dtype=np.int64)
        for fold, order in enumerate(orders):
            rows[fold, : len(order)] = order
        for start in range(0, rows.shape[1], BATCH):
            filled = np.clip(sizes[sizes > start] - start, 0, BATCH)[:, None]
            shares = torch.from_numpy(((np.arange(BATCH) < filled) / filled).astype(np.float32))
            self._step(torch.from_numpy(rows[: len(filled), start : start + BATCH]), shares)

    def _step(self, rows: torch.Tensor, shares: torch.Tensor) -> None:
        """Take one Adam step for the first k folds on ``rows`` [k, B]; ``shares`` are example weights (0: padding)."""
        count = len(rows)
        weights, mean, square = self._state[:, :count]
        x = self._x.index_select(0, rows.flatten()).unflatten(0, rows.shape)
        values = torch.bmm(x, weights).unflatten(2, self._outputs)
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

"""Plans which token vectors representation translation learning reads, and which tokens it predicts.

Plans are made with numpy from lengths and languages that are on the CPU, so that no size has to be read from a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from xrep.data.batching import PairBatch

Direction = Literal["to_pivot", "from_pivot", "both"]
PLACE, SLOT, LANGUAGE, POSITION = range(4)
"""Rows of a table of tokens. PLACE: index in the batch [2 B * T] in which sources come before targets. SLOT: index in
the head's input [B * width], where the tokens of x come before those of y. LANGUAGE: language of the token. POSITION:
position in the sentence."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The predicted tokens ``start`` to ``stop``: all tokens of y in one language and of one direction."""

    from_pivot: bool
    language: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """Which tokens of B pairs are read and predicted; [CLS] is never among them.

    Attributes:
        x, y: int64 [4, N] and [4, M], tables of tokens, pair by pair.
        lengths: int64 [B], number of tokens in each row of the head's input.
        width: the largest of these lengths.
        x_lengths, y_lengths: int64 [B], number of tokens of each x and of each y.
        predicted: int64 [B], number of tokens of each y that are predicted.
        runs: the runs of predicted tokens, in order.
    """

    x: np.ndarray
    y: np.ndarray
    x_lengths: np.ndarray
    y_lengths: np.ndarray
    predicted: np.ndarray
    runs: list[Run]

    @property
    def lengths(self) -> np.ndarray:
        return self.x_lengths + self.y_lengths

    @property
    def width(self) -> int:
        return int(self.lengths.max(initial=1))

    def split(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return tables of the tokens whose vectors are given, and of those that are predicted.

        The given ones are x and the tokens of y that are not predicted. Which tokens of y are predicted is drawn by
        torch's default generator of the device, whose state is part of a checkpoint.
        """
        x, y = on_device(self.x, device), on_device(self.y, device)
        if (self.predicted == self.y_lengths).all():
            return x, y
        rows = on_device(np.repeat(np.arange(len(self.y_lengths)), self.y_lengths), device)
        shuffled = y[:, (rows + torch.rand(len(rows), dtype=torch.float64, device=device)).argsort()]
        starts = np.cumsum(self.y_lengths) - self.y_lengths
        given = ranges(starts + self.predicted, self.y_lengths - self.predicted)
        predicted = ranges(starts, self.predicted)
        return torch.cat([x, shuffled[:, on_device(given, device)]], dim=1), shuffled[:, on_device(predicted, device)]


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans reconstructions: which side of a pair is x, the given one, and how many tokens of y are predicted.

    Attributes:
        pivot: place of the pivot language in ``TextSpec.languages``.
        direction: to_pivot: y is the side in the pivot language (the target, if both sides are). from_pivot: y is the
            other side. both: to_pivot in pairs of even number (``PairBatch.indices``), from_pivot in those of odd
            number.
        ratio: share of the tokens of y that are predicted, rounded, at least one.
    """

    pivot: int
    direction: Direction
    ratio: float

    def sizes(self, batch: PairBatch) -> dict[bool, int]:
        """Return the number of predicted tokens by direction (True: predicted from the pivot language)."""
        found: dict[bool, int] = {}
        for run in self.plan(batch).runs:
            found[run.from_pivot] = found.get(run.from_pivot, 0) + run.stop - run.start
        return found

    def plan(self, batch: PairBatch) -> Reconstruction:
        """Plan the reconstruction of a batch, sorted by direction and language of y. A slice of a batch gets its part
        of the batch's plan."""
        width, own = max(batch.source.tokens.size(1), batch.target.tokens.size(1)), np.arange(len(batch))
        languages = batch.languages.numpy()
        lengths = np.stack([batch.source.host_lengths, batch.target.host_lengths], axis=1) - 1  # [CLS] is left out
        away = {"to_pivot": own < 0, "from_pivot": own >= 0, "both": batch.indices.numpy() % 2 == 1}[self.direction]
        of_y = (away != (languages[:, 1] == self.pivot)).astype(np.int64)
        order = np.lexsort((languages[own, of_y], away))
        away, of_y = away[order], of_y[order]
        (x, x_lengths), (y, y_lengths) = (
            self._tokens(side, order, width, lengths[order, side], languages[order, side]) for side in (1 - of_y, of_y)
        )
        starts = own * int((x_lengths + y_lengths).max(initial=1))
        x[SLOT], y[SLOT] = ranges(starts, x_lengths), ranges(starts + x_lengths, y_lengths)
        predicted = np.minimum(np.maximum(np.rint(self.ratio * y_lengths).astype(np.int64), 1), y_lengths)
        runs = self._runs(np.repeat(away, predicted), np.repeat(languages[order, of_y], predicted))
        return Reconstruction(x=x, y=y, x_lengths=x_lengths, y_lengths=y_lengths, predicted=predicted, runs=runs)

    @staticmethod
    def _tokens(
        side: np.ndarray, row: np.ndarray, width: int, lengths: np.ndarray, languages: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a side (0 source, 1 target) of each row as a table without slots, and ``lengths``."""
        table = np.empty((4, lengths.sum()), dtype=np.int64)
        table[PLACE] = ranges((side * len(row) + row) * width + 1, lengths)
        table[LANGUAGE] = np.repeat(languages, lengths)
        table[POSITION] = ranges(np.ones_like(lengths), lengths)
        return table, lengths

    def _runs(self, away: np.ndarray, languages: np.ndarray) -> list[Run]:
        """Return the runs of tokens sorted by direction and language. A direction without tokens has one empty run."""
        found = []
        for direction in {"to_pivot": (False,), "from_pivot": (True,), "both": (False, True)}[self.direction]:
            start, stop = np.searchsorted(away, [direction, direction + 1])
            changes = start + 1 + np.flatnonzero(np.diff(languages[start:stop]))
            bounds = [int(start), *changes.tolist(), int(stop)]
            for first, last in zip(bounds, bounds[1:], strict=False):
                language = int(languages[first]) if first < last else self.pivot
                found.append(Run(from_pivot=direction, language=language, start=first, stop=last))
        return found


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start + 1, ... for each start and length, one range after the other: int64 [sum of lengths]."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return the array as a tensor; the copy to a GPU does not block."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

"""Plans which token vectors representation translation learning reads, and which tokens it predicts.

Plans are made with numpy from lengths and languages that are on the CPU, so that no size has to be read from a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from xrep.data.batching import Movable, PairBatch

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
class Reconstruction(Movable):
    """Which tokens of B pairs are read and predicted; [CLS] is never among them.

    Attributes:
        given: int64 [4, N], the tokens whose vectors are given: all of x, and those of y that are not predicted.
        predicted: int64 [4, M], the predicted tokens, in the order of ``runs``.
        lengths: int64 [B], number of tokens in each row of the head's input.
        width: the largest of these lengths.
    """

    given: Tensor
    predicted: Tensor
    lengths: Tensor
    width: int
    runs: list[Run]

    @property
    def sizes(self) -> dict[bool, int]:
        """Number of predicted tokens by direction (True: predicted from the pivot language)."""
        sizes: dict[bool, int] = {}
        for run in self.runs:
            sizes[run.from_pivot] = sizes.get(run.from_pivot, 0) + run.stop - run.start
        return sizes


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

    def plan(self, batch: PairBatch, generator: torch.Generator) -> Reconstruction:
        """Plan the reconstruction of a batch, sorted by direction and language of y.

        Args:
            generator: draws which tokens of y are predicted, if not all of them are.
        """
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
        lengths = x_lengths + y_lengths
        head_width = int(lengths.max(initial=1))
        starts = own * head_width
        x[SLOT], y[SLOT] = ranges(starts, x_lengths), ranges(starts + x_lengths, y_lengths)
        count = np.minimum(np.maximum(np.rint(self.ratio * y_lengths).astype(np.int64), 1), y_lengths)
        runs = self._runs(np.repeat(away, count), np.repeat(languages[order, of_y], count))
        if (count < y_lengths).any():
            x, y = _drawn(x, y, y_lengths, count, generator)
        given, predicted, row_lengths = (torch.from_numpy(np.ascontiguousarray(each)) for each in (x, y, lengths))
        return Reconstruction(given=given, predicted=predicted, lengths=row_lengths, width=head_width, runs=runs)

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
        runs = []
        for direction in {"to_pivot": (False,), "from_pivot": (True,), "both": (False, True)}[self.direction]:
            start, stop = np.searchsorted(away, [direction, direction + 1])
            changes = start + 1 + np.flatnonzero(np.diff(languages[start:stop]))
            bounds = [int(start), *changes.tolist(), int(stop)]
            for first, last in zip(bounds, bounds[1:], strict=False):
                language = int(languages[first]) if first < last else self.pivot
                runs.append(Run(from_pivot=direction, language=language, start=first, stop=last))
        return runs


def _drawn(
    x: np.ndarray, y: np.ndarray, y_lengths: np.ndarray, count: np.ndarray, generator: torch.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``count`` tokens of each y; return tables of the given tokens and of the predicted ones."""
    rows = np.repeat(np.arange(len(y_lengths)), y_lengths)
    keys = torch.rand(len(rows), dtype=torch.float64, generator=generator).numpy()
    shuffled, starts = y[:, (rows + keys).argsort(kind="stable")], np.cumsum(y_lengths) - y_lengths
    given = shuffled[:, ranges(starts + count, y_lengths - count)]
    return np.concatenate([x, given], axis=1), shuffled[:, ranges(starts, count)]


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start + 1, ... for each start and length, one range after the other: int64 [sum of lengths]."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


def language_embedding(languages: int, width: int) -> nn.Embedding | None:
    """Return new vectors of languages, with the standard deviation of an encoder's embeddings; None if there are 0."""
    table = nn.Embedding(languages, width) if languages else None
    if table is not None:
        nn.init.normal_(table.weight, std=0.02)
    return table

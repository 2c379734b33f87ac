"""Plans which token vectors representation translation learning reads, and which tokens it predicts.

Plans are made with numpy from lengths and languages that are on the CPU, so that no size has to be read from a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from xrep.data.batch import Batch, Movable

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
        predicted: int64 [4, P], the places of [MASK]s: first those of the M predicted tokens, in the order of
            ``runs``, then those of tokens that no label has.
        shares: float64 [M], 1 / number of predicted tokens of the same sentence.
        lengths: int64 [B], number of tokens in each row of the head's input.
        width: the largest of these lengths.
    """

    given: Tensor
    predicted: Tensor
    shares: Tensor
    lengths: Tensor
    width: int
    runs: list[Run]

    def sizes(self, sentences: bool = False) -> dict[bool, int]:
        """Return the number of predicted tokens, or of sentences with such tokens, by direction (True: predicted from
        the pivot language)."""
        sizes: dict[bool, int] = {}
        for run in self.runs:
            shares = self.shares[run.start : run.stop]
            count = round(float(shares.sum())) if sentences else len(shares)
            sizes[run.from_pivot] = sizes.get(run.from_pivot, 0) + count
        return sizes


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans reconstructions: which side of a pair is x, the given one, and how many tokens of y are predicted.

    Attributes:
        pivot: place of the pivot language in ``TextSpec.languages``.
        direction: to_pivot: y is the side in the pivot language (the target, if both sides are). from_pivot: y is the
            other side. both: to_pivot in pairs of even number (``Batch.indices``), from_pivot in those of odd
            number.
        ratio: probability with which each token of y is predicted, independently of the others.
        leading: number of special tokens in front of a sentence, which are left out.
        labels: bool [V] by language of y, the subwords that can be predicted; no language: all subwords. Other subwords
            become [MASK]s, too, but are not predicted.
    """

    pivot: int
    direction: Direction
    ratio: float
    leading: int = 1
    labels: dict[int, np.ndarray] = field(default_factory=dict)

    def plan(self, batch: Batch, generator: torch.Generator) -> Reconstruction:
        """Plan the reconstruction of a batch, sorted by direction and language of y.

        Args:
            generator: draws which tokens of y are predicted, if not all of them are.
        """
        width, own = max(batch.source.tokens.size(1), batch.target.tokens.size(1)), np.arange(len(batch))
        languages = batch.languages.numpy()
        lengths = np.stack([batch.source.host_lengths, batch.target.host_lengths], axis=1) - self.leading
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
        rows = np.repeat(own, y_lengths)
        if self.ratio < 1:
            drawn = torch.rand(y.shape[1], dtype=torch.float64, generator=generator).numpy() < self.ratio
            x, y, rows = np.concatenate([x, y[:, ~drawn]], axis=1), y[:, drawn], rows[drawn]
        if self.labels:
            labelled = self._labelled(batch, y)
            y, rows = np.concatenate([y[:, labelled], y[:, ~labelled]], axis=1), rows[labelled]
        count = np.bincount(rows, minlength=len(own))
        runs = self._runs(np.repeat(away, count), np.repeat(languages[order, of_y], count))
        shares = np.repeat(1 / np.maximum(count, 1), count)
        tensors = (torch.from_numpy(np.ascontiguousarray(each)) for each in (x, y, shares, lengths))
        given, predicted, of_sentence, row_lengths = tensors
        return Reconstruction(
            given=given, predicted=predicted, shares=of_sentence, lengths=row_lengths, width=head_width, runs=runs
        )

    def _tokens(
        self, side: np.ndarray, row: np.ndarray, width: int, lengths: np.ndarray, languages: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a side (0 source, 1 target) of each row as a table without slots, and ``lengths``."""
        table = np.empty((4, lengths.sum()), dtype=np.int64)
        table[PLACE] = ranges((side * len(row) + row) * width + self.leading, lengths)
        table[LANGUAGE] = np.repeat(languages, lengths)
        table[POSITION] = ranges(np.full_like(lengths, self.leading), lengths)
        return table, lengths

    def _labelled(self, batch: Batch, table: np.ndarray) -> np.ndarray:
        """Return which tokens of a table can be predicted, bool [N]."""
        tokens = batch.source.followed_by(batch.target, 0).tokens.flatten().numpy()[table[PLACE]]
        known = np.zeros(len(tokens), dtype=bool)
        for language, labels in self.labels.items():
            known |= (table[LANGUAGE] == language) & labels[tokens]
        return known

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


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return start, start + 1, ... for each start and length, one range after the other: int64 [sum of lengths]."""
    return np.arange(lengths.sum()) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


def language_embedding(languages: int, width: int) -> nn.Embedding | None:
    """Return new vectors of languages, with the standard deviation of an encoder's embeddings; None if there are 0."""
    table = nn.Embedding(languages, width) if languages else None
    if table is not None:
        nn.init.normal_(table.weight, std=0.02)
    return table

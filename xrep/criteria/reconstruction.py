"""Plans which token vectors representation translation learning reads, and which tokens it predicts.

Plans are made in host memory, where lengths and languages are known, so that no size has to be read from a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from xrep.data.batch import Batch, Movable, TokenBatch, Vocabulary

Direction = Literal["to_pivot", "from_pivot", "both"]
SENSES = {"to_pivot": (False,), "from_pivot": (True,), "both": (False, True)}
"""Whether tokens are predicted from the pivot language, by direction."""


@dataclass(frozen=True)
class Predicted(Movable):
    """The M tokens that are predicted in one direction, from a softmax over the subwords of one language.

    Attributes:
        places: int64 [M], their numbers among the real tokens that the head reads.
        labels: int64 [M].
        shares: float64 [M], 1 / number of predicted tokens of the same sentence.
    """

    from_pivot: bool
    language: int
    places: Tensor
    labels: Tensor
    shares: Tensor


@dataclass(frozen=True)
class Reconstruction(Movable):
    """Which tokens of B pairs are read and predicted; those in front of a sentence ([CLS]) never are.

    In the head, row i has the T tokens of x and the T tokens of y of pair i, each with its padding.

    Attributes:
        both: the 2 B sentences that the encoder reads, sources before targets.
        sides: int64 [2, B], the rows of x, the given sentences, and of y, the predicted ones, in ``both``.
        side_languages: int64 [2, B], the languages of x and of y.
        masked: bool [B, T], the tokens of y that become [MASK]s.
        mask: bool [B, 2 T], the real tokens that the head reads.
        real: int64 [N], their places in the flattened rows [B * 2 T].
        predicted: by direction and language; each direction has at least one.
    """

    both: TokenBatch
    sides: Tensor
    side_languages: Tensor
    masked: Tensor
    mask: Tensor
    real: Tensor
    predicted: list[Predicted]

    def sizes(self, sentences: bool = False) -> dict[bool, int]:
        """Return the number of predicted tokens, or of sentences with such tokens, by direction (True: predicted from
        the pivot language)."""
        sizes: dict[bool, int] = {}
        for some in self.predicted:
            count = round(float(some.shares.sum())) if sentences else len(some.labels)
            sizes[some.from_pivot] = sizes.get(some.from_pivot, 0) + count
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
        vocabulary: of the tower that reads both sides.
        labels: int64 [V] by language of y, the label of each subword; -1: it becomes a [MASK], too, but is not
            predicted. If it is empty, each subword is its own label in all languages.
    """

    pivot: int
    direction: Direction
    ratio: float
    vocabulary: Vocabulary
    labels: dict[int, Tensor] = field(default_factory=dict)

    def plan(self, batch: Batch, generator: torch.Generator) -> Reconstruction:
        """Plan the reconstruction of a batch; the generator draws which tokens are predicted, if not all are."""
        own, languages = torch.arange(len(batch)), batch.languages
        both = batch.source.followed_by(batch.target, self.vocabulary.pad_id)
        away = {"to_pivot": own < 0, "from_pivot": own >= 0, "both": batch.indices % 2 == 1}[self.direction]
        of_y = (away != (languages[:, 1] == self.pivot)).long()
        columns = torch.stack([1 - of_y, of_y])
        sides = columns * len(batch) + own
        real = both.mask
        real[:, : self.vocabulary.leading_count] = False
        masked, tokens = real[sides[1]], both.tokens[sides[1]]
        if self.ratio < 1:
            masked &= torch.rand(masked.shape, dtype=torch.float64, generator=generator) < self.ratio
        mask = real[sides].transpose(0, 1).flatten(1)
        places = (mask.flatten().cumsum(0) - 1).view_as(mask)[:, tokens.size(1) :]
        language = languages[own, of_y] if self.labels else torch.full_like(own, self.pivot)
        predicted = []
        for sense in SENSES[self.direction]:
            known = [kind for kind in language[away == sense].unique().tolist() if kind in self.labels]
            for kind in known or [self.pivot]:
                labels = self.labels[kind][tokens] if self.labels else tokens
                some = masked & (labels >= 0) & ((away == sense) & (language == kind)).unsqueeze(1)
                each = some.sum(1)
                shares = (1 / each.double()).repeat_interleave(each)
                predicted.append(Predicted(sense, kind, places[some], labels[some], shares))
        return Reconstruction(
            both, sides, languages[own, columns], masked, mask, mask.flatten().nonzero().squeeze(1), predicted
        )

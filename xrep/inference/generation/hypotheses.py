"""Hypotheses of a batch during a search: tensors over sentences and hypotheses, and Python objects only at the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xrep.errors import UserError

Banned = tuple[Tensor, Tensor] | None
"""Rows (of B · K) and the tokens that may not follow there, int64 [M] each; None: all may follow."""


@dataclass(frozen=True)
class Hypothesis:
    """A translation: ids without special tokens; their natural log-probability, divided by the length penalty; the
    log-probability of each token and, at the end, of eos; and the text, which ``Translator`` adds."""

    tokens: list[int]
    score: float
    token_scores: list[float]
    text: str = ""


@dataclass(frozen=True)
class SearchStep:
    """The decisions of one step of a search over B sentences: K hypotheses of each go on, and some of N end."""

    scores: Tensor  # of those that go on, [B, K], like the next three
    parents: Tensor  # which hypothesis of the last step each of them extends
    tokens: Tensor  # by which token
    log_probabilities: Tensor  # of this token
    ends: Tensor  # bool [B, N]: which candidates end, in the order in which they are to be kept
    slots: Tensor  # which hypothesis of the last step each of them extends by eos, [B, N], like the next two
    end_scores: Tensor  # before the length penalty
    end_log_probabilities: Tensor  # of eos


class Hypotheses:
    """All hypotheses of a search, where each step points to the one before, and the first ``width`` finished ones of
    each sentence. ``alive`` [B] says which sentences are still in the batch, ``count`` [B] how many of each finished.
    No n-gram of size ``ngram`` may be repeated; 0: any may.
    """

    def __init__(self, sentences: int, width: int, ngram: int, device: torch.device) -> None:
        self.alive = torch.arange(sentences, device=device)
        self.count = torch.zeros_like(self.alive)
        self._width, self._ngram = width, ngram
        self._steps: list[tuple[Tensor, ...]] = []
        # The last column receives what is not kept, so that each step writes the same shape.
        self._scores = torch.full((sentences, width + 1), -torch.inf, device=device)
        self._ends = torch.zeros_like(self._scores)
        self._lengths = torch.ones_like(self._scores, dtype=torch.int64)
        self._slots = torch.zeros_like(self._lengths)
        # Tokens of the hypotheses that go on, [B, K, T], if n-grams are counted.
        self._prefixes = torch.zeros((sentences, 1, 0), dtype=torch.int64, device=device)

    def add(self, step: SearchStep, length: int, penalty: float) -> bool:
        """Add a step, after which hypotheses have ``length`` tokens; return whether any ends, by whose ``penalty`` its
        score is divided."""
        decided = step.parents, step.tokens, step.log_probabilities
        if len(self.alive) < len(self._scores):
            decided = tuple(x.new_zeros(len(self._scores), x.size(1)).index_copy_(0, self.alive, x) for x in decided)
        self._steps.append(decided)
        if self._ngram:
            before = self._prefixes.gather(1, step.parents.unsqueeze(2).expand(-1, -1, self._prefixes.size(2)))
            self._prefixes = torch.cat([before, step.tokens.unsqueeze(2)], dim=2)
        if not step.ends.any():
            return False
        columns = self.count.unsqueeze(1) + step.ends.cumsum(1) - 1
        columns = columns.clamp(max=self._width).masked_fill_(~step.ends, self._width)
        rows = self.alive.unsqueeze(1)
        self._scores[rows, columns], self._ends[rows, columns] = step.end_scores / penalty, step.end_log_probabilities
        self._slots[rows, columns], self._lengths[rows, columns] = step.slots, length
        self.count = (self.count + step.ends.sum(1)).clamp_(max=self._width)
        return True

    def keep(self, rows: Tensor) -> None:
        """Keep only these sentences of the batch."""
        self.alive, self.count, self._prefixes = self.alive[rows], self.count[rows], self._prefixes[rows]

    def banned(self) -> Banned:
        """Return the tokens that would repeat an n-gram."""
        if not self._ngram or self._prefixes.size(2) < self._ngram:
            return None
        prefixes = self._prefixes.flatten(0, 1)
        windows, end = prefixes.unfold(1, self._ngram, 1), prefixes[:, prefixes.size(1) - self._ngram + 1 :]
        rows, columns = (windows[..., :-1] == end.unsqueeze(1)).all(2).nonzero(as_tuple=True)
        return rows, windows[rows, columns, -1]

    def best(self, count: int) -> list[list[Hypothesis]]:
        """Return at most ``count`` finished hypotheses of each sentence, best first; a UserError if one has none."""
        scores, order = self._scores[:, : self._width].sort(dim=1, descending=True, stable=True)
        scores, order = scores[:, :count], order[:, :count]
        if not torch.isfinite(scores[:, 0]).all():
            cure = "check its training, or compute in float32"
            raise UserError("the model gives probabilities that are not finite", cure=cure)
        lengths, slots, ends = (table.gather(1, order) for table in (self._lengths, self._slots, self._ends))
        tokens = torch.zeros((*order.shape, len(self._steps)), dtype=torch.int64, device=order.device)
        token_scores = torch.zeros(tokens.shape, device=order.device)
        for step in reversed(range(len(self._steps))):
            parents, chosen, log_probabilities = self._steps[step]
            slot = slots.clamp(max=parents.size(1) - 1)  # the slot is not used yet if the hypothesis is shorter
            tokens[:, :, step] = chosen.gather(1, slot)
            token_scores[:, :, step] = log_probabilities.gather(1, slot)
            slots = torch.where(lengths > step + 1, parents.gather(1, slot), slots)
        columns = (table.tolist() for table in (scores, lengths, ends, tokens, token_scores))
        return [
            [
                Hypothesis(ids[: length - 1], score, [*each[: length - 1], end])
                for score, length, end, ids, each in zip(*sentence, strict=True)
                if score > -torch.inf
            ]
            for sentence in zip(*columns, strict=True)
        ]

"""Typed batches and the collation that makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from xrep.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The ids that a tower reads."""

    size: int
    pad_id: int
    unk_id: int
    bos_id: int
    eos_id: int
    mask_id: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        special = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "bos", "eos", "mask")}
        return cls(size=tokenizer.vocabulary_size, **special)


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """What a model needs to know about the text it reads; saved with every checkpoint."""

    vocabularies: dict[str, Vocabulary]
    """``shared``, or ``source`` and ``target`` where the sides of pairs have tokenizers of their own."""
    max_length: int
    """Longest sentence in subwords, the two special tokens included; longer ones are cut."""
    source_languages: list[str] = field(default_factory=list)
    target_languages: list[str] = field(default_factory=list)

    @property
    def languages(self) -> list[str]:
        """All languages, sorted."""
        return sorted({*self.source_languages, *self.target_languages})

    def vocabulary(self, side: str) -> Vocabulary:
        """That of ``source``, ``target`` or ``shared``: what both sides share serves each of them."""
        return self.vocabularies.get(side) or self.vocabularies["shared"]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TextSpec:
        sides = {side: Vocabulary(**vocabulary) for side, vocabulary in values["vocabularies"].items()}
        return cls(**{**values, "vocabularies": sides})


@dataclass
class TokenBatch:
    """Sentences of one side.

    Attributes:
        tokens: int64 [B, T], special tokens included, padded at the end.
        lengths: int64 [B], number of real tokens of each row.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor

    @property
    def mask(self) -> torch.Tensor:
        """bool [B, T]: True at real tokens."""
        positions = torch.arange(self.tokens.size(1), device=self.tokens.device)
        return positions < self.lengths.unsqueeze(1)

    @cached_property
    def real_tokens(self) -> int:
        """Σ lengths. A batch that moves takes it along: asking a GPU would wait for all that it has to do before."""
        return int(self.lengths.sum())

    @cached_property
    def host_lengths(self) -> np.ndarray:
        """``lengths`` for what is planned in Python; taken along as well."""
        return self.lengths.numpy(force=True)

    @property
    def is_padded(self) -> bool:
        return self.real_tokens < self.tokens.numel()

    def to(self, device: torch.device | str) -> TokenBatch:
        return self._moved(self.tokens.to(device, non_blocking=True), self.lengths.to(device, non_blocking=True))

    def pin_memory(self) -> TokenBatch:
        return self._moved(self.tokens.pin_memory(), self.lengths.pin_memory())

    def _moved(self, tokens: torch.Tensor, lengths: torch.Tensor) -> TokenBatch:
        moved = TokenBatch(tokens, lengths)
        moved.real_tokens, moved.host_lengths = self.real_tokens, self.host_lengths
        return moved

    def followed_by(self, other: TokenBatch, pad_id: int) -> TokenBatch:
        """One batch of both: the rows of ``other`` after these."""
        width = max(self.tokens.size(1), other.tokens.size(1))
        sides = [F.pad(b.tokens, (0, width - b.tokens.size(1)), value=pad_id) for b in (self, other)]
        both = TokenBatch(torch.cat(sides), torch.cat([self.lengths, other.lengths]))
        both.real_tokens = self.real_tokens + other.real_tokens
        return both

    def rows(self, start: int, stop: int) -> TokenBatch:
        """Some of the sentences, no wider than the longest of them."""
        lengths = self.host_lengths[start:stop]
        width = int(lengths.max()) if len(lengths) else self.tokens.size(1)
        some = TokenBatch(self.tokens[start:stop, :width], self.lengths[start:stop])
        some.real_tokens, some.host_lengths = int(lengths.sum()), lengths
        return some

    def __len__(self) -> int:
        return self.tokens.size(0)


@dataclass
class PairBatch:
    """Sentences and their translations: row i of ``source`` translates row i of ``target``.

    Attributes:
        ids: int64 [B, 2]; equal numbers in a column mean equal sentences (source in column 0, target in column 1).
        indices: int64 [B]: which example of its split each row is (for messages and for restoring an order).
        languages: int64 [B, 2]: the languages of both sides, by their place in ``TextSpec.languages``. They stay where
            Python can read them, as ``indices`` do.
    """

    source: TokenBatch
    target: TokenBatch
    ids: torch.Tensor
    indices: torch.Tensor
    languages: torch.Tensor

    def to(self, device: torch.device | str) -> PairBatch:
        sides = self.source.to(device), self.target.to(device)
        return PairBatch(*sides, self.ids.to(device), self.indices, self.languages)

    def pin_memory(self) -> PairBatch:
        sides = self.source.pin_memory(), self.target.pin_memory()
        return PairBatch(*sides, self.ids.pin_memory(), self.indices, self.languages)

    def rows(self, start: int, stop: int) -> PairBatch:
        """Some of the pairs."""
        some = slice(start, stop)
        sides = self.source.rows(start, stop), self.target.rows(start, stop)
        return PairBatch(*sides, self.ids[some], self.indices[some], self.languages[some])

    @property
    def token_count(self) -> int:
        return self.source.real_tokens + self.target.real_tokens

    def __len__(self) -> int:
        return len(self.source)


def collate(sentences: Sequence[np.ndarray], vocabulary: Vocabulary, max_length: int) -> TokenBatch:
    """Pad subword ids (without special tokens) into one batch, with bos and eos around each sentence.

    Args:
        max_length: longest row, the two special tokens included; longer sentences are cut.
    """
    cut = [sentence[: max_length - 2] for sentence in sentences]
    lengths = np.fromiter(map(len, cut), dtype=np.int64, count=len(cut))
    return pad(np.concatenate(cut) if cut else np.empty(0, dtype=np.int64), lengths, vocabulary)


def pad(ids: np.ndarray, lengths: np.ndarray, vocabulary: Vocabulary) -> TokenBatch:
    """One batch of sentences that lie end to end, with bos and eos around each; none at all make one of shape [0, 2].

    Args:
        ids: [sum of lengths], without special tokens.
        lengths: int64 [B].
    """
    tokens = np.full((len(lengths), int(lengths.max(initial=0)) + 2), vocabulary.pad_id, dtype=np.int64)
    tokens[:, 0] = vocabulary.bos_id
    tokens[:, 1:][np.arange(tokens.shape[1] - 1) < lengths[:, None]] = ids
    tokens[np.arange(len(lengths)), lengths + 1] = vocabulary.eos_id
    return TokenBatch(torch.from_numpy(tokens), torch.from_numpy(lengths + 2))


def batches_of(
    tokens: Sequence[np.ndarray], batch_tokens: int, max_length: int, most: int | None = None
) -> Iterator[list[int]]:
    """Rows of similar length, the longest first: at most ``batch_tokens`` with padding and special tokens (a longer
    sentence comes alone), and at most ``most`` rows."""
    rows: list[int] = []
    for row in np.argsort([-len(sentence) for sentence in tokens], kind="stable").tolist():
        longest = min(len(tokens[rows[0] if rows else row]) + 2, max_length)
        if rows and (longest * (len(rows) + 1) > batch_tokens or len(rows) == most):
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows

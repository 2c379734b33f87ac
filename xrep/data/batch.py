"""Batch types and the functions that build batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F

from xrep.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Size and special ids of the vocabulary that a tower reads."""

    size: int
    pad_id: int
    unk_id: int
    bos_id: int | None
    """Id of the token in front of every sentence; None if the encoder has none there (T5)."""
    eos_id: int
    mask_id: int | None
    pair_separators: int = 1
    """Number of eos tokens between two sentences that are read as one sequence: BERT has one, XLM-R two."""

    @property
    def leading_count(self) -> int:
        """Number of special tokens in front of a sentence."""
        return 0 if self.bos_id is None else 1

    @property
    def special_count(self) -> int:
        """Number of special tokens around a sentence."""
        return self.leading_count + 1

    @property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens that there are, sorted."""
        ids = (self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id)
        return sorted({special for special in ids if special is not None})

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        special = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "bos", "eos", "mask")}
        return cls(size=tokenizer.vocabulary_size, pair_separators=tokenizer.pair_separators, **special)


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What a classifier predicts."""

    kind: Literal["label", "tags", "span"]
    """A label of each text (label), a tag of each word (tags), or the part of a text that answers a question (span)."""
    labels: list[str] = field(default_factory=list)
    """The labels or tags, in the order of their numbers."""


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """What a model needs to know about the text it reads. It is saved with every checkpoint."""

    vocabularies: dict[str, Vocabulary]
    """Vocabularies by side: ``shared``, or ``source`` and ``target`` if each side of the pairs has its own one."""
    max_length: int
    """Maximum length of a sentence in subwords, including special tokens; longer sentences are cut."""
    source_languages: list[str] = field(default_factory=list)
    target_languages: list[str] = field(default_factory=list)
    annotation: Annotation | None = None
    """What is predicted of the text; None for sentences without annotation."""

    @property
    def languages(self) -> list[str]:
        """All languages, sorted."""
        return sorted({*self.source_languages, *self.target_languages})

    def languages_of(self, side: str) -> list[str]:
        """Return the languages of ``source`` or ``target``, and all languages for any other name."""
        return {"source": self.source_languages, "target": self.target_languages}.get(side, self.languages)

    def vocabulary(self, side: str) -> Vocabulary:
        """Return the vocabulary of ``source``, ``target`` or ``shared``; a shared one is returned for every side."""
        return self.vocabularies.get(side) or self.vocabularies["shared"]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TextSpec:
        sides = {side: Vocabulary(**vocabulary) for side, vocabulary in values["vocabularies"].items()}
        annotation = Annotation(**values["annotation"]) if values.get("annotation") else None
        return cls(**{**values, "vocabularies": sides, "annotation": annotation})


M = TypeVar("M", bound="Movable")


class Movable:
    """Base class of dataclasses of tensors that move to a device together.

    Fields may also be movable themselves, or lists, tuples and dictionaries of such values. Everything else is kept.

    Attributes:
        kept: Names of tensor fields that stay in host memory, where Python reads them.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    def to(self: M, device: torch.device | str) -> M:
        """Return the same with all tensors on a device."""
        return self.moved(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self: M) -> M:
        """Return the same with all tensors in page-locked memory, from which copies to a GPU do not block."""
        return self.moved(torch.Tensor.pin_memory)

    def moved(self: M, move: Callable[[torch.Tensor], torch.Tensor]) -> M:
        values = {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}
        return replace(
            cast(Any, self), **{name: _moved(value, move) for name, value in values.items() if name not in self.kept}
        )


def _moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, Movable):
        return value.moved(move)
    if isinstance(value, dict):
        return {key: _moved(item, move) for key, item in value.items()}
    return type(value)(_moved(item, move) for item in value) if isinstance(value, list | tuple) else value


def on_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return the array as a tensor; the copy to a GPU does not block."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def event_on(device: torch.device) -> torch.cuda.Event | None:
    """Return an event that tells when a GPU has done all that it was given so far; None on a CPU, which has."""
    if device.type == "cpu":
        return None
    event = torch.cuda.Event()
    event.record()
    return event


class Batch(Movable, ABC):
    """A batch of examples: a dataclass of tensors. A batch whose examples can be taken apart has a method ``rows``."""

    kept = ("indices", "languages")

    @property
    @abstractmethod
    def token_count(self) -> int:
        """Number of tokens without padding."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of examples."""


@dataclass
class TokenBatch(Movable):
    """A padded batch of sentences of one side.

    Attributes:
        tokens: int64 [B, T], special tokens included, padded at the end.
        lengths: int64 [B], number of real tokens of each row, on the device of the tokens.
        host_lengths: int64 [B], the same numbers in host memory, so that no size has to be read from a GPU.
        types: int64 [B, T], 0 in the first and 1 in the second of two sentences that are read as one sequence; None if
            all rows are single sentences. Encoders without token types do not read it.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    host_lengths: np.ndarray
    types: torch.Tensor | None = None

    @property
    def mask(self) -> torch.Tensor:
        """bool [B, T]: True at real tokens."""
        positions = torch.arange(self.tokens.size(1), device=self.tokens.device)
        return positions < self.lengths.unsqueeze(1)

    @property
    def real_tokens(self) -> int:
        """Σ lengths."""
        return int(self.host_lengths.sum())

    @property
    def is_padded(self) -> bool:
        return self.real_tokens < self.tokens.numel()

    @property
    def density(self) -> float:
        """Share of real tokens in a batch that is not empty."""
        return self.real_tokens / self.tokens.numel()

    def followed_by(self, other: TokenBatch, pad_id: int) -> TokenBatch:
        """Return one batch with the rows of this batch, followed by the rows of ``other``."""
        width = max(self.tokens.size(1), other.tokens.size(1))
        sides = [F.pad(b.tokens, (0, width - b.tokens.size(1)), value=pad_id) for b in (self, other)]
        lengths = torch.cat([self.lengths, other.lengths])
        return TokenBatch(torch.cat(sides), lengths, np.concatenate([self.host_lengths, other.host_lengths]))

    def rows(self, start: int, stop: int) -> TokenBatch:
        """Return the sentences ``start`` to ``stop``, with no more padding than the longest of them needs."""
        lengths = self.host_lengths[start:stop]
        width = int(lengths.max()) if len(lengths) else self.tokens.size(1)
        types = None if self.types is None else self.types[start:stop, :width]
        return TokenBatch(self.tokens[start:stop, :width], self.lengths[start:stop], lengths, types)

    def select(self, rows: np.ndarray) -> TokenBatch:
        """Return the sentences of some rows, int64 [N], with no more padding than the longest of them needs."""
        lengths, chosen = self.host_lengths[rows], on_device(rows, self.tokens.device)
        width = int(lengths.max()) if len(lengths) else self.tokens.size(1)
        return TokenBatch(self.tokens[chosen, :width], self.lengths[chosen], lengths)

    def __len__(self) -> int:
        return self.tokens.size(0)


@dataclass
class HardNegatives(Movable):
    """Sentences of the target side that do not translate the sources of a batch, although they are near to them.

    Attributes:
        tokens: the N sentences.
        rows: int64 [N], ascending: the row of the batch whose source each of them belongs to.
        host_rows: the same numbers in host memory.
    """

    tokens: TokenBatch
    rows: torch.Tensor
    host_rows: np.ndarray

    def of_rows(self, start: int, stop: int) -> HardNegatives:
        """Return the negatives of rows ``start`` to ``stop`` of the batch, as those of a batch of these rows."""
        first, last = np.searchsorted(self.host_rows, [start, stop]).tolist()
        some = slice(first, last)
        return HardNegatives(self.tokens.rows(first, last), self.rows[some] - start, self.host_rows[some] - start)


@dataclass
class PairBatch(Batch):
    """A batch of sentences and their translations: row i of ``source`` translates row i of ``target``.

    Attributes:
        ids: int64 [B, 2]; equal numbers in a column mean equal sentences (source in column 0, target in column 1).
        indices: int64 [B], the index of each example in its split (for messages and for restoring the order).
        languages: int64 [B, 2], the languages of both sides, as indices into ``TextSpec.languages``. Like ``indices``,
            they are not moved to the GPU, so that Python can read them.
        negatives: hard negatives of the sources; None if the run has none.
    """

    source: TokenBatch
    target: TokenBatch
    ids: torch.Tensor
    indices: torch.Tensor
    languages: torch.Tensor
    negatives: HardNegatives | None = None

    def rows(self, start: int, stop: int) -> PairBatch:
        """Return the pairs ``start`` to ``stop``."""
        some = slice(start, stop)
        sides = self.source.rows(start, stop), self.target.rows(start, stop)
        negatives = None if self.negatives is None else self.negatives.of_rows(start, stop)
        return PairBatch(*sides, self.ids[some], self.indices[some], self.languages[some], negatives)

    @property
    def token_count(self) -> int:
        negatives = 0 if self.negatives is None else self.negatives.tokens.real_tokens
        return self.source.real_tokens + self.target.real_tokens + negatives

    def __len__(self) -> int:
        return len(self.source)


def collate(sentences: Sequence[np.ndarray], vocabulary: Vocabulary, max_length: int) -> TokenBatch:
    """Build a padded batch, adding bos and eos around each sentence.

    Args:
        sentences: Subword ids of each sentence, without special tokens.
        max_length: Maximum length of a row, including the special tokens; longer sentences are cut.
    """
    cut = [sentence[: max_length - vocabulary.special_count] for sentence in sentences]
    lengths = np.fromiter(map(len, cut), dtype=np.int64, count=len(cut))
    return pad(np.concatenate(cut) if cut else np.empty(0, dtype=np.int64), lengths, vocabulary)


def pad(ids: np.ndarray, lengths: np.ndarray, vocabulary: Vocabulary) -> TokenBatch:
    """Build a padded batch from concatenated sentences, adding bos and eos around each sentence.

    Without any sentences, the batch has as many columns as there are special tokens around a sentence.

    Args:
        ids: Subword ids of all sentences, concatenated: [sum of lengths], without special tokens.
        lengths: Number of ids of each sentence, int64 [B].
    """
    count = vocabulary.special_count
    tokens = np.full((len(lengths), int(lengths.max(initial=0)) + count), vocabulary.pad_id, dtype=np.int64)
    if vocabulary.bos_id is not None:
        tokens[:, 0] = vocabulary.bos_id
    words = tokens[:, vocabulary.leading_count :]
    words[np.arange(words.shape[1]) < lengths[:, None]] = ids
    words[np.arange(len(lengths)), lengths] = vocabulary.eos_id
    return TokenBatch(torch.from_numpy(tokens), torch.from_numpy(lengths + count), lengths + count)


def batches_of(lengths: Sequence[int] | np.ndarray, batch_tokens: int, most: int | None = None) -> Iterator[list[int]]:
    """Group sentences of similar length, the longest first, and yield the row numbers of each group.

    A group has at most ``most`` rows and at most ``batch_tokens`` tokens, including padding. A sentence that is longer
    than ``batch_tokens`` gets a group of its own.

    Args:
        lengths: Number of tokens of each sentence, special tokens included.
    """
    lengths, start = np.asarray(lengths, dtype=np.int64), 0
    order = np.argsort(-lengths, kind="stable")
    while start < len(order):
        size = max(1, batch_tokens // int(lengths[order[start]]))
        stop = start + min(size, most or size)
        yield order[start:stop].tolist()
        start = stop

"""Batches of examples, what models know of the text in them, and the functions that build them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
import torch.nn.functional as F

from xrep.errors import UserError
from xrep.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Size and special ids of the vocabulary that a tower reads."""

    size: int
    pad_id: int
    unk_id: int
    bos_id: int | None
    """Id of the token in front of every sentence; None if the encoder has none there (T5)."""
    eos_id: int | None
    """Id of the token behind every sentence; None if the encoder has none there (some decoders)."""
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
        return self.leading_count + (self.eos_id is not None)

    @property
    def end(self) -> int:
        """``eos_id``, for what cannot do without. Raises UserError if there is none."""
        if self.eos_id is None:
            cure = "have its tokenizer.json put one there, or choose another encoder"
            raise UserError("the tokenizer puts no token behind a sentence, which is needed here", cure=cure)
        return self.eos_id

    @property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens that there are, sorted."""
        ids = (self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id)
        return sorted({special for special in ids if special is not None})

    @property
    def unwritten(self) -> list[int]:
        """The ids of the special tokens that no translation has, sorted."""
        return [special for special in self.special_ids if special not in (self.unk_id, self.eos_id)]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Vocabulary:
        special = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "unk", "bos", "eos", "mask")}
        return cls(size=tokenizer.vocabulary_size, pair_separators=tokenizer.pair_separators, **special)


@dataclass(frozen=True, kw_only=True)
class TextSpec:
    """What a model needs to know about the text it reads. It is saved with every checkpoint."""

    vocabularies: dict[str, Vocabulary]
    """Vocabularies by side: ``shared``, or ``source`` and ``target`` if each side of the pairs has its own one."""
    max_length: int
    """Maximum length of a sentence in subwords, including special tokens; longer sentences are cut."""
    source_languages: list[str] = field(default_factory=list)
    target_languages: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What a task tells its model besides, such as the names of labels: plain data, as JSON has it."""

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
        return cls(**{**values, "vocabularies": sides})


M = TypeVar("M", bound="Movable")


class Movable:
    """Base class of dataclasses of tensors that move to a device together.

    Fields may also be movable themselves, or lists, tuples and dictionaries of such values. Everything else is kept.

    Attributes:
        kept: Names of fields, and keys of dictionaries, that stay in host memory, where Python reads them.
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
        return replace(cast(Any, self), **_moved(values, move, self.kept))


def _moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor], kept: Sequence[str]) -> Any:
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, Movable):
        return value.moved(move)
    if isinstance(value, dict):
        return {key: item if key in kept else _moved(item, move, kept) for key, item in value.items()}
    return type(value)(_moved(item, move, kept) for item in value) if isinstance(value, list | tuple) else value


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
        """Return the sentences ``start`` to ``stop``, as ``select`` does."""
        return self.select(slice(start, stop))

    def select(self, rows: np.ndarray | slice) -> TokenBatch:
        """Return the sentences of some rows, int64 [N], with no more padding than the longest of them needs."""
        lengths = self.host_lengths[rows]
        chosen = rows if isinstance(rows, slice) else on_device(rows, self.tokens.device)
        width = int(lengths.max()) if len(lengths) else self.tokens.size(1)
        types = None if self.types is None else self.types[chosen, :width]
        return TokenBatch(self.tokens[chosen, :width], self.lengths[chosen], lengths, types)

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
class Batch(Movable):
    """A batch of B examples: their sentences by side, and facts about each example.

    Attributes:
        sides: the sentences, by the tower that reads them: ``shared`` for single sentences and sequences, ``source``
            and ``target`` for pairs and inference. Without ``places``, row i of each side belongs to example i.
        facts: tensors with one row for each example, each of which is an attribute of the batch, too:

            - ``indices``: int64 [B], the index of each example in its split (for messages and for restoring the order).
            - ``languages``: int64 [B, S], or [B] of single sentences: the language of each sentence, as its place in
              ``TextSpec.languages``.
            - ``ids``: int64 [B, S]; equal numbers in a column mean equal sentences.
            - ``labels``: int64, what is to be predicted: the class of each example [B], the tag of each token [B, T],
              or the first and last token of an answer [B, 2]; float32 [B], how similar the sentences of a pair are.
            - ``guide``: float32 [B, S, G], the vectors of another encoder that judges the sentences, if there is one.
        places: int64 [B, S], for examples whose sentences are divided among the sides by language: the place of each
            sentence in the rows of the first side followed by those of the second.
        negatives: hard negatives of the sources; None if the run has none.

    ``indices`` and ``languages`` are not moved to a GPU, so that Python can read them.
    """

    kept = ("indices", "languages")
    sides: dict[str, TokenBatch]
    facts: dict[str, torch.Tensor]
    places: torch.Tensor | None = None
    negatives: HardNegatives | None = None

    @classmethod
    def of(cls, sides: dict[str, TokenBatch], places: np.ndarray | None = None, **facts: np.ndarray) -> Batch:
        """Return a batch whose places and facts are given as arrays."""
        of_examples = {name: torch.from_numpy(fact) for name, fact in facts.items()}
        return cls(sides, of_examples, None if places is None else torch.from_numpy(places))

    @property
    def source(self) -> TokenBatch:
        return self.sides["source"]

    @property
    def target(self) -> TokenBatch:
        return self.sides["target"]

    @property
    def tokens(self) -> TokenBatch:
        """The only side of single sentences or sequences."""
        return self.sides["shared"]

    @property
    def ids(self) -> torch.Tensor:
        return self.facts["ids"]

    @property
    def indices(self) -> torch.Tensor:
        return self.facts["indices"]

    @property
    def languages(self) -> torch.Tensor:
        return self.facts["languages"]

    @property
    def labels(self) -> torch.Tensor:
        return self.facts["labels"]

    @property
    def guide(self) -> torch.Tensor:
        return self.facts["guide"]

    @property
    def token_count(self) -> int:
        """Number of tokens without padding."""
        negatives = 0 if self.negatives is None else self.negatives.tokens.real_tokens
        return sum(side.real_tokens for side in self.sides.values()) + negatives

    def rows(self, start: int, stop: int) -> Batch:
        """Return the examples ``start`` to ``stop``, with only their sentences; the batch is in host memory."""
        facts = {name: fact[start:stop] for name, fact in self.facts.items()}
        negatives = None if self.negatives is None else self.negatives.of_rows(start, stop)
        if self.places is None:
            return Batch({name: side.rows(start, stop) for name, side in self.sides.items()}, facts, None, negatives)
        chosen, places = self.places[start:stop].unique(return_inverse=True)
        sides, first = dict[str, TokenBatch](), 0
        for name, side in self.sides.items():
            its_rows = chosen[(chosen >= first) & (chosen < first + len(side))] - first
            sides[name], first = side.select(its_rows.numpy()), first + len(side)
        return Batch(sides, facts, places, negatives)

    def __len__(self) -> int:
        return len(self.indices)


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

    Without any sentences, the batch has as many columns as there are special tokens around a sentence, at least one.

    Args:
        ids: Subword ids of all sentences, concatenated: [sum of lengths], without special tokens.
        lengths: Number of ids of each sentence, int64 [B].
    """
    count = vocabulary.special_count
    width = max(1, int(lengths.max(initial=0)) + count)
    tokens = np.full((len(lengths), width), vocabulary.pad_id, dtype=np.int64)
    if vocabulary.bos_id is not None:
        tokens[:, 0] = vocabulary.bos_id
    words = tokens[:, vocabulary.leading_count :]
    words[np.arange(words.shape[1]) < lengths[:, None]] = ids
    if vocabulary.eos_id is not None:
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
        size = max(1, batch_tokens // max(1, int(lengths[order[start]])))  # a batch has at least one column
        stop = start + min(size, most or size)
        yield order[start:stop].tolist()
        start = stop

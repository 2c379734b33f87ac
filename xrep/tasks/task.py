"""The interface between text and the rest: what a task gives to criteria, validators and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary, pad
from xrep.data.batch_plan import TokenBudget, check_size, plan_batches
from xrep.data.order import ExampleOrder, GroupedOrder, RowRange, by_group
from xrep.data.stream import Plan
from xrep.data.table import TOKENIZER_DIRECTORY, Column, DataDirectory, Table, gather_ragged
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.text.cleaning import NO_KEY
from xrep.text.sides import SHARED, SIDES, Tokenizers, load_tokenizers, open_tokenizers, same_tokenizer, save_tokenizers

DEFAULT_BATCH_SIZE, VALIDATION_BATCH_SIZE = 128, 128


@dataclass(frozen=True)
class ExampleKind:
    """A kind of examples. A task gives one kind, and a criterion reads one or several; a plugin can make its own."""

    name: str
    """What messages call such examples."""
    cure: str = ""
    """The options by which a run gets them, as in "set `task` to bitext"."""
    SENTENCES: ClassVar[ExampleKind]
    TRANSLATIONS: ClassVar[ExampleKind]
    NEIGHBOURS: ClassVar[ExampleKind]
    REORDERED: ClassVar[ExampleKind]
    LABELLED_PAIRS: ClassVar[ExampleKind]
    TRIPLETS: ClassVar[ExampleKind]
    SCORED_PAIRS: ClassVar[ExampleKind]
    MIXTURE: ClassVar[ExampleKind]


ExampleKind.SENTENCES = ExampleKind("single sentences", "`task` to monolingual")
ExampleKind.TRANSLATIONS = ExampleKind("translations", "`task` to bitext")
ExampleKind.NEIGHBOURS = ExampleKind("neighbouring sentences", "`task` to monolingual and `units` to adjacent")
ExampleKind.REORDERED = ExampleKind("reordered sentences", "`task` to monolingual and `units` to reordered")
ExampleKind.LABELLED_PAIRS = ExampleKind("labelled pairs", "`task` to nli")
ExampleKind.TRIPLETS = ExampleKind("triplets", "`task` to nli and `form` to triplets")
ExampleKind.SCORED_PAIRS = ExampleKind("scored pairs", "`task` to similarity")
ExampleKind.MIXTURE = ExampleKind("examples of several kinds")
PAIRS = (ExampleKind.TRANSLATIONS, ExampleKind.NEIGHBOURS, ExampleKind.REORDERED)
"""The kinds whose examples are pairs with the sides source and target."""


@dataclass(frozen=True)
class Pool:
    """Pairs of one language pair among which translations are searched for; batches are sorted by length."""

    name: str
    source_language: str
    target_language: str
    batches: Callable[[], Iterator[Batch]]
    """``Batch.indices`` is the row of each pair in the pool."""


@dataclass(kw_only=True)
class VocabularyOptions:
    """Options of tasks that tokenise text as it is read, by the vocabulary of an encoder or by one of their own."""

    tokenizer: str | None = None
    """Directory that holds the tokenizer: a data directory (for a part trained along with bitext, that of the
    bitext), a checkpoint or a folder of the tokenizer alone. none: that of the pretrained encoder, or one that is
    trained on this text."""
    vocab_size: Annotated[int, "[8, 1e9]"] | None = None
    """Number of subwords in the vocabulary that is trained, fewer if the text is too small. none: 16,000."""
    exclude: list[str] = field(default_factory=list)
    """Files or directories of evaluation sets. Training examples with a sentence that occurs there are dropped."""


class Task(ABC):
    """Text as batches. A task is built as ``Task(config, seed, tokenizers)``; nothing else knows files or text.

    A plan (``plan``) says which examples a batch has, and ``make`` builds the batch. The order of the examples depends
    only on the seed, not on the number of ranks or the batch size, and ``make`` depends only on its argument, so that
    worker processes can build batches. ``tokenizers`` are the folders of the tokenizers that come with the model, by
    side (``shared``, or ``source`` and ``target``); there are none if the text has its own.

    Attributes:
        default_model: Name of the model of a run that names none.
        default_validation: Name of the validation of a run that names none.
        gives: Kind of the examples in the batches.
        text: What the model needs to know about the text.
        tokenizers: The loaded tokenizers, by side.
        examples: Number of training examples in one epoch.
        has_validation: Whether there is a dev split.
        has_hard_negatives: Whether training batches have ``Batch.negatives``.
    """

    default_model: ClassVar[str] = "dual_encoder"
    default_validation: ClassVar[str] = "retrieval"
    gives: ExampleKind
    text: TextSpec
    tokenizers: Tokenizers
    examples: int
    has_validation: bool
    has_hard_negatives: bool = False

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, TableTask]:
        """The tasks that this one consists of, by the names of their parts; a single task has the name ''."""

    # -- training -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_size(self, world_size: int) -> None:
        """Raise UserError if an epoch is smaller than one batch on each of ``world_size`` ranks."""

    @abstractmethod
    def plan(self, cursor: Any = None, rank: int = 0, world_size: int = 1, stop: int | None = None) -> Iterator[Plan]:
        """Return the plans of the training batches of one rank, without end or up to example ``stop`` of the run.

        Args:
            cursor: ``Plan.cursor`` of the last batch that was used; None to start at the beginning.
        """

    @abstractmethod
    def make(self, rows: Any) -> Any:
        """Return the batch of ``Plan.rows``, which alone determine it."""

    @abstractmethod
    def describe(self, batch: Any, limit: int = 3) -> str:
        """Return the first examples of a training batch as text, for messages."""

    # -- what is saved with a run -------------------------------------------------------------------------------------

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a string that changes when the examples, their order or the vocabulary change."""

    @property
    @abstractmethod
    def training_hashes(self) -> list[Path]:
        """Files with the sorted hashes of every training sentence (uint64 ``.npy``)."""

    def save_tokenizers(self, directory: Path) -> None:
        """Write the tokenizers to a directory, from which ``open_tokenizers`` reads them."""
        save_tokenizers(self.tokenizers, directory)

    # -- validation ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def validation_batches(self) -> Iterator[Any]:
        """Return the batches of the dev split, sorted by length; none if there is no such split."""

    def validation_pools(self, max_pool_size: int) -> list[Pool]:
        """Return the first pairs of each language pair of the dev split; no pools if there are no translations."""
        return []


class TableTask(Task):
    """A task whose examples are rows of tables.

    A kind of task opens its tables in its constructor, and says what is in a batch (``batch_of``) and how an example
    reads as text (``as_text``).

    Args:
        config: The configuration, with ``data`` and ``batch_size``.
        seed: Seed of the order.
        data: The directory of the tables.
        tables: The tables by split: ``train``, and ``valid`` if there is a dev split. Those without examples are left
            out.
        text: What the model needs to know about the text.
        tokenizers: The loaded tokenizers, by side. None: those of ``data``.
        max_tokens: Maximum number of tokens in a batch, whose maximum number of examples is then ``batch_size``. None:
            a batch has ``batch_size`` examples.
        sampling_alpha: Tables are drawn with p proportional to n ** sampling_alpha, where n is their number of
            examples.
        groups: Parts of the training tables, if each batch is to be of one of them. ``sampling_alpha`` is then about
            these instead of tables.

    Attributes:
        unit: Name of the examples in messages.
        train, valid: The tables of both splits.
        left_out: Names of tables that are not validated on, because no training text has their languages.
    """

    unit: str = "examples"

    def __init__(
        self,
        config: Any,
        seed: int,
        data: DataDirectory,
        tables: Mapping[str, Sequence[Table]],
        text: TextSpec,
        tokenizers: Tokenizers | None = None,
        *,
        max_tokens: int | None = None,
        sampling_alpha: float = 1.0,
        groups: Sequence[RowRange] = (),
    ) -> None:
        self.config, self.seed, self.data, self.text = config, seed, data, text
        self.tokenizers = data.tokenizers if tokenizers is None else tokenizers
        self.train, valid = ([t for t in tables.get(split, ()) if self.count(t)] for split in ("train", "valid"))
        self.valid = [table for table in valid if {*table.facts.get("languages", ())} <= {*text.languages}]
        self.left_out = sorted({table.name for table in valid} - {table.name for table in self.valid})
        self.has_validation = bool(self.valid)
        self.size: int | TokenBudget = config.batch_size or DEFAULT_BATCH_SIZE
        if max_tokens is not None:
            self.size = TokenBudget(max_tokens, self._tokens_of_sides, config.batch_size)
        own = sampling_alpha, seed, lambda n, rows: self.lengths(self.train[n], rows).sum(axis=1)
        sizes = list(map(self.count, self.train))
        self.order = GroupedOrder(groups, *own) if groups else _NumberedOrder(sizes, *own)
        self.examples = self.order.epoch_size

    # -- what the kinds of tasks do differently -----------------------------------------------------------------------

    @abstractmethod
    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        """Return the batch of some examples.

        Args:
            tables: The tables of a split, or some of them.
            examples: int64 [N, 3]: the place of the table, the number of the example in it (below ``count``), and the
                position of the example in the run, or in the order of its group.
        """

    @abstractmethod
    def as_text(self, table: Table, number: int) -> str:
        """Return an example of a table as text, for messages."""

    def count(self, table: Table) -> int:
        """Return the number of examples in a table."""
        return len(table)

    def lengths(self, table: Table, numbers: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each sentence of some examples, without special ones: int64 [N, S]."""
        ragged = [column for column in table.columns.values() if column.offsets is not None]
        return np.stack([column.lengths(numbers) for column in ragged], axis=1)

    @property
    def place(self) -> str | Path:
        """Where the user put the text, for messages."""
        return self.config.data

    # -- what a task is -----------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, TableTask]:
        return {"": self}

    def check_size(self, world_size: int) -> None:
        check_size(self.order, self.size, self.unit, world_size, self.place)

    def plan(self, cursor: Any = None, rank: int = 0, world_size: int = 1, stop: int | None = None) -> Iterator[Plan]:
        return plan_batches(self.order, self.size, cursor, rank, world_size, stop)

    def make(self, rows: Any) -> Any:
        return self.batch_of(self.train, rows)

    def describe(self, batch: Any, limit: int = 3) -> str:
        starts, indices = np.cumsum([0, *map(self.count, self.train)]), batch.indices[:limit].numpy()
        places = np.searchsorted(starts, indices, side="right") - 1
        examples = zip(places.tolist(), (indices - starts[places]).tolist(), strict=True)
        return "; ".join(self.as_text(self.train[place], number) for place, number in examples) or "no examples"

    def fingerprint(self) -> str:
        return self.data.fingerprint

    @property
    def training_hashes(self) -> list[Path]:
        return [self.data.training_hashes]

    def statistics(self) -> dict[str, Any]:
        """Return facts about the text that reports show, as JSON: rows and tokens of each split, and what cleaning
        left out."""
        kept = {key: self.data.manifest[key] for key in ("splits", "cleaning") if key in self.data.manifest}
        return {"examples": self.examples, **kept}

    def validation_batches(self) -> Iterator[Any]:
        return (batch for table in self.valid for batch in self.batches_by_length(table))

    def batches_by_length(self, table: Table, limit: int | None = None) -> Iterator[Batch]:
        """Yield the batches of the first ``limit`` examples of a table, the shortest first."""
        numbers = np.arange(self.count(table))[:limit]
        by_length = numbers[np.argsort(self.lengths(table, numbers).sum(axis=1), kind="stable")]
        for start in range(0, len(numbers), VALIDATION_BATCH_SIZE):
            own = by_length[start : start + VALIDATION_BATCH_SIZE]
            yield self.batch_of([table], np.stack([np.zeros_like(own), own, own], axis=1))

    # -- what batches are made of -------------------------------------------------------------------------------------

    def indices(self, tables: Sequence[Table], examples: np.ndarray) -> np.ndarray:
        """Return the index of each example among those of all tables: int64 [N, 3] -> int64 [N]."""
        return np.cumsum([0, *map(self.count, tables)])[examples[:, 0]] + examples[:, 1]

    def side(self, name: str, columns: Sequence[Column], places: np.ndarray, rows: np.ndarray) -> TokenBatch:
        """Return the sentences in row ``rows[i]`` of ``columns[places[i]]``, as the tower of a side reads them."""
        vocabulary = self.text.vocabulary(name)
        return pad(*gather_ragged(columns, places, rows, self.text.max_length - vocabulary.special_count), vocabulary)

    def language_places(self, tables: Sequence[Table]) -> np.ndarray:
        """Return the languages of tables as places in ``TextSpec.languages``: int64 [tables, S]."""
        known = {language: place for place, language in enumerate(self.text.languages)}
        return np.array([[known[language] for language in table.languages] for table in tables], dtype=np.int64)

    def _tokens_of_sides(self, place: int, numbers: np.ndarray) -> np.ndarray:
        """Return the lengths of the sentences of training examples as their batch has them: int64 [N, S]."""
        lengths = self.lengths(self.train[place], numbers)
        special = [self.text.vocabulary(side).special_count for side in SIDES[: lengths.shape[1]]]
        return np.minimum(lengths + special, self.text.max_length)


class _NumberedOrder(ExampleOrder):
    """An order of examples that also returns their positions."""

    def take(self, start: int, stop: int) -> np.ndarray:
        """Return place of the table, number and position of the examples: int64 [stop - start, 3]."""
        return np.column_stack([super().take(start, stop), np.arange(start, stop)])


def ids_of(tables: Sequence[Table], places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a number for each sentence in row ``rows[i]`` of ``tables[places[i]]``: int64 [N] -> int64 [N, S].

    Sentences with equal numbers are equal. The number is the hash. A sentence without a hash (``NO_KEY``) has a number
    of its own, by which only this sentence of this row is found again, for example in a queue.
    """

    def of_table(place: int, chosen: np.ndarray) -> np.ndarray:
        hashes, own = tables[place].hashes[rows[chosen]], rows[chosen].astype(np.uint64)[:, None]
        hashes = hashes if hashes.ndim == 2 else hashes[:, None]
        width = hashes.shape[1]
        own = own * np.uint64(width) + np.arange(width, dtype=np.uint64)
        return np.where(hashes == NO_KEY, scramble(own, tables[place].salt), hashes).view(np.int64)

    return by_group(places, of_table)


def text_spec(tokenizers: Tokenizers, max_length: int, **facts: Any) -> TextSpec:
    """Return the spec of text that these tokenizers read."""
    vocabularies = {side: Vocabulary.of(tokenizer) for side, tokenizer in tokenizers.items()}
    return TextSpec(vocabularies=vocabularies, max_length=max_length, **facts)


def given_tokenizers(option: str | None, brought: Mapping[str, str], *, shared: bool = False) -> Tokenizers:
    """Return the tokenizers to use for text, by side; none if one is to be trained.

    Args:
        option: Directory that the configuration names.
        brought: Folders of the tokenizers that come with the model, by side.
        shared: Whether all languages must have one tokenizer.

    Raises:
        UserError: Tokenizers that read the same text differ, or one side alone has a tokenizer.
    """
    given: list[Tokenizers] = []
    if option is not None:
        inner = Path(option) / TOKENIZER_DIRECTORY
        given.append(open_tokenizers(inner if inner.is_dir() else Path(option)))
    if brought:
        given.append(load_tokenizers(brought, partial=bool(given)))

    if not given:
        return {}
    for sides in [(SHARED, *SIDES)] if shared else [(SHARED, side) for side in SIDES]:
        first, *others = [each[side] for each in given for side in sides if side in each]
        if not all(same_tokenizer(first, other) for other in others):
            names = ", ".join([*([] if option is None else [option]), *dict.fromkeys(brought.values())])
            read = "all languages are" if shared else "each side is"
            cure = "leave `tokenizer` out, or set `towers` to shared and name one encoder"
            raise UserError(f"these tokenizers differ, and {read} read by one: {names}", cure=cure)
    return {SHARED: next(iter(given[0].values()))} if shared else given[0]

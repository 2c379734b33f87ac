"""The interface between text and the rest: what a task gives to criteria, validators and the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xrep.data.batch import Batch, TextSpec
from xrep.data.stream import Plan
from xrep.text.sides import Tokenizers, save_tokenizers


class Examples(str, Enum):
    """Kinds of examples. A task gives one kind, and a criterion reads one or several."""

    SENTENCES = "single sentences"
    TRANSLATIONS = "translations"
    NEIGHBOURS = "neighbouring sentences"
    REORDERED = "reordered sentences"
    LABELLED_PAIRS = "labelled pairs"
    TRIPLETS = "triplets"
    LABELLED_TEXTS = "labelled texts"
    TAGGED_WORDS = "tagged words"
    QUESTIONS = "questions"
    MIXTURE = "examples of several kinds"


PAIRS = (Examples.TRANSLATIONS, Examples.NEIGHBOURS, Examples.REORDERED)
"""The kinds whose examples are pairs with the sides source and target."""


@dataclass(frozen=True)
class Pool:
    """Pairs of one language pair among which translations are searched for; batches are sorted by length."""

    name: str
    source_language: str
    target_language: str
    batches: Callable[[], Iterator[Batch]]
    """``Batch.indices`` is the row of each pair in the pool."""


class Task(ABC):
    """Text as batches. A task is built as ``Task(config, seed, tokenizers)``; nothing else knows files or text.

    A plan (``plan``) says which examples a batch has, and ``make`` builds the batch. The order of examples depends only
    on the seed, not on the number of ranks or the batch size, and ``make`` depends only on its argument, so that worker
    processes can build batches.

    Args of the constructor: the configuration; the seed of the order; and the folders of the tokenizers that come with
    the model, by side (``shared``, or ``source`` and ``target``), empty if the text has its own.

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
    gives: Examples
    text: TextSpec
    tokenizers: Tokenizers
    examples: int
    has_validation: bool
    has_hard_negatives: bool = False

    @abstractmethod
    def __init__(self, config: Any, seed: int, tokenizers: Mapping[str, str] | None = None) -> None: ...

    # -- training -----------------------------------------------------------------------------------------------------

    @property
    def parts(self) -> Mapping[str, Task]:
        """The tasks that this one consists of, by the names of their parts; a single task has the name ''."""
        return {"": self}

    @property
    @abstractmethod
    def examples_per_batch(self) -> int | Fraction:
        """Mean number of examples per batch on one rank."""

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
    def make(self, what: Any) -> Any:
        """Return the batch of ``Plan.what``, which alone determines it."""

    @abstractmethod
    def describe(self, batch: Any, limit: int = 3) -> str:
        """Return the first examples of a training batch as text, for messages."""

    # -- what is saved with a run -------------------------------------------------------------------------------------

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a string that changes when the examples, their order or the vocabulary change."""

    @abstractmethod
    def write_training_hashes(self, path: Path) -> None:
        """Write the sorted hashes of every training sentence (uint64 ``.npy``) to ``path``."""

    def statistics(self) -> dict[str, Any]:
        """Return facts about the text that reports show, as JSON: rows and tokens of each split, and what cleaning
        left out."""
        return {"examples": self.examples}

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


class ParallelTask(Task):
    """A task whose examples are pairs of sentences and their translations."""

    gives = Examples.TRANSLATIONS

    @property
    @abstractmethod
    def language_pairs(self) -> list[tuple[str, str]]:
        """The languages (source, target) of each language pair that is trained."""

    @abstractmethod
    def subwords(self, language: str) -> np.ndarray:
        """Return the sorted ids that occur in the training text of a language. This reads all of the text once."""

    @abstractmethod
    def hashes(self) -> Iterator[np.ndarray]:
        """Return the hashes of the training sentences of each corpus, source and target: uint64 [n, 2]; see
        ``Batch.ids``."""

    @abstractmethod
    def references(self, batch: Batch) -> list[str]:
        """Return the target side of a batch as text, decoded from its tokens: without what the vocabulary does not
        know, and cut where the batch is cut."""

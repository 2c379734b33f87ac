"""What tasks whose text is in a directory of tokenised text have in common."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from xrep.data.order import ExampleOrder
from xrep.data.plan import TokenBudget, check_size, mean_size, plan_batches
from xrep.data.stream import Plan
from xrep.data.table import TOKENIZER_DIRECTORY, DataDirectory, Table
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.task import Task
from xrep.text.cleaning import NO_KEY
from xrep.text.sides import SHARED, SIDES, Tokenizers, load_tokenizers, open_tokenizers, same_tokenizer, tokenizer_of

VALIDATION_BATCH_SIZE = 128


@dataclass(kw_only=True)
class VocabularyOptions:
    """Options of tasks that tokenise text by the vocabulary of an encoder, or by one of their own."""

    tokenizer: str | None = None
    """Directory that holds the tokenizer: a data directory (for a part trained along with bitext, that of the
    bitext), a checkpoint or a folder of the tokenizer alone. none: that of the pretrained encoder, or one that is
    trained on this text."""
    vocab_size: Annotated[int, "[8, 1e9]"] | None = None
    """Number of subwords in the vocabulary that is trained. none: 16,000, or fewer if the text is too small."""


class StoredTask(Task):
    """A task whose examples are numbered rows of a directory of tokenised text.

    Args:
        data: The directory.
        order: The order of the training examples.
        batch_size: Number of examples in a batch, or the rule that decides it.
        unit: Name of the examples in messages.
        place: Where the user put the text, for messages.
    """

    def _open(
        self, data: DataDirectory, order: ExampleOrder, batch_size: int | TokenBudget, unit: str, place: str | Path
    ) -> None:
        self._data, self._order, self._batch_size, self._unit, self._place = data, order, batch_size, unit, place
        self.examples = order.epoch_size

    @property
    def examples_per_batch(self) -> Fraction:
        return mean_size(self._order, self._batch_size)

    def check_size(self, world_size: int) -> None:
        check_size(self._order, self._batch_size, self._unit, world_size, self._place)

    def plan(
        self, cursor: int | None = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]:
        return plan_batches(self._order, self._batch_size, cursor, rank, world_size, stop)

    def fingerprint(self) -> str:
        return self._data.fingerprint

    def statistics(self) -> dict[str, Any]:
        kept = {key: self._data.manifest[key] for key in ("splits", "cleaning") if key in self._data.manifest}
        return {**super().statistics(), **kept}

    def write_training_hashes(self, path: Path) -> None:
        shutil.copyfile(self._data.training_hashes, path)

    def describe(self, batch: Any, limit: int = 3) -> str:
        starts, indices = np.cumsum([0, *self._order.sizes]), batch.indices[:limit].numpy()
        corpora = np.searchsorted(starts, indices, side="right") - 1
        rows = indices - starts[corpora]
        return "; ".join(map(self._describe, corpora.tolist(), rows.tolist())) or "no examples"

    @abstractmethod
    def _describe(self, corpus: int, row: int) -> str:
        """Return a training example as text."""


def ids_of(corpus: Table, rows: np.ndarray) -> np.ndarray:
    """Return a number for each sentence of some rows: int64 [N] -> int64 [N, columns].

    Sentences with equal numbers are equal. The number is the hash. A sentence without a hash (``NO_KEY``) has a number
    of its own, by which only this sentence of this row is found again, for example in a queue.
    """
    hashes = corpus.hashes[rows].reshape(len(rows), -1)
    own = rows.astype(np.uint64)[:, None] * np.uint64(hashes.shape[1]) + np.arange(hashes.shape[1], dtype=np.uint64)
    return np.where(hashes == NO_KEY, scramble(own, corpus.salt), hashes).view(np.int64)


def rows_by_length(lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows, int64 [N], of each batch for validation, of which the first has the shortest examples."""
    rows = np.argsort(lengths, kind="stable")
    for start in range(0, len(rows), VALIDATION_BATCH_SIZE):
        yield rows[start : start + VALIDATION_BATCH_SIZE]


def given_tokenizers(named: str | None, brought: Mapping[str, str], *, shared: bool = False) -> Tokenizers:
    """Return the tokenizers to use for text, by side; none if one is to be trained.

    Args:
        named: Directory that the configuration names.
        brought: Folders of the tokenizers that come with the model, by side.
        shared: Whether all languages must have one tokenizer.

    Raises:
        UserError: The tokenizers are of one side alone, or of two sides where ``shared`` is true; or both are given
            and differ.
    """
    own: Tokenizers = {}
    if named is not None:
        inner = Path(named) / TOKENIZER_DIRECTORY
        own = open_tokenizers(inner if inner.is_dir() else Path(named))
    theirs = load_tokenizers(brought, partial=True) if brought else {}
    cure = "all languages share one encoder and one vocabulary: set `towers` to shared"
    if shared and own and SHARED not in own:
        raise UserError("has a tokenizer for each side", path=named, cure=cure)
    if shared and theirs and SHARED not in theirs:
        raise UserError("the pretrained encoders have tokenizers of their own", cure=cure)
    if not own and len(theirs) == 1 and SHARED not in theirs:
        (side,) = theirs
        cure = "name the data directory of the bitext with `tokenizer`, which has both"
        raise UserError(f"the pretrained encoder has a tokenizer of the {side} side alone", cure=cure)
    sides = [side for side in SIDES if side in theirs or SHARED in theirs]
    if own and not all(same_tokenizer(tokenizer_of(own, side), tokenizer_of(theirs, side)) for side in sides):
        problem = "is another vocabulary than that of the pretrained encoder"
        raise UserError(problem, path=named, cure="leave it out")
    return own or theirs

"""Natural language inference: pairs with a class, or triplets of an anchor, its positive and its hard negative."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from xrep.data.batching import Batch, TextSpec, TokenBatch, Vocabulary, pad
from xrep.data.nli_store import NliOptions, NliSplit, prepare_nli
from xrep.data.order import ExampleOrder
from xrep.data.plan import check_size, plan_batches
from xrep.data.store import TOKENIZER_DIRECTORY, TRAINING_HASHES_FILE
from xrep.data.stream import Plan
from xrep.errors import UserError
from xrep.tasks.bitext import VALIDATION_BATCH_SIZE
from xrep.tasks.task import Examples, Task
from xrep.text.languages import canonical
from xrep.text.nli_readers import LABELS
from xrep.text.sides import (
    SHARED,
    SIDES,
    Tokenizers,
    load_tokenizers,
    open_tokenizers,
    same_tokenizer,
    tokenizer_of,
)


@dataclass
class NliBatch(Batch):
    """Examples of S sentences: premise and hypothesis, or anchor, positive and hard negative.

    Attributes:
        sides: the sentences of all columns, divided into those of source languages and those of target languages,
            because each side may have its own tower and tokenizer.
        places: int64 [B, S]: index of each sentence in the rows of the first side followed by those of the second.
        labels: int64 [B], places in ``LABELS``; -1 in triplets.
        ids: int64 [B, S]: equal numbers mean equal sentences.
        indices: int64 [B]: index of each row's example in its split (for messages).
        languages: int64 [B, S]: language of each sentence, as its place in ``TextSpec.languages``. ``languages`` and
            ``indices`` always stay on the CPU, where Python can read them.
    """

    sides: tuple[TokenBatch, TokenBatch]
    places: Tensor
    labels: Tensor
    ids: Tensor
    indices: Tensor
    languages: Tensor

    def rows(self, start: int, stop: int) -> NliBatch:
        """Return some of the examples, with only their sentences. Best called on a batch that is not on a GPU yet."""
        some = slice(start, stop)
        chosen, places = self.places[some].unique(return_inverse=True)
        border = len(self.sides[0])
        of_sides = chosen[chosen < border], chosen[chosen >= border] - border
        source, target = (side.select(rows.numpy()) for side, rows in zip(self.sides, of_sides, strict=True))
        facts = (tensor[some] for tensor in (self.labels, self.ids, self.indices, self.languages))
        return NliBatch((source, target), places, *facts)

    @property
    def token_count(self) -> int:
        return sum(side.real_tokens for side in self.sides)

    def __len__(self) -> int:
        return len(self.places)


class NliTask(Task):
    """Natural language inference data of one or several languages, as it is published (``xrep.text.nli_readers``).

    It is tokenised once and kept on disk. The tokenizer is that of the pretrained encoder, or ``tokenizer``, or one
    that is trained on the text.

    Raises:
        UserError: the data is missing or damaged, or two different tokenizers are named.
    """

    default_validation = "nli"

    @dataclass(kw_only=True)
    class Config:
        data: str
        """File or directory of inference data: SNLI, MNLI, XNLI or CNSD as downloaded; s1.train with s2.train and
        labels.train; SimCSE's nli_for_simcse.csv; or a directory of such directories."""
        form: Literal["pairs", "triplets"] = "pairs"
        """Form of the examples. pairs: premise, hypothesis and label (criterion nli). triplets: premise, a sentence it
        entails and a sentence that contradicts it (criterion nli_triplet)."""
        language: str = "en"
        """Language of files that do not name it (dev-de.tsv does, and CNSD is Chinese)."""
        cross_lingual: bool = False
        """Give each premise a hypothesis in another language. This needs files that are translations of each other line
        by line, such as train-de.tsv and train-fr.tsv."""
        target_languages: list[str] = field(default_factory=lambda: ["en"])
        """Languages of the target side, if the sides have separate towers or tokenizers; all other languages belong to
        the source side."""
        tokenizer: str | None = None
        """Directory that holds the tokenizer: a data directory (for a part trained along with bitext, that of the
        bitext), a checkpoint or a folder of the tokenizer alone. none: that of the pretrained encoder, or one that is
        trained on this text."""
        vocab_size: int = 16000
        """Number of subwords in the vocabulary that is trained."""
        batch_size: int = 128
        """Number of examples in a batch."""
        max_length: int = 128
        """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""

        def problems(self) -> list[str]:
            problems = []
            if self.batch_size < 1:
                problems.append(f"batch_size must be at least 1, not {self.batch_size}")
            if self.max_length < 3:
                problems.append(f"max_length must be at least 3, not {self.max_length}")
            if self.vocab_size < 8:
                problems.append(f"vocab_size must be at least 8, not {self.vocab_size}")
            return problems

    def __init__(self, config: Config, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config = config
        self._options = NliOptions(
            triplets=config.form == "triplets",
            language=config.language,
            cross_lingual=config.cross_lingual,
            target_languages=[canonical(language) for language in config.target_languages],
            vocabulary_size=config.vocab_size,
        )
        self._data = prepare_nli(config.data, self._options, _given_tokenizers(config, tokenizers or {}))
        self._train = self._data.splits["train"]
        self.examples = len(self._train)
        self.tokenizers: Tokenizers = self._data.tokenizers
        self._is_target = np.array([self._options.side(code) == "target" for code in self._data.languages])
        self.text = self._text_spec()
        self._order = ExampleOrder([self.examples], 1.0, seed, lambda _, rows: self._train.lengths(rows))

    def _text_spec(self) -> TextSpec:
        by_side = {side: sorted(c for c in self._data.languages if self._options.side(c) == side) for side in SIDES}
        return TextSpec(
            vocabularies={side: Vocabulary.of(tokenizer) for side, tokenizer in self.tokenizers.items()},
            max_length=self.config.max_length,
            source_languages=by_side["source"],
            target_languages=by_side["target"],
        )

    @property
    def gives(self) -> Examples:
        return Examples.TRIPLETS if self.config.form == "triplets" else Examples.LABELLED_PAIRS

    @property
    def examples_per_batch(self) -> int:
        return self.config.batch_size

    def check_size(self, world_size: int) -> None:
        check_size(self.examples, "examples", self.config.batch_size, world_size, self.config.data)

    def write_training_hashes(self, path: Path) -> None:
        shutil.copyfile(self._data.path / TRAINING_HASHES_FILE, path)

    def fingerprint(self) -> str:
        return self._data.fingerprint

    def plan(
        self, cursor: int | None = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]:
        plans = plan_batches(self._order, self.config.batch_size, cursor, rank, world_size, stop)
        return (replace(plan, what=plan.what[:, 1]) for plan in plans)

    def make(self, what: np.ndarray) -> NliBatch:
        return self._batch(self._train, what)

    def describe(self, batch: NliBatch, limit: int = 3) -> str:
        lines = []
        for row in batch.indices[:limit].tolist():
            sides = ["target" if target else "source" for target in self._is_target[self._train.languages[row]]]
            columns = zip(sides, self._train.columns, strict=True)
            texts = [repr(tokenizer_of(self.tokenizers, side).decode(column[row])) for side, column in columns]
            label = [] if self._options.triplets else [LABELS[self._train.labels[row]]]
            lines.append(f"example {row}: {' ||| '.join([*texts, *label])}")
        return "; ".join(lines) or "no examples"

    @property
    def has_validation(self) -> bool:
        return "valid" in self._data.splits

    def validation_batches(self) -> Iterator[NliBatch]:
        split = self._data.splits.get("valid")
        if split is not None:
            order = np.argsort(split.lengths(np.arange(len(split))), kind="stable")
            for start in range(0, len(order), VALIDATION_BATCH_SIZE):
                yield self._batch(split, order[start : start + VALIDATION_BATCH_SIZE])

    def _batch(self, split: NliSplit, rows: np.ndarray) -> NliBatch:
        is_target = self._is_target[split.languages[rows]]
        known = np.array([self.text.languages.index(language) for language in self._data.languages])
        places = np.empty(is_target.shape, dtype=np.int64)
        sides, first = [], 0
        for side, chosen in zip(SIDES, (~is_target, is_target), strict=True):
            gathered = [
                column.gather(rows[chosen[:, c]], self.config.max_length - 2) for c, column in enumerate(split.columns)
            ]
            ids, lengths = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
            # Number the sentences column by column, in the order in which they were gathered.
            places.T[chosen.T] = np.arange(first, first + len(lengths))
            sides.append(pad(ids, lengths, self.text.vocabulary(side)))
            first += len(lengths)
        source, target = sides
        return NliBatch(
            (source, target),
            torch.from_numpy(places),
            torch.from_numpy(split.labels[rows]),
            torch.from_numpy(split.hashes[rows].view(np.int64)),
            torch.from_numpy(rows),
            torch.from_numpy(known[split.languages[rows]]),
        )


def _given_tokenizers(config: NliTask.Config, brought: Mapping[str, str]) -> Tokenizers | None:
    """Return the tokenizers of the model, or those that the configuration names; None if one is to be trained."""
    own = None
    if config.tokenizer is not None:
        inner = Path(config.tokenizer) / TOKENIZER_DIRECTORY
        own = open_tokenizers(inner if inner.is_dir() else Path(config.tokenizer))
    if not brought:
        return own
    theirs = load_tokenizers(brought, partial=True)
    if own is None and len(theirs) == 1 and SHARED not in theirs:
        (side,) = theirs
        cure = "name the data directory of the bitext with `tokenizer`, which has both"
        raise UserError(f"the pretrained encoder has a tokenizer of the {side} side alone", cure=cure)
    if own is not None and not all(same_tokenizer(tokenizer_of(own, side), theirs[side]) for side in theirs):
        raise UserError(
            "is another vocabulary than that of the pretrained encoder", path=config.tokenizer, cure="leave it out"
        )
    return own or theirs

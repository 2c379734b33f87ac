"""Natural language inference: pairs with a class, or triplets of an anchor, its positive and its hard negative."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from xrep.config.fields import Count
from xrep.data.batching import Batch, TextSpec, TokenBatch, Vocabulary, pad
from xrep.data.nli_table import NliOptions, prepare_nli
from xrep.data.order import ExampleOrder
from xrep.data.stream import Plan
from xrep.data.table import Column, Table
from xrep.tasks.stored import StoredTask, VocabularyOptions, given_tokenizers, ids_of, rows_by_length
from xrep.tasks.task import Examples
from xrep.text.languages import canonical
from xrep.text.nli import LABELS
from xrep.text.sides import SIDES, Tokenizers, tokenizer_of


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


class NliTask(StoredTask):
    """Natural language inference data of one or several languages, as it is published (``xrep.text.nli``).

    It is tokenised once and kept on disk. The tokenizer is that of the pretrained encoder, or ``tokenizer``, or one
    that is trained on the text.

    Raises:
        UserError: the data is missing or damaged, or two different tokenizers are named.
    """

    default_validation = "nli"

    @dataclass(kw_only=True)
    class Config(VocabularyOptions):
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
        exclude: list[str] = field(default_factory=list)
        """Files or directories of evaluation sets. Training examples with a sentence that occurs there are dropped."""
        batch_size: Count = 128
        """Number of examples in a batch."""
        max_length: Annotated[int, "[3, inf)"] = 128
        """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""

    def __init__(self, config: Config, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.gives = Examples.TRIPLETS if config.form == "triplets" else Examples.LABELLED_PAIRS
        self._options = NliOptions(
            triplets=config.form == "triplets",
            language=config.language,
            cross_lingual=config.cross_lingual,
            target_languages=[canonical(language) for language in config.target_languages],
            vocabulary_size=config.vocab_size,
            exclude=config.exclude,
        )
        data = prepare_nli(config.data, self._options, given_tokenizers(config.tokenizer, tokenizers or {}))
        self._splits, self._languages = (
            {split: tables[0] for split, tables in data.splits.items()},
            data.manifest["languages"],
        )
        self._train, self.has_validation = self._splits["train"], "valid" in self._splits
        self.tokenizers: Tokenizers = data.tokenizers
        self._is_target = np.array([self._options.side(code) == "target" for code in self._languages])
        by_side = {side: sorted(c for c in self._languages if self._options.side(c) == side) for side in SIDES}
        self.text = TextSpec(
            vocabularies={side: Vocabulary.of(tokenizer) for side, tokenizer in self.tokenizers.items()},
            max_length=config.max_length,
            source_languages=by_side["source"],
            target_languages=by_side["target"],
        )
        order = ExampleOrder([len(self._train)], 1.0, seed, lambda _, rows: self._train.lengths(rows))
        self._open(data, order, config.batch_size, "examples", config.data)

    def plan(
        self, cursor: int | None = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]:
        return (replace(plan, what=plan.what[:, 1]) for plan in super().plan(cursor, rank, world_size, stop))

    def make(self, what: np.ndarray) -> NliBatch:
        return self._batch(self._train, what)

    def _describe(self, corpus: int, row: int) -> str:
        sides = ["target" if target else "source" for target in self._is_target[self._train["languages"].values[row]]]
        columns = zip(sides, self._sentences(self._train), strict=True)
        texts = [repr(tokenizer_of(self.tokenizers, side).decode(column[row])) for side, column in columns]
        label = [] if self._options.triplets else [LABELS[self._train["labels"].values[row]]]
        return f"example {row}: {' ||| '.join([*texts, *label])}"

    def _sentences(self, split: Table) -> list[Column]:
        return [split[name] for name in self._options.columns]

    def validation_batches(self) -> Iterator[NliBatch]:
        if self.has_validation:
            split = self._splits["valid"]
            for rows in rows_by_length(split.lengths(np.arange(len(split)))):
                yield self._batch(split, rows)

    def _batch(self, split: Table, rows: np.ndarray) -> NliBatch:
        is_target = self._is_target[split["languages"].values[rows]]
        known = np.array([self.text.languages.index(language) for language in self._languages])
        places = np.empty(is_target.shape, dtype=np.int64)
        sides, first = [], 0
        for side, chosen in zip(SIDES, (~is_target, is_target), strict=True):
            most = self.config.max_length - self.text.vocabulary(side).special_count
            gathered = [column.gather(rows[chosen[:, c]], most) for c, column in enumerate(self._sentences(split))]
            ids, lengths = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
            # Number the sentences column by column, in the order in which they were gathered.
            places.T[chosen.T] = np.arange(first, first + len(lengths))
            sides.append(pad(ids, lengths, self.text.vocabulary(side)))
            first += len(lengths)
        source, target = sides
        return NliBatch(
            (source, target),
            torch.from_numpy(places),
            torch.from_numpy(split["labels"].values[rows]),
            torch.from_numpy(ids_of(split, rows)),
            torch.from_numpy(rows),
            torch.from_numpy(known[split["languages"].values[rows]]),
        )

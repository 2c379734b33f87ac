"""Monolingual text: single sentences, neighbouring sentences, or sentences paired with their reordered tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from xrep.config.fields import Count, Share
from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary, pad
from xrep.data.order import ExampleOrder, by_group
from xrep.data.plan import TokenBudget
from xrep.data.table import Table, gather_rows
from xrep.data.text_table import TextOptions, prepare_text
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.stored import StoredTask, VocabularyOptions, given_tokenizers, ids_of, rows_by_length
from xrep.tasks.task import Examples
from xrep.text.sides import SHARED, Tokenizers

Units = Literal["sentences", "adjacent", "reordered"]
GIVES: dict[Units, Examples] = {
    "sentences": Examples.SENTENCES,
    "adjacent": Examples.NEIGHBOURS,
    "reordered": Examples.REORDERED,
}


class MonolingualTask(StoredTask):
    """Text of one or many languages with one vocabulary, tokenised once and kept on disk.

    A batch has single sentences (``Batch``, for mlm), pairs of neighbouring sentences (``Batch``, for cmlm,
    and with translation_ranking for QuickThought), or pairs of a sentence and its own tokens in another order
    (``Batch``, for hictl on text without translations). Both sides of a pair are in one language.

    All languages are on both sides, so towers must be shared.

    Raises:
        UserError: the text is missing or damaged, has no neighbouring sentences, or two different tokenizers are named.
    """

    default_validation = "loss"

    @dataclass(kw_only=True)
    class Config(VocabularyOptions):
        data: str
        """Text with one sentence per line and a blank line between documents: a folder of files such as news.de,
        en.txt.gz, train.fr.xz and valid.fr, or de=FILE,en=FILE."""
        units: Units = "sentences"
        """What an example is. sentences: one sentence (criterion mlm). adjacent: two neighbouring sentences of a
        document (cmlm). reordered: a sentence, and its tokens in random order in place of a translation (hictl)."""
        pack: bool = False
        """Join consecutive sentences of a document while they fit into max_length, and treat each such passage as a
        sentence (CMLM, section 3: passages of 256 tokens)."""
        swap_order: bool = True
        """For units adjacent: in half of the pairs, drawn anew each time, put the later sentence first (CMLM, section
        3)."""
        sampling_alpha: Share = 0.3
        """Languages are drawn with p proportional to n ** sampling_alpha, where n is their number of sentences (XLM-R:
        0.3). 1 takes every example once per epoch."""
        vocabulary_alpha: Share = 0.3
        """Weight of languages in the text that the vocabulary is trained on: n ** vocabulary_alpha (CMLM, section 4.1:
        0.3)."""
        exclude: list[str] = field(default_factory=list)
        """Files or directories of evaluation sets, whose sentences are dropped from the training text."""
        batch_size: Count | None = None
        """Number of sentences, or pairs, in a batch; none: 128. With max_tokens it is the maximum number; none: no
        maximum."""
        max_tokens: Count | None = None
        """For units sentences: maximum number of tokens in a batch of one rank, special tokens included; a batch takes
        as many of the next sentences as fit. Padding does not count, as the encoder does not compute it (fairseq counts
        it), but sentences that would be padded to more than three times as many tokens go into different batches."""
        max_length: Annotated[int, "[3, inf)"] = 128
        """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""

        def problems(self) -> list[str]:
            problems = list[str]()
            if self.max_tokens is not None and self.units != "sentences":
                problems.append(f"max_tokens is for units sentences; batches of {self.units} ones have a batch_size")
            return problems

    def __init__(self, config: Config, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config, self._seed, self.gives = config, seed, GIVES[config.units]
        options = TextOptions(
            vocabulary_size=config.vocab_size,
            vocabulary_alpha=config.vocabulary_alpha,
            exclude=config.exclude,
            passage_length=config.max_length if config.pack else None,
        )
        data = prepare_text(config.data, options, given_tokenizers(config.tokenizer, tokenizers or {}, shared=True))
        self.tokenizers: Tokenizers = data.tokenizers
        splits = {split: data.splits.get(split, []) for split in ("train", "valid")}
        vocabulary = Vocabulary.of(data.tokenizers[SHARED])
        self._most = config.max_length - vocabulary.special_count
        languages = [corpus.name for corpus in splits["train"]]
        self.text = TextSpec(
            vocabularies={SHARED: vocabulary},
            max_length=config.max_length,
            source_languages=languages,
            target_languages=languages,
        )
        self._train = _Examples(splits["train"], config.units)
        valid = [corpus for corpus in splits["valid"] if corpus.name in languages]
        self._valid = _Examples(valid, config.units)
        self.has_validation = self._valid.count > 0
        if not self._train.count:
            problem = "no document has two sentences"
            raise UserError(problem, path=config.data, cure="only a blank line ends one; or set `units` to sentences")
        size: int | TokenBudget = 128 if config.batch_size is None else config.batch_size
        if config.max_tokens is not None:
            size = TokenBudget(config.max_tokens, self._tokens, config.batch_size)
        order = _NumberedOrder(self._train.sizes, config.sampling_alpha, seed, self._train.lengths)
        self._open(data, order, size, "pairs" if config.units == "adjacent" else "sentences", config.data)

    def make(self, what: np.ndarray) -> Batch:
        return self._batch(self._train, what)

    def _describe(self, corpus: int, row: int) -> str:
        split = self._train.splits[corpus]
        (first,) = self._train.rows(corpus, np.array([row])).tolist()
        rows = (first, first + 1) if self.config.units == "adjacent" else (first,)
        texts = [repr(self.tokenizers[SHARED].decode(split["text"][number])) for number in rows]
        return f"{split.name} sentence {first}: {' ||| '.join(texts)}"

    def validation_batches(self) -> Iterator[Batch]:
        for corpus, size in enumerate(self._valid.sizes):
            for rows in rows_by_length(self._valid.lengths(corpus, np.arange(size))):
                yield self._batch(self._valid, np.stack([np.full_like(rows, corpus), rows, rows], axis=1))

    def _batch(self, examples: _Examples, what: np.ndarray) -> Batch:
        """Collate examples (corpus, row, number), int64 [N, 3]."""
        corpora, rows, numbers = what.T
        indices = np.cumsum([0, *examples.sizes])[corpora] + rows
        places = [self.text.languages.index(split.name) for split in examples.splits]
        languages = np.array(places, dtype=np.int64)[corpora]
        sentences, first = self._gather(examples, corpora, rows, 0)
        if self.config.units == "sentences":
            return Batch.of({SHARED: self._pad(*sentences)}, indices=indices, languages=languages)
        if self.config.units == "reordered":
            other, second = self._reordered(*sentences, numbers), first
        else:
            other, second = self._gather(examples, corpora, rows, 1)
        source, target, ids = self._pad(*sentences), self._pad(*other), np.stack([first, second], axis=1)
        if self.config.units == "adjacent" and self.config.swap_order:
            swapped = (scramble(numbers.astype(np.uint64), self._seed) & np.uint64(1)).astype(bool)
            source, target = _swapped(source, target, swapped, self.text.vocabulary(SHARED).pad_id)
            ids[swapped] = ids[swapped, ::-1]
        languages = np.stack([languages, languages], axis=1)
        return Batch.of({"source": source, "target": target}, ids=ids, indices=indices, languages=languages)

    def _tokens(self, corpus: int, rows: np.ndarray) -> np.ndarray:
        """Return the token counts of training sentences after ``_gather`` and ``_pad``: int64 [n, 1]."""
        special = self.text.vocabulary(SHARED).special_count
        return np.minimum(self._train.lengths(corpus, rows) + special, self.config.max_length)[:, None]

    def _gather(
        self, examples: _Examples, corpora: np.ndarray, rows: np.ndarray, ahead: int
    ) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Return the concatenated tokens and the lengths of the sentences ``ahead`` of each example's first one, and
        their ids."""
        own = by_group(corpora, lambda corpus, places: examples.rows(corpus, rows[places])) + ahead
        ids = by_group(corpora, lambda corpus, places: ids_of(examples.splits[corpus], own[places])[:, 0])
        columns = [split["text"] for split in examples.splits]
        return gather_rows(columns, corpora, own, self._most), ids

    def _reordered(self, ids: np.ndarray, lengths: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of each sentence in a random order, which depends on its number in the run."""
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        keys = scramble(scramble(numbers.astype(np.uint64), self._seed)[row] + place.astype(np.uint64), self._seed)
        return ids[np.lexsort((keys, row))], lengths

    def _pad(self, ids: np.ndarray, lengths: np.ndarray) -> TokenBatch:
        return pad(ids, lengths, self.text.vocabulary(SHARED))


class _Examples:
    """The examples of a split, by language: single sentences, or sentences that are followed by another one."""

    def __init__(self, splits: list[Table], units: Units) -> None:
        self._pairs = units == "adjacent"
        self.splits = [split for split in splits if len(split["followed"])] if self._pairs else splits
        self.sizes = [len(split["followed"] if self._pairs else split) for split in self.splits]
        self.count = sum(self.sizes)

    def rows(self, corpus: int, numbers: np.ndarray) -> np.ndarray:
        """Return the row of the first sentence of each example of a language."""
        return self.splits[corpus]["followed"].values[numbers] if self._pairs else numbers

    def lengths(self, corpus: int, numbers: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each example of a language."""
        rows, sentences = self.rows(corpus, numbers), self.splits[corpus]["text"]
        return sentences.lengths(rows) + (sentences.lengths(rows + 1) if self._pairs else 0)


class _NumberedOrder(ExampleOrder):
    """An order of examples that also returns their positions."""

    def take(self, start: int, stop: int) -> np.ndarray:
        """Return corpus, row and position of the examples: int64 [stop - start, 3]."""
        return np.column_stack([super().take(start, stop), np.arange(start, stop)])


def _swapped(first: TokenBatch, second: TokenBatch, swap: np.ndarray, pad_id: int) -> tuple[TokenBatch, TokenBatch]:
    """Swap the rows of two batches where ``swap`` (bool [B]) is True."""
    both, count = first.followed_by(second, pad_id), len(first)
    rows = np.arange(count)
    return both.select(rows + count * swap), both.select(rows + count * ~swap)

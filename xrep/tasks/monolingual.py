"""Monolingual text: single sentences, neighbouring sentences, or sentences paired with their reordered tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from xrep.config.fields import Count, Share
from xrep.data.batch import Batch, TokenBatch, pad
from xrep.data.order import by_group
from xrep.data.table import Table
from xrep.data.text_table import prepare_text
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.task import ExampleKind, TableTask, VocabularyOptions, given_tokenizers, ids_of, text_spec
from xrep.text.sides import SHARED

Units = Literal["sentences", "adjacent", "reordered"]
GIVES: dict[Units, ExampleKind] = {
    "sentences": ExampleKind.SENTENCES,
    "adjacent": ExampleKind.NEIGHBOURS,
    "reordered": ExampleKind.REORDERED,
}


class MonolingualTask(TableTask):
    """Text of one or many languages with one vocabulary, tokenised once and kept on disk.

    A batch has single sentences (for mlm), pairs of neighbouring sentences (for cmlm, and with translation_ranking for
    QuickThought), or pairs of a sentence and its own tokens in another order (for hictl on text without translations).
    Both sides of a pair are in one language.

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
        """Weight of languages in the text that the vocabulary is trained on: n ** vocabulary_alpha (CMLM, section 4.4:
        0.3)."""
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
        self.config, self.gives = config, GIVES[config.units]
        self._are_neighbours = config.units == "adjacent"
        self.unit = "pairs" if self._are_neighbours else "sentences"
        data = prepare_text(
            config.data,
            given_tokenizers(config.tokenizer, tokenizers or {}, shared=True),
            config.max_length if config.pack else None,
            vocabulary_size=config.vocab_size,
            exponent=config.vocabulary_alpha,
            exclude=config.exclude,
        )
        train = data.splits["train"]
        languages = [table.name for table in train]
        if not any(map(self.count, train)):
            problem = "no document has two sentences"
            raise UserError(problem, path=config.data, cure="only a blank line ends one; or set `units` to sentences")
        both = {"source_languages": languages, "target_languages": languages}
        text = text_spec(data.tokenizers, config.max_length, **both)
        size = {"max_tokens": config.max_tokens, "sampling_alpha": config.sampling_alpha}
        super().__init__(config, seed, data, data.splits, text, **size)

    def count(self, table: Table) -> int:
        return len(table["followed"]) if self._are_neighbours else len(table)

    def lengths(self, table: Table, numbers: np.ndarray) -> np.ndarray:
        first, sentences = self._first(table, numbers), table["text"]
        lengths = [sentences.lengths(first)]
        if self._are_neighbours:
            lengths.append(sentences.lengths(first + 1))
        return np.stack(lengths, axis=1)

    def _first(self, table: Table, numbers: np.ndarray) -> np.ndarray:
        """Return the row of the only sentence, or of the first sentence, of some examples."""
        return table["followed"].values[numbers] if self._are_neighbours else numbers

    def as_text(self, table: Table, number: int) -> str:
        (first,) = self._first(table, np.array([number])).tolist()
        rows = (first, first + 1) if self._are_neighbours else (first,)
        texts = [repr(self.tokenizers[SHARED].decode(table["text"][row])) for row in rows]
        return f"{table.name} sentence {first}: {' ||| '.join(texts)}"

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        places, numbers, positions = examples.T
        first = by_group(places, lambda place, own: self._first(tables[place], numbers[own]))
        columns, indices = [table["text"] for table in tables], self.indices(tables, examples)
        languages = self.language_places(tables)[places]
        if self.config.units == "sentences":
            sides = {SHARED: self.side(SHARED, columns, places, first)}
            return Batch.of(sides, indices=indices, languages=languages[:, 0])
        second = first + 1 if self._are_neighbours else first
        if self._are_neighbours and self.config.swap_order:
            swapped = (scramble(positions.astype(np.uint64), self.seed) & np.uint64(1)).astype(bool)
            first, second = np.where(swapped, second, first), np.where(swapped, first, second)
        source = self.side(SHARED, columns, places, first)
        target = (
            self.side(SHARED, columns, places, second) if self._are_neighbours else self._reordered(source, positions)
        )
        return Batch.of(
            {"source": source, "target": target},
            ids=np.concatenate([ids_of(tables, places, rows) for rows in (first, second)], axis=1),
            indices=indices,
            languages=languages.repeat(2, axis=1),
        )

    def _reordered(self, sentences: TokenBatch, positions: np.ndarray) -> TokenBatch:
        """Return the sentences with their tokens, but for special ones, in a random order, which depends on the
        position of each sentence in the run."""
        vocabulary = self.text.vocabulary(SHARED)
        lengths = sentences.host_lengths - vocabulary.special_count
        row = np.repeat(np.arange(len(lengths)), lengths)
        place = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids = sentences.tokens.numpy()[row, place + vocabulary.leading_count]
        keys = scramble(scramble(positions.astype(np.uint64), self.seed)[row] + place.astype(np.uint64), self.seed)
        return pad(ids[np.lexsort((keys, row))], lengths, vocabulary)

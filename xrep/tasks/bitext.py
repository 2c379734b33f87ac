"""Translation pairs: the data of every objective that contrasts sentences with their translations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

from xrep.config.fields import Count, Share
from xrep.data.batch import Batch
from xrep.data.cleaned_text import kept_of_corpora
from xrep.data.negatives import NegativeStore, prepare_negatives
from xrep.data.order import RowRange
from xrep.data.preprocess import PreprocessOptions, prepare
from xrep.data.table import DataDirectory, Table
from xrep.errors import UserError
from xrep.tasks.task import ExampleKind, Pool, TableTask, ids_of, text_spec
from xrep.text.exclusion import load_exclusion
from xrep.text.resources import find_resource
from xrep.text.sides import SIDES, load_tokenizers, same_tokenizers, tokenizer_of

T = TypeVar("T")
SCANNED_TOKENS = 1 << 24
"""Number of tokens held in memory at a time when all training text is read."""
SCANNED_ROWS = 1 << 20
"""Number of pairs whose hashes are."""


class BitextTask(TableTask):
    """Pairs of sentences in one or several language pairs, read from a data directory or from raw text.

    Raises:
        UserError: the data is missing or damaged, or has other tokenizers.
    """

    gives = ExampleKind.TRANSLATIONS
    unit = "pairs"

    @dataclass(kw_only=True)
    class Config:
        data: str | None = None
        """Directory made by xrep-preprocess, or a directory of raw text, which is preprocessed once and cached. It can
        also be given as the first argument of xrep-train. none: the demo corpus."""
        batch_size: Count = 128
        """Number of pairs in a batch. With in-batch negatives, each sentence is compared with this number of
        sentences."""
        max_length: Annotated[int, "[3, inf)"] = 128
        """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""
        sampling_alpha: Share = 1.0
        """Language pairs are drawn with p proportional to n ** sampling_alpha, where n is their number of pairs. 1
        takes every pair once per epoch; smaller values repeat small corpora. With `batch_by` it is about the language
        pairs or corpora that batches are taken from."""
        batch_by: Literal["language_pair", "corpus"] | None = None
        """Take all pairs of a batch, over all ranks, from one language pair, or from one corpus: a file, or two
        files, of the raw text. In-batch negatives are then of the same language or kind of text, and so harder (as
        in mE5, BGE M3 and Arctic-Embed). The pairs of each are divided evenly into batches of at most batch_size.
        The batches that `update_freq` adds up, and queues of negatives, have pairs of several. none: batches are
        mixed."""
        vocab_size: Annotated[int, "[8, 1e9]"] | None = None
        """Raw text only: number of subwords in the vocabulary that is trained on it, fewer if the text is too
        small. none: 16,000 (see also size)."""
        exclude: list[str] = field(default_factory=list)
        """Files or directories of evaluation sets. Training pairs with a sentence that occurs there are dropped from
        raw text; a data directory that has one is refused."""
        source_prompt: str | None = None
        """Raw text only: text in front of each source sentence, such as an instruction. It counts for max_length. The
        encoder keeps it as its prompt query, which xrep-search puts in front of queries."""
        target_prompt: str | None = None
        """Raw text only: the same for target sentences and hard negatives; the prompt document of the encoder. If both
        are equal, the encoder puts it in front of all sentences."""
        negatives: list[str] = field(default_factory=list)
        """Files of hard negatives, as xrep-mine negatives writes them: lines source, target, negative and any number of
        further negatives, separated by tabs. Each pair of the training text is compared with its own ones as well.
        Sentences that occur in `exclude` are left out."""

    def __init__(
        self,
        config: Config,
        seed: int,
        tokenizers: Mapping[str, str] | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.config = config
        data = _read(config, self._by_side(tokenizers or {}))
        tables = {split: self._pairs([pair for pair in own if len(pair)]) for split, own in data.splits.items()}
        if not tables.get("train"):
            raise UserError("has no split 'train'", path=data.path, cure="preprocess the text with that split")
        of_sides = zip(*(pair.languages for pair in tables["train"]), strict=True)
        source, target = (sorted({*languages}) for languages in of_sides)
        own = self._by_side(data.tokenizers)
        self._prompts = _prompts_of(data.manifest.get("options", {}))
        facts = {"prompts": self._prompts} if any(self._prompts.values()) else {}
        text = text_spec(own, config.max_length, source_languages=source, target_languages=target, facts=facts)
        size = {"max_tokens": max_tokens, "sampling_alpha": config.sampling_alpha}
        super().__init__(config, seed, data, tables, text, own, **size, groups=self._groups(data, tables["train"]))
        self._negatives = self._read_negatives() if config.negatives else None
        self.has_hard_negatives = self._negatives is not None

    def _groups(self, data: DataDirectory, train: Sequence[Table]) -> list[RowRange]:
        """Return the pairs that batches are taken from; nothing if batches are mixed."""
        by, groups = self.config.batch_by, list[RowRange]()
        for place, pair in enumerate(train if by else ()):
            # A pair that is read the other way round keeps the name of its table.
            counts = kept_of_corpora(data.manifest, pair.facts["name"]) if by == "corpus" else [len(pair)]
            starts = np.cumsum([0, *counts]).tolist()
            groups += [RowRange(place, start, count) for start, count in zip(starts, counts, strict=False) if count]
        return groups

    def _read_negatives(self) -> NegativeStore:
        files = self.config.negatives
        tokenizer, prompt = tokenizer_of(self.tokenizers, "target"), self._prompts["target"]
        store = prepare_negatives(files, tokenizer, self.config.exclude, prompt)
        found = (np.count_nonzero(store.counts(block)) for pair in self.train for block in blocks(pair.hashes))
        self._with_negatives = sum(found)
        if not self._with_negatives:
            problem = "none of its pairs is in the training text"
            raise UserError(problem, path=files[0], cure="mine negatives of the text that you train on")
        return store

    @property
    def place(self) -> Path:
        return self.data.path

    def subwords(self, language: str) -> np.ndarray:
        """Return the sorted ids that occur in the training text of a language. This reads all of the text once."""
        seen = np.zeros(max(vocabulary.size for vocabulary in self.text.vocabularies.values()), dtype=bool)
        for pair in self.train:
            for own, side in zip(pair.languages, SIDES, strict=True):
                tokens = pair[side].values if own == language else ()
                for start in range(0, len(tokens), SCANNED_TOKENS):
                    seen[tokens[start : start + SCANNED_TOKENS]] = True
        return np.flatnonzero(seen)

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        places, rows, _ = examples.T
        sides = {name: self.side(name, [pair[name] for pair in tables], places, rows) for name in SIDES}
        return Batch.of(
            sides,
            ids=ids_of(tables, places, rows),
            indices=self.indices(tables, examples),
            languages=self.language_places(tables)[places],
        )

    def make(self, rows: np.ndarray) -> Batch:
        batch = super().make(rows)
        if self._negatives is None:
            return batch
        return replace(batch, negatives=self._negatives.of(batch.ids.numpy().view(np.uint64), self.text))

    def as_text(self, table: Table, number: int) -> str:
        source, target = (tokenizer_of(self.tokenizers, side).decode(table[side][number]) for side in SIDES)
        return f"{table.name} pair {number}: {source!r} ||| {target!r}"

    def fingerprint(self) -> str:
        return super().fingerprint() + (f" {self._negatives.data.fingerprint}" if self._negatives is not None else "")

    @property
    def training_hashes(self) -> list[Path]:
        """Files with the hashes of both sides of the pairs, and of the hard negatives."""
        negatives = [] if self._negatives is None else [self._negatives.data.training_hashes]
        return [*super().training_hashes, *negatives]

    def statistics(self) -> dict[str, Any]:
        if self._negatives is None:
            return super().statistics()
        negatives = {"sentences": len(self._negatives), "pairs": self._with_negatives}
        return {**super().statistics(), "negatives": negatives}

    def validation_pools(self, max_pool_size: int) -> list[Pool]:
        if not self.valid:
            raise UserError("has no split 'valid'", path=self.place, cure="preprocess the text with that split")
        return [
            Pool(pair.name, pair.languages[0], pair.languages[1], partial(self.batches_by_length, pair, max_pool_size))
            for pair in self.valid
        ]

    def references(self, batch: Batch) -> list[str]:
        """Return the target side of a batch as text, decoded from its tokens: without what the vocabulary does not
        know, and cut where the batch is cut."""
        tokenizer = tokenizer_of(self.tokenizers, "target")
        rows = zip(batch.target.tokens.tolist(), batch.target.host_lengths.tolist(), strict=True)
        leading = self.text.vocabulary("target").leading_count
        return [tokenizer.decode(ids[leading : length - 1]) for ids, length in rows]

    def _by_side(self, given: Mapping[str, T]) -> Mapping[str, T]:
        """Map values by side of the data to values by side of a batch, or the other way round."""
        return given

    def _pairs(self, tables: list[Table]) -> list[Table]:
        """Return the tables whose source side is read as the source."""
        return tables


def blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield rows, [N, ...], of which memory can hold ``SCANNED_ROWS`` at a time."""
    return (rows[start : start + SCANNED_ROWS] for start in range(0, len(rows), SCANNED_ROWS))


def _prompts_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the prompts of both sides, empty ones included."""
    return {side: options.get(f"{side}_prompt") or "" for side in SIDES}


def _read(config: BitextTask.Config, tokenizers: Mapping[str, str]) -> DataDirectory:
    how = {"tokenizers": dict(tokenizers), "exclude": config.exclude, "vocabulary_size": config.vocab_size}
    options = PreprocessOptions(source_prompt=config.source_prompt, target_prompt=config.target_prompt, **how)
    data = DataDirectory(prepare(find_resource("demo").get() if config.data is None else config.data, options))
    given = load_tokenizers(tokenizers, partial=True) if tokenizers else {}
    if not same_tokenizers(given, {side: own for side, own in data.tokenizers.items() if side in given}):
        named = " ".join(f"--{side}-tokenizer {path}" for side, path in tokenizers.items()).replace("--shared-", "--")
        raise UserError(
            "was tokenised with another vocabulary than that of the pretrained encoder",
            path=data.path,
            cure=f"name the raw text, or preprocess it with {named}",
        )
    excluded, known = load_exclusion(config.exclude), np.load(data.training_hashes, mmap_mode="r")
    if found := excluded.count_in(known):
        cure = "name the raw text, or preprocess it with `exclude`"
        raise UserError(f"has {found:,} of the sentences to exclude", path=data.path, cure=cure)
    if any(options.prompts.values()) and options.prompts != _prompts_of(data.manifest.get("options", {})):
        cure = "name the raw text, or preprocess it with these `source_prompt` and `target_prompt`"
        raise UserError("was tokenised with other prompts", path=data.path, cure=cure)
    return data

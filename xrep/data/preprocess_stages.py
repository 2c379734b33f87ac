"""The stages of preprocessing: clean, choose, train a vocabulary and tokenise. What each unit leaves are files."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xrep.data.build import chunks, train_vocabulary
from xrep.data.cleaned_text import (
    CLEANED_COLUMNS,
    FATES,
    HELD_OUT,
    KEPT,
    SPLIT_ORDER,
    CleanedText,
    Corpus,
    by_languages,
    clean,
)
from xrep.data.disk_sort import DiskSort
from xrep.data.selection import decide_fates
from xrep.data.table import TRAINING_HASHES_FILE, Flat, TableWriter, flatten, open_table, token_type, vocabulary_size
from xrep.errors import UserError
from xrep.jobs.plan import Advance, Stage
from xrep.text.cleaning import CLEANING_STEPS, CleaningOptions, HashSet
from xrep.text.examples import read_pairs
from xrep.text.exclusion import load_exclusion
from xrep.text.sides import SHARED, SIDES, Tokenizers, load_tokenizers, open_tokenizer, tokenizer_of
from xrep.text.tokenizer import Tokenizer
from xrep.workers import in_workers

_FATES_FILE = "fates"

T = TypeVar("T")
Tell = Callable[[str], None]


class _Step(Stage):
    """A stage whose units may take so long that Ctrl-C ends them at once. Other processes than that of the command
    print what it tells, and load the tokenizers themselves."""

    is_finished_first = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: print if name == "log" else value for name, value in super().__getstate__().items()}


@dataclass(eq=False)
class Clean(_Step):
    """Clean text into tables; a unit is a corpus.

    Attributes:
        corpora: The text, in the order of the report.
        options: Rules for each pair of training text. Of other text only empty lines, and those that are too long for
            any sentence, are dropped.
        exclude: Files or folders of sentences that training text must not have.
        workers: Number of processes that share a unit.
    """

    corpora: Sequence[Corpus]
    options: CleaningOptions
    exclude: Sequence[str]
    workers: int
    log: Tell
    name, unit = "clean", "pairs"

    @cached_property
    def units(self) -> Sequence[Corpus]:
        return self.corpora

    def weight(self, unit: Corpus) -> int:
        return 0  # the number of pairs is not known before

    def run(self, unit: Corpus, folder: Path, advance: Advance) -> dict[str, Any]:
        counts, ends, pairs = Counter[str](), list[int](), read_pairs(unit.bitext)
        items = ((chunk, len(chunk)) for chunk in chunks((source, target) for _, source, target in pairs))
        options, excluded = (self.options, self._excluded) if unit.split == "train" else (None, HashSet())
        make = partial(clean, options=options, excluded=excluded)
        with TableWriter(folder, "text", CLEANED_COLUMNS) as table, _in_processes(make, items, self.workers) as made:
            for (rows, dropped), count in made:
                advance(count)
                counts.update({"read": count, **dropped})
                table.append(rows)
                ends.append(table.rows)
        return {"counts": counts, "ends": ends, "table": table.facts}

    @cached_property
    def _excluded(self) -> HashSet:
        excluded = load_exclusion(self.exclude)
        if self.exclude:
            self.log(f"excluding {len(excluded):,} sentences of {', '.join(self.exclude)}")
        return excluded

    def texts(self, fates: np.ndarray) -> list[CleanedText]:
        """Return the cleaned text of all corpora, given the fates of all pairs."""
        texts, first = list[CleanedText](), 0
        for corpus, (files, facts) in zip(self.corpora, self.results, strict=True):
            places = {name.removeprefix("text."): file for name, file in files.items()}
            table = open_table(corpus.name, facts["table"], places.__getitem__)
            its_fates = fates[first : first + len(table)]
            texts.append(CleanedText(corpus, table, facts["counts"], facts["ends"], first, its_fates))
            first += len(table)
        return texts


@dataclass(eq=False)
class DecideFates(_Step):
    """Decide what becomes of each pair (``selection.decide_fates``), and note the sentences of the training pairs.
    One unit does it, because each pair is compared with all others."""

    clean: Clean
    options: CleaningOptions
    valid_size: int
    seed: int
    name = "choose"

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        count = sum(result.facts["table"]["rows"] for result in self.clean.results)
        # All pairs are KEPT at first, which is 0. The file has one byte more, because an empty one cannot be mapped.
        fates = np.memmap(folder / _FATES_FILE, np.uint8, "w+", shape=(count + 1,))
        texts = self.clean.texts(fates)
        decide_fates(texts, fates, self.options, self.valid_size, self.seed, folder)
        counts = {text.corpus.name: {**dict.fromkeys(CLEANING_STEPS, 0), **text.counts} for text in texts}
        for text in texts:
            counts[text.corpus.name].update(zip(FATES, text.by_fate().tolist(), strict=True))
        train = [text for text in texts if text.corpus.split == "train"]
        rows = [counts[text.corpus.name] for text in train]
        if not any(row["kept"] for row in rows):
            total = {step: sum(row[step] for row in rows) for step in CLEANING_STEPS}
            listed = ", ".join(f"{count:,} {step}" for step, count in total.items() if count)
            raise UserError(f"no training pair is left ({listed})", cure="check the text and the cleaning options")
        training = DiskSort(folder)
        for text in train:
            for block in text.blocks():
                training.add(text.table.hashes[block][text.fates[block] == KEPT].ravel())
        training.save_distinct(folder / TRAINING_HASHES_FILE)
        return {"counts": counts}

    @cached_property
    def texts(self) -> list[CleanedText]:
        """The text of all corpora, with what has become of each pair."""
        files, facts = self.results[0]
        texts = self.clean.texts(np.memmap(files[_FATES_FILE], np.uint8, "r"))
        return [replace(text, counts=facts["counts"][text.corpus.name]) for text in texts]


@dataclass(eq=False)
class TrainVocabulary(_Step):
    """Train a tokenizer on the kept training text, or on a sample if it is large, for the sides that have none.

    Attributes:
        paths: The tokenizers that are given, by side.
        size, exponent: As in ``train_vocabulary``.
    """

    choose: DecideFates
    paths: dict[str, str]
    size: int | None
    exponent: float
    log: Tell
    name = "vocabulary"

    @cached_property
    def units(self) -> Sequence[list[str]]:
        lacking = [side for side in SIDES if side not in self.paths and SHARED not in self.paths]
        return [lacking] if lacking else []

    def run(self, unit: list[str], folder: Path, advance: Advance) -> dict[str, Any]:
        train = [text for text in self.choose.texts if text.corpus.split == "train"]
        side = unit[0] if len(unit) == 1 else None
        read = partial(_sentences, train, unit)
        train_vocabulary(read, self.size, folder, self.log, exponent=self.exponent, side=side)
        return {"side": side or SHARED}

    @cached_property
    def given(self) -> dict[str, Tokenizer]:
        """The tokenizers that are not trained."""
        return load_tokenizers(self.paths, partial=True) if self.paths else {}

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of all sides."""
        tokenizers = dict(self.given)
        for files, facts in self.results:
            with tempfile.TemporaryDirectory() as folder:
                for name, file in files.items():
                    shutil.copyfile(file, Path(folder) / name)
                tokenizers[facts["side"]] = open_tokenizer(folder)
        return tokenizers


@dataclass(eq=False)
class Tokenise(_Step):
    """Tokenise the chosen pairs into the tables of the data directory; a unit is a language pair of a split, which
    some ``workers`` share."""

    choose: DecideFates
    vocabulary: TrainVocabulary
    prompts: dict[str, str]
    workers: int
    name, unit = "tokenise", "pairs"

    def weight(self, unit: _Group) -> int:
        return unit.rows

    def run(self, unit: _Group, folder: Path, advance: Advance) -> dict[str, Any]:
        split, languages, texts, fate, _ = unit
        tokenizers, name = self.vocabulary.tokenizers, "-".join(languages)
        tokens = token_type(vocabulary_size(tokenizers))
        schema = {**dict.fromkeys(SIDES, tokens), "hashes": CLEANED_COLUMNS["hashes"]}
        items = (((of, rows), count) for of, text in enumerate(texts) for rows, count in text.chunks(fate))
        make, begin = partial(_tokenise, texts, tokenizers, self.prompts, fate), partial(_use_one_thread, tokenizers)
        with (
            TableWriter(folder, f"{split}.{name}", schema) as table,
            _in_processes(make, items, self.workers, begin) as made,
        ):
            for rows, count in made:
                table.append(rows)
                advance(count)
        return {"split": split, "table": {"name": name, "languages": languages, **table.facts}}

    @cached_property
    def units(self) -> Sequence[_Group]:
        texts = self.choose.texts
        by_split = {split: [text for text in texts if text.corpus.split == split] for split in SPLIT_ORDER}
        sources = {split: (by_split[split], KEPT) for split in ("train", "valid", "test")}
        if not by_split["valid"]:
            sources["valid"] = by_split["train"], HELD_OUT
        groups = (
            _Group(split, languages, group, fate, sum(text.counts[FATES[fate]] for text in group))
            for split, (some, fate) in sources.items()
            for languages, group in by_languages(some).items()
        )
        return [unit for unit in groups if unit.rows]


class _Group(NamedTuple):
    """The pairs of a language pair that belong to a split: those of some texts that have a fate."""

    split: str
    languages: tuple[str, str]
    texts: list[CleanedText]
    fate: int
    rows: int


def _in_processes(
    make: Callable[[Any], Any], items: Iterator[tuple[Any, T]], workers: int, begin: Callable[[], object] = lambda: None
) -> AbstractContextManager[Iterator[tuple[Any, T]]]:
    """Context manager that yields what ``in_workers`` does, without workers if they are not worth their start."""
    first = list(islice(items, 2))
    count = workers if workers > 1 and len(first) > 1 else 0
    died = UserError("a worker was killed", cure="if memory ran out, lower `workers`; nothing is written")
    # Workers hold the lock of the job, too: they end with the block, even if a traceback is kept.
    return closing(in_workers(make, chain(first, items), count, died=died, begin=begin))


def _tokenise(
    texts: list[CleanedText], tokenizers: Tokenizers, prompts: dict[str, str], fate: int, what: tuple[int, slice]
) -> dict[str, Flat | np.ndarray]:
    """Return the rows of the data directory for the pairs of a text, in a range of rows, that have a fate."""
    text, rows = texts[what[0]], what[1]
    sides = {side: [prompts[side] + sentence for sentence in text.sentences(side, rows, fate)] for side in SIDES}
    tokens = {side: flatten(tokenizer_of(tokenizers, side).encode(own)) for side, own in sides.items()}
    return {**tokens, "hashes": text.table.hashes[rows][text.fates[rows] == fate]}


def _use_one_thread(tokenizers: Tokenizers) -> None:
    for tokenizer in tokenizers.values():
        tokenizer.use_one_thread()


def _sentences(texts: list[CleanedText], sides: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the language and the text of each kept sentence of some sides."""
    for text in texts:
        languages = dict(zip(SIDES, text.corpus.bitext.languages, strict=True))
        for rows, _ in text.chunks(KEPT):
            for side in sides:
                yield from ((languages[side], sentence) for sentence in text.sentences(side, rows, KEPT))

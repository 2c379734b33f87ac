"""The stages of preprocessing: clean, choose, train a vocabulary and tokenise. What each unit leaves are files."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from xrep.data import choosing, table
from xrep.data.build import train_vocabulary
from xrep.data.hash_runs import HashRuns
from xrep.data.spool import HELD_OUT, KEPT, SPLIT_ORDER, RawCorpus, Spool, SpoolWriter, clean, read_chunks
from xrep.errors import UserError
from xrep.jobs.plan import Advance, Stage
from xrep.text.cleaning import STEPS, CleaningOptions, CleaningReport, HashSet
from xrep.text.exclusion import load_exclusion
from xrep.text.sides import SHARED, SIDES, Tokenizers, load_tokenizers, tokenizer_of
from xrep.text.tokenizer import Tokenizer
from xrep.workers import in_workers

_HELD_OUT_SHARE = 0.05  # maximum share of a language pair, so that a small corpus keeps most pairs for training

T = TypeVar("T")
Log = Callable[[str], None]


class _Step(Stage):
    """A stage whose units may take so long that Ctrl-C ends them at once. Other processes than that of the command
    print what it tells, and load the tokenizers themselves."""

    is_finished_first = False
    _log: Log = print

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_log"}


class Clean(_Step):
    """Clean text into spools; a unit is a corpus.

    Args:
        options: Rules for each pair; None: only empty lines, and those that are too long for any sentence, are dropped.
        exclude: Files or folders of sentences that the text must not have.
        evaluation: The stage that cleans other text whose sentences it must not have.
        workers: Number of processes that share a unit.
    """

    unit = "pairs"

    def __init__(
        self,
        name: str,
        corpora: Sequence[RawCorpus],
        workers: int,
        log: Log,
        options: CleaningOptions | None = None,
        exclude: Sequence[str] = (),
        evaluation: Clean | None = None,
    ) -> None:
        self.name, self._corpora, self._workers, self._log, self._options = name, corpora, workers, log, options
        self._exclude, self._evaluation = exclude, evaluation

    @cached_property
    def units(self) -> Sequence[RawCorpus]:
        return self._corpora

    def weight(self, unit: RawCorpus) -> int:
        return 0  # the number of pairs is not known before

    def run(self, unit: RawCorpus, folder: Path, advance: Advance) -> dict[str, Any]:
        forbidden, counts, chunks = self._forbidden, Counter[str](), read_chunks(unit.read)
        make, items = partial(clean, options=self._options), ((chunk, len(chunk)) for chunk in chunks)
        with SpoolWriter(folder) as spool, _in_processes(make, items, self._workers) as made:
            for cleaned, count in made:
                advance(count)
                counts.update({"read": count, **cleaned.dropped})
                for step, sentences in forbidden.items():
                    found = sentences.contains(cleaned.hashes).any(axis=1)
                    counts[step] += int(np.count_nonzero(found))
                    cleaned = cleaned.only(~found)
                spool.append(cleaned)
        return {"counts": counts, "chunks": spool.chunks}

    @cached_property
    def _forbidden(self) -> dict[str, HashSet]:
        """The sentences that the text must not have, by the name of the step that drops them."""
        excluded, evaluation = load_exclusion(self._exclude), HashSet()
        if self._exclude:
            self._log(f"excluding {len(excluded):,} sentences of {', '.join(self._exclude)}")
        for spool in self._evaluation.spools if self._evaluation else ():
            for block in spool.blocks():
                evaluation.add(spool.hashes(block).ravel())
        return {"excluded": excluded, "in valid/test": evaluation}

    @property
    def spools(self) -> list[Spool]:
        """The cleaned text of all corpora."""
        results = zip(self._corpora, self.results, strict=True)
        return [Spool(corpus, result.files, **result.facts) for corpus, result in results]


class Choose(_Step):
    """Drop duplicates, hold out validation pairs if there is no validation text, and sample the training pairs: mark
    each pair. One unit does it, because each pair is compared with all others."""

    name = "choose"

    def __init__(
        self, evaluation: Clean, training: Clean, options: CleaningOptions, valid_size: int, seed: int
    ) -> None:
        self._cleaned = evaluation, training
        self._options, self._valid_size, self._seed = options, valid_size, seed

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        spools = [replace(spool, marks_file=folder / f"{number}.marks") for number, spool in enumerate(self._unmarked)]
        for spool in spools:
            spool.mark_all()
        report = CleaningReport({spool.corpus.name: {**dict.fromkeys(STEPS, 0), **spool.counts} for spool in spools})
        train = [spool for spool in spools if spool.corpus.split == "train"]
        self._choose(train, any(spool.corpus.split == "valid" for spool in spools), folder, report)
        for spool in spools:
            report.add(spool.corpus.name, "kept", spool.count(KEPT))
        rows = [report.counts[spool.corpus.name] for spool in train]
        if not any(row["kept"] for row in rows):
            counts = {step: sum(row[step] for row in rows) for step in rows[0]}
            listed = ", ".join(f"{count:,} {step}" for step, count in counts.items() if count)
            raise UserError(f"no training pair is left ({listed})", cure="check the text and the cleaning options")
        training = HashRuns(folder)
        for spool in train:
            for block in spool.blocks():
                training.add(spool.hashes(block)[spool.marks(block) == KEPT].ravel())
        training.save_distinct(folder / table.TRAINING_HASHES_FILE)
        return {"counts": report.counts}

    def _choose(self, train: list[Spool], has_valid: bool, folder: Path, report: CleaningReport) -> None:
        sentences, templates = HashSet(), HashSet()
        for corpora in _by_pair(train).values():
            if self._options.deduplicate:
                for spool, count in zip(corpora, choosing.drop_duplicates(corpora, folder), strict=True):
                    report.add(spool.corpus.name, "duplicate", count)
            wanted = min(self._valid_size, int(_HELD_OUT_SHARE * sum(spool.count(KEPT) for spool in corpora)))
            if wanted and not has_valid:
                some = choosing.hold_out(corpora, wanted, self._seed)
                sentences.add(some[0].to_array())
                templates.add(some[1].to_array())
        for number, spool in enumerate(train):
            name, own = spool.corpus.name, spool.corpus.given.sample
            report.add(name, "held out", spool.count(HELD_OUT))
            report.add(name, "near held out", choosing.drop_held_out(spool, sentences, templates))
            maximum = self._options.sample if own is None else own
            if maximum is not None:
                report.add(name, "sampled away", choosing.sample(spool, maximum, self._seed + number))

    @cached_property
    def spools(self) -> list[Spool]:
        """The text of all corpora, whose pairs are marked and counted."""
        files, facts = self.results[0]
        return [
            replace(spool, marks_file=Path(files[f"{number}.marks"]), counts=facts["counts"][spool.corpus.name])
            for number, spool in enumerate(self._unmarked)
        ]

    @property
    def _unmarked(self) -> list[Spool]:
        return [spool for stage in self._cleaned for spool in stage.spools]


class Vocabulary(_Step):
    """Train a tokenizer on the kept training text, or on a sample if it is large, for the sides that have none.

    Args:
        given: Tokenizers, by side.
        size, exponent: As in ``train_vocabulary``.
    """

    name = "vocabulary"

    def __init__(self, choose: Choose, given: dict[str, str], size: int | None, exponent: float, log: Log) -> None:
        self._choose, self._given, self._size, self._exponent, self._log = choose, given, size, exponent, log
        self._lacking = [side for side in SIDES if side not in given and SHARED not in given]
        self._side = self._lacking[0] if len(self._lacking) == 1 else None

    @cached_property
    def units(self) -> Sequence[list[str]]:
        return [self._lacking] if self._lacking else []

    def run(self, unit: list[str], folder: Path, advance: Advance) -> dict[str, Any]:
        train = [spool for spool in self._choose.spools if spool.corpus.split == "train"]
        texts = partial(_texts, train, [SIDES.index(side) for side in unit])
        train_vocabulary(texts, self._size, folder, self._log, exponent=self._exponent, side=self._side)
        return {}

    def given(self) -> dict[str, Tokenizer]:
        """Load the tokenizers that are not trained."""
        return load_tokenizers(self._given, partial=True) if self._given else {}

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of all sides."""
        if not self._lacking:
            return self.given()
        with tempfile.TemporaryDirectory() as folder:
            for name, file in self.results[0].files.items():
                shutil.copyfile(file, Path(folder) / name)
            return {**self.given(), self._side or SHARED: Tokenizer.load(folder)}


class Tokenise(_Step):
    """Tokenise the chosen pairs into the files of the data directory; a unit is a language pair of a split.

    Args:
        workers: Number of processes that share a unit.
    """

    name, unit = "tokenise", "pairs"

    def __init__(self, choose: Choose, vocabulary: Vocabulary, workers: int) -> None:
        self._choose, self._vocabulary, self._workers = choose, vocabulary, workers

    def weight(self, unit: _Group) -> int:
        return unit.rows

    def run(self, unit: _Group, folder: Path, advance: Advance) -> dict[str, Any]:
        split, languages, spools, mark, _ = unit
        tokenizers = self._vocabulary.tokenizers
        tokens, name = table.token_type(table.vocabulary_size(tokenizers)), "-".join(languages)
        schema = {"source": tokens, "target": tokens, "hashes": table.ColumnType("<u8", 2)}
        chunks = ((of, *chunk) for of, spool in enumerate(spools) for chunk in spool.chunks_with(mark))
        items = (((of, chunk, mark), count) for of, chunk, count in chunks)
        make, begin = partial(_tokenise, spools, tokenizers), partial(_use_one_thread, tokenizers)
        with (
            table.TableWriter(folder, f"{split}.{name}", schema) as writer,
            _in_processes(make, items, self._workers, begin) as made,
        ):
            for ((source, target), hashes), count in made:
                writer.append({"source": source, "target": target, "hashes": hashes})
                advance(count)
        return {"split": split, "row": {"name": name, "languages": list(languages), **writer.facts}}

    @cached_property
    def units(self) -> Sequence[_Group]:
        spools = self._choose.spools
        by_split = {split: [spool for spool in spools if spool.corpus.split == split] for split in SPLIT_ORDER}
        sources = {split: (by_split[split], KEPT, "kept") for split in ("train", "valid", "test")}
        if not by_split["valid"]:
            sources["valid"] = (by_split["train"], HELD_OUT, "held out")
        groups = (
            _Group(split, languages, own, mark, sum(spool.counts[step] for spool in own))
            for split, (some, mark, step) in sources.items()
            for languages, own in _by_pair(some).items()
        )
        return [group for group in groups if group.rows]


class _Group(NamedTuple):
    """The pairs of a language pair that belong to a split: those of some spools that have a mark."""

    split: str
    languages: tuple[str, str]
    spools: list[Spool]
    mark: int
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
    spools: list[Spool], tokenizers: Tokenizers, what: tuple[int, int, int]
) -> tuple[list[table.Flat], np.ndarray]:
    """Return the tokens of both sides, and the hashes, of the pairs of a spool's chunk that have a mark."""
    number, chunk, mark = what
    *sides, hashes = spools[number].pairs(chunk, mark)
    encode = [tokenizer_of(tokenizers, side).encode for side in SIDES]
    return [table.flatten(one(texts)) for one, texts in zip(encode, sides, strict=True)], hashes


def _use_one_thread(tokenizers: Tokenizers) -> None:
    for tokenizer in tokenizers.values():
        tokenizer.use_one_thread()


def _by_pair(spools: Iterable[Spool]) -> dict[tuple[str, str], list[Spool]]:
    grouped: dict[tuple[str, str], list[Spool]] = {}
    for spool in spools:
        grouped.setdefault(spool.corpus.given.languages, []).append(spool)
    return grouped


def _texts(spools: list[Spool], sides: list[int]) -> Iterator[tuple[str, str]]:
    for spool in spools:
        for chunk, _ in spool.chunks_with(KEPT):
            sources, targets, _ = spool.pairs(chunk, KEPT)
            for side in sides:
                yield from ((spool.corpus.given.languages[side], text) for text in (sources, targets)[side])

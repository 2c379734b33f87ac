"""Preprocessing of raw parallel text into a data directory.

The steps are: clean, hold out validation pairs, train the tokenizer, tokenise, and rename the result into place.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from xrep.data import choosing, shards, store
from xrep.data.building import build_cached, files_in, key_of, train_vocabulary
from xrep.data.hash_runs import HashRuns
from xrep.data.spool import HELD_OUT, KEPT, SPLIT_ORDER, Cleaned, Spool, clean, list_spools, read_chunks
from xrep.errors import UserError
from xrep.files import build_once, check_new_directory, directory_aside
from xrep.progress import Counter
from xrep.text.cleaning import CleaningOptions, CleaningReport, HashSet
from xrep.text.exclusion import load_exclusion
from xrep.text.readers import Bitext, discover_bitext, orient
from xrep.text.sides import SHARED, SIDES, Tokenizers, load_tokenizers, save_tokenizers, tokenizer_of
from xrep.text.tokenizer import CONFIG_FILE, Tokenizer
from xrep.workers import in_workers, processors

_HELD_OUT_SHARE = 0.05  # maximum share of a language pair, so that a small corpus keeps most pairs for training
_RULES_VERSION = 2  # version of the preprocessing rules; cached data of another version is built again

_MOST_WORKERS = 16  # one process reads and writes for all of them

T = TypeVar("T")
Log = Callable[[str], None]


@dataclass(kw_only=True)
class PreprocessOptions:
    """Options for turning raw text into a data directory."""

    vocabulary_size: int | None = None
    """Number of pieces of the SentencePiece vocabulary to train, including the special ones.
    None: 16,000, or fewer if the text is too small."""
    tokenizers: dict[str, str] = field(default_factory=dict)
    """Tokenizers to use (folders, ``.model`` files, directories of pretrained encoders), by side: ``shared``, or
    ``source`` and ``target``. If empty, one is trained on the training text. If only one side is given, a tokenizer is
    trained on the text of the other side."""
    exclude: list[str] = field(default_factory=list)
    """Files or folders of evaluation sets. Training pairs with a sentence that occurs there are dropped."""
    cleaning: CleaningOptions = field(default_factory=CleaningOptions)
    """Rules that decide which training pairs are kept."""
    valid_size: int = 1000
    """Pairs to hold out of each language pair for validation if no validation text is given (at most 5%; 0: none)."""
    sampling_exponent: float = 0.5
    """A language with n sentences has the weight n ** sampling_exponent in the tokenizer's training text."""
    seed: int = 1
    """Random seed for sampling and for holding out pairs."""

    def __post_init__(self) -> None:
        if self.vocabulary_size is not None and not 8 <= self.vocabulary_size < 1 << 31:
            raise UserError(f"a vocabulary of {self.vocabulary_size} pieces", cure="give a few thousand")
        if self.valid_size < 0:
            raise UserError(f"{self.valid_size} validation pairs", cure="give 0 for none")
        if not 0 <= self.sampling_exponent <= 1:
            raise UserError(f"`sampling_exponent` must lie in [0, 1], not {self.sampling_exponent:g}")


@dataclass(frozen=True)
class PreprocessReport:
    """The result of preprocessing: the folder written, the counts of cleaning, the manifest of the data (or what part a
    shard is), and notes for the user."""

    path: Path
    cleaning: CleaningReport
    manifest: dict[str, Any]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        facts = {
            key: self.manifest[key] for key in ("shard", "languages", "splits", "vocabularies") if key in self.manifest
        }
        return {"path": str(self.path), **facts, "cleaning": self.cleaning.counts, "notes": self.notes}


def default_workers() -> int:
    """Return the number of worker processes that this machine has the processors for."""
    return min(processors(), _MOST_WORKERS)


def preprocess(
    splits: dict[str, list[Bitext]],
    destination: str | Path,
    options: PreprocessOptions | None = None,
    log: Log = print,
    progress: bool = True,
    *,
    workers: int = 1,
    shard: tuple[int, int] | None = None,
    work: Path | None = None,
) -> PreprocessReport:
    """Write the data directory ``destination`` (layout: ``xrep.data.store``) from raw text.

    Training text is cleaned. From validation and test text only empty lines are removed, and training pairs that share
    a sentence with them on either side are dropped. Without validation text, some training pairs are held out (see
    ``xrep.data.choosing.hold_out``). Memory does not grow with the training text. The folder appears only when it is
    complete.

    Args:
        splits: ``{"train": [...], "valid": [...], "test": [...]}``; only train is required.
        log: Called with one line of text for each step.
        progress: Whether to show progress on stderr.
        workers: Number of processes that clean and tokenise; 1 to do it in this one. The result does not depend on it.
        shard: (k, n) to write only the k-th of n shards, counted from 1: the cleaned text of every n-th file, which
            ``merge`` makes data directories of.
        work: Folder that keeps the cleaned text and the trained tokenizer, with which a second call goes on if the
            files and options are the same; None: nothing is kept.

    Raises:
        UserError: The text is invalid, the destination is not empty, no training pairs are left, the vocabulary size
            does not fit the text, or there are more shards than files.
    """
    options = options or PreprocessOptions()
    destination = Path(destination)
    check_new_directory(destination)
    if not splits.get("train"):
        raise UserError("no training text", cure="name some in `bitext`, for example de-en=deu-eng.tsv")
    if workers < 1:
        raise UserError(f"{workers} workers", cure="give at least 1")
    for bitext in [*splits.get("valid", []), *splits.get("test", [])]:
        if bitext.sample is not None:
            raise UserError("only training text is sampled", path=bitext.paths[0], cure=f"leave out @{bitext.sample}")
    if shard:
        shards.check_shard(shard, len(splits["train"]))
    if work is not None:
        key = key_of(store.PAIRS, *_things_read(splits, options))
        cleaned, how = work / f"cleaned-{key}", {"log": log, "progress": progress, "workers": workers}
        if (cleaned / shards.SHARD_FILE).exists():
            log("going on with the text that an interrupted command has cleaned")
        build_once(cleaned, shards.SHARD_FILE, lambda folder: preprocess(splits, folder, options, shard=(1, 1), **how))
        return merge([cleaned], destination, trained=work / f"tokenizer-{key}", **how)
    with directory_aside(destination) as output:
        run = _Run(options, output / "work", log, progress, workers)
        spools = list_spools(splits, output / "work")
        if shard:
            run.read(shards.part_of(spools, shard))
            manifest = shards.write_shard(spools, shard, options, run.report, run.notes, output)
        else:
            run.read(spools)
            manifest = run.finish(spools, output)
    return PreprocessReport(destination, run.report, manifest, run.notes)


def merge(
    directories: Sequence[str | Path],
    destination: str | Path,
    log: Log = print,
    progress: bool = True,
    *,
    workers: int = 1,
    trained: Path | None = None,
) -> PreprocessReport:
    """Write a data directory from all shards that ``preprocess`` made of some text; it equals the one without shards.

    Args:
        trained: Folder that keeps the tokenizer that is trained, or has the one of an interrupted call; None: none.

    Raises:
        UserError: A shard is missing or damaged, they are not of the same text or have other options, or as
            ``preprocess``.
    """
    destination = Path(destination)
    check_new_directory(destination)
    with directory_aside(destination) as output:
        joined = shards.read_shards([Path(directory) for directory in directories], output / "work")
        options = PreprocessOptions(**{**joined.options, "cleaning": CleaningOptions(**joined.options["cleaning"])})
        run = _Run(options, output / "work", log, progress, workers)
        run.report, run.notes = joined.report, joined.notes
        manifest = run.finish(joined.spools, output, trained)
    return PreprocessReport(destination, run.report, manifest, run.notes)


def prepare(path: str | Path, options: PreprocessOptions | None = None, log: Log = print) -> Path:
    """Return the data directory for a path, which may be a data directory itself or a folder of raw text.

    Raw text (layouts: ``discover_bitext``) is preprocessed once into ``$XREP_HOME/preprocessed/``, on all processors;
    later calls with the same files and options use the result again.

    Raises:
        UserError: For the same reasons as ``preprocess`` and ``discover_bitext``.
    """
    path, options = Path(path), options or PreprocessOptions()
    if store.is_data_directory(path):
        return path
    splits = discover_bitext(path)

    def build(folder: Path, place: Path) -> None:
        log(f"preprocessing {path} (once; kept in {place})")
        log(preprocess(splits, folder, options, log, workers=default_workers()).cleaning.table())

    return build_cached("preprocessed", store.PAIRS, *_things_read(splits, options), build)


def _things_read(splits: dict[str, list[Bitext]], options: PreprocessOptions) -> tuple[Any, list[Path]]:
    """Return what a data directory is built from, for ``key_of``: facts, and files."""
    read = [Path(file) for bitexts in splits.values() for bitext in bitexts for file in bitext.paths]
    read += files_in([*options.tokenizers.values(), *options.exclude])
    bitexts = {split: list(map(asdict, own)) for split, own in splits.items()}
    return [_RULES_VERSION, bitexts, asdict(options)], read


class _Run:
    """The steps of one preprocessing run, in the order in which they are taken."""

    def __init__(self, options: PreprocessOptions, work: Path, log: Log, progress: bool, workers: int) -> None:
        self.options, self.work, self.log, self.progress, self.workers = options, work, log, progress, workers
        self.report, self.notes = CleaningReport(), list[str]()
        work.mkdir()

    def read(self, spools: list[Spool]) -> None:
        """Clean corpora into spools. Validation and test come first; training text is compared with them."""
        excluded, evaluation = load_exclusion(self.options.exclude), HashSet()
        if self.options.exclude:
            self.log(f"excluding {len(excluded):,} sentences of {', '.join(self.options.exclude)}")
        make = partial(_clean, self.options.cleaning)
        in_order = self._in_workers(make, self._chunks(spools))
        with Counter("pairs", "reading", shown=self.progress) as progress, in_order as made:
            for cleaned, (spool, count) in made:
                progress.update(count)
                for reason, dropped in {"read": count, **cleaned.dropped}.items():
                    self.report.add(spool.name, reason, dropped)
                if spool.split != "train":
                    evaluation.add(cleaned.hashes.ravel())
                for step, sentences in (("excluded", excluded), ("in valid/test", evaluation)):
                    if spool.split == "train":
                        known = sentences.contains(cleaned.hashes).any(axis=1)
                        self.report.add(spool.name, step, np.count_nonzero(known))
                        cleaned = cleaned.only(~known)
                spool.append(cleaned.text, cleaned.hashes, cleaned.templates)

    def _chunks(self, spools: list[Spool]) -> Iterator[tuple[Any, tuple[Spool, int]]]:
        for spool in spools:
            self.report.add(spool.name, "read", 0)
            bitext, note = orient(spool.bitext)  # shards are compared by the paths that were given
            if note:
                self.notes.append(note)
                self.log(note)
            for chunk in read_chunks(bitext):
                yield (spool.split, chunk), (spool, len(chunk))

    def _in_workers(
        self, make: Callable[[Any], Any], items: Iterator[tuple[Any, T]], begin: Callable[[], object] = lambda: None
    ) -> AbstractContextManager[Iterator[tuple[Any, T]]]:
        """Context manager that yields what ``in_workers`` does, without workers if they are not worth their start."""
        first = list(islice(items, 2))
        count = self.workers if self.workers > 1 and len(first) > 1 else 0
        # Workers hold the lock of the unfinished work, too: they end with the block, even if a traceback is kept.
        return closing(in_workers(make, chain(first, items), count, died=_died, begin=begin))

    def finish(self, spools: list[Spool], output: Path, trained: Path | None = None) -> dict[str, Any]:
        """Choose the pairs, tokenise them into the folder ``output``, and return the manifest; ``trained`` is that of
        ``merge``."""
        given = load_tokenizers(self.options.tokenizers, partial=True) if self.options.tokenizers else {}
        for spool in spools:
            spool.mark_all()
        by_split = {split: [spool for spool in spools if spool.split == split] for split in SPLIT_ORDER}
        self.choose(by_split)
        tokenizers = self.make_tokenizers(by_split["train"], given, trained or self.work / "trained")
        save_tokenizers(tokenizers, output / store.TOKENIZER_DIRECTORY)
        facts, training = self.write(by_split, tokenizers, output)
        shutil.rmtree(self.work)
        return store.write_manifest(output, store.PAIRS, tokenizers, training, facts)

    def choose(self, spools: dict[str, list[Spool]]) -> None:
        """Drop duplicates, hold out validation pairs if none were given, sample the training pairs, and count all."""
        options, train = self.options, spools["train"]
        sentences, templates = HashSet(), HashSet()
        for corpora in _by_pair(train).values():
            if options.cleaning.deduplicate:
                for spool, count in zip(corpora, choosing.drop_duplicates(corpora, self.work), strict=True):
                    self.report.add(spool.name, "duplicate", count)
            wanted = min(options.valid_size, int(_HELD_OUT_SHARE * sum(spool.count(KEPT) for spool in corpora)))
            if wanted and not spools["valid"]:
                some = choosing.hold_out(corpora, wanted, options.seed)
                sentences.add(some[0].to_array())
                templates.add(some[1].to_array())
        for number, spool in enumerate(train):
            self.report.add(spool.name, "held out", spool.count(HELD_OUT))
            self.report.add(spool.name, "near held out", choosing.drop_held_out(spool, sentences, templates))
            maximum = options.cleaning.sample if spool.bitext.sample is None else spool.bitext.sample
            if maximum is not None:
                self.report.add(spool.name, "sampled away", choosing.sample(spool, maximum, options.seed + number))
        for spool in chain(*spools.values()):
            self.report.add(spool.name, "kept", spool.count(KEPT))
        rows = [self.report.counts[spool.name] for spool in train]
        if not any(row["kept"] for row in rows):
            counts = {step: sum(row[step] for row in rows) for step in rows[0]}
            listed = ", ".join(f"{count:,} {step}" for step, count in counts.items() if count)
            raise UserError(f"no training pair is left ({listed})", cure="check the text and the cleaning options")

    def make_tokenizers(self, train: list[Spool], given: Tokenizers, trained: Path) -> Tokenizers:
        """Return the given tokenizers and, for sides without one, what is in ``trained``; it is trained on the kept
        training text (on a sample if it is large) if there is nothing."""
        lacking = [side for side in SIDES if side not in given and SHARED not in given]
        if not lacking:
            return given
        only = lacking[0] if len(lacking) == 1 else None
        texts = partial(_texts, train, [SIDES.index(side) for side in lacking])
        size, exponent = self.options.vocabulary_size, self.options.sampling_exponent
        build_once(
            trained,
            CONFIG_FILE,
            lambda folder: train_vocabulary(texts, size, folder, self.log, exponent=exponent, side=only),
        )
        return {**given, only or SHARED: Tokenizer.load(trained)}

    def write(
        self, spools: dict[str, list[Spool]], tokenizers: Tokenizers, output: Path
    ) -> tuple[dict[str, Any], HashRuns]:
        """Tokenise every split; return the facts for the manifest and the hashes of the training sentences."""
        sources = {split: (spools[split], KEPT) for split in ("train", "valid", "test")}
        if not spools["valid"]:
            sources["valid"] = (spools["train"], HELD_OUT)
        corpora, training = list(chain(*spools.values())), HashRuns(output)
        items = (
            ((corpora.index(spool), chunk, mark), ((split, languages), count))
            for split, (some, mark) in sources.items()
            for languages, own in _by_pair(some).items()
            for spool in own
            for chunk, count in spool.chunks_with(mark)
        )
        make, begin = partial(_tokenise, corpora, tokenizers), partial(_use_one_thread, tokenizers)
        splits: dict[str, list[dict[str, Any]]] = {}
        with self._in_workers(make, items, begin) as made:
            for (split, languages), rows in groupby(made, lambda each: each[1][0]):
                with (
                    store.DirectoryWriter(
                        output, split, languages, ["hashes"], store.vocabulary_size(tokenizers)
                    ) as writer,
                    Counter("pairs", f"tokenising {split} {'-'.join(languages)}", shown=self.progress) as progress,
                ):
                    for (columns, hashes), (_, count) in rows:
                        writer.append(columns, {"hashes": hashes})
                        if split == "train":
                            training.add(hashes.ravel())
                        progress.update(count)
                splits.setdefault(split, []).append({"languages": list(languages), **writer.facts})
        facts = {
            "languages": sorted({code for rows in splits.values() for row in rows for code in row["languages"]}),
            "splits": splits,
            "vocabularies": {side: tokenizer.vocabulary_size for side, tokenizer in tokenizers.items()},
            "options": asdict(self.options),
            "corpora": [{"split": spool.split, **asdict(spool.bitext)} for spool in corpora],
            "cleaning": self.report.counts,
        }
        return facts, training


def _died(worker: str) -> UserError:
    return UserError(f"{worker}", cure="if memory ran out, lower `workers`; nothing is written")


def _clean(options: CleaningOptions, what: tuple[str, list[tuple[str, str]]]) -> Cleaned:
    split, pairs = what
    return clean(pairs, options if split == "train" else None)


def _tokenise(
    spools: list[Spool], tokenizers: Tokenizers, what: tuple[int, int, int]
) -> tuple[list[store.Joined], np.ndarray]:
    """Return the tokens of both sides, and the hashes, of the pairs of a spool's chunk that have a mark."""
    number, chunk, mark = what
    *sides, hashes = spools[number].pairs(chunk, mark)
    encode = [tokenizer_of(tokenizers, side).encode for side in SIDES]
    return [store.joined(one(texts)) for one, texts in zip(encode, sides, strict=True)], hashes


def _use_one_thread(tokenizers: Tokenizers) -> None:
    for tokenizer in tokenizers.values():
        tokenizer.use_one_thread()


def _by_pair(spools: Iterable[Spool]) -> dict[tuple[str, str], list[Spool]]:
    grouped: dict[tuple[str, str], list[Spool]] = {}
    for corpus in spools:
        grouped.setdefault(corpus.bitext.languages, []).append(corpus)
    return grouped


def _texts(spools: list[Spool], sides: list[int]) -> Iterator[tuple[str, str]]:
    for corpus in spools:
        for chunk, _ in corpus.chunks_with(KEPT):
            sources, targets, _ = corpus.pairs(chunk, KEPT)
            for side in sides:
                yield from ((corpus.bitext.languages[side], text) for text in (sources, targets)[side])

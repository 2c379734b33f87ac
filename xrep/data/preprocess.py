"""Preprocessing of raw parallel text into a data directory.

The steps are: clean, hold out validation pairs, train the tokenizer, tokenise, and rename the result into place.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data import spool, store
from xrep.data.building import build_cached, files_in, train_vocabulary
from xrep.data.spool import HELD_OUT, KEPT, Spool
from xrep.errors import UserError
from xrep.files import check_new_directory, directory_aside
from xrep.progress import Counter
from xrep.text.cleaning import CleaningOptions, CleaningReport, HashSet, drop_reason, load_exclusion, pair_hashes
from xrep.text.readers import Bitext, discover_bitext, orient
from xrep.text.sides import SHARED, SIDES, Tokenizers, load_tokenizers, save_tokenizers, tokenizer_of

_HELD_OUT_SHARE = 0.05  # maximum share of a language pair, so that a small corpus keeps most pairs for training
_RULES_VERSION = 2  # version of the preprocessing rules; cached data of another version is built again

Log = Callable[[str], None]


@dataclass(kw_only=True)
class PreprocessOptions:
    """Options for turning raw text into a data directory."""

    vocabulary_size: int = 16000
    """Number of pieces of the SentencePiece vocabulary to train, including the special ones."""
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
        if not 8 <= self.vocabulary_size < 1 << 31:
            raise UserError(f"a vocabulary of {self.vocabulary_size} pieces", cure="give a few thousand")
        if self.valid_size < 0:
            raise UserError(f"{self.valid_size} validation pairs", cure="give 0 for none")
        if not 0 <= self.sampling_exponent <= 1:
            raise UserError(f"`sampling_exponent` must lie in [0, 1], not {self.sampling_exponent:g}")


@dataclass(frozen=True)
class PreprocessReport:
    """The result of preprocessing: the folder written, the counts of cleaning, the manifest, and notes for the user."""

    path: Path
    cleaning: CleaningReport
    manifest: dict[str, Any]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        kept = ("languages", "splits", "vocabularies")
        facts = {key: self.manifest[key] for key in kept}
        return {"path": str(self.path), **facts, "cleaning": self.cleaning.as_dict(), "notes": self.notes}


def preprocess(
    splits: dict[str, list[Bitext]],
    destination: str | Path,
    options: PreprocessOptions | None = None,
    log: Log = print,
    progress: bool = True,
) -> PreprocessReport:
    """Write the data directory ``destination`` (layout: ``xrep.data.store``) from raw text.

    Training text is cleaned. From validation and test text only empty lines are removed, and training pairs that share
    a sentence with them on either side are dropped. Without validation text, some training pairs are held out (see
    ``xrep.data.spool.hold_out``). Apart from the hashes (8-16 bytes per sentence), memory does not grow with the text.
    The folder appears only when it is complete.

    Args:
        splits: ``{"train": [...], "valid": [...], "test": [...]}``; only train is required.
        log: Called with one line of text for each step.
        progress: Whether to show progress on stderr.

    Raises:
        UserError: The text is invalid, the destination is not empty, no training pairs are left, or the vocabulary size
            does not fit the text.
    """
    options = options or PreprocessOptions()
    destination = Path(destination)
    check_new_directory(destination)
    if not splits.get("train"):
        raise UserError("no training text", cure="name some in `bitext`, for example de-en=deu-eng.tsv")
    for bitext in [*splits.get("valid", []), *splits.get("test", [])]:
        if bitext.sample is not None:
            raise UserError("only training text is sampled", path=bitext.paths[0], cure=f"leave out @{bitext.sample}")
    with directory_aside(destination) as output:
        run = _Run(options, output, log, progress)
        manifest = run(splits)
    return PreprocessReport(destination, run.report, manifest, run.notes)


def prepare(path: str | Path, options: PreprocessOptions | None = None, log: Log = print) -> Path:
    """Return the data directory for a path, which may be a data directory itself or a folder of raw text.

    Raw text (layouts: ``discover_bitext``) is preprocessed once into ``$XREP_HOME/preprocessed/``; later calls with
    the same files and options use the result again.

    Raises:
        UserError: For the same reasons as ``preprocess`` and ``discover_bitext``.
    """
    path, options = Path(path), options or PreprocessOptions()
    if store.is_data_directory(path):
        return path
    splits = discover_bitext(path)

    def build(folder: Path, place: Path) -> None:
        log(f"preprocessing {path} (once; kept in {place})")
        log(preprocess(splits, folder, options, log).cleaning.table())

    read = [Path(file) for bitexts in splits.values() for bitext in bitexts for file in bitext.paths]
    read += files_in([*options.tokenizers.values(), *options.exclude])
    pairs = {split: [(b.languages, b.paths, b.columns) for b in bitexts] for split, bitexts in splits.items()}
    return build_cached("preprocessed", store.PAIRS, [_RULES_VERSION, pairs, asdict(options)], read, build)


class _Run:
    """The steps of one preprocessing run, in the order in which ``preprocess`` calls them."""

    def __init__(self, options: PreprocessOptions, output: Path, log: Log, progress: bool) -> None:
        self.options, self.output, self.work = options, output, output / "work"
        self.log, self.progress = log, progress
        self.report, self.notes = CleaningReport(), list[str]()

    def __call__(self, splits: dict[str, list[Bitext]]) -> dict[str, Any]:
        """Take all steps and return the manifest."""
        given = load_tokenizers(self.options.tokenizers, partial=True) if self.options.tokenizers else {}
        self.work.mkdir()
        spools = self.read(splits)
        self.choose(spools)
        tokenizers = self.make_tokenizers(spools["train"], given)
        facts, training = self.write(spools, tokenizers)
        shutil.rmtree(self.work)
        return store.write_manifest(self.output, store.PAIRS, tokenizers, training, facts)

    def read(self, splits: dict[str, list[Bitext]]) -> dict[str, list[Spool]]:
        """Clean every corpus into a spool. Validation and test come first; training text is compared with them."""
        cleaning, evaluation, seen = self.options.cleaning, HashSet(), dict[str, HashSet]()
        spools: dict[str, list[Spool]] = {}
        for split in ("valid", "test"):
            corpora = splits.get(split, [])
            spools[split] = [self._fill(split, b, lambda s, t, _: None if s and t else "empty", []) for b in corpora]
            for corpus in spools[split]:
                for block in corpus.blocks():
                    evaluation.add(corpus.hashes[block].ravel())
        excluded = load_exclusion(self.options.exclude)
        if self.options.exclude:
            self.log(f"excluding {len(excluded):,} sentences of {', '.join(self.options.exclude)}")
        spools["train"] = []
        for bitext in splits["train"]:
            steps: list[spool.Step]
            steps = [("excluded", partial(_lacks, excluded)), ("in valid/test", partial(_lacks, evaluation))]
            if cleaning.deduplicate:
                known = seen.setdefault(bitext.name, HashSet())
                steps.append(("duplicate", lambda hashes, known=known: known.add(pair_hashes(hashes))))
            spools["train"].append(self._fill("train", bitext, partial(drop_reason, options=cleaning), steps))
        return spools

    def _fill(self, split: str, bitext: Bitext, reason: spool.DropReason, steps: list[spool.Step]) -> Spool:
        bitext, note = orient(bitext)
        if note:
            self.notes.append(note)
            self.log(note)
        name = f"{'' if split == 'train' else split + ' '}{bitext.name} {','.join(Path(p).name for p in bitext.paths)}"
        if name in self.report.counts:
            name += f" ({len(self.report.counts)})"
        stem = self.work / str(len(self.report.counts))
        with Counter("pairs", f"reading {name}", shown=self.progress) as progress:
            return spool.fill(name, bitext, stem, reason, steps, self.report, progress.update)

    def choose(self, spools: dict[str, list[Spool]]) -> None:
        """Hold out validation pairs if none were given, then sample the training pairs, and count both."""
        options, train = self.options, spools["train"]
        sentences, templates = HashSet(), HashSet()
        if not spools["valid"]:
            for corpora in _by_pair(train).values():
                wanted = min(options.valid_size, int(_HELD_OUT_SHARE * sum(map(len, corpora))))
                if wanted:
                    some = spool.hold_out(corpora, wanted, options.seed)
                    sentences.add(some[0].to_array())
                    templates.add(some[1].to_array())
        for number, corpus in enumerate(train):
            held_out = sum(int(np.count_nonzero(corpus.marks[block] == HELD_OUT)) for block in corpus.blocks())
            near, sampled = spool.drop_held_out(corpus, sentences, templates), 0
            maximum = options.cleaning.sample if corpus.bitext.sample is None else corpus.bitext.sample
            if maximum is not None:
                sampled = spool.sample(corpus, maximum, options.seed + number)
            for step, count in (("held out", held_out), ("near held out", near), ("sampled away", sampled)):
                self.report.add(corpus.name, step, count)
            self.report.add(corpus.name, "kept", len(corpus) - held_out - near - sampled)
        for corpus in spools["valid"] + spools["test"]:
            self.report.add(corpus.name, "kept", len(corpus))
        rows = [self.report.counts[corpus.name] for corpus in train]
        if not any(row["kept"] for row in rows):
            counts = {step: sum(row[step] for row in rows) for step in rows[0]}
            listed = ", ".join(f"{count:,} {step}" for step, count in counts.items() if count)
            raise UserError(f"no training pair is left ({listed})", cure="check the text and the cleaning options")

    def make_tokenizers(self, train: list[Spool], given: Tokenizers) -> Tokenizers:
        """Save the given tokenizers, and train missing ones on the kept training text (on a sample if it is large)."""
        directory, options = self.output / store.TOKENIZER_DIRECTORY, self.options
        save_tokenizers(given, directory)
        lacking = [side for side in SIDES if side not in given and SHARED not in given]
        if not lacking:
            return given
        only = lacking[0] if len(lacking) == 1 else None
        tokenizer = train_vocabulary(
            lambda: _texts(train, [SIDES.index(side) for side in lacking]),
            options.vocabulary_size,
            directory / (only or ""),
            self.log,
            exponent=options.sampling_exponent,
            side=only,
        )
        return {**given, only or SHARED: tokenizer}

    def write(self, spools: dict[str, list[Spool]], tokenizers: Tokenizers) -> tuple[dict[str, Any], HashSet]:
        """Tokenise every split; return the facts for the manifest and the hashes of the training sentences."""
        sources = {split: (spools[split], KEPT) for split in ("train", "valid", "test")}
        if not spools["valid"]:
            sources["valid"] = (spools["train"], HELD_OUT)
        training = HashSet()
        splits: dict[str, list[dict[str, Any]]] = {}
        for split, (corpora, mark) in sources.items():
            for languages, some in _by_pair(corpora).items():
                row = self._write_pair(split, languages, some, mark, tokenizers, training)
                if row["rows"]:
                    splits.setdefault(split, []).append(row)
        facts = {
            "languages": sorted({code for rows in splits.values() for row in rows for code in row["languages"]}),
            "splits": splits,
            "vocabularies": {side: tokenizer.vocabulary_size for side, tokenizer in tokenizers.items()},
            "options": asdict(self.options),
            "corpora": [{"split": split, **asdict(corpus.bitext)} for split in spools for corpus in spools[split]],
            "cleaning": self.report.as_dict(),
        }
        return facts, training

    def _write_pair(
        self,
        split: str,
        languages: tuple[str, str],
        corpora: list[Spool],
        mark: int,
        tokenizers: Tokenizers,
        training: HashSet,
    ) -> dict[str, Any]:
        size, encode = store.vocabulary_size(tokenizers), [tokenizer_of(tokenizers, side).encode for side in SIDES]
        with (
            store.DirectoryWriter(self.output, split, languages, ["hashes"], size) as writer,
            Counter("pairs", f"tokenising {split} {'-'.join(languages)}", shown=self.progress) as progress,
        ):
            for sources, targets, hashes in chain.from_iterable(corpus.pairs(mark) for corpus in corpora):
                writer.append([encode[0](sources), encode[1](targets)], {"hashes": hashes})
                if split == "train":
                    training.add(hashes.ravel())
                progress.update(len(sources))
        return {"languages": list(languages), **writer.facts}


def _lacks(sentences: HashSet, hashes: np.ndarray) -> np.ndarray:
    """Return which pairs, by their hashes uint64 [n, 2], have neither side in a set: bool [n]."""
    return ~np.any(sentences.contains(hashes), axis=1)


def _by_pair(spools: Iterable[Spool]) -> dict[tuple[str, str], list[Spool]]:
    grouped: dict[tuple[str, str], list[Spool]] = {}
    for corpus in spools:
        grouped.setdefault(corpus.bitext.languages, []).append(corpus)
    return grouped


def _texts(spools: list[Spool], sides: list[int]) -> Iterator[tuple[str, str]]:
    for corpus in spools:
        for sources, targets, _ in corpus.pairs(KEPT):
            for side in sides:
                yield from ((corpus.bitext.languages[side], text) for text in (sources, targets)[side])

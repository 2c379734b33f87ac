"""BUCC: mine the translations that are hidden in two monolingual texts, and compare them with a gold list.

The data is that of the shared tasks of 2017 and 2018 (Zweigenbaum, Sharoff and Rapp). The protocol is that of Artetxe
and Schwenk (2019, arXiv:1811.01136); the threshold is the best one of *another* split.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, Result, Score, VectorTestOptions, shares, table
from xrep.evaluation.overlap import Overlap, find_overlap
from xrep.evaluation.reading import check_least, choose_names, existing_folder, folders_with, named
from xrep.metrics.mining import best_threshold, mining_scores
from xrep.retrieval.margins import Candidates, check_neighbours, choose
from xrep.retrieval.neighbours import neighbours
from xrep.text.languages import canonical
from xrep.text.readers import read_lines

TUNING = ("training", "train", "dev", "sample")
"""Splits on which the threshold may be tuned; the first one that is available is used."""
_GOLD = re.compile(r"(\w+-\w+)\.(\w+)\.gold")


@dataclass(frozen=True)
class Split:
    """One split of a language pair: the distinct sentences of each side, whose ``gold`` is the number of ids of each
    sentence, and the rows of source and target of each gold pair, int64 [G, 2]."""

    pair: str
    name: str
    source: Examples
    target: Examples
    gold: np.ndarray

    @property
    def sides(self) -> tuple[Examples, Examples]:
        return self.source, self.target

    @property
    def pairs(self) -> Examples:
        """The gold pairs, with the files of both sides and the gold list."""
        sides = zip(self.sides, self.gold.T, strict=True)
        columns = tuple([side.columns[0][row] for row in rows] for side, rows in sides)
        languages = (self.source.languages[0], self.target.languages[0])
        return Examples(self.pair, languages, columns, self.gold, self.source.files + self.target.files, self.name)


class Bucc(Evaluation):
    """Mine parallel sentences from two monolingual texts, and compare them with a gold list.

    --data holds the files of BUCC: zh-en.training.zh and zh-en.training.en (lines id<TAB>sentence) and
    zh-en.training.gold (lines id<TAB>id), likewise zh-en.test.*, and so on.

    Protocol: candidates are found by margin score, one target for each source; those from a threshold on are extracted.
    The threshold is the one with the best F1 on the training (or dev) split, applied to the test split.

      xrep-eval bucc --path run1/best --data bucc2018/ --langs de-en,zh-en
      xrep-eval bucc --path run1/best --data bucc2018/ --margin distance --neighbours 3 --json out.json
      xrep-eval bucc --path run1/best --data sample/ --oracle       # one split: its own best threshold, labelled so
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions):
        data: str
        """Folder of the files."""
        langs: str = "all"
        """Language pairs (de-en,zh-en), or all that are there."""
        split: str | None = None
        """Split to measure on. The default is test, or the only split."""
        margin: Literal["absolute", "distance", "ratio"] = "ratio"
        """Score by the cosine (absolute), or by its distance from, or ratio to, the mean cosine with the neighbours on
        both sides."""
        neighbours: int = 4
        """Number of neighbours in each direction."""
        retrieval: Literal["forward", "backward", "intersection", "max"] = "max"
        """Candidates: the best target of each source, the best source of each target, both, or either."""
        one_to_one: bool = False
        """Use each target at most once, too, for its best pair, as XTREME does."""
        drop_repeated: bool = False
        """Extract no sentence that occurs more than once in its file, as XTREME does: every line of the gold list
        counts, and those with such a sentence are not found. Otherwise equal sentences count as one."""
        threshold: float | None = None
        """Extract the pairs with this score or more, instead of searching for a threshold."""
        oracle: bool = False
        """Take the best threshold of the measured split itself. The result is labelled so."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        folders = folders_with(folder, _GOLD.pattern).items()
        single = {path: len({name.partition(".")[0] for name in names}) == len(names) for path, names in folders}
        return {path: cls.Config(data=str(path), oracle=is_single) for path, is_single in single.items()}

    def read(self) -> list[Examples]:
        config = self.config
        if config.oracle and config.threshold is not None:
            raise UserError("`oracle` and `threshold`", cure="give one of them")
        check_least(config, neighbours=1)
        self.tests: list[tuple[Split, Split | None]] = []
        for pair, gold in select(config.langs, config.data).items():
            split, tuning = plan(list(gold), pair, config)
            merge = not config.drop_repeated
            self.tests.append((read_split(gold[split], merge), read_split(gold[tuning], merge) if tuning else None))
        return [side for test in self.tests for split in test if split for side in split.sides]

    def narrow(self, languages: Sequence[str]) -> None:
        self.tables = [side for side in self.tables if is_pair_of(side.name.split(".")[0], languages)]

    def measure(self, model: Encoder) -> Figures:
        self.check(model)
        results, read = [], {examples.name for examples in self.tables}
        for whole, tuning in self.tests:
            if whole.source.name in read:
                test, overlap = leave_out_overlap(whole, model.training_hashes, self.config.drop_overlap)
                files = whole.pairs.files + (tuning.pairs.files if tuning else ())
                score = measure(model, test, tuning, self.config)
                results.append(Result(replace(test.pairs, files=files), overlap, score))
        return self.figures(results)

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        return {f"mean F1{' (oracle)' if self.config.oracle else ''}": ("f1", list(results))}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        columns = ("split", "precision", "recall", "f1", "extracted", "gold")
        header = ["languages", "split", "precision", "recall", "F1", "extracted", "gold", "threshold", "found on"]
        rows = []
        for pair, result in results.items():
            own = result.values
            rows.append([pair, *(own[key] for key in columns), f"{own['threshold']:.4f}", own["threshold_from"]])
        (label,), (mean,) = self.quoted(results), averages.values()
        return f"{table(header, rows)}\n{label}: {mean['f1']:.2f}"


def select(pairs: str, folder: str | Path) -> dict[str, dict[str, Path]]:
    """Find the gold files of ``all`` pairs, or of such as ``de-en,zh-en``, in a folder and its direct subfolders:
    language pair -> split -> file."""
    folder, known = existing_folder(folder, "name the folder of the BUCC files"), dict[str, dict[str, Path]]()
    for file in sorted([*folder.glob("*.gold"), *folder.glob("*/*.gold")]):
        if match := _GOLD.fullmatch(file.name):
            other = known.setdefault(match[1], {}).setdefault(match[2], file)
            if other is not file:
                raise UserError(f"{other} is of the same split", path=file, cure="keep one of them")
    if not known:
        cure = "the folder must hold files such as zh-en.training.zh, zh-en.training.en and zh-en.training.gold"
        raise UserError("no file {xx}-{yy}.{split}.gold in it", path=folder, cure=cure)
    return {name: known[name] for name in choose_names(named(pairs, "langs"), known, "BUCC files of", folder)}


def is_pair_of(pair: str, languages: Collection[str]) -> bool:
    """Return whether both languages of a pair such as ``de-en`` are among some languages."""
    return set(map(canonical, pair.split("-"))) <= set(languages)


def plan(splits: list[str], pair: str, config: Bucc.Config) -> tuple[str, str | None]:
    """Return the split to measure and the split on which to tune the threshold (None if no tuning is needed)."""
    split = config.split or ("test" if "test" in splits else splits[0] if len(splits) == 1 else None)
    if split not in splits:
        problem = f"no split {config.split}" if config.split else "which split is measured is not clear"
        raise UserError(f"{pair}: {problem}", cure=f"give `split` with one of {' '.join(splits)}")
    if config.threshold is not None or config.oracle:
        return split, None
    tuning = next((name for name in TUNING if name in splits and name != split), None)
    if tuning is None:
        cure = "give `threshold`, or `oracle` to take the best one of this split, as no real search could"
        raise UserError(f"{pair}: there is no split but {split}, so none to find a threshold in", cure=cure)
    return split, tuning


def read_split(gold: Path, merge: bool = True) -> Split:
    """Read the split that a gold file belongs to. Empty lines are skipped. Equal sentences count as one sentence, and
    with ``merge`` gold pairs of equal sentences as one pair; otherwise each pair of ids is one."""
    pair, name, _ = gold.name.split(".")
    files = [gold.with_suffix(f".{language}") for language in pair.split("-")]
    for file in files:
        if not file.is_file():
            raise UserError("no such file", path=file, cure=f"{gold.name} needs the texts of both languages beside it")
    (source, sources), (target, targets) = map(_read_side, files)
    rows = dict[tuple[str, str], tuple[int, int]]()
    for number, first, second in _rows(gold, "id<TAB>id"):
        for own, known, file in ((first, sources, files[0]), (second, targets, files[1])):
            if own not in known:
                cure = f"{file.name} has no such id: take both files from one release"
                raise UserError(f"unknown id {own!r}", path=gold, line=number, cure=cure)
        rows[first, second] = sources[first], targets[second]
    pairs = np.array(list(rows.values()))
    target = replace(target, files=(files[1], gold))
    return Split(pair, name, source, target, np.unique(pairs, axis=0) if merge else pairs)


def _read_side(file: Path) -> tuple[Examples, dict[str, int]]:
    """Return the distinct sentences of a file, and the row of each id; ids with equal sentences share a row."""
    distinct, rows = dict[str, int](), dict[str, int]()
    for number, name, sentence in _rows(file, "id<TAB>sentence"):
        if name in rows:
            raise UserError(f"the id {name!r} occurs twice", path=file, line=number, cure="keep one of the lines")
        rows[name] = distinct.setdefault(sentence, len(distinct))
    language, counts = canonical(file.suffix[1:]), np.bincount(list(rows.values()))
    return Examples(file.name, (language,), (list(distinct),), counts, (file,)), rows


def _rows(file: Path, form: str) -> Iterator[tuple[int, str, str]]:
    """Yield the number and the two columns of each line that is not blank."""
    number = None
    for number, line in ((number, line) for number, line in read_lines(file) if line.strip()):
        first, _, second = (part.strip() for part in line.partition("\t"))
        if not (first and second):
            raise UserError(f"not of the form {form}", path=file, line=number, cure="correct or remove the line")
        yield number, first, second
    if number is None:
        raise UserError("only empty lines", path=file, cure=f"give a file with lines {form}")


def leave_out_overlap(split: Split, training_hashes: Path | None, drop: bool) -> tuple[Split, Overlap]:
    """Count the gold pairs with a side that is in the training data; with ``drop``, also remove their sentences."""
    keep, overlap = find_overlap(training_hashes, *split.pairs.columns, drop=drop, name=split.pair)
    if keep.all():
        return split, overlap
    sides, gold = [], []
    for side, rows in zip(split.sides, split.gold.T, strict=True):
        gone = np.setdiff1d(rows[~keep], rows[keep])  # the others are also in a gold pair that stays
        left = np.isin(np.arange(len(side)), gone, invert=True)
        sides.append(side.only(left))
        gold.append((np.cumsum(left) - 1)[rows[keep]])
    return replace(split, source=sides[0], target=sides[1], gold=np.stack(gold, axis=1)), overlap


def mine(encoder: Encoder, split: Split, config: Bucc.Config) -> tuple[Candidates, np.ndarray]:
    """Mine the candidate pairs of a split, best first, and return them with a mask of those that are gold, bool [P]."""
    check_neighbours(config.neighbours, len(split.source), len(split.target))
    show = sys.stderr.isatty()
    x, y = (encoder.encode(side.columns[0], side.languages[0], show_progress=show) for side in split.sides)
    nearest = neighbours(x, y, config.neighbours, config.neighbours)
    pairs = choose(*nearest, config.margin, config.retrieval, one_to_one=config.one_to_one)
    if config.drop_repeated:
        pairs = pairs.take((split.source.gold[pairs.source] == 1) & (split.target.gold[pairs.target] == 1))
    gold = set(map(tuple, split.gold.tolist()))
    correct = [pair in gold for pair in zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)]
    return pairs, np.array(correct, dtype=bool)


def measure(encoder: Encoder, measured: Split, tuning: Split | None, config: Bucc.Config) -> Score:
    """Measure precision, recall and F1 of one split with the threshold that is given, or the best one of ``tuning`` or,
    without it, of the measured split itself (oracle), which should not be quoted for a system.

    The details are ``split``, the numbers of pairs, ``threshold``, and its origin ``threshold_from``: the name of a
    split, ``given``, or ``oracle``.
    """
    pairs, correct = mine(encoder, measured, config)
    threshold, origin = config.threshold, "given"
    if threshold is None:
        split = tuning or measured
        candidates, is_gold = mine(encoder, tuning, config) if tuning else (pairs, correct)
        if not len(candidates.score):
            cure = "use another margin or `retrieval`, or leave `drop_repeated` out"
            raise UserError(f"{split.pair}: no candidates in {split.name}", cure=cure)
        threshold, _ = best_threshold(candidates.score, is_gold, len(split.gold))
        origin = tuning.name if tuning else "oracle"
    taken = pairs.score.astype(np.float64) >= threshold
    scores = vars(mining_scores(int(correct[taken].sum()), int(taken.sum()), len(measured.gold)))
    figures = {name: scores[name] for name in ("precision", "recall", "f1")}
    details = {"split": measured.name, **scores, "threshold": threshold, "threshold_from": origin}
    sources, size = np.asarray(pairs.source), len(measured.source)
    rows = sources[taken & correct], sources[taken], measured.gold[:, 0]
    right, extracted, gold = (np.bincount(own, minlength=size) for own in rows)  # of each source sentence
    return Score(figures, shares({"f1": np.stack((2 * right, extracted + gold), axis=1)}), details)

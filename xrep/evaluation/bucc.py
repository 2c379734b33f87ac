"""BUCC, the shared tasks of 2017 and 2018 (Zweigenbaum, Sharoff and Rapp), by the protocol of Artetxe and Schwenk
(2019, arXiv:1811.01136), in which the threshold is the best one of *another* split."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, Result, Score, VectorTestOptions, shares
from xrep.evaluation.reading import choose_names, existing_folder, folders_with, named
from xrep.metrics.extraction import best_threshold, mining_scores
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.margins import Candidates, check_neighbours, choose
from xrep.tables import table
from xrep.text.languages import canonical
from xrep.text.lines import read_lines

TUNING = ("training", "train", "dev", "sample")
"""Splits on which the threshold may be tuned; the first one that is available is used."""
_GOLD = r"\w+-\w+\.\w+\.gold"


@dataclass(frozen=True)
class BuccSplit:
    """One split of a language pair."""

    source: Examples
    target: Examples
    """The distinct sentences of each text; their ``gold`` is the number of ids of each sentence, int64 [N]."""
    pairs: Examples
    """The gold pairs. The name is the language pair, and ``gold`` are rows of source and target, int64 [G, 2]."""


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
        neighbours: Count = 4
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
        folders = folders_with(folder, _GOLD).items()
        single = {path: len({name.partition(".")[0] for name in names}) == len(names) for path, names in folders}
        return {path: cls.Config(data=str(path), oracle=is_single) for path, is_single in single.items()}

    def read(self) -> list[Examples]:
        if self.config.oracle and self.config.threshold is not None:
            raise UserError("`oracle` and `threshold`", cure="give one of them")
        self.tests: list[tuple[BuccSplit, BuccSplit | None]] = []
        for pair, gold in find_gold(self.config.langs, self.config.data).items():
            split, tuning = plan(list(gold), pair, self.config)
            merge = not self.config.drop_repeated
            self.tests.append((read_split(gold[split], merge), read_split(gold[tuning], merge) if tuning else None))
        return [side for test in self.tests for split in test if split for side in (split.source, split.target)]

    def narrow(self, languages: Sequence[str]) -> None:
        """A pair with English belongs to the other language, as in Tatoeba."""
        pairs = {side.name: {*map(canonical, side.name.split(".")[0].split("-"))} - {"en"} for side in self.tables}
        self.tables = [side for side in self.tables if pairs[side.name] <= set(languages)]

    def measure(self, model: MeasuredEncoder) -> Figures:
        self.check(model)
        results, read = [], {examples.name for examples in self.tables}
        for split, tuning in self.tests:
            if split.source.name in read:
                pairs, overlap = self.without_overlap(model, split.pairs)
                score = self.score(model, leave_out_pairs(split, pairs), tuning)
                files = pairs.files + (tuning.pairs.files if tuning else ())
                results.append(Result(replace(pairs, files=files), overlap, score))
        return self.figures(results)

    def score(self, model: MeasuredEncoder, test: BuccSplit, tuning: BuccSplit | None) -> Score:
        """Measure precision, recall and F1 of a split with the threshold that is given, or the best one of ``tuning``
        or, without it, of the split itself. ``threshold_from`` is the name of a split, ``given``, or ``oracle``."""
        pairs, correct = mine_split(model, test, self.config)
        threshold, origin = self.config.threshold, "given"
        if threshold is None:
            origin = tuning.pairs.split if tuning else "oracle"
            candidates, is_gold = mine_split(model, tuning, self.config) if tuning else (pairs, correct)
            if not len(candidates.score):
                problem = f"{test.pairs.name}: no candidates to find a threshold"
                raise UserError(problem, cure="use another margin or `retrieval`, or leave `drop_repeated` out")
            threshold, _ = best_threshold(candidates.score, is_gold, len((tuning or test).pairs))
        taken, gold = pairs.score.astype(np.float64) >= threshold, test.pairs.gold
        scores = vars(mining_scores(int(correct[taken].sum()), int(taken.sum()), len(gold)))
        figures = {name: scores[name] for name in ("precision", "recall", "f1")}
        details = {"split": test.pairs.split, **scores, "threshold": threshold, "threshold_from": origin}
        sources = np.asarray(pairs.source)
        rows = sources[taken & correct], sources[taken], gold[:, 0]
        right, extracted, wanted = (np.bincount(side, minlength=len(test.source)) for side in rows)  # of each source
        return Score(figures, shares({"f1": np.stack((2 * right, extracted + wanted), axis=1)}), details)

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        return {f"mean F1{' (oracle)' if self.config.oracle else ''}": ("f1", list(results))}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        keys = ("split", "precision", "recall", "f1", "extracted", "gold", "threshold", "threshold_from")
        header = ["languages", "split", "precision", "recall", "F1", "extracted", "gold", "threshold", "found on"]
        values = {pair: result.values for pair, result in results.items()}
        shown = {pair: {**each, "threshold": f"{each['threshold']:.4f}"} for pair, each in values.items()}
        rows = [[pair, *(each[key] for key in keys)] for pair, each in shown.items()]
        (label,), (mean,) = self.quoted(results), averages.values()
        return f"{table(header, rows)}\n{label}: {mean['f1']:.2f}"


def find_gold(pairs: str, folder: str | Path) -> dict[str, dict[str, Path]]:
    """Find the gold files of ``all`` pairs, or of such as ``de-en,zh-en``, in a folder and its subfolders: language
    pair -> split -> file."""
    folder, known = existing_folder(folder, "name the folder of the BUCC files"), dict[str, dict[str, Path]]()
    for file in (inside / name for inside, names in folders_with(folder, _GOLD).items() for name in names):
        pair, split, _ = file.name.split(".")
        if other := known.setdefault(pair, {}).get(split):
            raise UserError(f"{other} is of the same split", path=file, cure="keep one of them")
        known[pair][split] = file
    if not known:
        cure = "the folder must hold files such as zh-en.training.zh, zh-en.training.en and zh-en.training.gold"
        raise UserError("no file {xx}-{yy}.{split}.gold in it", path=folder, cure=cure)
    return {name: known[name] for name in choose_names(named(pairs, "langs"), known, "BUCC files of", folder)}


def plan(splits: list[str], pair: str, config: Bucc.Config) -> tuple[str, str | None]:
    """Return the split to measure and the split on which to tune the threshold (None if no tuning is needed)."""
    split = config.split or (splits[0] if len(splits) == 1 else "test")
    if split not in splits:
        raise UserError(f"{pair}: no split {split}", cure=f"give `split` with one of {' '.join(splits)}")
    if config.threshold is not None or config.oracle:
        return split, None
    if tuning := [name for name in TUNING if name in splits and name != split]:
        return split, tuning[0]
    cure = "give `threshold`, or `oracle` to take the best one of this split, as no real search could"
    raise UserError(f"{pair}: there is no split but {split}, so none to find a threshold in", cure=cure)


def read_split(gold: Path, merge: bool = True) -> BuccSplit:
    """Read the split that a gold file belongs to. Empty lines are skipped. Equal sentences count as one sentence, and
    with ``merge`` gold pairs of equal sentences as one pair; otherwise each pair of ids is one."""
    pair, name, _ = gold.name.split(".")
    files = [gold.with_suffix(f".{language}") for language in pair.split("-")]
    (source, sources), (target, targets) = map(_read_side, files)
    rows = dict[tuple[str, str], tuple[int, int]]()
    for number, first, second in _rows(gold, "id<TAB>id"):
        if first not in sources or second not in targets:
            problem = f"unknown id {second if first in sources else first!r}"
            raise UserError(problem, path=gold, line=number, cure="take all files from one release")
        rows[first, second] = sources[first], targets[second]
    if not rows:
        raise UserError("only empty lines", path=gold, cure="give a file with lines id<TAB>id")
    pairs = np.array(list(rows.values()))
    pairs = np.unique(pairs, axis=0) if merge else pairs
    columns = tuple([side.columns[0][row] for row in its] for side, its in zip((source, target), pairs.T, strict=True))
    languages = source.languages + target.languages
    return BuccSplit(source, target, Examples(pair, languages, columns, pairs, (*files, gold), name))


def _read_side(file: Path) -> tuple[Examples, dict[str, int]]:
    """Return the distinct sentences of a file, and the row of each id; ids with equal sentences share a row."""
    distinct, rows = dict[str, int](), dict[str, int]()
    for _, name, sentence in _rows(file, "id<TAB>sentence"):
        rows[name] = distinct.setdefault(sentence, len(distinct))
    language, counts = canonical(file.suffix[1:]), np.bincount(list(rows.values()))
    return Examples(file.name, (language,), (list(distinct),), counts, (file,)), rows


def _rows(file: Path, form: str) -> Iterator[tuple[int, str, str]]:
    """Yield the number and the two columns of each line that is not blank."""
    for number, line in read_lines(file):
        first, _, second = (part.strip() for part in line.partition("\t"))
        if first and second:
            yield number, first, second
        elif first or second:
            raise UserError(f"not of the form {form}", path=file, line=number, cure="correct or remove the line")


def leave_out_pairs(split: BuccSplit, pairs: Examples) -> BuccSplit:
    """Return a split with only some of its gold pairs, without the sentences that were in the others alone."""
    sides, gold = [], []
    for side, rows, kept in zip((split.source, split.target), split.pairs.gold.T, pairs.gold.T, strict=True):
        left = np.isin(np.arange(len(side)), np.setdiff1d(rows, kept), invert=True)
        sides.append(side.only(left))
        gold.append((np.cumsum(left) - 1)[kept])
    return BuccSplit(sides[0], sides[1], replace(pairs, gold=np.stack(gold, axis=1)))


def mine_split(encoder: MeasuredEncoder, split: BuccSplit, config: Bucc.Config) -> tuple[Candidates, np.ndarray]:
    """Mine the candidate pairs of a split, best first, and return them with a mask of those that are gold, bool [P]."""
    check_neighbours(config.neighbours, len(split.source), len(split.target))
    sides, show = (split.source, split.target), sys.stderr.isatty()
    x, y = (encoder.encode(side.columns[0], side.languages[0], show_progress=show) for side in sides)
    nearest = neighbours(x, y, config.neighbours, config.neighbours)
    pairs = choose(*nearest, config.margin, config.retrieval, one_to_one=config.one_to_one)
    if config.drop_repeated:
        pairs = pairs.take((split.source.gold[pairs.source] == 1) & (split.target.gold[pairs.target] == 1))
    gold = set(map(tuple, split.pairs.gold.tolist()))
    correct = [pair in gold for pair in zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)]
    return pairs, np.array(correct, dtype=bool)

"""xSIM and xSIM++, the error rates of LASER (Heffernan et al., 2022, arXiv:2205.12654; Chen et al., 2023,
arXiv:2306.12907)."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder
from xrep.evaluation.evaluation import Examples, Figures, Result, Score, TableEvaluation, VectorTestOptions
from xrep.evaluation.reading import existing_folder, folders_with, named, read_bitext, read_columns
from xrep.metrics.bootstrap import resampled_means
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.margins import Margin, apply_margin, check_neighbours, neighbour_means
from xrep.text.languages import canonical, refuse_pair
from xrep.text.lines import read_bytes, read_lines
from xrep.text.records import parse_json

_FILES = r"([a-z]{{3}}_[A-Z][a-z]{{3}})\.{split}|newstest2019-(?:src|ref)\.([A-Za-z-]+)\.txt"
_MISALIGNED = "misaligned"
_LAYOUTS = "name flores200_dataset/ or NTREX-128/, or pairs such as de-en=FILE.de,FILE.en"


class XSim(TableEvaluation):
    """Measure LASER's error rates xSIM and xSIM++ on FLORES-200, NTREX-128 or your own pairs.

    --data is one of these folders as published, or parallel text as xrep-preprocess takes it (de-en=FILE.de,FILE.en):
      flores200_dataset/   {dev,devtest}/deu_Latn.{dev,devtest} and its like
      NTREX-128/           newstest2019-src.eng.txt, newstest2019-ref.deu.txt and its like

    Protocol: of the 4 nearest neighbours of a sentence, the one with the best margin is found. It is an error if its
    text is not that of the translation. xx-en, the percentage of errors in searches of English, is LASER's figure;
    en-xx searches with English. Unlike this, xrep-eval tatoeba scores all sentences, not only the nearest, and compares
    lines, not their text; xrep-eval bucc extracts pairs by a threshold.

    xSIM++ also searches sentences that differ from the English ones in a name, a number or the meaning, if LASER's
    files eng_Latn_augmented.devtest and eng_Latn_errtype.devtest.json are in devtest_augmented/, beside devtest/. Its
    errors are divided by the kind of change; misaligned ones found another sentence, or a changed form of another one.

      xrep-eval xsim --path run1/best --data flores200_dataset/ --langs deu_Latn,fr
      xrep-eval xsim --path run1/best --data NTREX-128/ --random-baseline --json out.json
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions):
        data: str
        """Folder of FLORES-200 or NTREX-128, or parallel text."""
        langs: str = "all"
        """Languages to measure, as the files name them (zho_Hans) or by code (zh: all its scripts and regions)."""
        target: str = "en"
        """Language in which translations are searched, named in the same way (zh: the first of its scripts)."""
        split: Literal["devtest", "dev"] = "devtest"
        """Split of FLORES-200."""
        margin: Margin = "ratio"
        """Score by the cosine (absolute), or by its distance from, or ratio to, the mean cosine with the neighbours on
        both sides."""
        neighbours: Count = 4
        """Number of neighbours in each direction."""

    config: Config
    unit = "pairs"

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {path: cls.Config(data=str(path)) for path in folders_with(folder, _FILES.format(split="devtest"))}

    def read(self) -> list[Examples]:
        self.changed, self.kinds = list[str](), dict[str, tuple[str, str]]()
        if is_named := "=" in self.config.data:
            self._refuse("langs", "target", "split")
        tables = [_read_pairs(self.config.data)] if is_named else self._read_folder()
        self.least = 1 if self.config.margin == "absolute" else self.config.neighbours
        check_neighbours(self.least, *map(len, tables))
        # The changed sentences are in a table, too, so that --list-sentences writes them.
        return tables + [Examples("changed", tables[0].languages, ([], self.changed))] if self.changed else tables

    def _refuse(self, *options: str) -> None:
        """Raise a UserError if an option is given that the data has no choice for."""
        for name in options:
            if (value := getattr(self.config, name)) != getattr(XSim.Config, name):
                raise UserError(f"`{name}` {value} chooses nothing here", path=self.config.data, cure="leave it out")

    def _read_folder(self) -> list[Examples]:
        split, pattern = self.config.split, _FILES.format(split=self.config.split)
        found = folders_with(existing_folder(self.config.data, _LAYOUTS), pattern)
        if len(found) != 1:
            problem = f"data sets in {' and '.join(map(str, found))}" if found else f"no {split} files in it"
            raise UserError(problem, path=self.config.data, cure=_LAYOUTS)
        ((folder, names),) = found.items()
        if names[0].startswith("newstest"):
            self._refuse("split")
        matches = ((re.fullmatch(pattern, name), folder / name) for name in names)
        files = {match[1] or match[2]: file for match, file in matches if match}
        target = min(_codes(self.config.target, "target", files), key=len)  # eng, not eng-GB
        rest = [code for code in files if canonical(code) != canonical(target)]
        codes = {code for name in named(self.config.langs, "langs") for code in _codes(name, "langs", files, rest)}
        codes.discard(target)  # whose sentences would find themselves
        if not codes:
            raise UserError(
                f"`langs` has the target {target} alone", path=self.config.data, cure="name another language"
            )
        texts = [read_columns(code, {code: file, "": files[target]}) for code, file in files.items() if code in codes]
        place, further = folder.with_name(f"{split}_augmented"), tuple[Path, ...]()
        changed = place / f"{target}_augmented.{split}", place / f"{target}_errtype.{split}.json"
        # They are published for English alone, and another target is measured without them.
        if place.is_dir() and (canonical(target) == "en" or any(file.is_file() for file in changed)):
            further = changed
            self.changed, self.kinds = _read_changed(*further, files[target])
        sides = [(canonical(each.name), canonical(target)) for each in texts]
        return [
            replace(each, languages=two, files=each.files + further) for each, two in zip(texts, sides, strict=True)
        ]

    def measure(self, model: MeasuredEncoder) -> Figures:
        self.tables = [each for each in self.tables if len(each)]
        self.check(model)
        texts = list(dict.fromkeys(chain(*(each.columns[1] for each in self.tables), self.changed)))
        vectors = model.encode(texts, self.tables[0].languages[1], show_progress=sys.stderr.isatty())
        self.vectors = dict(zip(texts, vectors, strict=True))  # the same sentences are in many tables
        return super().measure(model)

    def score(self, model: MeasuredEncoder, examples: Examples) -> Score:
        source, target = (np.array(column, object) for column in examples.columns)
        x, code = model.encode(examples.columns[0], examples.languages[0]), examples.languages[1]
        there, back = self._nearest(x, target)
        errors = {f"xx-{code}": target[there] != target, f"{code}-xx": source[back] != source}
        if self.changed:
            # Of sentences that are left out, because they were in the training text, the changed forms are, too.
            gone = {text for _, text in self.kinds.values()}.intersection(self.vectors).difference(target)
            texts = np.array([*target, *(text for text in self.changed if self.kinds[text][1] not in gone)], object)
            found = texts[self._nearest(x, texts)[0]]
            errors["xsim++"] = found != target
            causes = zip((self.kinds.get(text, ("", "")) for text in found), target, strict=True)
            kinds = np.array([kind if of == right.strip() else _MISALIGNED for (kind, of), right in causes], object)
            for kind in dict.fromkeys((*sorted(kind for kind, _ in self.kinds.values()), _MISALIGNED)):
                errors[kind] = errors["xsim++"] & (kinds == kind)
        rates = 100 * np.stack(list(errors.values()), axis=1)

        def resample(seed: int) -> dict[str, np.ndarray]:
            return dict(zip(errors, resampled_means(rates, seed).T, strict=True))

        return Score(dict(zip(errors, rates.mean(axis=0).tolist(), strict=True)), resample)

    def _nearest(self, x: np.ndarray, target: Iterable[str]) -> list[np.ndarray]:
        """Return the rows of ``target`` that are found for the rows of x, and those of x that are found for it. Cosines
        and their means over the neighbours are those of LASER; where its ratio would divide by a mean that is not
        positive, a neighbour is found only if all of them are such, and then it is the nearest."""
        k = 1 if self.config.margin == "absolute" else self.config.neighbours
        sides, rows = neighbours(x, np.stack([self.vectors[text] for text in target]), k, k), list[np.ndarray]()
        for one, other in (sides, sides[::-1]):
            index, means = one.index.numpy(), (neighbour_means(one)[:, None], neighbour_means(other)[one.index])
            best = apply_margin(one.similarity.numpy(), *means, self.config.margin).argmax(axis=1)
            rows.append(index[np.arange(len(index)), best])
        return rows

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        figures = list(next(iter(results.values())).score.figures)
        quoted, averages = (
            {"xsim": figures[0], **({"xsim++": "xsim++"} if self.changed else {})},
            self.averages(results),
        )
        return {f"{name}, {label}": (key, averages[label]) for name, key in quoted.items() for label in averages}


def _read_pairs(data: str) -> Examples:
    bitext, rows = read_bitext(data)
    pairs = list(rows)
    columns = tuple([pair[side] for pair in pairs] for side in range(2))
    return Examples(bitext.name, bitext.languages, columns, files=bitext.paths)


def _codes(name: str, option: str, files: Collection[str], every: Sequence[str] = ()) -> list[str]:
    """Return the codes in the names of files that a language given by an option means, at least one."""
    refuse_pair(name, option)
    same = [code for code in files if canonical(code) == canonical(name)]
    if found := list(every) if name == "all" else [name] if name in files else same:
        return found
    raise UserError(f"no file of the `{option}` {name}", cure=f"the data has {','.join(files)}")


def _read_changed(texts: Path, kinds: Path, originals: Path) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Return xSIM++'s changed sentences, and for each of them the kind of change and the sentence that was changed."""
    try:
        known = {text: (each["errtype"], each["src"]) for text, each in parse_json(read_bytes(kinds), kinds).items()}
    except (AttributeError, KeyError, TypeError):
        problem, cure = 'not {SENTENCE: {"errtype": KIND, "src": SENTENCE}, ...}', f"fetch LASER's {kinds.name} again"
        raise UserError(problem, path=kinds, cure=cure) from None
    if not {of for _, of in known.values()}.intersection(line.strip() for _, line in read_lines(originals)):
        raise UserError(f"changes no sentence of {originals}", path=kinds, cure="take the file of the same split")
    changed = [text for _, text in read_lines(texts)]
    return changed, {text: known.get(text.strip(), (_MISALIGNED, "")) for text in changed}

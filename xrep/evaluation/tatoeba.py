"""The Tatoeba test: search for the translation of each sentence among all sentences of the other language.

Data and protocol are those of LASER (Artetxe and Schwenk, 2019, arXiv:1812.10464). For each language, a folder contains
``tatoeba.{xxx}-eng.{xxx}`` and ``tatoeba.{xxx}-eng.eng``, with up to 1000 lines each; line i of one translates line i
of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages, whitened, without_components
from xrep.evaluation.evaluation import (
    DimensionsOption,
    EncoderOptions,
    Evaluation,
    Figures,
    OverlapOption,
    PlotOption,
    progress,
    table,
)
from xrep.evaluation.overlap import chosen, find_overlap, total
from xrep.evaluation.plots import plot_tatoeba
from xrep.evaluation.reading import (
    check_parallel,
    choose_languages,
    existing_folder,
    folders_with,
    read_sentences,
)
from xrep.files import check_output, write_aside
from xrep.metrics.bootstrap import resampled_means
from xrep.metrics.retrieval import Accuracy, accuracy_of, right_answers
from xrep.retrieval.margins import margin_scores
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.languages import canonical, name

PROTOCOL = (
    "best by cosine (or its margin) among all sentences of the other side, right if on the same line; both directions"
)

_36 = "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr ur vi zh"
_TOO_SMALL = "jv ka kk ml sw ta te th"
GROUPS: dict[str, tuple[str, ...]] = {
    "14": tuple("ar bg de el es fr hi ru sw th tr ur vi zh".split()),
    "28": tuple(language for language in _36.split() if language not in _TOO_SMALL.split()),
    "36": tuple(_36.split()),
    "11": tuple("fr zh es de ru it tr pt hu ja nl".split()),
}
"""Languages of the published averages. 14, 28 and 36 are those of "Dual-Alignment Pre-training for Cross-lingual
Sentence Embedding" (section 4.4, appendix A; the 36 are XTREME's, and the 28 are those of them with 1000 pairs). 11 are
those of "Universal Sentence Representation Learning with Conditional Masked Language Model" (table 8)."""
_ROWS = {"both": [0, 1], "xx-en": [0], "en-xx": [1]}


@dataclass(frozen=True)
class Pool:
    """Test pairs of one language: ``sentences[i]`` translates ``english[i]``; ``code`` is the one in the file names."""

    code: str
    sentences: list[str]
    english: list[str]

    @property
    def language(self) -> str:
        return canonical(self.code)

    def __len__(self) -> int:
        return len(self.sentences)


class Tatoeba(Evaluation):
    """Find the translation of each sentence among up to 1000 sentences, in 112 languages.

    The data is the Tatoeba test in LASER's layout: --data holds tatoeba.deu-eng.deu, tatoeba.deu-eng.eng and so on.

    Protocol: for each sentence, the nearest neighbour by cosine among all sentences of the other side is taken; it is
    right if it is on the same line. Accuracies are in percent, from the language into English (xx-en) and back (en-xx).
    XTREME searches with the English sentences alone: --langs 36 --direction en-xx.

      xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr
      xrep-eval tatoeba --path run1/best --data tatoeba/ --random-baseline --json out.json --plot out.png
      xrep-eval tatoeba --path run1/best --data tatoeba/ --remove-components 1 --margin ratio

    The averages over 14, 28, 36 and 11 languages are those of the literature. An average is given if all its languages
    were measured.
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions, DimensionsOption, OverlapOption, PlotOption):
        data: str
        """Folder of the test files."""
        langs: str = "all"
        """Language codes (de,fr or deu,fra), or 14, 28, 36 or 11, or all that are there."""
        margin: Literal["absolute", "distance", "ratio"] = "absolute"
        """Score by the cosine (absolute), or by its distance from, or ratio to, the mean cosine with the neighbours on
        both sides. This score ranks all sentences of the other side, where LASER's xSIM takes the best of the nearest
        neighbours, so figures of distance and ratio may differ from those of xSIM."""
        neighbours: int = 4
        """Number of neighbours in this mean."""
        direction: Literal["both", "xx-en", "en-xx"] = "both"
        """Direction whose accuracy is averaged over the languages and has an interval: the mean of both, from the
        language into English, or from English, as in XTREME."""
        remove_components: int = 0
        """Number of principal components of each language (of its sentences in the test) that are removed from its
        vectors."""
        whiten: int = 0
        """Whiten the vectors of each language (of its sentences in the test) to this number of directions, as Su et al.
        (2021) do; 0: leave them as they are."""
        save_embeddings: str | None = None
        """Folder to which the compared vectors are written as {xxx}.{xxx}.npy and {xxx}.eng.npy: float32 [N, D],
        L2-normalised, in line order."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        return {place: cls.Config(data=str(place)) for place in folders_with(folder, r"tatoeba\..+-eng\..+")}

    def read(self) -> None:
        if self.config.save_embeddings is not None:
            if self.config.list_sentences is not None:
                problem = "`save_embeddings` with `list_sentences`, which measures nothing"
                raise UserError(problem, cure="leave `save_embeddings` out")
            check_output(self.config.save_embeddings, folder=True)
        codes = select(self.config.langs, self.config.data)
        self.pools = [read_pool(self.config.data, code) for code in codes]
        self.files = [file for code in codes for file in files_of(self.config.data, code)]
        _check_numbers(self.config, self.pools)

    def measure(self, encoder: Encoder) -> Figures:
        config, pools, overlaps = self.config, [], []
        firsts = {pool.language: pool.sentences[0] for pool in self.pools}
        check_languages(encoder, {"en": self.pools[0].english[0], **firsts})
        for pool in self.pools:
            columns, drop = (pool.sentences, pool.english), config.drop_overlap
            keep, overlap = find_overlap(encoder.training_hashes, *columns, drop=drop, name=pool.code, least=2)
            pools.append(Pool(pool.code, *chosen(keep, *columns)))
            overlaps.append(overlap)
        _check_numbers(config, pools)
        right = answers(encoder, pools, config, self._save if config.save_embeddings else None)
        measured = {language: accuracy_of(own) for language, own in right.items()}
        groups, missing = averages(measured)
        averaged = {"mean": _directions(average(measured.values()))}
        averaged |= {group: _directions(accuracy) for group, accuracy in groups.items()}
        mean = {**averaged["mean"], "pairs": sum(map(len, pools))}
        direction = "mean" if config.direction == "both" else config.direction
        prefix = "" if config.direction == "both" else f"{direction}, "
        languages = {pool.language: {**_directions(measured[pool.language]), "pairs": len(pool)} for pool in pools}
        quoted = {f"mean of {len(pools)}": mean} | {f"average of {group}": averaged[group] for group in groups}
        headline = {prefix + label: own[direction] for label, own in quoted.items()}
        neighbours = {} if config.margin == "absolute" else {"neighbours": config.neighbours}
        return Figures(
            text=_text(languages, quoted, missing),
            values={
                **{key: mean[key] for key in ("mean", "pairs")},
                "languages": languages,
                "averages": averaged,
            },
            headline=headline,
            resamples=_resamples(
                {language: own[_ROWS[config.direction]] for language, own in right.items()},
                {f"{prefix}mean of {len(pools)}": right, **{f"{prefix}average of {g}": GROUPS[g] for g in groups}},
            ),
            settings={
                "languages": list(languages),
                "protocol": PROTOCOL,
                "direction": config.direction,
                "margin": config.margin,
                **neighbours,
                "remove_components": config.remove_components,
                "whiten": config.whiten,
            },
            files=self.files,
            overlap=total(overlaps),
            plot=lambda picture: plot_tatoeba(measured, headline, picture),
        )

    def _save(self, pool: Pool, vectors: np.ndarray, english: np.ndarray) -> None:
        folder = Path(self.config.save_embeddings or "")
        folder.mkdir(exist_ok=True)
        for side, array in ((pool.code, vectors), ("eng", english)):
            with write_aside(folder / f"{pool.code}.{side}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, array.astype(np.float32, copy=False), allow_pickle=False)


def _check_numbers(config: Tatoeba.Config, pools: Sequence[Pool]) -> None:
    neighbours, components = config.neighbours, config.remove_components
    if neighbours < 1:
        raise UserError(f"`neighbours` {neighbours}", cure="give at least 1")
    for option, number in (("remove_components", components), ("whiten", config.whiten)):
        if number < 0:
            raise UserError(f"`{option}` {number}", cure="give 0 or more")
    smallest = min(pools, key=len)
    pairs = f"{len(smallest)} pairs of {smallest.code}"
    cure = f"give a smaller number, or leave {smallest.code} out"
    if config.margin != "absolute" and len(smallest) < neighbours:
        raise UserError(f"`neighbours` {neighbours}, but {pairs}", cure=cure)
    if components and len(smallest) <= components:
        raise UserError(f"`remove_components` {components}, but {pairs}", cure=cure)


# -- data -------------------------------------------------------------------------------------------------------------


def available(folder: str | Path) -> dict[str, str]:
    """Return the languages of a folder in LASER's layout: canonical code -> code in the file names."""
    cure = "name the folder of LASER's Tatoeba test, which holds tatoeba.deu-eng.deu and its like"
    folder = existing_folder(folder, cure)
    codes = {file.name.split(".")[1].removesuffix("-eng") for file in folder.glob("tatoeba.*-eng.*")}
    if not codes:
        raise UserError("no file tatoeba.{xxx}-eng.{xxx} in it", path=folder, cure=cure)
    languages: dict[str, str] = {}
    for code in sorted(codes):
        if other := languages.get(canonical(code)):
            raise UserError(f"{other} and {code} are one language", path=folder, cure="keep the files of one of them")
        languages[canonical(code)] = code
    return languages


def select(languages: str, folder: str | Path) -> list[str]:
    """Return the codes, as in the file names, of the languages that ``--langs`` names; see ``choose_languages``."""
    codes = available(folder)
    return [codes[language] for language in choose_languages(languages, codes, "Tatoeba files for", folder, GROUPS)]


def files_of(folder: str | Path, code: str) -> list[Path]:
    """Return the two files of a language: its own side and the English side."""
    return [Path(folder) / f"tatoeba.{code}-eng.{side}" for side in (code, "eng")]


def read_pool(folder: str | Path, code: str) -> Pool:
    """Read the test pairs of one language."""
    paths = files_of(folder, code)
    for path in paths:
        if not path.is_file():
            raise UserError("no such file", path=path, cure="fetch LASER's Tatoeba test again: each language has two")
    sides = [read_sentences(path) for path in paths]
    for path, side in zip(paths, sides, strict=True):
        if blank := next((number for number, line in enumerate(side, start=1) if not line.strip()), None):
            raise UserError("a blank line", path=path, line=blank, cure="fetch LASER's Tatoeba test again")
    check_parallel(sides, paths)
    return Pool(code, *sides)


# -- accuracy ---------------------------------------------------------------------------------------------------------


def answers(
    encoder: Encoder,
    pools: Sequence[Pool],
    config: Tatoeba.Config,
    keep: Callable[[Pool, np.ndarray, np.ndarray], None] | None = None,
) -> dict[str, np.ndarray]:
    """Return which sentences of each canonical language find their translation, and which translations find their
    sentence, by ``PROTOCOL``: bool [2, N].

    Args:
        keep: Function that is called with each pool and the vectors that are compared, those of the language and those
            of English, L2-normalised float32 [N, D] each.
    """
    measured = {}
    for pool in progress(pools, "languages"):
        sides = encoder.encode(pool.sentences, pool.language), encoder.encode(pool.english, "en")
        white = (normalize_rows(whitened(side, config.whiten)) for side in sides)
        vectors, english = (without_components(side, config.remove_components) for side in white)
        if keep is not None:
            keep(pool, vectors, english)
        measured[pool.language] = _answers(vectors, english, config)
    return measured


def _answers(x: np.ndarray, y: np.ndarray, config: Tatoeba.Config) -> np.ndarray:
    if config.margin == "absolute":
        return right_answers(x, y)
    scores = margin_scores(x, y, config.neighbours, config.margin)
    lines, scored = np.arange(len(x)), np.isfinite(scores.diagonal())
    return np.stack([scored & (scores.argmax(axis=axis) == lines) for axis in (1, 0)])


def _resamples(right: Mapping[str, np.ndarray], groups: Mapping[str, Iterable[str]]) -> dict[str, np.ndarray]:
    """Return resampled averages over each group of languages. The sentences of each language are resampled."""
    means = {
        language: 100 * resampled_means(own.T, seed).mean(axis=1) for seed, (language, own) in enumerate(right.items())
    }
    return {label: np.mean([means[language] for language in languages], axis=0) for label, languages in groups.items()}


def average(accuracies: Iterable[Accuracy]) -> Accuracy:
    """Return the mean of each direction. Every language has the same weight, whatever its number of pairs."""
    return Accuracy(*np.mean(list(accuracies), axis=0).tolist())


def averages(accuracies: Mapping[str, Accuracy]) -> tuple[dict[str, Accuracy], dict[str, list[str]]]:
    """Return the averages of the ``GROUPS`` that were measured, and the missing languages of each other group."""
    measured, missing = {}, {}
    for group, languages in sorted(GROUPS.items()):
        if absent := [language for language in languages if language not in accuracies]:
            missing[group] = absent
        else:
            measured[group] = average(accuracies[language] for language in languages)
    return measured, missing


def _directions(accuracy: Accuracy) -> dict[str, float]:
    return {"xx-en": accuracy.forward, "en-xx": accuracy.backward, "mean": accuracy.mean}


def _text(
    languages: Mapping[str, Mapping[str, float]],
    averaged: Mapping[str, Mapping[str, float]],
    missing: Mapping[str, Sequence[str]],
) -> str:
    """Return a table of the languages by name and of the averages, and the averages that are missing."""
    columns = ("pairs", "xx-en", "en-xx", "mean")
    lines = {f"{name(language)} ({language})": languages[language] for language in sorted(languages, key=name)}
    rows = [[label, *(own.get(key, "") for key in columns)] for label, own in [*lines.items(), *averaged.items()]]
    rows.insert(len(lines), [])
    text = table(["language", *columns], rows)
    if not missing:
        return text
    groups = ", ".join(f"{group} ({len(absent)} missing)" for group, absent in missing.items())
    return f"{text}\nno average over {groups}: not all their languages were measured"

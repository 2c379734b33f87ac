"""The Tatoeba test: search for the translation of each sentence among all sentences of the other language.

Data and protocol are those of LASER (Artetxe and Schwenk, 2019, arXiv:1812.10464). For each language, a folder contains
``tatoeba.{xxx}-eng.{xxx}`` and ``tatoeba.{xxx}-eng.eng``, with up to 1000 lines each; line i of one translates line i
of the other.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation import overlap
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.overlap import Overlap
from xrep.metrics.components import remove_components
from xrep.metrics.retrieval import Accuracy, retrieval_accuracy
from xrep.retrieval.margins import Margin, margin_scores
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.languages import canonical
from xrep.text.readers import read_lines

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


@dataclass(frozen=True)
class Scoring:
    """Method of comparing candidates; the default is the published protocol."""

    margin: Margin = "absolute"
    """``absolute``: the cosine; ``ratio``: the cosine divided by the mean cosine with the neighbours on both sides;
    ``distance``: the cosine minus that mean."""
    neighbours: int = 4
    """Number of neighbours in this mean."""
    remove_components: int = 0
    """Number of principal components that are first removed from the vectors of each side of each pool."""

    def check(self, pools: Sequence[Pool]) -> None:
        """Check the numbers against the pools.

        Raises:
            UserError: A number is out of range for these pools.
        """
        neighbours, components = self.neighbours, self.remove_components
        if neighbours < 1:
            raise UserError(f"--neighbours {neighbours}", cure="give at least 1")
        if components < 0:
            raise UserError(f"--remove-components {components}", cure="give 0 or more")
        smallest = min(pools, key=len)
        pairs = f"{len(smallest)} pairs of {smallest.code}"
        cure = f"give a smaller number, or leave {smallest.code} out"
        if self.margin != "absolute" and len(smallest) < neighbours:
            raise UserError(f"--neighbours {neighbours}, but {pairs}", cure=cure)
        if components and len(smallest) <= components:
            raise UserError(f"--remove-components {components}, but {pairs}", cure=cure)

    def as_dict(self) -> dict[str, str | int]:
        """Return the settings that the results depend on, for JSON."""
        neighbours = {} if self.margin == "absolute" else {"neighbours": self.neighbours}
        return {"protocol": PROTOCOL, "margin": self.margin, **neighbours, "remove_components": self.remove_components}


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


@dataclass(frozen=True)
class Results:
    """Accuracy by canonical language: ``forward`` is xx-en (query in xx, search in English), ``backward`` is en-xx."""

    accuracies: dict[str, Accuracy]
    pairs: dict[str, int]
    overlap: Overlap
    random: dict[str, Accuracy] = field(default_factory=dict)
    """The accuracies of the same architecture with random weights, if they were measured."""

    @property
    def mean(self) -> Accuracy:
        return average(self.accuracies.values())

    @property
    def averages(self) -> dict[str, Accuracy]:
        """Average of each group of which every language was measured, by group name."""
        return {
            group: average(self.accuracies[language] for language in languages)
            for group, languages in GROUPS.items()
            if not self.missing(group)
        }

    def missing(self, group: str) -> list[str]:
        """Return the languages of a group that were not measured."""
        return [language for language in GROUPS[group] if language not in self.accuracies]


def average(accuracies: Iterable[Accuracy]) -> Accuracy:
    """Return the mean of each direction. Every language has the same weight, whatever its number of pairs."""
    both = [(accuracy.forward, accuracy.backward) for accuracy in accuracies]
    forward, backward = np.mean(both, axis=0)
    return Accuracy(float(forward), float(backward))


def available(folder: str | Path) -> dict[str, str]:
    """Return the languages of a folder in LASER's layout: canonical code -> code in the file names.

    Raises:
        UserError: The folder does not exist or has no such files, or two codes in it mean the same language.
    """
    folder = Path(folder)
    cure = "name the folder of LASER's Tatoeba test, which holds tatoeba.deu-eng.deu and its like"
    if not folder.is_dir():
        raise UserError("no such folder", path=folder, cure=cure)
    codes = {file.name.split(".")[1].removesuffix("-eng") for file in folder.glob("tatoeba.*-eng.*")}
    if not codes:
        raise UserError("no file tatoeba.{xxx}-eng.{xxx} in it", path=folder, cure=cure)
    found: dict[str, str] = {}
    for code in sorted(codes):
        if canonical(code) in found:
            both = f"{found[canonical(code)]} and {code}"
            raise UserError(f"{both} are one language", path=folder, cure="keep the files of one of them")
        found[canonical(code)] = code
    return found


def select(languages: str, folder: str | Path) -> list[str]:
    """Return the codes, as in the file names, of the requested languages.

    Args:
        languages: ``all``, or any of ``14 28 36 11`` and language codes (``de`` or ``deu``), separated by commas.

    Raises:
        UserError: The folder lacks one of the languages, or no language is named.
    """
    found = available(folder)
    wanted: list[str] = []
    for item in filter(None, (part.strip() for part in languages.split(","))):
        wanted += found if item == "all" else GROUPS.get(item, (canonical(item),))
    if not wanted:
        raise UserError("no language named", cure="give --langs all, 14, 28, 36, 11 or codes such as de,fr")
    missing = [language for language in dict.fromkeys(wanted) if language not in found]
    if missing:
        raise UserError(
            f"no Tatoeba files for {' '.join(missing)}", path=folder, cure=f"it holds {' '.join(sorted(found))}"
        )
    return [found[language] for language in dict.fromkeys(wanted)]


def files_of(folder: str | Path, code: str) -> list[Path]:
    """Return the two files of a language: its own side and the English side."""
    return [Path(folder) / f"tatoeba.{code}-eng.{side}" for side in (code, "eng")]


def read_pool(folder: str | Path, code: str) -> Pool:
    """Read the test pairs of one language.

    Raises:
        UserError: A file is missing, empty or not UTF-8, or the numbers of lines differ.
    """
    paths = files_of(folder, code)
    for path in paths:
        if not path.is_file():
            raise UserError("no such file", path=path, cure="fetch LASER's Tatoeba test again: each language has two")
    sentences, english = ([line for _, line in read_lines(path)] for path in paths)
    if len(sentences) != len(english):
        raise UserError(
            f"{len(sentences)} lines, but {paths[1].name} has {len(english)}",
            path=paths[0],
            line=min(len(sentences), len(english)) + 1,
            cure="line i of one must translate line i of the other",
        )
    return Pool(code, sentences, english)


def find_overlap(pools: Sequence[Pool], training_hashes: Path | None, drop: bool) -> tuple[list[Pool], Overlap]:
    """Count the pairs with a side that is in the training data; with ``drop``, also remove them from the pools.

    Raises:
        UserError: ``drop`` is set, but there are no training hashes or fewer than 2 pairs of a language would be left.
    """
    found = [overlap.find_overlap(training_hashes, pool.sentences, pool.english, drop=drop) for pool in pools]
    kept = [_only(pool, keep) if drop else pool for pool, (keep, _) in zip(pools, found, strict=True)]
    return kept, functools.reduce(operator.add, (counted for _, counted in found))


def _only(pool: Pool, rows: np.ndarray) -> Pool:
    if rows.sum() < 2:
        raise UserError(
            f"{len(pool) - rows.sum()} of {len(pool)} pairs of {pool.code} were in the training text, "
            "too few are left to search",
            cure=f"measure without --drop-overlap or without {pool.code}",
        )
    chosen = np.flatnonzero(rows)
    return replace(
        pool, sentences=[pool.sentences[row] for row in chosen], english=[pool.english[row] for row in chosen]
    )


def measure(
    encoder: Encoder,
    pools: Sequence[Pool],
    scoring: Scoring = Scoring(),
    *,
    keep: Callable[[Pool, np.ndarray, np.ndarray], None] | None = None,
    show_progress: bool = False,
) -> dict[str, Accuracy]:
    """Measure the accuracy of each canonical language in percent, by ``PROTOCOL``.

    Args:
        keep: Function that is called with each pool and the vectors that are compared, those of the language and those
            of English, L2-normalised float32 [N, D] each.
        show_progress: Whether to show a progress line on stderr.

    Raises:
        UserError: See ``Scoring.check`` and the encoder's ``encode``; or the number of components to remove is not
            smaller than the dimension of the vectors.
    """
    scoring.check(pools)
    accuracies = {}
    progress = tqdm(pools, disable=not show_progress, leave=False, unit=" languages")
    for pool in progress:
        progress.set_postfix_str(pool.code)
        sides = encoder.encode(pool.sentences, pool.language), encoder.encode(pool.english, "en")
        vectors, english = (_compared(side, scoring.remove_components) for side in sides)
        if keep is not None:
            keep(pool, vectors, english)
        accuracies[pool.language] = _accuracy(vectors, english, scoring)
    return accuracies


def _compared(side: np.ndarray, components: int) -> np.ndarray:
    unit = normalize_rows(side)
    if not components:
        return unit
    if components >= unit.shape[1]:
        cure = f"give at most {unit.shape[1] - 1}"
        raise UserError(f"--remove-components {components} of vectors {unit.shape[1]} wide", cure=cure)
    return normalize_rows(remove_components(unit, components))


def _accuracy(x: np.ndarray, y: np.ndarray, scoring: Scoring) -> Accuracy:
    if scoring.margin == "absolute":
        return retrieval_accuracy(x, y)
    scores = margin_scores(x, y, scoring.neighbours, scoring.margin)
    lines, scored = np.arange(len(x)), np.isfinite(scores.diagonal())
    right = (scored & (scores.argmax(axis=axis) == lines) for axis in (1, 0))
    return Accuracy(*(100.0 * float(direction.mean()) for direction in right))


def evaluate(
    encoder: Encoder,
    pools: Sequence[Pool],
    scoring: Scoring = Scoring(),
    *,
    random_encoder: Encoder | None = None,
    drop_overlap: bool = False,
    keep: Callable[[Pool, np.ndarray, np.ndarray], None] | None = None,
    show_progress: bool = False,
) -> Results:
    """Run the whole test: check the languages, count the overlap and measure the accuracies.

    Args:
        random_encoder: Encoder that is measured on the same pairs, for comparison.
        drop_overlap: Whether to leave out the pairs that were in the training text of ``encoder``.
        keep: See ``measure``; it is not called with the vectors of ``random_encoder``.

    Raises:
        UserError: See ``check_languages``, ``find_overlap`` and ``measure``.
    """
    check_languages(encoder, {"en": pools[0].english[0], **{pool.language: pool.sentences[0] for pool in pools}})
    pools, counted = find_overlap(pools, encoder.training_hashes, drop_overlap)
    return Results(
        accuracies=measure(encoder, pools, scoring, keep=keep, show_progress=show_progress),
        pairs={pool.language: len(pool) for pool in pools},
        overlap=counted,
        random=measure(random_encoder, pools, scoring, show_progress=show_progress) if random_encoder else {},
    )

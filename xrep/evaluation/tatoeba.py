"""The Tatoeba test: find the translation of each sentence among all sentences of the other language.

Data and protocol: LASER (Artetxe and Schwenk, 2019, arXiv:1812.10464). A folder holds, for each language,
``tatoeba.{xxx}-eng.{xxx}`` and ``tatoeba.{xxx}-eng.eng``: up to 1000 lines, line i translates line i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation.overlap import Overlap, load_training_hashes, seen
from xrep.metrics.retrieval import Accuracy, retrieval_accuracy
from xrep.retrieval.neighbours import normalize_rows
from xrep.text.languages import canonical
from xrep.text.readers import read_lines

PROTOCOL = (
    "nearest neighbour by cosine among all sentences of the other side, right if on the same line; both directions"
)

_36 = "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr ur vi zh"
_TOO_SMALL = "jv ka kk ml sw ta te th"
GROUPS: dict[str, tuple[str, ...]] = {
    "14": tuple("ar bg de el es fr hi ru sw th tr ur vi zh".split()),
    "28": tuple(language for language in _36.split() if language not in _TOO_SMALL.split()),
    "36": tuple(_36.split()),
    "11": tuple("fr zh es de ru it tr pt hu ja nl".split()),
}
"""Languages of the published averages: 14, 28 and 36 as in "Dual-Alignment Pre-training for Cross-lingual Sentence
Embedding" (section 4.4, appendix A; 36 are XTREME's, 28 those of them with 1000 pairs), 11 as in "Universal Sentence
Representation Learning with Conditional Masked Language Model" (table 8)."""


class Encoder(Protocol):
    """What this evaluation asks of a sentence encoder."""

    training_hashes: Path | None

    def encode(self, sentences: list[str], lang: str, show_progress: bool = False) -> np.ndarray:
        """float32 [N, D]."""
        ...


@dataclass(frozen=True)
class Pool:
    """Test pairs of one language: ``sentences[i]`` translates ``english[i]``; ``code`` is that of the file names."""

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
    """Accuracy of each canonical language: ``forward`` is xx-en (asks in xx, finds English), ``backward`` en-xx."""

    accuracies: dict[str, Accuracy]
    pairs: dict[str, int]
    overlap: Overlap
    random: dict[str, Accuracy] = field(default_factory=dict)
    """The same for the same architecture with random weights, if that was measured."""

    @property
    def mean(self) -> Accuracy:
        return average(self.accuracies.values())

    @property
    def averages(self) -> dict[str, Accuracy]:
        """Group -> average, for the groups of which every language was measured."""
        return {
            group: average(self.accuracies[language] for language in languages)
            for group, languages in GROUPS.items()
            if not self.missing(group)
        }

    def missing(self, group: str) -> list[str]:
        """Languages of a group that were not measured."""
        return [language for language in GROUPS[group] if language not in self.accuracies]


def average(accuracies: Iterable[Accuracy]) -> Accuracy:
    """Mean of each direction; every language counts alike, however many pairs it has."""
    both = [(accuracy.forward, accuracy.backward) for accuracy in accuracies]
    forward, backward = np.mean(both, axis=0)
    return Accuracy(float(forward), float(backward))


def available(folder: str | Path) -> dict[str, str]:
    """Languages of a folder in LASER's layout: canonical code -> code in the file names.

    Raises:
        UserError: no such folder, no such files in it, or two codes of one language.
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
    """Codes in the file names of the languages asked for.

    Args:
        languages: ``all``, or any of ``14 28 36 11`` and language codes (``de`` or ``deu``), separated by commas.

    Raises:
        UserError: a language the folder does not hold; none at all.
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


def read_pool(folder: str | Path, code: str) -> Pool:
    """The test pairs of one language.

    Raises:
        UserError: a file is missing, empty or not UTF-8, or their numbers of lines differ.
    """
    paths = [Path(folder) / f"tatoeba.{code}-eng.{side}" for side in (code, "eng")]
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
    """Count the pairs with a side that was trained on and, with ``drop``, leave them out of the pools.

    Raises:
        UserError: ``drop`` without training hashes; fewer than 2 pairs of a language would be left.
    """
    total = sum(map(len, pools))
    hashes = load_training_hashes(training_hashes)
    if hashes is None:
        if drop:
            raise UserError("no training hashes beside the encoder", cure="measure without --drop-overlap")
        return list(pools), Overlap(None, total)
    known = [seen(pool.sentences, hashes) | seen(pool.english, hashes) for pool in pools]
    found = int(sum(rows.sum() for rows in known))
    if not drop:
        return list(pools), Overlap(found, total)
    kept = [_only(pool, ~rows) for pool, rows in zip(pools, known, strict=True)]
    return kept, Overlap(found, total, dropped=True)


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


def check_languages(encoder: Encoder, pools: Sequence[Pool]) -> None:
    """Try one sentence of each language, so that an encoder without a tower for it says so before the work.

    Raises:
        UserError: names every language that the encoder refuses.
    """
    refused: dict[str, UserError] = {}
    for language, sentence in [("en", pools[0].english[0]), *((pool.language, pool.sentences[0]) for pool in pools)]:
        try:
            encoder.encode([sentence], language)
        except UserError as error:
            refused[language] = error
    if refused:
        known = [pool.language for pool in pools if pool.language not in refused]
        reason = next(iter(refused.values())).problem
        raise UserError(
            f"the encoder cannot encode {' '.join(refused)} ({reason})",
            cure=f"give --langs {','.join(known)}" if known and "en" not in refused else "name another encoder",
        )


def measure(
    encoder: Encoder,
    pools: Sequence[Pool],
    *,
    keep: Callable[[Pool, np.ndarray, np.ndarray], None] | None = None,
    show_progress: bool = False,
) -> dict[str, Accuracy]:
    """Accuracy of each canonical language in percent, by ``PROTOCOL``.

    Args:
        keep: called with each pool and its vectors, L2-normalised float32 [N, D] for the language and for English.
        show_progress: a progress line on stderr.

    Raises:
        UserError: the encoder gives vectors that are not finite.
    """
    accuracies = {}
    progress = tqdm(pools, disable=not show_progress, leave=False, unit=" languages")
    for pool in progress:
        progress.set_postfix_str(pool.code)
        sides = encoder.encode(pool.sentences, pool.language), encoder.encode(pool.english, "en")
        if not all(np.isfinite(side).all() for side in sides):
            problem = f"the encoder gives sentences of {pool.code} vectors that are not finite"
            raise UserError(problem, cure="take an earlier checkpoint")
        vectors, english = map(normalize_rows, sides)
        if keep is not None:
            keep(pool, vectors, english)
        accuracies[pool.language] = retrieval_accuracy(vectors, english)
    return accuracies


def evaluate(
    encoder: Encoder,
    pools: Sequence[Pool],
    *,
    random_encoder: Encoder | None = None,
    drop_overlap: bool = False,
    keep: Callable[[Pool, np.ndarray, np.ndarray], None] | None = None,
    show_progress: bool = False,
) -> Results:
    """The whole test: languages checked, overlap counted, accuracies measured.

    Args:
        random_encoder: measured on the same pairs, for comparison.
        drop_overlap: leave out the pairs that were in the training text of ``encoder``.
        keep: see ``measure``; not called with the vectors of ``random_encoder``.

    Raises:
        UserError: see ``check_languages``, ``find_overlap`` and ``measure``.
    """
    check_languages(encoder, pools)
    pools, overlap = find_overlap(pools, encoder.training_hashes, drop_overlap)
    return Results(
        accuracies=measure(encoder, pools, keep=keep, show_progress=show_progress),
        pairs={pool.language: len(pool) for pool in pools},
        overlap=overlap,
        random=measure(random_encoder, pools, show_progress=show_progress) if random_encoder else {},
    )

"""Measure alignment and uniformity of an encoder, or of each checkpoint of a run.

The losses are those of Wang and Isola (2020), see ``xrep.metrics.geometry``. The sentences are chosen as in "Frozen
source" (figure 4, appendix A), which follows SimCSE (Gao et al., 2021, section 2 and figure 2):

- Pairs with a score of 0 to 5 (STS-B): the positives are the pairs with a score higher than 4.
- Pairs without a score (parallel text): of the first 1000 pairs, the first 250 are the positives. In the others, the
  source sentence (the one that is not English) is replaced by one drawn at random from the rest of the file.

Uniformity is computed over all sentences of both sides, whether the pair is positive or not; repeated sentences count
each time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation import text_table
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.overlap import Overlap, find_overlap
from xrep.evaluation.sts_sets import SPLITS, find_sets
from xrep.metrics.geometry import alignment_loss, uniformity_loss
from xrep.models.directory import PREFIX, checkpoints_in
from xrep.text.languages import canonical
from xrep.text.readers import orient, parse_bitext, read_pairs

_PARALLEL = re.compile(r"[A-Za-z_-]+=.+")
_SCORED = re.compile(r"(?:sts|stsb-.+)-(train|dev|test)\.csv|SICK_(train|trial|test_annotated)\.txt")
_WHAT = "name an STS file such as sts-dev.csv, or parallel text such as de-en=FILE.tsv or de-en=FILE.de,FILE.en"


@dataclass(frozen=True)
class PairSet:
    """N pairs ``first[i]``, ``second[i]``; the mask ``positive``, bool [N], marks those with the same meaning.

    Attributes:
        languages: Languages of ``first`` and ``second``.
        what: Description of how the positives were chosen.
    """

    name: str
    languages: tuple[str, str]
    first: list[str]
    second: list[str]
    positive: np.ndarray
    files: list[Path]
    what: str

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Measured:
    """Both losses of one encoder (lower is better); ``step`` is None unless the encoder is a checkpoint of a run."""

    step: int | None
    alignment: float
    uniformity: float
    positives: int
    sentences: int
    overlap: Overlap
    fingerprint: str


def read_set(data: str, *, above: float = 4.0, pairs: int = 1000, true_pairs: int = 250, seed: int = 0) -> PairSet:
    """Read the pair set that ``data`` names.

    Args:
        data: A file of STS-B, its translations or SICK, or parallel text (``de-en=...``).
        above: Scored pairs with a higher score than this are positives.
        pairs, true_pairs: For parallel text, the number of pairs to use, and how many of them stay true translations.
        seed: Seed for drawing the sentences that replace those of the other pairs.

    Raises:
        UserError: ``data`` is none of these, there is no positive pair, or there are too few pairs.
    """
    if _PARALLEL.fullmatch(data):
        return _parallel(data, pairs, true_pairs, seed)
    return _scored(Path(data), above)


def _scored(path: Path, above: float) -> PairSet:
    match = _SCORED.fullmatch(path.name)
    if not path.is_file() or not match:
        raise UserError("no such file" if match else "not a set of pairs that is known", path=path, cure=_WHAT)
    split = next((name for name in SPLITS if name in path.name), "dev")  # SICK's dev split is called trial
    test = next(test for test in find_sets(path.parent, split) if path in test.files)
    subset = test.subsets[0]
    positive = subset.gold > above
    if not positive.any():
        problem, cure = f"no pair scores higher than {above:g}", "give a lower --positive-above"
        raise UserError(problem, path=path, cure=cure)
    what = f"positives score higher than {above:g}"
    languages = (test.language, test.language)
    return PairSet(f"{test.name} {split}", languages, subset.first, subset.second, positive, [path], what)


def _parallel(data: str, pairs: int, true_pairs: int, seed: int) -> PairSet:
    if not 1 <= true_pairs <= pairs:
        raise UserError(f"--true-pairs {true_pairs} of --pairs {pairs}", cure="give 1 to as many as --pairs")
    bitext = orient(parse_bitext(data))[0]
    rows = ((source, target) for _, source, target in read_pairs(bitext) if source.strip() and target.strip())
    chosen, replaced = list(islice(rows, pairs)), pairs - true_pairs
    others, following = _draw((source for source, _ in rows), replaced, random.Random(seed))
    if len(chosen) < pairs or following < replaced:
        problem = f"{len(chosen) + following} pairs, but {pairs} and {replaced} others to draw from are needed"
        raise UserError(problem, path=bitext.paths[0], cure="give a smaller --pairs")
    return PairSet(
        bitext.name,
        bitext.languages,
        [*(source for source, _ in chosen[:true_pairs]), *others],
        [target for _, target in chosen],
        np.arange(pairs) < true_pairs,
        [Path(path) for path in bitext.paths],
        f"the first {true_pairs} of {pairs} pairs are true, the others have another {bitext.languages[0]} sentence",
    )


def _draw(sentences: Iterable[str], count: int, generator: random.Random) -> tuple[list[str], int]:
    """Draw ``count`` sentences uniformly without holding all in memory (reservoir sampling); also return the total."""
    drawn, number = [], 0
    for number, sentence in enumerate(sentences, start=1):
        if len(drawn) < count:
            drawn.append(sentence)
        elif (place := generator.randrange(number)) < count:
            drawn[place] = sentence
    return drawn, number


def checkpoints(run: str | Path) -> list[tuple[int, Path]]:
    """Return step and directory of each checkpoint of a run, in the order of their steps.

    Raises:
        UserError: The run has no checkpoints.
    """
    found = checkpoints_in(Path(run))
    if not found:
        cure = f"name the directory of a run, which holds {PREFIX}00001000 and its like"
        raise UserError("no checkpoints in it", path=run, cure=cure)
    return [(int(path.name.removeprefix(PREFIX)), path) for path in found]


def evaluate(encoder: Encoder, pairs: PairSet, *, step: int | None = None, drop_overlap: bool = False) -> Measured:
    """Measure both losses of an encoder.

    Args:
        step: Step of the encoder if it is a checkpoint of a run.
        drop_overlap: Whether to leave out the pairs that were in the training text.

    Raises:
        UserError: The encoder refuses a language; or ``drop_overlap`` is set, but there are no training hashes or no
            positive pair is left.
    """
    check_languages(encoder, dict(zip(pairs.languages, (pairs.first[0], pairs.second[0]), strict=True)))
    keep, overlap = find_overlap(encoder.training_hashes, pairs.first, pairs.second, drop=drop_overlap)
    pairs = _only(pairs, keep)
    if not pairs.positive.any():
        raise UserError(f"no positive pair of {pairs.name} is left", cure="measure without --drop-overlap")
    x, y = (
        encoder.encode(side, language)
        for side, language in zip((pairs.first, pairs.second), pairs.languages, strict=True)
    )
    return Measured(
        step,
        alignment_loss(x[pairs.positive], y[pairs.positive]),
        uniformity_loss(np.concatenate((x, y))),
        int(pairs.positive.sum()),
        2 * len(pairs),
        overlap,
        encoder.fingerprint(),
    )


def _only(pairs: PairSet, rows: np.ndarray) -> PairSet:
    chosen = np.flatnonzero(rows)
    first, second = ([side[row] for row in chosen] for side in (pairs.first, pairs.second))
    return replace(pairs, first=first, second=second, positive=pairs.positive[chosen])


def table(pairs: PairSet, results: Sequence[Measured]) -> str:
    """Return a description of the data, a table with one line per encoder, and the overlap line."""
    named = results[0].step is not None
    rows = [
        [str(result.step) if named else pairs.name, f"{result.alignment:.4f}", f"{result.uniformity:.4f}"]
        for result in results
    ]
    last = results[-1]
    sizes = f"alignment of {last.positives} positive pairs, uniformity of {last.sentences} sentences"
    header = ["step" if named else "pairs", "alignment", "uniformity"]
    return "\n".join(
        [f"{pairs.name}: {sizes}; lower is better", pairs.what, text_table.table(header, rows), last.overlap.line]
    )


def values(pairs: PairSet, results: Sequence[Measured]) -> dict[str, Any]:
    """Return the results for JSON.

    The keys are ``pairs`` (name of the pair set), ``languages``, ``positives``, ``sentences``, and ``alignment`` and
    ``uniformity`` of the last encoder. A run also has ``checkpoints``, a list with ``step``, ``alignment``,
    ``uniformity`` and ``fingerprint`` of each.
    """
    last = results[-1]
    found = {
        "pairs": pairs.name,
        "languages": [canonical(language) for language in pairs.languages],
        "positives": last.positives,
        "sentences": last.sentences,
        "alignment": last.alignment,
        "uniformity": last.uniformity,
    }
    if last.step is None:
        return found
    names = ("step", "alignment", "uniformity", "fingerprint")
    return found | {"checkpoints": [{name: getattr(result, name) for name in names} for result in results]}


def headline(pairs: PairSet, results: Sequence[Measured]) -> dict[str, float]:
    """Return both losses of the last encoder, under the name of the pair set."""
    last = results[-1]
    return {f"{pairs.name}, alignment": last.alignment, f"{pairs.name}, uniformity": last.uniformity}

"""Alignment and uniformity of an encoder, or of each checkpoint of a run.

The losses are those of Wang and Isola (2020), see ``xrep.metrics.geometry``; what they are taken over is as in
"Frozen source" (figure 4, appendix A), which follows SimCSE (Gao et al., 2021, section 2 and figure 2):

- pairs with a score of 0 to 5 (STS-B): the positives are those that score higher than 4;
- pairs without a score (parallel text): of the first 1000 pairs the first 250 are the positives, and the others have
  their source sentence (the one that is not English) replaced by one drawn from what follows in the file.

Uniformity is taken over all sentences of the set, both sides, positives or not, as often as they stand there.
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
    """N pairs ``first[i]``, ``second[i]`` of which those in ``positive``, bool [N], mean the same.

    Attributes:
        languages: of ``first`` and ``second``.
        what: how positives were told from others, in words.
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
    """Both losses of one encoder, lower is better; ``step`` of a checkpoint along a run, else None."""

    step: int | None
    alignment: float
    uniformity: float
    positives: int
    sentences: int
    overlap: Overlap
    fingerprint: str


def read_set(data: str, *, above: float = 4.0, pairs: int = 1000, true_pairs: int = 250, seed: int = 0) -> PairSet:
    """The pair set that ``data`` names: a file of STS-B, its translations or SICK, or parallel text (``de-en=...``).

    Args:
        above: of scored pairs, those with a higher score are positives.
        pairs, true_pairs: of parallel text, how many pairs are taken and how many of them stay true.
        seed: of the draw of sentences that replace the others'.

    Raises:
        UserError: neither of these; no positive pair; too few pairs.
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
    """``count`` of them at random, each as likely, without holding all (reservoir sampling); and how many there are."""
    drawn, number = [], 0
    for number, sentence in enumerate(sentences, start=1):
        if len(drawn) < count:
            drawn.append(sentence)
        elif (place := generator.randrange(number)) < count:
            drawn[place] = sentence
    return drawn, number


def checkpoints(run: str | Path) -> list[tuple[int, Path]]:
    """Step and directory of each checkpoint of a run, in the order of their steps.

    Raises:
        UserError: none there.
    """
    found = checkpoints_in(Path(run))
    if not found:
        cure = f"name the directory of a run, which holds {PREFIX}00001000 and its like"
        raise UserError("no checkpoints in it", path=run, cure=cure)
    return [(int(path.name.removeprefix(PREFIX)), path) for path in found]


def evaluate(encoder: Encoder, pairs: PairSet, *, step: int | None = None, drop_overlap: bool = False) -> Measured:
    """Both losses of an encoder.

    Args:
        step: of the checkpoint, along a run.
        drop_overlap: leave out the pairs that were in the training text.

    Raises:
        UserError: the encoder refuses a language; ``drop_overlap`` without training hashes or with no positive left.
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
    """A line for each encoder, what they were measured on, the overlap line."""
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
    """For JSON: ``pairs`` (their name), ``positives``, ``sentences``, and ``alignment`` and ``uniformity`` of the last
    encoder; of a run also ``checkpoints``, each with ``step``, ``alignment``, ``uniformity``, ``fingerprint``."""
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
    """Both losses of the last encoder, under the name of the pairs."""
    last = results[-1]
    return {f"{pairs.name}, alignment": last.alignment, f"{pairs.name}, uniformity": last.uniformity}

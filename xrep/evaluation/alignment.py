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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Figures, OverlapOption, PlotOption, table
from xrep.evaluation.overlap import Overlap, chosen, find_overlap
from xrep.evaluation.plots import plot_alignment
from xrep.evaluation.reading import check_seed, folders_with
from xrep.evaluation.sts_sets import read_file
from xrep.metrics.geometry import alignment_loss, uniformity_loss
from xrep.models.directory import PREFIX, checkpoints_in
from xrep.text.languages import canonical
from xrep.text.readers import orient, parse_bitext, read_pairs

_PARALLEL = re.compile(r"[A-Za-z_-]+=.+")


@dataclass(frozen=True)
class PairSet:
    """N pairs ``first[i]``, ``second[i]``; the mask ``positive``, bool [N], marks those with the same meaning.

    Attributes:
        languages: Languages of ``first`` and ``second``.
        rule: Description of how the positives were chosen.
    """

    name: str
    languages: tuple[str, str]
    first: list[str]
    second: list[str]
    positive: np.ndarray
    files: list[Path]
    rule: str

    def __len__(self) -> int:
        return len(self.first)


class Checkpoints:
    """The checkpoints of a run, opened one after the other, so that only one is in memory.

    Attributes:
        path: Directory of the last checkpoint that was opened.
    """

    def __init__(self, run: str, evaluation: Evaluation) -> None:
        self._places, self._evaluation = checkpoints_in(Path(run)), evaluation
        if not self._places:
            cure = f"name the directory of a run, which holds {PREFIX}00001000 and its like"
            raise UserError("no checkpoints in it", path=run, cure=cure)
        self.path = str(self._places[-1])
        self._fingerprint = ""

    def __iter__(self) -> Iterator[tuple[int, Encoder]]:
        """Yield step and encoder of each checkpoint, in the order of their steps."""
        for place in self._places:
            encoder = Evaluation.open(self._evaluation, str(place))
            self._fingerprint = encoder.fingerprint()
            yield int(place.name.removeprefix(PREFIX)), encoder

    def fingerprint(self) -> str:
        return self._fingerprint


class Alignment(Evaluation):
    """Measure alignment and uniformity, of one encoder or along a run.

    Alignment is the mean squared distance of pairs that mean the same. Uniformity is the logarithm of the mean of
    exp(-2 squared distance) of any two sentences (Wang and Isola, 2020). Lower is better for both.

      xrep-eval alignment --path run1/best --data sts/STSBenchmark/sts-dev.csv
      xrep-eval alignment --path run1 --every-checkpoint --data sts-dev.csv --plot trajectory.png
      xrep-eval alignment --path run1/best --data zh-en=UNv1.0.devset.zh,UNv1.0.devset.en

    --data is a file of STS-B, of its translations or of SICK, whose pairs with a score higher than 4 are the positives.
    Or it is parallel text: of its first 1000 pairs the first 250 stay, and in the others the sentence that is not
    English is replaced by one that is drawn from the rest. A run keeps its last 2 checkpoints, or as many as
    --keep-last said.
    """

    resampled = False

    @dataclass(kw_only=True)
    class Config(EncoderOptions, OverlapOption, PlotOption):
        data: str
        """A file such as sts-dev.csv, or parallel text: LANG-LANG=FILE.tsv or LANG-LANG=FILE,FILE."""
        every_checkpoint: bool = False
        """Measure each checkpoint of a run, whose directory is given by --path."""
        positive_above: float = 4.0
        """Scored pairs with a higher score than this are positives."""
        pairs: int = 1000
        """Number of pairs that are taken of parallel text."""
        true_pairs: int = 250
        """Number of these pairs that keep their translation."""
        seed: int = 0
        """Seed for drawing the sentences that replace those of the other pairs."""

    config: Config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        files = [place / name for place, names in folders_with(folder, r"sts-test\.csv").items() for name in names]
        return {file: cls.Config(data=str(file)) for file in files}

    def read(self) -> None:
        check_seed(self.config.seed)
        scored = _PARALLEL.fullmatch(self.config.data) is None
        self.pairs = read_scored(self.config) if scored else read_parallel(self.config)

    def open(self, path: str) -> Any:
        return Checkpoints(path, self) if self.config.every_checkpoint else super().open(path)

    def measure(self, encoder: Encoder | Checkpoints) -> Figures:
        """Measure one encoder, or each checkpoint of a run.

        The values for JSON are ``pairs`` (name of the pair set), ``languages``, and the ``positives``, ``sentences``,
        ``alignment`` and ``uniformity`` of the last encoder. A run also has ``checkpoints``, a list with ``step``,
        ``alignment``, ``uniformity`` and ``fingerprint`` of each.
        """
        pairs, checkpoints, last, overlap = self.pairs, [], {}, None
        is_run = isinstance(encoder, Checkpoints)
        for step, each in encoder if isinstance(encoder, Checkpoints) else [(None, encoder)]:
            last, overlap = losses(each, pairs, self.config.drop_overlap)
            figures = {loss: last[loss] for loss in ("alignment", "uniformity")}
            checkpoints.append({"step": step, **figures, "fingerprint": each.fingerprint()})
        steps, first, second = ([own[key] for own in checkpoints] for key in ("step", "alignment", "uniformity"))
        rows = [
            [step if is_run else pairs.name, f"{alignment:.4f}", f"{uniformity:.4f}"]
            for step, alignment, uniformity in zip(steps, first, second, strict=True)
        ]
        header = ["step" if is_run else "pairs", "alignment", "uniformity"]
        return Figures(
            text=f"{pairs.name}: alignment of {last['positives']} positive pairs, uniformity of {last['sentences']} "
            f"sentences; lower is better\n{pairs.rule}\n{table(header, rows)}",
            values={
                "pairs": pairs.name,
                "languages": [canonical(language) for language in pairs.languages],
                **last,
                **({"checkpoints": checkpoints} if is_run else {}),
            },
            headline={f"{pairs.name}, {loss}": last[loss] for loss in ("alignment", "uniformity")},
            settings={"positives": pairs.rule, "seed": self.config.seed},
            files=pairs.files,
            overlap=overlap,
            plot=lambda picture: plot_alignment(steps, first, second, pairs.name, picture),
        )


def read_scored(config: Alignment.Config) -> PairSet:
    """Read a file of STS-B, its translations or SICK."""
    path = Path(config.data)
    test = read_file(path) if path.is_file() else None
    if test is None:
        problem = "not a set of pairs that is known" if path.exists() else "no such file"
        cure = "name an STS file such as sts-dev.csv, or parallel text such as de-en=FILE.tsv or de-en=FILE.de,FILE.en"
        raise UserError(problem, path=path, cure=cure)
    assert test.gold is not None
    positive = test.gold["score"] > config.positive_above
    rule, languages = f"higher than {config.positive_above:g}", (test.languages[0], test.languages[1])
    if not positive.any():
        raise UserError(f"no pair scores {rule}", path=path, cure="give a lower `positive_above`")
    rule = f"positives score {rule}"
    return PairSet(f"{test.name} {test.split}", languages, *test.columns, positive, [path], rule)


def read_parallel(config: Alignment.Config) -> PairSet:
    """Read parallel text; see ``Alignment.Config`` for the sizes."""
    pairs, true_pairs = config.pairs, config.true_pairs
    if not 1 <= true_pairs <= pairs:
        raise UserError(f"`true_pairs` {true_pairs} of `pairs` {pairs}", cure="give 1 to as many as `pairs`")
    bitext = orient(parse_bitext(config.data))[0]
    rows = ((source, target) for _, source, target in read_pairs(bitext) if source.strip() and target.strip())
    taken, replaced = list(islice(rows, pairs)), pairs - true_pairs
    others, following = _draw((source for source, _ in rows), replaced, random.Random(config.seed))
    if len(taken) < pairs or following < replaced:
        problem = f"{len(taken) + following} pairs, but {pairs} and {replaced} others to draw from are needed"
        raise UserError(problem, path=bitext.paths[0], cure="give a smaller `pairs`")
    return PairSet(
        bitext.name,
        bitext.languages,
        [*(source for source, _ in taken[:true_pairs]), *others],
        [target for _, target in taken],
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


def losses(encoder: Encoder, pairs: PairSet, drop_overlap: bool = False) -> tuple[dict[str, Any], Overlap]:
    """Return ``alignment`` and ``uniformity`` of an encoder, the numbers of ``positives`` and ``sentences`` that they
    were measured on, and the overlap."""
    check_languages(encoder, dict(zip(pairs.languages, (pairs.first[0], pairs.second[0]), strict=True)))
    keep, overlap = find_overlap(encoder.training_hashes, pairs.first, pairs.second, drop=drop_overlap, name=pairs.name)
    positive = pairs.positive[keep]
    if not positive.any():
        raise UserError(f"no positive pair of {pairs.name} is left", cure="measure without `drop_overlap`")
    columns = zip(chosen(keep, pairs.first, pairs.second), pairs.languages, strict=True)
    x, y = (encoder.encode(column, language) for column, language in columns)
    return {
        "positives": int(positive.sum()),
        "sentences": 2 * len(positive),
        "alignment": alignment_loss(x[positive], y[positive]),
        "uniformity": uniformity_loss(np.concatenate((x, y))),
    }, overlap

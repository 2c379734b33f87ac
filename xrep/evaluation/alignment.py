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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder
from xrep.evaluation.evaluation import (
    EncoderOptions,
    Evaluation,
    Examples,
    Figures,
    OverlapOption,
    PlotOption,
    Result,
    Score,
    table,
)  # fmt: skip
from xrep.evaluation.plots import plot_alignment
from xrep.evaluation.reading import check_seed, folders_with
from xrep.evaluation.sts_sets import read_file
from xrep.metrics.geometry import alignment_loss, uniformity_loss
from xrep.models.directory import PREFIX, checkpoints_in
from xrep.text.languages import canonical
from xrep.text.readers import orient, parse_bitext, read_pairs

LOSSES = ("alignment", "uniformity")
_PARALLEL = re.compile(r"[A-Za-z_-]+=.+")


class Checkpoints:
    """The checkpoints of a run, opened one after the other, so that only one is in memory.

    Attributes:
        path: Directory of the last checkpoint that was opened.
    """

    def __init__(self, run: str, evaluation: Evaluation) -> None:
        self._paths, self._evaluation = checkpoints_in(Path(run)), evaluation
        if not self._paths:
            cure = f"name the directory of a run, which holds {PREFIX}00001000 and its like"
            raise UserError("no checkpoints in it", path=run, cure=cure)
        self.path = str(self._paths[-1])
        self._fingerprint = ""

    def __iter__(self) -> Iterator[tuple[int, Encoder]]:
        """Yield step and encoder of each checkpoint, in the order of their steps."""
        for path in self._paths:
            encoder = Evaluation.open(self._evaluation, str(path))
            self._fingerprint = encoder.fingerprint()
            yield int(path.name.removeprefix(PREFIX)), encoder

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
        files = [path / name for path, names in folders_with(folder, r"sts-test\.csv").items() for name in names]
        return {file: cls.Config(data=str(file)) for file in files}

    def read(self) -> list[Examples]:
        """Return one table, whose ``gold`` marks the pairs with the same meaning: bool [N]."""
        config = self.config
        check_seed(config.seed)
        if _PARALLEL.fullmatch(config.data):
            pairs = read_parallel(config)
            counts = f"the first {config.true_pairs} of {config.pairs} pairs are true"
            self.rule = f"{counts}, the others have another {pairs.languages[0]} sentence"
            return [pairs]
        self.rule = f"positives score higher than {config.positive_above:g}"
        return [read_scored(config)]

    def open(self, path: str) -> Any:
        return Checkpoints(path, self) if self.config.every_checkpoint else super().open(path)

    def score(self, model: Encoder, examples: Examples) -> Score:
        positive = examples.gold
        if not positive.any():
            raise UserError(f"no positive pair of {examples.name} is left", cure="measure without `drop_overlap`")
        x, y = (model.encode(*side) for side in zip(examples.columns, examples.languages, strict=True))
        losses = alignment_loss(x[positive], y[positive]), uniformity_loss(np.concatenate((x, y)))
        counts = {"positives": int(positive.sum()), "sentences": 2 * len(positive)}
        return Score(dict(zip(LOSSES, losses, strict=True)), details=counts)

    def measure(self, model: Encoder | Checkpoints) -> Figures:
        """Measure one encoder, or each checkpoint of a run.

        The values for JSON are those of the last encoder, with ``pairs`` (name of the table), ``alignment`` and
        ``uniformity`` beside its table. A run also has ``checkpoints``, a list with the step, the losses and the
        fingerprint of each.
        """
        is_run, pairs = isinstance(model, Checkpoints), self.tables[0].name
        checkpoints, figures = list[dict[str, Any]](), None
        for step, encoder in model if isinstance(model, Checkpoints) else [(None, model)]:
            figures = super().measure(encoder)
            losses = dict(zip(LOSSES, figures.headline.values(), strict=True))
            checkpoints.append({"step": step, **losses, "fingerprint": encoder.fingerprint()})
        assert figures is not None
        values = {**figures.values, "pairs": pairs, **{loss: checkpoints[-1][loss] for loss in LOSSES}}
        steps, first, second = ([own[key] for own in checkpoints] for key in ("step", *LOSSES))
        rows = [[own["step"] if is_run else pairs, *(f"{own[loss]:.4f}" for loss in LOSSES)] for own in checkpoints]
        return replace(
            figures,
            text=f"{figures.text}\n{table(['step' if is_run else 'pairs', *LOSSES], rows)}",
            values={**values, "checkpoints": checkpoints} if is_run else values,
            plot=lambda picture: plot_alignment(steps, first, second, pairs, picture),
        )

    def averages(self, results: Mapping[str, Result]) -> dict[str, list[str]]:
        return {}

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        return {f"{name}, {loss}": (loss, [name]) for name in results for loss in LOSSES}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        ((name, result),) = results.items()
        counts = "alignment of {positives} positive pairs, uniformity of {sentences} sentences; lower is better"
        return f"{name}: {counts.format(**result.score.details)}\n{self.rule}"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "positives": self.rule}


def read_scored(config: Alignment.Config) -> Examples:
    """Read a file of STS-B, its translations or SICK."""
    path = Path(config.data)
    test = read_file(path) if path.is_file() else None
    if test is None:
        problem = "not a set of pairs that is known" if path.exists() else "no such file"
        cure = "name an STS file such as sts-dev.csv, or parallel text such as de-en=FILE.tsv or de-en=FILE.de,FILE.en"
        raise UserError(problem, path=path, cure=cure)
    positive = test.gold["score"] > config.positive_above
    if not positive.any():
        problem = f"no pair scores higher than {config.positive_above:g}"
        raise UserError(problem, path=path, cure="give a lower `positive_above`")
    return replace(test, name=f"{test.name} {test.split}", gold=positive)


def read_parallel(config: Alignment.Config) -> Examples:
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
    columns = [*(source for source, _ in taken[:true_pairs]), *others], [target for _, target in taken]
    languages, files = tuple(map(canonical, bitext.languages)), tuple(map(Path, bitext.paths))
    return Examples(bitext.name, languages, columns, np.arange(pairs) < true_pairs, files)


def _draw(sentences: Iterable[str], count: int, generator: random.Random) -> tuple[list[str], int]:
    """Draw ``count`` sentences uniformly without holding all in memory (reservoir sampling); also return the total."""
    drawn, number = [], 0
    for number, sentence in enumerate(sentences, start=1):
        if len(drawn) < count:
            drawn.append(sentence)
        elif (row := generator.randrange(number)) < count:
            drawn[row] = sentence
    return drawn, number

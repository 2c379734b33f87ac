"""Alignment and uniformity (``xrep.metrics.geometry``) of sentences that are chosen as in "Frozen source" (figure 4,
appendix A), which follows SimCSE (Gao et al., 2021, section 2 and figure 2). Uniformity is computed over all sentences
of both sides, whether the pair is positive or not; repeated sentences count each time."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from xrep.config.fields import Count, Seed
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures, OverlapOption, PlotOption
from xrep.evaluation.plots import plot_alignment
from xrep.evaluation.reading import folders_with, read_bitext
from xrep.evaluation.sts import read_set
from xrep.metrics.geometry import alignment_loss, uniformity_loss
from xrep.tables import table

LOSSES = ("alignment", "uniformity")


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
        pairs: Count = 1000
        """Number of pairs that are taken of parallel text."""
        true_pairs: Count = 250
        """Number of these pairs that keep their translation."""
        seed: Seed = 0
        """Seed for drawing the sentences that replace those of the other pairs."""

    config: Config
    checkpoints: Sequence[Path] = ()
    steps: Sequence[int | None] = (None,)
    """Checkpoints of the run to measure, in the order of their steps, and these steps."""

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        files = [path / "sts-test.csv" for path in folders_with(folder, r"sts-test\.csv")]
        return {file: cls.Config(data=str(file)) for file in files}

    def read(self) -> list[Examples]:
        """Return one table, whose ``gold`` marks the pairs with the same meaning: bool [N]."""
        is_parallel = re.fullmatch(r"[A-Za-z_-]+=.+", self.config.data)
        return [sample_pairs(self.config) if is_parallel else read_scored(self.config)]

    def open(self, path: str) -> Any:
        """Open an encoder or, of a run, its last checkpoint; ``measure`` opens those before it."""
        from xrep.models.directory import PREFIX, checkpoints_in  # imports torch, for which --help does not wait

        if self.config.every_checkpoint:
            self.checkpoints = checkpoints_in(Path(path))
            if not self.checkpoints:
                cure = f"name the directory of a run, which holds {PREFIX}00001000 and its like"
                raise UserError("no checkpoints in it", path=path, cure=cure)
            self.steps = [int(checkpoint.name.removeprefix(PREFIX)) for checkpoint in self.checkpoints]
        return super().open(str(self.checkpoints[-1]) if self.checkpoints else path)

    def measure(self, model: MeasuredEncoder) -> Figures:
        """Measure one encoder, or each checkpoint of a run. The values for JSON are those of the last encoder. A run
        also has ``checkpoints``, of each its step, losses and fingerprint."""
        (pairs,), run, steps, found = self.tables, self.checkpoints, self.steps, list[dict[str, Any]]()
        encoders = chain((Evaluation.open(self, str(path)) for path in run[:-1]), [model])
        kept, overlap = pairs, None
        for step, encoder in zip(steps, encoders, strict=True):
            self.check(encoder)
            kept, overlap = self.without_overlap(encoder, pairs)
            found.append({"step": step, **losses(encoder, kept), "fingerprint": encoder.fingerprint()})
        last, names = {loss: found[-1][loss] for loss in LOSSES}, steps if run else [pairs.name]
        rows = [[shown, *(f"{each[loss]:.4f}" for loss in LOSSES)] for shown, each in zip(names, found, strict=True)]
        counts = {"positives": int(kept.gold.sum()), "sentences": 2 * len(kept), "examples": len(kept)}
        whole = {**last, **counts, "overlap": overlap and asdict(overlap)}
        about = "alignment of {positives} positive pairs, uniformity of {sentences} sentences; lower is better"
        first, second = ([record[loss] for record in found] for loss in LOSSES)
        return Figures(
            text=f"{about.format(**counts)}\n{table(['step' if run else 'pairs', *LOSSES], rows)}",
            values={"tables": {pairs.name: whole}, "pairs": pairs.name, **last}
            | ({"checkpoints": found} if run else {}),
            headline={f"{pairs.name}, {loss}": value for loss, value in last.items()},
            settings=self.settings(),
            files=pairs.files,
            overlap=overlap,
            plot=lambda picture: plot_alignment(steps, first, second, pairs.name, picture),
        )


def losses(encoder: MeasuredEncoder, examples: Examples) -> dict[str, float]:
    """Return ``alignment`` of the positive pairs and ``uniformity`` of all sentences."""
    if not examples.gold.any():
        raise UserError(f"no positive pair of {examples.name} is left", cure="measure without `drop_overlap`")
    x, y = (encoder.encode(*side) for side in zip(examples.columns, examples.languages, strict=True))
    alignment = alignment_loss(x[examples.gold], y[examples.gold])
    return {"alignment": alignment, "uniformity": uniformity_loss(np.concatenate((x, y)))}


def read_scored(config: Alignment.Config) -> Examples:
    """Read a file of STS-B, its translations or SICK."""
    path = Path(config.data)
    test = read_set(path)
    if test is None:
        cure = "name an STS file such as sts-dev.csv, or parallel text such as de-en=FILE.tsv or de-en=FILE.de,FILE.en"
        raise UserError("neither a set of scored pairs nor parallel text", path=path, cure=cure)
    positive = test.gold["score"] > config.positive_above
    if not positive.any():
        problem = f"no pair scores higher than {config.positive_above:g}"
        raise UserError(problem, path=path, cure="give a lower `positive_above`")
    return replace(test, name=f"{test.name} {test.split}", gold=positive)


def sample_pairs(config: Alignment.Config) -> Examples:
    """Read parallel text; see ``Alignment.Config`` for the sizes."""
    pairs, true_pairs, generator = config.pairs, config.true_pairs, random.Random(config.seed)
    if not 1 <= true_pairs <= pairs:
        raise UserError(f"`true_pairs` {true_pairs} of `pairs` {pairs}", cure="give 1 to as many as `pairs`")
    bitext, rows = read_bitext(config.data)
    taken, replaced, number = list(islice(rows, pairs)), pairs - true_pairs, 0
    sources, targets = [source for source, _ in taken], [target for _, target in taken]
    for number, (source, _) in enumerate(rows, start=1):  # reservoir sampling, so that the rest need not be in memory
        row = number - 1 if number <= replaced else generator.randrange(number)
        if row < replaced:
            sources[true_pairs + row] = source
    if len(targets) < pairs or number < replaced:
        problem = f"{len(targets) + number} pairs, but {pairs} and {replaced} others to draw from are needed"
        raise UserError(problem, path=bitext.paths[0], cure="give a smaller `pairs`")
    return Examples(bitext.name, bitext.languages, (sources, targets), np.arange(pairs) < true_pairs, bitext.paths)

"""XTREME's nine tasks in one table (Hu et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation import bucc
from xrep.evaluation.evaluation import Evaluation, Figures, OverlapOption, PrecisionOption, table
from xrep.evaluation.overlap import total
from xrep.evaluation.reading import existing_folder
from xrep.registry import EVALUATIONS

GROUPS: dict[str, tuple[str, ...]] = {
    "sentence pairs": ("xnli", "pawsx"),
    "structured prediction": ("pos", "ner"),
    "question answering": ("xquad", "mlqa", "tydiqa"),
    "sentence retrieval": ("bucc", "tatoeba"),
}
FOLDERS: dict[str, tuple[str, ...]] = {
    "xnli": ("xnli", "XNLI"), "pawsx": ("pawsx", "x-final", "PAWS-X"), "pos": ("udpos", "pos", "ud"),
    "ner": ("panx", "ner", "wikiann"), "xquad": ("xquad",), "mlqa": ("mlqa", "MLQA_V1"), "tydiqa": ("tydiqa",),
    "bucc": ("bucc2018", "bucc"), "tatoeba": ("tatoeba",),
}  # fmt: skip
"""Names of the folder of each task in the folder of all."""
TESTS: dict[str, str] = {"xquad": "qa", "mlqa": "qa", "tydiqa": "qa"}
"""Names of the evaluations, where they differ from that of the task."""
RETRIEVAL = GROUPS["sentence retrieval"]
LANGUAGES: dict[str, tuple[str, ...]] = {
    task: tuple(codes.split())
    for task, codes in {
        "xnli": "ar bg de el en es fr hi ru sw th tr ur vi zh",
        "pawsx": "de en es fr ja ko zh",
        "pos": "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl tr ur vi yo zh",
        "ner": "af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my nl pt ru sw ta te th "
        "tl tr ur vi yo zh",
        "xquad": "ar de el en es hi ru th tr vi zh",
        "mlqa": "ar de en es hi vi zh",
        "tydiqa": "ar bn en fi id ko ru sw te",
        "bucc": "de fr ru zh",
        "tatoeba": "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr "
        "ur vi zh",
    }.items()
}
"""Languages over which XTREME averages each task; those of BUCC are paired with English."""
OPTIONS: dict[str, dict[str, Any]] = {
    "xquad": {"normalisation": "squad"},
    "mlqa": {"normalisation": "mlqa"},
    "tydiqa": {"normalisation": "squad", "split": "dev"},  # it has no public test split
    "bucc": {"one_to_one": True, "drop_repeated": True},
    "tatoeba": {"direction": "en-xx"},
}
"""Options with which XTREME's protocol differs from the defaults of the evaluations."""


@dataclass(frozen=True)
class Models:
    """The models of the tasks.

    Attributes:
        path: What they were loaded from.
        by_task: The model of each task: a classifier, or an encoder for retrieval.
    """

    path: str
    by_task: Mapping[str, Any]

    def fingerprint(self) -> str:
        """Return the digests of all models, in the order of the tasks."""
        return " ".join(f"{task}:{model.fingerprint()}" for task, model in self.by_task.items())


class Xtreme(Evaluation):
    """Measure a model on the tasks of XTREME that have data and a run: one table, with the average as published.

    A task of fine-tuning is measured by the run that was trained for it, and retrieval by a sentence encoder. A task
    counts with the mean of its languages, and question answering with the mean of F1 and exact match. The average is
    that of the tasks; it is printed only if all nine were measured. It is as published if they have all languages.

    Four tasks are scored by XTREME's scripts in another way than by the evaluations of their own: parts of speech by
    the F1 of seqeval instead of the accuracy, and named entities by its default instead of the strict mode ("xtreme f1"
    in both); BUCC one-to-one, without sentences that occur twice, on the published training part with the threshold of
    the sample (--one-to-one --drop-repeated --split training); Tatoeba with the English sentences as queries
    (--direction en-xx).

      xrep-eval xtreme --data xtreme/ --paths xnli=xnli-run/best,ner=ner-run/best,qa=qa-run/best --retrieval run1/best
      xrep-eval xtreme --data xtreme/ --retrieval run1/best --json xtreme.json

    --data has a folder for each task: xnli, pawsx, udpos, panx, xquad, mlqa, tydiqa, bucc2018 and tatoeba.
    """

    takes_path = False

    @dataclass(kw_only=True)
    class Config(PrecisionOption, OverlapOption):
        data: str
        """Folder with a folder for each task."""
        paths: str | None = None
        """Runs of the tasks of fine-tuning: TASK=RUN/best, separated by commas. The tasks are xnli, pawsx, pos, ner,
        xquad, mlqa and tydiqa; qa=RUN/best stands for the last three."""
        retrieval: str | None = None
        """Sentence encoder for BUCC and Tatoeba."""
        layer: int | None = None
        """Layer of the sentence encoder whose token vectors are pooled: 7 of mBERT and 13 of XLM-R large in XTREME.
        none: the layer with which it was trained."""
        batch_tokens: int = 4096
        """Number of subwords that go through the encoder at once."""

    config: Config

    def read(self) -> None:
        root = existing_folder(self.config.data, "name a folder with a folder for each task")
        self.runs = parse_runs(self.config.paths or "")
        if self.config.retrieval is not None:
            self.runs |= dict.fromkeys(RETRIEVAL, self.config.retrieval)
        places = {task: _place(root, task) for group in GROUPS.values() for task in group}
        self.evaluations: dict[str, Evaluation] = {}
        for task, place in places.items():
            if place is None or task not in self.runs:
                continue
            kind: Any = EVALUATIONS.load(TESTS.get(task, task))
            self.evaluations[task] = kind(kind.Config(**self._options(task, place)))
            _ = self.evaluations[task].tables
        if not self.evaluations:
            raise UserError("no task has both data and a run", path=root, cure="name runs with `paths`")

    def _options(self, task: str, place: Path) -> dict[str, Any]:
        config = self.config
        langs = ",".join(f"{code}?" for code in (*LANGUAGES[task], *(["en"] if task == "bucc" else [])))
        shared = {name: getattr(config, name) for name in ("precision", "batch_tokens", "drop_overlap")}
        options = {"data": str(place), "langs": langs, **shared, **OPTIONS.get(task, {})}
        if task in RETRIEVAL:
            options["layer"] = config.layer
        if task == "bucc" and all({"training", "sample"} <= own.keys() for own in bucc.select(langs, place).values()):
            options["split"] = "training"
        return options

    def open(self, path: str) -> Models:
        """Open the models of all tasks; a run that serves several of them is loaded once."""
        loaded: dict[str, Any] = {}
        for task, evaluation in self.evaluations.items():
            if self.runs[task] not in loaded:
                loaded[self.runs[task]] = evaluation.open(self.runs[task])
        by_task = {task: loaded[self.runs[task]] for task in self.evaluations}
        return Models(", ".join(f"{task}={self.runs[task]}" for task in by_task), by_task)

    def measure(self, encoder: Models) -> Figures:
        results = {task: own.measure(encoder.by_task[task]) for task, own in self.evaluations.items()}
        scored = {task: task_score(task, figures) for task, figures in results.items()}
        scores = {task: score for task, (score, _) in scored.items()}
        resamples = {task: drawn for task, (_, drawn) in scored.items()}
        rows = [
            [task, group, f"{scores[task]:.1f}", _languages(task, results[task]), _overlap(results[task])]
            for group, tasks in GROUPS.items()
            for task in tasks
            if task in scores
        ]
        headline = dict(scores)
        missing = [task for tasks in GROUPS.values() for task in tasks if task not in scores]
        if not missing:
            headline["average"] = float(np.mean(list(scores.values())))
            resamples["average"] = np.mean(list(resamples.values()), axis=0)
            rows += [[], ["average of 9", "", f"{headline['average']:.1f}"]]
        lines = [table(["task", "kind", "score", "languages", "overlap"], rows)]
        lines += [f"not measured, without data or a run: {', '.join(missing)}"] if missing else []
        overlaps = {task: own.overlap for task, own in results.items() if own.overlap is not None}
        return Figures(
            text="\n".join(lines),
            values={
                "tasks": scores,
                "average": headline.get("average"),
                "results": {
                    task: {
                        "values": dict(own.values),
                        "headline": dict(own.headline),
                        "intervals": {name: list(span) for name, span in own.intervals.items()},
                        "settings": dict(own.settings),
                        "overlap": asdict(overlaps[task]),
                    }
                    for task, own in results.items()
                },
            },
            headline=headline,
            resamples=resamples,
            settings={"runs": {task: self.runs[task] for task in self.evaluations}},
            files=[file for figures in results.values() for file in figures.files],
            overlap=total(overlaps.values()),
        )


def task_score(task: str, figures: Figures) -> tuple[float, np.ndarray]:
    """Return the score of a task as XTREME's table has it, in percent, from the figures of its evaluation, and the
    score on resampled examples, float64 [R]."""
    names = list(figures.headline)
    if task in GROUPS["structured prediction"]:
        names = [name for name in names if name.startswith("xtreme f1")]
    names = names if TESTS.get(task) == "qa" else names[:1]
    score = float(np.mean([figures.headline[name] for name in names]))
    return score, np.mean([figures.resamples[name] for name in names], axis=0)


def _languages(task: str, figures: Figures) -> str:
    own = figures.values.get("tables") or figures.values.get("languages") or figures.values
    return f"{len(own)} of {len(LANGUAGES[task])}"


def _overlap(figures: Figures) -> str:
    own = figures.overlap
    return "" if own is None else f"{'unknown' if own.found is None else own.found} of {own.total}"


def parse_runs(text: str) -> dict[str, str]:
    """Return the run of each task; ``qa`` stands for every task of question answering. Raises UserError if a part is
    not TASK=RUN, or there is no such task."""
    known = [task for group in GROUPS.values() for task in group if task not in RETRIEVAL]
    runs: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        task, equals, path = part.partition("=")
        tasks = GROUPS["question answering"] if task == "qa" else (task,)
        if not equals or not path or not set(tasks) <= set(known):
            cure = f"write TASK=RUN/best; the tasks are {', '.join(known)}"
            raise UserError(f"`paths` has {part!r}", cure=cure)
        runs |= dict.fromkeys(tasks, path)
    return runs


def _place(root: Path, task: str) -> Path | None:
    return next((root / name for name in FOLDERS[task] if (root / name).is_dir()), None)

"""XTREME's nine tasks in one table (Hu et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import Evaluation, Figures, table
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
SPLITS = {"tydiqa": "dev"}
"""Splits that XTREME measures, where it is not the test split: TyDiQA-GoldP has no public one."""


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
    that of the tasks; it is printed only if all nine were measured.

      xrep-eval xtreme --data xtreme/ --paths xnli=xnli-run/best,ner=ner-run/best,qa=qa-run/best --retrieval run1/best
      xrep-eval xtreme --data xtreme/ --retrieval run1/best --json xtreme.json

    --data has a folder for each task: xnli, pawsx, udpos, panx, xquad, mlqa, tydiqa, bucc2018 and tatoeba.
    """

    takes_path = False

    @dataclass(kw_only=True)
    class Config:
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
            options: dict[str, Any] = {"split": SPLITS[task]} if task in SPLITS else {}
            if task in RETRIEVAL:
                options["layer"] = self.config.layer
            if TESTS.get(task) == "qa":
                options["normalisation"] = "mlqa" if task == "mlqa" else "squad"
            self.evaluations[task] = kind(kind.Config(data=str(place), **options))
            self.evaluations[task].read()
        if not self.evaluations:
            raise UserError("no task has both data and a run", path=root, cure="name runs with `paths`")

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
        scores = {task: task_score(task, figures) for task, figures in results.items()}
        rows = [
            [task, group, f"{scores[task]:.1f}"] for group, tasks in GROUPS.items() for task in tasks if task in scores
        ]
        complete = len(scores) == sum(map(len, GROUPS.values()))
        average = float(np.mean(list(scores.values()))) if complete else None
        if average is not None:
            rows += [[], ["average of 9", "", f"{average:.1f}"]]
        missing = [task for tasks in GROUPS.values() for task in tasks if task not in scores]
        lines = [table(["task", "kind", "score"], rows)]
        lines += [f"not measured, without data or a run: {', '.join(missing)}"] if missing else []
        return Figures(
            text="\n".join(lines),
            values={
                "tasks": scores,
                "average": average,
                "results": {
                    task: {"values": dict(own.values), "headline": dict(own.headline)} for task, own in results.items()
                },
            },
            headline={"average": average} if average is not None else scores,
            settings={"runs": {task: self.runs[task] for task in self.evaluations}},
            files=[file for figures in results.values() for file in figures.files],
        )


def task_score(task: str, figures: Figures) -> float:
    """Return the score of a task as XTREME's table has it, in percent, from the figures of its evaluation."""
    if TESTS.get(task) == "qa":
        each = figures.values["languages"].values()
        return float(np.mean([(own["f1"] + own["exact_match"]) / 2 for own in each]))
    return float(next(iter(figures.headline.values())))


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

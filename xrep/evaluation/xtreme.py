"""XTREME's nine tasks in one table (Hu et al., 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation import bucc
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, OverlapOption, PrecisionOption, table
from xrep.evaluation.overlap import total
from xrep.evaluation.reading import existing_folder
from xrep.evaluation.runner import Test, run_tests
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
    """The models of the tasks: what they are loaded from, by task, and the digest of each of these runs."""

    runs: Mapping[str, str]
    digests: Mapping[str, str]

    @property
    def path(self) -> str:
        return ", ".join(f"{task}={run}" for task, run in self.runs.items())

    def fingerprint(self) -> str:
        return " ".join(f"{task}:{self.digests[run]}" for task, run in self.runs.items())


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

    def read(self) -> list[Examples]:
        root = existing_folder(self.config.data, "name a folder with a folder for each task")
        runs = parse_runs(self.config.paths or "")
        if self.config.retrieval is not None:
            runs |= dict.fromkeys(RETRIEVAL, self.config.retrieval)
        self.runs, self.tests = dict[str, str](), list[Test]()
        for task in (task for group in GROUPS.values() for task in group if task in runs):
            folder = next((root / name for name in FOLDERS[task] if (root / name).is_dir()), None)
            if folder is None:
                continue
            kind: Any = EVALUATIONS.load(TESTS.get(task, task))
            languages = (*LANGUAGES[task], *(["en"] if task == "bucc" else []))
            evaluation = kind(kind.Config(**self._options(task, folder)))
            self.tests.append(Test(task, TESTS.get(task, task), evaluation, languages))
            if not self.tests[-1].read():
                problem = f"no data of {task} in a language of XTREME"
                raise UserError(problem, path=folder, cure=f"its languages are {' '.join(languages)}")
            self.runs[task] = runs[task]
        if not self.tests:
            raise UserError("no task has both data and a run", path=root, cure="name runs with `paths`")
        return []

    def _options(self, task: str, folder: Path) -> dict[str, Any]:
        config = self.config
        shared = {name: getattr(config, name) for name in ("precision", "batch_tokens", "drop_overlap")}
        options = {"data": str(folder), **shared, **OPTIONS.get(task, {})}
        if task in RETRIEVAL:
            options["layer"] = config.layer
        if task == "bucc":
            known = bucc.select("all", folder)
            pairs = [pair for pair in known if bucc.is_pair_of(pair, (*LANGUAGES[task], "en"))]
            options["langs"] = ",".join(pairs or known)
            if all({"training", "sample"} <= known[pair].keys() for pair in pairs):
                options["split"] = "training"
        return options

    def open(self, path: str) -> Models:
        """Open each model once, to find what is wrong before the first one is measured."""
        kinds = {self.runs[test.label]: test.evaluation for test in self.tests}
        return Models(self.runs, {run: evaluation.open(run).fingerprint() for run, evaluation in kinds.items()})

    def measure(self, model: Models) -> Figures:
        opened = dict[str, Any]()  # the last model, which serves the next task, too, if it is of the same run

        def open_model(test: Test) -> Any:
            if (path := model.runs[test.label]) not in opened:
                opened.clear()
                opened[path] = test.evaluation.open(path)
            return opened[path]

        results = run_tests(self.tests, open_model)
        scored = {task: task_score(task, figures) for task, figures in results.figures.items()}
        scores = {task: score for task, (score, _) in scored.items()}
        resamples = {task: drawn for task, (_, drawn) in scored.items()}
        groups = {task: group for group, tasks in GROUPS.items() for task in tasks}
        rows = [
            [task, groups[task], f"{score:.1f}", *_counts(task, results.figures[task])]
            for task, score in scores.items()
        ]
        headline = dict(scores)
        missing = [task for task in groups if task not in self.runs]
        if len(scores) == len(LANGUAGES):
            headline["average"] = float(np.mean(list(scores.values())))
            resamples["average"] = np.mean(list(resamples.values()), axis=0)
            rows += [[], ["average of 9", "", f"{headline['average']:.1f}"]]
        lines = [table(["task", "kind", "score", "languages", "overlap"], rows)]
        lines += [f"not measured, without data or a run: {', '.join(missing)}"] if missing else []
        lines += [f"{task}: not measured: {message}" for task, message in results.failed.items()]
        overlaps = [own.overlap for own in results.figures.values() if own.overlap is not None]
        return Figures(
            text="\n".join(lines),
            values={"results": results.records, "failed": results.failed, "tasks": scores},
            headline=headline,
            resamples=resamples,
            settings={**self.settings(), "runs": self.runs},
            files=[file for own in results.figures.values() for file in own.files],
            overlap=total(overlaps) if overlaps else None,
            failed=results.failed,
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


def _counts(task: str, figures: Figures) -> tuple[str, str]:
    """Return how many of the languages, and of the examples in the training text, there are."""
    languages, own = f"{len(figures.values['tables'])} of {len(LANGUAGES[task])}", figures.overlap
    return languages, "" if own is None else f"{'unknown' if own.found is None else own.found} of {own.total}"


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

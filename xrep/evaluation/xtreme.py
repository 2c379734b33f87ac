"""XTREME's nine tasks in one table (Hu et al., 2020)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.evaluation import bucc, tatoeba
from xrep.evaluation.encoders import total
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, OverlapOption, PrecisionOption
from xrep.evaluation.reading import existing_folder, named
from xrep.evaluation.runner import Test, run_tests, shared_options
from xrep.registry import EVALUATIONS
from xrep.tables import table


@dataclass(frozen=True)
class XtremeTask:
    """A task: its kind, the names of its folder, the languages over which XTREME averages it (those of BUCC are paired
    with English), and the options of its evaluation in which XTREME's protocol differs from the defaults."""

    kind: str
    folders: str
    languages: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def scored(self, names: Iterable[str]) -> list[str]:
        """Return those of the figures of its evaluation whose mean XTREME's table has: F1 and exact match of questions,
        and one figure of the others."""
        if self.kind == _QUESTIONS:
            return list(names)
        return [name for name in names if self.kind != _TAGGING or name.startswith("xtreme f1")][:1]


_PAIRS, _TAGGING, _QUESTIONS = "sentence pairs", "structured prediction", "question answering"
_RETRIEVAL = "sentence retrieval"
_POS = "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl tr ur vi yo zh"
_NER = f"{_POS} bn jv ka ml ms my sw"
XTREME_TASKS = {
    "xnli": XtremeTask(_PAIRS, "xnli XNLI", "ar bg de el en es fr hi ru sw th tr ur vi zh"),
    "pawsx": XtremeTask(_PAIRS, "pawsx x-final PAWS-X", "de en es fr ja ko zh"),
    "pos": XtremeTask(_TAGGING, "udpos pos ud", _POS),
    "ner": XtremeTask(_TAGGING, "panx ner wikiann", _NER),
    "xquad": XtremeTask(_QUESTIONS, "xquad", "ar de el en es hi ru th tr vi zh", {"normalisation": "squad"}),
    "mlqa": XtremeTask(_QUESTIONS, "mlqa MLQA_V1", "ar de en es hi vi zh", {"normalisation": "mlqa"}),
    # TyDiQA has no public test split.
    "tydiqa": XtremeTask(
        _QUESTIONS, "tydiqa", "ar bn en fi id ko ru sw te", {"normalisation": "squad", "split": "dev"}
    ),
    "bucc": XtremeTask(_RETRIEVAL, "bucc2018 bucc", "de fr ru zh", {"one_to_one": True, "drop_repeated": True}),
    "tatoeba": XtremeTask(_RETRIEVAL, "tatoeba", " ".join(tatoeba.LANGUAGE_GROUPS["36"]), {"direction": "en-xx"}),
}


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
        batch_tokens: Count = 4096
        """Number of subwords that go through the encoder at once."""

    config: Config

    def read(self) -> list[Examples]:
        root = existing_folder(self.config.data, "name a folder with a folder for each task")
        runs = {} if self.config.paths is None else parse_runs(self.config.paths)
        if self.config.retrieval is not None:
            runs |= dict.fromkeys(("bucc", "tatoeba"), self.config.retrieval)
        self.runs, self.tests = dict[str, str](), list[Test]()
        for name, task in XTREME_TASKS.items():
            folder = next((root / folder for folder in task.folders.split() if (root / folder).is_dir()), None)
            if folder is None or name not in runs:
                continue
            test, languages, options = name, task.languages.split(), {"data": str(folder), **task.options}
            if task.kind == _QUESTIONS:
                test = "qa"
            elif name == "bucc":
                languages.append("en")
                if all({"training", "sample"} <= splits.keys() for splits in bucc.find_gold("all", folder).values()):
                    options["split"] = "training"
            kind: Any = EVALUATIONS.load(test)
            evaluation = kind(shared_options(kind.Config(**options), self.config))
            self.tests.append(Test(name, test, evaluation, languages))
            self.runs[name] = runs[name]
        if not self.tests:
            raise UserError("no task has both data and a run", path=root, cure="name runs with `paths`")
        return [examples for test in self.tests for examples in test.read()]

    def open(self, path: str) -> Any:
        """Open each model once, to find what is wrong before the first one is measured."""
        kinds = {self.runs[test.label]: test.evaluation for test in self.tests}
        digests = {run: evaluation.open(run).fingerprint() for run, evaluation in kinds.items()}
        fingerprint = " ".join(f"{task}:{digests[run]}" for task, run in self.runs.items())
        path = ", ".join(f"{task}={run}" for task, run in self.runs.items())
        return SimpleNamespace(path=path, fingerprint=lambda: fingerprint)

    def measure(self, model: Any) -> Figures:
        results = run_tests(self.tests, lambda test: test.evaluation.open(self.runs[test.label]))
        scores, resamples, overlaps, rows = dict[str, float](), dict[str, np.ndarray](), [], []
        for name, figures in results.figures.items():
            task, scored = XTREME_TASKS[name], XTREME_TASKS[name].scored(figures.headline)
            scores[name] = float(np.mean([figures.headline[figure] for figure in scored]))
            resamples[name] = np.mean([figures.resamples[figure] for figure in scored], axis=0)
            overlap = figures.overlap or total([])
            overlaps.append(overlap)
            measured = f"{len(figures.values['tables'])} of {len(task.languages.split())}"
            seen = f"{'unknown' if overlap.found is None else overlap.found} of {overlap.total}"
            rows.append([name, task.kind, f"{scores[name]:.1f}", measured, seen])
        headline, missing = dict(scores), [name for name in XTREME_TASKS if name not in self.runs]
        if len(scores) == len(XTREME_TASKS):
            headline["average"] = float(np.mean(list(scores.values())))
            resamples["average"] = np.mean(list(resamples.values()), axis=0)
            rows += [[], ["average of 9", "", f"{headline['average']:.1f}"]]
        lines = [table(["task", "kind", "score", "languages", "overlap"], rows)]
        lines += [f"not measured, without data or a run: {', '.join(missing)}"] if missing else []
        return Figures(
            text="\n".join([*lines, *results.notes()]),
            values={"results": results.records, "failed": results.failed, "tasks": scores},
            headline=headline,
            resamples=resamples,
            settings={**self.settings(), "runs": self.runs},
            files=[file for figures in results.figures.values() for file in figures.files],
            overlap=total(overlaps),
            failed=results.failed,
        )


def parse_runs(text: str) -> dict[str, str]:
    """Return the run of each task; ``qa`` stands for every task of question answering."""
    tasks = {name: [name] for name, task in XTREME_TASKS.items() if task.kind != _RETRIEVAL}
    tasks["qa"] = [name for name, task in XTREME_TASKS.items() if task.kind == _QUESTIONS]
    runs = dict[str, str]()
    for part in named(text, "paths"):
        task, _, path = part.partition("=")
        if task not in tasks or not path:
            raise UserError(f"`paths` has {part!r}", cure=f"write TASK=RUN/best; the tasks are {', '.join(tasks)}")
        runs |= dict.fromkeys(tasks[task], path)
    return runs

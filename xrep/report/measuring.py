"""Measures runs for a report: every test that finds its data in a folder, and what the pictures show."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xrep.evaluation.alignment import Alignment
from xrep.evaluation.all import find_tests
from xrep.evaluation.encoders import open_encoder
from xrep.evaluation.evaluation import Figures
from xrep.evaluation.reading import existing_folder
from xrep.evaluation.runner import Results, Test, differences, run_tests
from xrep.evaluation.scatter import Scatter
from xrep.evaluation.tatoeba import available, read_pairs
from xrep.registry import EVALUATIONS
from xrep.report.runs import Run

CHECKPOINTS = "alignment of checkpoints"
_LANGUAGES, _SENTENCES = 6, 12  # in a picture of sentences: languages, and sentences of each


def measure(runs: Sequence[Run], data: str, batch_tokens: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Measure the best checkpoint of each run on the tests whose data is in a folder, of which Tatoeba also gives the
    pictures. Return test -> name of the run -> record, which has the ``differences`` from the first run, and a line for
    each test that could not be measured. Raises UserError if there is no data of any test, or a run has no checkpoint
    that encodes sentences."""
    found = find_tests(existing_folder(data, "name a folder with data of tests"))
    # What is wrong with an encoder is found before another one is measured.
    trained = [open_encoder(str(run.path / "best"), batch_tokens=batch_tokens).languages for run in runs]
    for folder in [config.data for name, config in found.values() if name == "tatoeba"]:
        found |= _pictures(Path(folder), trained[0])
    tests = [Test(label, name, EVALUATIONS.load(name)(config)) for label, (name, config) in found.items()]
    records, failed, first = dict[str, dict[str, Any]](), list[str](), dict[str, Figures]()
    for run in runs:
        print(f"{run.name}:", file=sys.stderr)
        results = _measure(run, tests, batch_tokens)
        failed += [f"{run.name}: {label}: {message}" for label, message in results.failed.items()]
        for label, record in results.records.items():
            if label in first:
                record["differences"] = differences(first[label], results.figures[label])
            records.setdefault(label, {})[run.name] = record
        first = first or results.figures
    return records, failed


def _measure(run: Run, tests: Sequence[Test], batch_tokens: int) -> Results:
    """Measure a run, whose encoder is in memory only meanwhile."""
    encoder = open_encoder(str(run.path / "best"), batch_tokens=batch_tokens)
    return run_tests(tests, lambda test: test.evaluation.open(str(run.path)) if test.label == CHECKPOINTS else encoder)


def _pictures(folder: Path, trained: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Return what draws the pictures from Tatoeba's files of the languages that were trained: label -> name, config."""
    codes = available(folder)
    languages = [language for language in trained if language in codes][:_LANGUAGES] or list(codes)[:1]
    pools = [read_pairs(folder, codes[language]) for language in languages]
    size, shown = len(pools[0]), min(_SENTENCES, *map(len, pools))
    scatter = Scatter.Config(data=str(folder), langs=",".join(languages), sentences=shown, plot="-")
    # A seventh stay translations, and three sevenths are replaced by sentences of the last three.
    data, pairs, replaced = f"{languages[0]}-en={','.join(map(str, pools[0].files))}", size * 4 // 7, size * 3 // 7
    alignment = Alignment.Config(data=data, pairs=pairs, true_pairs=pairs - replaced, every_checkpoint=True)
    return {"scatter": ("scatter", scatter), CHECKPOINTS: ("alignment", alignment)}

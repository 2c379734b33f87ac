"""Measures runs for a report: every test that finds its data in a folder, and what the pictures show."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
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
from xrep.models.directory import open_checkpoint
from xrep.registry import EVALUATIONS
from xrep.report.runs import Run

CHECKPOINTS = "alignment of checkpoints"
_LANGUAGES, _SENTENCES = 6, 12  # in a picture of sentences: languages, and sentences of each


def measure(runs: Sequence[Run], data: str, batch_tokens: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Measure the best checkpoint of each run on the tests whose data is in a folder, of which Tatoeba also gives the
    pictures.

    Returns:
        Test -> name of the run -> record, which has the ``differences`` from the first run, and a line for each test
        that could not be measured.

    Raises:
        UserError: There is no data of any test, or a run has no checkpoint that encodes sentences.
    """
    found = find_tests(existing_folder(data, "name a folder with data of tests"))
    for run in runs[1:]:  # what is wrong with an encoder is found before another one is measured
        open_encoder(run.path / "best", batch_tokens=batch_tokens)
    text = open_checkpoint(runs[0].path / "best").text
    for folder in [config.data for name, config in found.values() if name == "tatoeba"]:
        found.update(_pictures(Path(folder), [*text.source_languages, *text.target_languages]))
    tests = [Test(label, name, EVALUATIONS.load(name)(config)) for label, (name, config) in found.items()]
    records, failed, first = dict[str, dict[str, Any]](), list[str](), dict[str, Figures]()
    for run in runs:
        print(f"{run.name}:", file=sys.stderr)
        results = _measure(run, tests, batch_tokens)
        failed += [f"{run.name}: {label}: {message}" for label, message in results.failed.items()]
        for label, record in results.records.items():
            if run is not runs[0] and label in first:
                record["differences"] = differences(first[label], results.figures[label])
            records.setdefault(label, {})[run.name] = {**record, "overlap": record["overlap"] or {}}
        first = first or results.figures
    return records, failed


def _measure(run: Run, tests: Sequence[Test], batch_tokens: int) -> Results:
    """Measure a run, whose encoder is in memory only meanwhile."""
    encoder = open_encoder(run.path / "best", batch_tokens=batch_tokens)
    return run_tests(tests, lambda test: test.evaluation.open(str(run.path)) if test.label == CHECKPOINTS else encoder)


def _pictures(folder: Path, trained: Sequence[str]) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield what draws the pictures from Tatoeba's files of the languages that were trained: label, name, config."""
    codes = available(folder)
    languages = [language for language in dict.fromkeys(trained) if language in codes][:_LANGUAGES] or list(codes)[:1]
    pools = {language: read_pairs(folder, codes[language]) for language in languages}
    shown = min(_SENTENCES, *map(len, pools.values()))
    yield "scatter", ("scatter", Scatter.Config(data=str(folder), langs=",".join(languages), sentences=shown, plot="-"))
    first, size = languages[0], len(pools[languages[0]])
    if size >= 7:  # a seventh stay translations, three sevenths are replaced by sentences of the last three
        files, pairs = ",".join(map(str, pools[first].files)), size * 4 // 7
        options = {"pairs": pairs, "true_pairs": pairs - size * 3 // 7, "every_checkpoint": True}
        yield CHECKPOINTS, ("alignment", Alignment.Config(data=f"{first}-en={files}", **options))

"""Every evaluation that finds its data in a folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.evaluation.alignment import Alignment
from xrep.evaluation.encoders import MeasuredEncoder, open_encoder
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, VectorTestOptions
from xrep.evaluation.reading import available, existing_folder, named_languages, read_tatoeba
from xrep.evaluation.runner import Test, TestResults, differences, run_tests, shared_options
from xrep.evaluation.scatter import Scatter
from xrep.evaluation.tatoeba import LANGUAGE_GROUPS
from xrep.registry import EVALUATIONS
from xrep.tables import table

_CHECKPOINTS = "alignment of checkpoints"
_LANGUAGES, _SENTENCES = 6, 12  # in a picture of sentences: languages, and sentences of each


class All(Evaluation):
    """Run every test that finds its data in a folder: one table, one JSON.

    The data of a test is known by the names of its files, in --data or up to four folders below it. The JSON has the
    whole result of each test.

      xrep-eval all --path run1/best --data data/ --json results.json
      xrep-eval all --path run1/best --data data/ --cache vectors/     # the second time is quicker

    The languages of the encoder's training text are measured, or those that --langs names. A test that has none of them
    is left out.

    A test that cannot be measured is named, and the others go on; the exit code is then 2. Each test has its usual
    options; for others run it by its name. If BUCC has a single split, the threshold is the best of that split, and is
    labelled (oracle).
    """

    @dataclass(kw_only=True)
    class Config(VectorTestOptions):
        data: str
        """Folder with the data of any tests."""
        langs: str | None = None
        """Languages to measure (de,fr or deu,fra), or 14, 28, 36 or 11 of Tatoeba, or all. The default is those of the
        encoder's training text; all if they are not known."""

    config: Config

    def read(self) -> list[Examples]:
        self.found = find_tests(existing_folder(self.config.data, "name a folder with data of tests"))
        listed = self._tests(self._languages([]))
        # Only to list the sentences: the languages to measure are those of the encoder.
        return [examples for test in listed for examples in test.read()] if self.config.list_sentences else []

    def measure(self, model: MeasuredEncoder) -> Figures:
        languages = self._languages(model.languages)
        langs = "all" if languages is None else ",".join(languages)
        results = run_tests(self._tests(languages), lambda test: model)
        if not results.records and not results.failed:
            cure = "name others by `langs`, or all"
            raise UserError(f"no test has data in {langs}", path=self.config.data, cure=cure)
        measured, rows = results.figures.items(), []
        for label, result in measured:
            rows += [[label, figure, value] for figure, value in result.headline.items()] + [[]]
        lines = [table(["test", "figure", "value"], rows[:-1])]
        lines += [f"{label}: {result.overlap.line}" for label, result in measured if result.overlap]
        return Figures(
            text="\n".join([*lines, *results.notes()]),
            values={"results": results.records, "failed": results.failed, "left_out": results.left_out},
            headline={f"{label}: {name}": value for label, each in measured for name, value in each.headline.items()},
            resamples={f"{label}: {name}": drawn for label, each in measured for name, drawn in each.resamples.items()},
            parts=results.figures,
            settings={**self.settings(), "data": self.config.data, "languages": langs},  # each result names its files
            failed=results.failed,
        )

    def _languages(self, trained: Sequence[str]) -> list[str] | None:
        """Return the languages to measure; None: all."""
        if self.config.langs is not None:
            named = named_languages(self.config.langs, LANGUAGE_GROUPS)
            return None if "all" in named else named
        if len(trained) < 2:  # a single language says little about an encoder that reads several
            return None
        print(f"languages of the encoder's training text: {','.join(trained)}", file=sys.stderr)
        return list(trained)

    def _tests(self, languages: Sequence[str] | None) -> list[Test]:
        """Return the tests that were found, with the options that they share with this one."""
        tests = []
        for label, (name, config) in self.found.items():
            config = shared_options(config, self.config)
            config = replace(config, langs="all") if languages is not None and "langs" in vars(config) else config
            tests.append(Test(label, name, EVALUATIONS.load(name)(config), languages))
        return tests


def find_tests(root: Path) -> dict[str, tuple[str, Any]]:
    """Return the tests with data in a folder, at least one: label -> name of the evaluation, and its ``Config``."""
    tests = {}
    for name in EVALUATIONS.names():
        paths = EVALUATIONS.load(name).find(root)
        for path, config in paths.items():
            tests[name if len(paths) == 1 else f"{name} {path.relative_to(root)}"] = name, config
    if not tests:
        raise UserError("no data of any test in it", path=root, cure="xrep-eval TEST --help says what each test reads")
    return tests


def measure_runs(runs: Mapping[str, Path], data: str, batch_tokens: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Measure the best checkpoint of each run on every test with data in a folder, and what the pictures of a report
    show of Tatoeba, in the languages that ``All`` measures. Return test -> name of the run -> record, which has the
    ``differences`` from the first run, and a line for each test that could not be measured. Raises UserError if there
    is no data of any test, or a run has no checkpoint that encodes sentences."""
    found = find_tests(existing_folder(data, "name a folder with data of tests"))
    # What is wrong with an encoder is found before another one is measured.
    trained = [open_encoder(path / "best").languages for path in runs.values()]
    for folder in [config.data for name, config in found.values() if name == "tatoeba"]:
        found |= _pictures(folder, trained[0], batch_tokens)
    records, failed, first = dict[str, dict[str, Any]](), list[str](), dict[str, Figures]()
    for (name, path), known in zip(runs.items(), trained, strict=True):
        print(f"{name}:", file=sys.stderr)
        only = list(known) if len(known) > 1 else None  # as in ``All``
        chosen = {label: None if label in ("scatter", _CHECKPOINTS) else only for label in found}
        tests = [Test(label, test, EVALUATIONS.load(test)(own), chosen[label]) for label, (test, own) in found.items()]
        results = _measure_run(path, tests, batch_tokens)
        failed += [f"{name}: {label}: {reason}" for label, reason in (results.failed | results.left_out).items()]
        for label, record in results.records.items():
            if label in first:
                record["differences"] = differences(first[label], results.figures[label])
            records.setdefault(label, {})[name] = record
        first = first or results.figures
    return records, failed


def _measure_run(path: Path, tests: Sequence[Test], batch_tokens: int) -> TestResults:
    """Measure a run, whose encoder is in memory only meanwhile."""
    encoder = open_encoder(path / "best", batch_tokens=batch_tokens)
    return run_tests(tests, lambda test: test.evaluation.open(str(path)) if test.label == _CHECKPOINTS else encoder)


def _pictures(folder: str, trained: Sequence[str], batch_tokens: int) -> dict[str, tuple[str, Any]]:
    """Return what draws the pictures from Tatoeba's files of the languages that were trained: label -> name, config."""
    codes = available(folder)
    languages = [language for language in trained if language in codes][:_LANGUAGES] or list(codes)[:1]
    scatter = Scatter.Config(data=folder, langs=",".join(languages), sentences=_SENTENCES, plot="-")
    first = read_tatoeba(folder, codes[languages[0]])
    # A seventh stay translations, and three sevenths are replaced by sentences of the last three.
    pairs, replaced = len(first) * 4 // 7, len(first) * 3 // 7
    data = f"{languages[0]}-en={','.join(map(str, first.files))}"
    alignment = Alignment.Config(
        data=data, pairs=pairs, true_pairs=pairs - replaced, batch_tokens=batch_tokens, every_checkpoint=True
    )
    return {"scatter": ("scatter", scatter), _CHECKPOINTS: ("alignment", alignment)}

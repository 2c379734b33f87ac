"""Every evaluation that finds its data in a folder."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder
from xrep.evaluation.evaluation import DimensionsOption, EncoderOptions, Evaluation, Figures, OverlapOption, table
from xrep.evaluation.reading import NothingThere, existing_folder
from xrep.registry import EVALUATIONS


class All(Evaluation):
    """Run every test that finds its data in a folder: one table, one JSON.

    The data of a test is known by the names of its files, in --data or up to four folders below it. The JSON has the
    whole result of each test.

      xrep-eval all --path run1/best --data data/ --json results.json
      xrep-eval all --path run1/best --data data/ --cache vectors/     # the second time is quicker

    The languages of the encoder's training text are measured, or those that --langs names. A test that has none of them
    is left out.

    A test that cannot be measured is named, and the others go on; the exit code is then 2. Each test has its usual
    options; for others run it by its name. Of BUCC with a single split the threshold is that split's best, and labelled
    (oracle).
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions, DimensionsOption, OverlapOption):
        data: str
        """Folder with the data of any tests."""
        langs: str | None = None
        """Languages to measure (de,fr or deu,fra), or all. The default is those of the encoder's training text; all if
        they are not known."""

    config: Config

    def read(self) -> None:
        self.tests = find_tests(existing_folder(self.config.data, "name a folder with data of tests"))

    def measure(self, encoder: Encoder) -> Figures:
        results: dict[str, dict[str, Any]] = {}
        failed: dict[str, str] = {}
        resamples: dict[str, np.ndarray] = {}
        left_out: dict[str, str] = {}
        rows, overlaps, langs = [], [], self._languages(encoder)
        for number, (label, (name, config)) in enumerate(self.tests.items(), start=1):
            print(f"{number} of {len(self.tests)}: {label}", file=sys.stderr, flush=True)
            try:
                figures = self._figures(name, config, encoder, langs)
                results[label] = figures.record(name, encoder, self.config)
                if figures.has_all_examples:
                    resamples |= {f"{label}: {figure}": drawn for figure, drawn in figures.resamples.items()}
            except NothingThere as error:
                left_out[label] = error.problem
                continue
            except (UserError, OSError) as error:
                failed[label] = " ".join(str(error).split("\n"))
                continue
            except Exception as error:  # a bug in one test is no reason to lose the figures of the others
                traceback.print_exc()
                failed[label] = f"{type(error).__name__}: {error}"
                continue
            rows += [[label, figure, f"{value:.2f}"] for figure, value in figures.headline.items()] + [[]]
            overlaps += [f"{label}: {figures.overlap.line}"] if figures.overlap else []
        if not results and not failed:
            cure = "name others by `langs`, or all"
            raise UserError(f"no test has data in {langs}", path=self.config.data, cure=cure)
        failures = [f"{label}: left out: {message}" for label, message in left_out.items()]
        failures += [f"{label}: not measured: {message}" for label, message in failed.items()]
        return Figures(
            text="\n".join([table(["test", "figure", "value"], rows[:-1]), *overlaps, *failures]),
            values={"results": results, "failed": failed, "left_out": left_out},
            headline={
                f"{label}: {figure}": value
                for label, result in results.items()
                for figure, value in result["headline"].items()
            },
            intervals={
                f"{label}: {figure}": (low, high)
                for label, result in results.items()
                for figure, (low, high) in result["intervals"].items()
            },
            resamples=resamples,
            settings={"data": self.config.data, "languages": langs},  # each result names its own files
            failed=failed,
        )

    def _languages(self, encoder: Encoder) -> str:
        """Return the languages to measure, separated by commas, or ``all``."""
        if self.config.langs is not None:
            return self.config.langs
        if len(encoder.languages) < 2:  # a single language says little about an encoder that reads several
            return "all"
        langs = ",".join(encoder.languages)
        print(f"languages of the encoder's training text: {langs}", file=sys.stderr)
        return langs

    def _figures(self, name: str, config: Any, encoder: Encoder, langs: str) -> Figures:
        shared = {key: value for key, value in vars(self.config).items() if key not in ("data", "langs")}
        if langs != "all":
            shared["langs"] = ",".join(f"{code.strip()}?" for code in langs.split(",") if code.strip())
        own = {field.name for field in fields(config)}
        config = replace(config, **{option: value for option, value in shared.items() if option in own})
        evaluation = EVALUATIONS.load(name)(config)
        _ = evaluation.tables
        return evaluation.measure(encoder)


def find_tests(root: Path) -> dict[str, tuple[str, Any]]:
    """Return the tests whose data is in a folder, of which there must be one: label -> name of the evaluation, and its
    ``Config``."""
    tests = {}
    for name in EVALUATIONS.names():
        places = EVALUATIONS.load(name).find(root)
        for place, config in places.items():
            tests[name if len(places) == 1 else f"{name} {place.relative_to(root)}"] = name, config
    if not tests:
        raise UserError("no data of any test in it", path=root, cure="xrep-eval TEST --help says what each test reads")
    return tests

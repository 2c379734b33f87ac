"""Every evaluation that finds its data in a folder."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder
from xrep.evaluation.evaluation import DimensionsOption, EncoderOptions, Evaluation, Figures, OverlapOption, table
from xrep.registry import EVALUATIONS


class All(Evaluation):
    """Run every test that finds its data in a folder: one table, one JSON.

    The data of a test is known by the names of its files, in --data or up to four folders below it. The JSON has the
    whole result of each test.

      xrep-eval all --path run1/best --data data/ --json results.json
      xrep-eval all --path run1/best --data data/ --cache vectors/     # the second time is quicker

    A test that cannot be measured is named, and the others go on; the exit code is then 2. Each test has its usual
    options; for others run it by its name. Of BUCC with a single split the threshold is that split's best, and labelled
    (oracle).
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions, DimensionsOption, OverlapOption):
        data: str
        """Folder with the data of any tests."""

    config: Config

    def read(self) -> None:
        root = Path(self.config.data)
        if not root.is_dir():
            raise UserError("no such folder", path=root, cure="name a folder with data of tests")
        self.tests = find_tests(root)
        if not self.tests:
            cure = "xrep-eval TEST --help says what each test reads"
            raise UserError("no data of any test in it", path=root, cure=cure)

    def measure(self, encoder: Encoder) -> Figures:
        results: dict[str, dict[str, Any]] = {}
        failed: dict[str, str] = {}
        rows, overlaps = [], []
        for number, (label, (name, config)) in enumerate(self.tests.items(), start=1):
            print(f"{number} of {len(self.tests)}: {label}", file=sys.stderr, flush=True)
            try:
                figures = self._figures(name, config, encoder)
                results[label] = figures.record(name, encoder)
            except (UserError, OSError) as error:
                failed[label] = " ".join(str(error).split("\n"))
                continue
            except Exception as error:  # a bug in one test is no reason to lose the figures of the others
                traceback.print_exc()
                failed[label] = f"{type(error).__name__}: {error}"
                continue
            rows += [[label, figure, f"{value:.2f}"] for figure, value in figures.headline.items()] + [[]]
            overlaps += [f"{label}: {figures.overlap.line}"] if figures.overlap else []
        failures = [f"{label}: not measured: {message}" for label, message in failed.items()]
        return Figures(
            text="\n".join([table(["test", "figure", "value"], rows[:-1]), *overlaps, *failures]),
            values={"results": results, "failed": failed},
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
            settings={"data": self.config.data},  # each result names its own files
            failed=failed,
        )

    def _figures(self, name: str, config: Any, encoder: Encoder) -> Figures:
        shared = {field.name: getattr(self.config, field.name) for field in fields(self.config) if field.name != "data"}
        own = {field.name for field in fields(config)}
        config = replace(config, **{option: value for option, value in shared.items() if option in own})
        evaluation = EVALUATIONS.load(name)(config)
        evaluation.read()
        return evaluation.measure(encoder)


def find_tests(root: Path) -> dict[str, tuple[str, Any]]:
    """Return the tests whose data is in a folder: label -> name of the evaluation, and its ``Config``."""
    tests = {}
    for name in EVALUATIONS.names():
        places = EVALUATIONS.load(name).find(root)
        for place, config in places.items():
            tests[name if len(places) == 1 else f"{name} {place.relative_to(root)}"] = name, config
    return tests

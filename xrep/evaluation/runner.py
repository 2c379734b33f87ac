"""The one loop over tests and models, and what is said of several models: random weights, differences, a table."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.encoders import with_random_weights
from xrep.evaluation.evaluation import Evaluation, Examples, Figures, VectorTestOptions
from xrep.evaluation.reading import named
from xrep.metrics.bootstrap import interval, shown_difference


@dataclass(frozen=True)
class Test:
    """A test that is one of several: its label among them, the name of its evaluation, and the languages to which its
    tables are narrowed (None: all of them are measured)."""

    __test__: ClassVar[bool] = False  # pytest must not collect this class as tests

    label: str
    name: str
    evaluation: Evaluation
    languages: Sequence[str] | None = None

    def read(self) -> list[Examples]:
        """Return the tables in the languages to measure."""
        if self.languages is not None:
            self.evaluation.narrow(self.languages)
        return self.evaluation.tables


@dataclass
class TestResults:
    """What came of several tests, by their labels: figures and records, and the reasons why others were not measured
    (``failed``) or had nothing in the languages to measure (``left_out``)."""

    figures: dict[str, Figures] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Return a line for each test that was left out or could not be measured."""
        left_out = [f"{label}: left out: {reason}" for label, reason in self.left_out.items()]
        return left_out + [f"{label}: not measured: {reason}" for label, reason in self.failed.items()]


def shared_options(config: Any, options: Any) -> Any:
    """Return the ``Config`` of a test with the options that it shares with the evaluation that runs it."""
    names = {option.name for option in fields(VectorTestOptions)} & vars(config).keys() & vars(options).keys()
    return replace(config, **{name: getattr(options, name) for name in names})


def run_tests(tests: Sequence[Test], open_model: Callable[[Test], Any]) -> TestResults:
    """Read and measure tests one after the other. One that cannot be measured costs only that test."""
    results = TestResults()
    for number, test in enumerate(tests, start=1):
        print(f"{number} of {len(tests)}: {test.label}", file=sys.stderr, flush=True)
        try:
            if test.read() or test.languages is None:
                measured = measure(test.name, test.evaluation, open_model(test))
                results.figures[test.label], results.records[test.label] = measured
            else:
                results.left_out[test.label] = f"no data in {' '.join(test.languages)}"
        except (UserError, OSError) as error:
            results.failed[test.label] = " ".join(str(error).split())
    return results


def measure(name: str, evaluation: Evaluation, model: Any, seeds: int = 0) -> tuple[Figures, dict[str, Any]]:
    """Measure a model, and its architecture with random weights of a number of seeds; return the figures and a record.
    Of random weights it has all values, and the mean and standard deviation (null for one seed) of each headline."""
    random = [evaluation.measure(with_random_weights(model, seed)) for seed in range(seeds)]
    figures = evaluation.measure(model)
    record = figures.record(name, model)
    if random:
        headline = {}
        for figure in random[0].headline:
            by_seed = [measured.headline[figure] for measured in random]
            spread = float(np.std(by_seed, ddof=1)) if by_seed[1:] else None
            headline[figure] = {"mean": float(np.mean(by_seed)), "spread": spread, "by_seed": by_seed}
        values = [dict(measured.values) for measured in random]
        record["random_weights"] = {"seeds": seeds, "headline": headline, "values": values}
    return figures, record


def models(evaluation: Evaluation, paths: Sequence[str], dimensions: str | None = None) -> Iterator[Any]:
    """Open models one after the other, so that one is in memory at a time, and yield each of them, and with
    ``dimensions`` those of its shorter vectors. That all can be opened is found before the first one."""
    for path in paths[1:]:
        with_dimensions(evaluation.open(path), dimensions)
    with tempfile.TemporaryDirectory() as folder:
        if dimensions is not None and evaluation.config.cache is None:  # the vectors of all widths are computed once
            evaluation.config.cache = folder
        for path in paths:
            yield from with_dimensions(evaluation.open(path), dimensions)


def with_dimensions(encoder: Any, dimensions: str | None) -> list[Any]:
    """Return an encoder, and those of its vectors cut to the widths in ``dimensions``, such as ``256,128,64``."""
    encoders = [encoder]
    for width in [] if dimensions is None else named(dimensions, "dimensions"):
        size = encoder.encoder.output_size
        if not width.isdecimal() or not 0 < int(width) < size:
            problem, cure = f"`dimensions` {width} of vectors of {size} numbers", f"give numbers from 1 to {size - 1}"
            raise UserError(problem, path=encoder.path, cure=cure)
        encoders.append(copy.copy(encoder))  # which computes the digest of the weights only once
        encoders[-1].truncate_dim, encoders[-1].path = int(width), f"{encoder.path}:{width}"
    return encoders


def differences(first: Figures, other: Figures) -> dict[str, tuple[float, float, float]]:
    """Return the difference of each figure of another model from that of the first one, and the bounds of its 95%
    interval by a paired bootstrap: both are computed on the same draws of examples. There are none if the models were
    measured on different tables, or each without examples of its own training text."""
    if first.parts:
        parts = {label: (figures, other.parts[label]) for label, figures in first.parts.items() if label in other.parts}
        return {f"{label}: {name}": each for label, pair in parts.items() for name, each in differences(*pair).items()}
    both = [figures.values.get("tables", {}) for figures in (first, other)]
    sizes = [[(name, table["examples"]) for name, table in tables.items()] for tables in both]
    left_out = [each for each in (first.overlap, other.overlap) if each and each.dropped and each.found]
    if sizes[0] != sizes[1] or left_out:
        return {}
    return {
        name: (other.headline[name] - value, *interval(other.resamples[name] - first.resamples[name]))
        for name, value in first.headline.items()
        if name in first.resamples and name in other.resamples
    }


def comparison(
    records: Mapping[str, Mapping[str, Any]], differing: Mapping[str, Mapping[str, Sequence[float]]]
) -> list[list[str]]:
    """Return the rows of a table, after its header, of the headlines of several models, by name, with their intervals,
    of their random weights, and of the ``differences`` of models from the first one."""
    columns = dict[str, dict[str, str]]()
    for name, record in records.items():
        spans = {figure: f" [{low:.2f}, {high:.2f}]" for figure, (low, high) in record["intervals"].items()}
        columns[name] = {figure: f"{value:.2f}{spans.get(figure, '')}" for figure, value in record["headline"].items()}
        if random := record.get("random_weights"):
            heading = f"{name}, random weights" if len(records) > 1 else "random weights"
            columns[heading] = {figure: _with_spread(drawn) for figure, drawn in random["headline"].items()}
    for name, intervals in differing.items():
        if intervals:
            heading = "difference" if len(records) == 2 else f"{name}, difference"
            columns[heading] = {figure: shown_difference(difference) for figure, difference in intervals.items()}
    figures = dict.fromkeys(figure for record in records.values() for figure in record["headline"])
    rows = [[figure, *(cells.get(figure, "") for cells in columns.values())] for figure in figures]
    return [["figure", *columns], *rows]


def _with_spread(figure: Mapping[str, Any]) -> str:
    return f"{figure['mean']:.2f}" + ("" if figure["spread"] is None else f" ± {figure['spread']:.2f}")

"""The contract of an evaluation, the options that several evaluations share, and the result: text and a record."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

from xrep.config.fields import Count, check_options
from xrep.errors import UserError
from xrep.evaluation.encoders import Overlap, open_encoder, seen, total
from xrep.evaluation.plots import Picture
from xrep.files import sha256_of
from xrep.metrics.bootstrap import interval, resampled_share
from xrep.number_types import Precision
from xrep.store import addresses
from xrep.store.addresses import is_local
from xrep.tables import table
from xrep.text.hf_datasets import is_dataset, state_of_dataset
from xrep.text.languages import name
from xrep.text.lines import container_of
from xrep.version import __version__


@dataclass(kw_only=True)
class PrecisionOption:
    precision: Precision = "float32"
    """Type in which the model computes; int8 is for CPUs, and faster than float32 there."""


@dataclass(kw_only=True)
class EncoderOptions(PrecisionOption):
    batch_tokens: Count = 4096
    """Number of subwords that go through the encoder at once."""
    layer: int | None = None
    """Pool the token vectors of this layer instead of the last one; 0: the embeddings. XTREME's retrieval uses layer 7
    of mBERT and 13 of XLM-R large. none: the layer with which the encoder was trained."""
    prompt: str | None = None
    """Text that is put in front of each sentence, such as the instruction that a decoder expects."""
    prompt_name: str | None = None
    """The encoder's prompt that is put in front of each sentence. none: the encoder's default."""
    cache: str | None = None
    """Folder in which the vectors are kept, and from which they are taken the next time."""
    list_sentences: str | None = None
    """Measure nothing, but write to this file the sentences that need vectors of another system, as lines
    language<TAB>sentence."""


@dataclass(kw_only=True)
class OverlapOption:
    drop_overlap: bool = False
    """Leave out the examples that were in the training text."""


@dataclass(kw_only=True)
class VectorTestOptions(EncoderOptions, OverlapOption):
    dimensions: str | None = None
    """Measure vectors that are cut to their first numbers, too: 256,128,64 for these three widths, as an encoder is
    trained for with --matryoshka."""


@dataclass(kw_only=True)
class PlotOption:
    plot: str | None = None
    """Draw the results as this file, which ends in .png, .svg or .pdf (needs the extra 'plot')."""


@dataclass(frozen=True)
class Examples:
    """One table of a test: row i of all columns belongs together."""

    name: str
    """Name in the record and in messages, such as the language."""
    languages: tuple[str, ...]
    """Canonical language of each column; empty text if it is not known."""
    columns: tuple[list[str], ...]
    gold: Any = None
    """What is known of each row, an array [N, ...]: its class, its score or the annotated example; or None."""
    files: tuple[str | Path, ...] = ()
    split: str = ""
    """Split of the data set, if it has several."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def only(self, rows: np.ndarray) -> Examples:
        """Return the examples that the mask ``rows``, bool [N], selects."""
        columns = tuple(list(compress(column, rows)) for column in self.columns)
        return replace(self, columns=columns, gold=None if self.gold is None else self.gold[rows])


@dataclass(frozen=True)
class Score:
    """What ``TableEvaluation.score`` returns for one ``Examples``."""

    figures: Mapping[str, float]
    """Figures by name, unrounded. They are columns of the printed table and are averaged over the tables."""
    resample: Callable[[int], Mapping[str, np.ndarray]] = lambda seed: {}
    """Function that draws the examples with replacement by a seed, the number of the table, and returns figures on
    these draws, float64 [R]; see ``shares``. Where tables are quoted alone, it ignores the seed, so that the interval
    of a table does not depend on which other tables are measured."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else is written as JSON. It is not averaged; numbers with a fraction are columns of the printed table."""


def shares(outcomes: Mapping[str, np.ndarray]) -> Callable[[int], dict[str, np.ndarray]]:
    """Return the ``resample`` of figures that are shares: the percentage that the sum of the first column of an
    example's ``outcomes``, [N, 2], is of the sum of the second one."""
    return lambda seed: {name: resampled_share(counts, seed) for name, counts in outcomes.items()}


@dataclass(frozen=True)
class Result:
    """The examples of one table that were measured, what became of those of the training text, and the score."""

    examples: Examples
    overlap: Overlap
    score: Score

    @property
    def values(self) -> dict[str, Any]:
        """What is written as JSON."""
        measured = {**self.score.figures, **self.score.details}
        return {**measured, "examples": len(self.examples), "overlap": asdict(self.overlap)}


class Evaluation(ABC):
    """An evaluation of an encoder, or of another model.

    It is one class in one file and one line in ``xrep.registry.EVALUATIONS``, or in a plugin. ``xrep-eval NAME`` reads
    its tables, opens the model, measures it, prints the figures, draws the plot and writes the JSON. Most evaluations
    are a ``TableEvaluation``, which defines ``read`` and the ``score`` of one table; one that needs another order
    defines ``measure``. Methods raise UserError if the options, the data or the model are wrong, and print nothing to
    stdout.

    - The docstring of the class is the description in ``xrep-eval NAME --help``, and its first line is the summary in
      ``xrep-eval --help``. It has an example that begins with ``xrep-eval NAME --path run1/best``.
    - Its nested dataclass ``Config`` has the options, and the string below a field is the help. ``list[str]`` takes
      several arguments, ``Literal`` offers a choice, and a field without a default must be given.
    - ``--list-sentences`` writes all columns of all tables, so each sentence that is encoded must be in one of them.
    """

    Config: ClassVar[type]
    takes_path: ClassVar[bool] = True
    """Whether ``--path`` names the model; if not, the options of the evaluation name it."""
    resampled: ClassVar[bool] = True
    """Whether its figures have ``resamples``; if not, ``--resamples`` is refused before a model is loaded."""
    labels: ClassVar[Mapping[str, str]] = {}
    """Headings of figures whose name is not printed as it is."""
    heading: ClassVar[str] = "language"
    unit: ClassVar[str] = "examples"
    """Headings of the first two columns of the printed table: what a table is, and an example."""
    least: int = 1
    """Number of examples of each table that must be left."""
    unrecorded: ClassVar = frozenset({"data", "batch_tokens", "cache", "list_sentences", "dimensions", "plot"})
    """Options on which the figures do not depend."""

    def __init__(self, config: Any) -> None:
        check_options(config)
        self.config = config

    @classmethod
    def find(cls, folder: Path) -> dict[Path, Any]:
        """Return what ``xrep-eval all`` can measure in a folder and its subfolders: path of the data -> ``Config`` that
        measures it. By default the evaluation is not part of ``all``."""
        return {}

    @abstractmethod
    def read(self) -> list[Examples]:
        """Check the options and read the data, before a model is loaded. Whatever a user can get wrong is found here,
        except what depends on the model."""

    @cached_property
    def tables(self) -> list[Examples]:
        """What ``read`` returned; a caller may leave tables out."""
        return self.read()

    def narrow(self, languages: Sequence[str]) -> None:
        """Leave out the tables that do not belong to the languages that ``xrep-eval all`` measures. Sentences beside
        their English translations belong to their own language."""
        self.tables = [each for each in self.tables if (set(each.languages) - {"en"} or {"en"}) <= set(languages)]

    def open(self, path: str) -> Any:
        """Open the model that ``measure`` takes, by default a ``MeasuredEncoder``. It has a ``path``,
        ``training_hashes``, and a ``fingerprint()``, which changes when the output changes."""
        names = ("batch_tokens", "cache", "layer", "precision", "prompt", "prompt_name")
        options = {name: getattr(self.config, name) for name in names}
        return open_encoder(path, **options)

    def check(self, model: Any) -> None:
        """Check before the work that the model fits the tables. By default it encodes a sentence of each language."""
        sides = (side for examples in self.tables for side in zip(examples.languages, examples.columns, strict=True))
        refused = dict[str, str]()
        for language, column in dict(sides).items():
            try:
                model.encode(column[:1], language)
            except UserError as error:
                refused[language] = error.problem
        if refused:
            problem = f"the encoder cannot encode {' '.join(refused)} ({next(iter(refused.values()))})"
            raise UserError(problem, cure="leave them out of `langs`, or name another encoder")

    @abstractmethod
    def measure(self, model: Any) -> Figures:
        """Measure a model on all tables."""

    def without_overlap(self, model: Any, examples: Examples) -> tuple[Examples, Overlap]:
        """Count the examples with a sentence of the training text, and leave them out with ``drop_overlap``."""
        drop, count = getattr(self.config, "drop_overlap", False), len(examples)
        cure = "measure without `drop_overlap`"
        if not model.training_hashes:
            if drop:
                raise UserError("no training hashes beside the encoder", cure=cure)
            return examples, Overlap(None, count)
        known = seen(examples.columns, model.training_hashes)
        found = int(known.sum())
        if drop and count - found < self.least:
            problem = f"{found} of {count} examples of {examples.name} were in the training text, too few are left"
            raise UserError(problem, cure=cure)
        return examples.only(~known) if drop and found else examples, Overlap(found, count, dropped=drop)

    def figures(self, measured: Sequence[Result]) -> Figures:
        """Return the averages, the resampled figures, the table and the record of the results of all tables."""
        results = {result.examples.name: result for result in measured}
        drawn = {name: result.score.resample(seed) for seed, (name, result) in enumerate(results.items())}

        def mean(names: Sequence[str]) -> dict[str, float]:
            return self.mean([results[name].score for name in names])

        averages, quoted, resamples = {}, self.quoted(results), {}
        for label, names in self.averages(results).items():
            averages[label] = {**mean(names), "examples": sum(len(results[name].examples) for name in names)}
        for label, (figure, names) in quoted.items():
            if all(figure in drawn[name] for name in names):
                resamples[label] = np.mean([drawn[name][figure] for name in names], axis=0)
        return Figures(
            text=self.text(results, averages),
            values={"tables": {name: result.values for name, result in results.items()}, "averages": averages},
            headline={label: mean(names)[figure] for label, (figure, names) in quoted.items()},
            resamples=resamples,
            settings=self.settings(),
            files=[file for result in measured for file in result.examples.files],
            overlap=total(result.overlap for result in measured),
        )

    def averages(self, results: Mapping[str, Result]) -> dict[str, list[str]]:
        """Return the names of the tables over which all figures are averaged, by the label of the average."""
        return {f"mean of {len(results)}": list(results)}

    def mean(self, scores: Sequence[Score]) -> dict[str, float]:
        """Return the mean of each figure over tables, all of which have the same weight."""
        return {name: float(np.mean([score.figures[name] for score in scores])) for name in scores[0].figures}

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        """Return the figures by which the test is quoted: label -> figure, and the tables over which it is averaged. By
        default it is the first figure with each of the averages."""
        figure = next(iter(next(iter(results.values())).score.figures))
        return {label: (figure, names) for label, names in self.averages(results).items()}

    def shown(self, examples: Examples) -> str:
        """Return the name of a table as it is printed; by default with the language of its first column."""
        return f"{name(examples.languages[0])} ({examples.name})"

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        """Return the ``text`` of ``Figures``."""
        lines = [(self.shown(result.examples), result.values) for result in results.values()]
        columns = [key for key, value in lines[0][1].items() if isinstance(value, float)]
        headings = [self.labels.get(column, column.replace("_", " ")) for column in columns]
        keys = "examples", *columns
        rows = [[label, *(values.get(key, "") for key in keys)] for label, values in [*lines, *averages.items()]]
        if averages:
            rows.insert(len(lines), [])
        return table([self.heading, self.unit, *headings], rows)

    def settings(self) -> dict[str, Any]:
        """Return what the figures depend on: the options of ``Config``, except those in ``unrecorded``."""
        return {name: value for name, value in vars(self.config).items() if name not in self.unrecorded}


class TableEvaluation(Evaluation):
    """An evaluation that measures each table of examples alone: ``read`` and ``score``."""

    @abstractmethod
    def score(self, model: Any, examples: Examples) -> Score:
        """Measure a model on one table, already without the overlap if it is to be left out."""

    def measure(self, model: Any) -> Figures:
        self.check(model)
        kept = [self.without_overlap(model, examples) for examples in self.tables]
        shown = tqdm(kept, disable=None, leave=False, unit=f" {self.heading}")
        return self.figures([Result(*pair, self.score(model, pair[0])) for pair in shown])


@dataclass(kw_only=True)
class Figures:
    """What ``Evaluation.measure`` returns, in the same form for every evaluation."""

    text: str
    """Tables and lines for people, without the intervals and the overlap that ``printed`` adds."""
    values: Mapping[str, Any]
    """Measured values, unrounded; only JSON types. ``tables`` has those of each table and ``averages`` their averages;
    both are empty where an evaluation does not measure table by table. Other keys are free."""
    headline: Mapping[str, float] = field(default_factory=dict)
    """The few figures (name -> number) by which the test is usually quoted; ``xrep-eval all`` prints them."""
    resamples: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Figures in ``headline`` on examples drawn with replacement, float64 [R]. The draws are the same for all models,
    so differences between models on the same examples are paired."""
    settings: Mapping[str, Any]
    """Everything else that the values depend on, such as split, languages, neighbours and seeds."""
    files: Sequence[str | Path] = ()
    """Every data file that was read; one may be named several times."""
    overlap: Overlap | None = None
    """Overlap with the training data; None if the data is not a test set."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Of several tests, those that could not be measured, and the reasons."""
    parts: Mapping[str, Figures] = field(default_factory=dict)
    """Of several tests, the figures of each, by its label."""
    plot: Callable[[Picture], None] | None = None
    """Function that draws the figures into a file."""

    def __post_init__(self) -> None:
        self.values = {"tables": {}, "averages": {}, **self.values}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95% bootstrap intervals of the figures that have ``resamples``: name -> lower and upper bound."""
        return {name: interval(values) for name, values in self.resamples.items()}

    def printed(self) -> str:
        """Return the text that ``xrep-eval`` prints."""
        spans = [f"{name}: 95% interval {low:.2f} to {high:.2f}" for name, (low, high) in self.intervals.items()]
        return "\n".join([self.text, *spans, *([self.overlap.line] if self.overlap else [])])

    def record(self, test: str, model: Any) -> dict[str, Any]:
        """Return the record of a ``model`` and of the evaluation called ``test`` that is written as JSON."""
        return {
            "test": test,
            "values": dict(self.values),
            "headline": dict(self.headline),
            "intervals": {name: list(span) for name, span in self.intervals.items()},
            "model": {"path": str(model.path), "fingerprint": model.fingerprint()},
            "data": {file: _state_of(file) for file in map(str, self.files)},
            "settings": dict(self.settings),
            "version": __version__,
            "overlap": asdict(self.overlap) if self.overlap else None,
        }


def _state_of(file: str) -> Any:
    """Return what changes when a file of the data changes: its sha256, or what ``state_of_dataset`` says."""
    if is_dataset(file):
        return state_of_dataset(file)
    if not is_local(file):
        return hashlib.sha256(addresses.read(file)).hexdigest()
    return sha256_of(container_of(Path(file)))

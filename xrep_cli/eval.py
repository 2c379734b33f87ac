"""``xrep-eval``: measure an encoder, or a translator, on published test sets."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from xrep.config.fields import CountOrZero, docstring, fields_of_class
from xrep.errors import UserError
from xrep.files import check_output
from xrep.registry import EVALUATIONS, load_target
from xrep.text.lines import container_of
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    from xrep.evaluation.evaluation import Evaluation

PATH = Annotated[
    list[str],
    common.Option(
        metavar="MODEL",
        nargs=1,
        help="The model to measure: a checkpoint or, for tests of sentence vectors, also a directory of Hugging Face "
        "or sentence-transformers, or a folder of vectors.npy [N, D] and sentences.tsv, whose lines language<TAB>"
        "sentence name the rows. Repeat it to compare models: the table then has the difference of each from the "
        "first, with its 95% interval by a paired bootstrap.",
    ),
]
SEEDS = common.Option(metavar="SEEDS", nargs="?", const=3)


@dataclass(kw_only=True)
class Evaluations(common.Plugins):
    """Measure a sentence encoder, or a translation model, on published test sets.

      # Find the translation of each sentence
      xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr
      # Compare two models, with the intervals of their differences
      xrep-eval tatoeba --path run1/best --path run2/best --data tatoeba/
      # Run every test that finds its data in a folder
      xrep-eval all --path run1/best --data data/ --json results.json

    xrep-eval COMMAND --help lists the options of a test, and says how its data is laid out. The encoder is a
    checkpoint, a directory of Hugging Face or sentence-transformers, or the vectors of any other system:
    --list-sentences writes the sentences of a test; put that list, as sentences.tsv, and vectors.npy [N, D] into one
    folder."""


@dataclass(kw_only=True)
class Options(common.Plugins):
    """What every evaluation has beside ``path`` and ``config``, its own options."""

    json: common.JsonFile | None = None
    """Write the results as JSON to this file; without a name, or with -, print JSON alone on standard output."""
    resamples: common.OutputFile | None = None
    """Write the figures on 1,000 samples of the examples, drawn with replacement, as JSON. The samples are the same for
    every model, so the differences between the files of two models are those of a paired bootstrap test."""


@dataclass(kw_only=True)
class BaselineOptions(Options):
    random_baseline: Annotated[CountOrZero, SEEDS] = 0
    """Measure the architecture of the model with random weights, too, drawn by each of this number of seeds (3 if none
    is named), and print their mean and standard deviation. A classifier that was trained stays as it is."""


class TestCommand(Command):
    """The subcommand of an evaluation, which is imported only if it is chosen."""

    def __init__(self, name: str) -> None:
        self.test, self.target = name, EVALUATIONS.target(name)
        super().__init__("xrep-eval", Options, functools.partial(run, name))
        self.description = docstring(self.target) or f"({self.target} cannot be read)"

    @functools.cached_property
    def fields(self) -> list[Any]:
        config = load_target(f"{self.target}.Config")
        base = BaselineOptions if any(spec.name == "cache" for spec in fields_of_class("", config)) else Options
        own_fields = ("path", PATH, field(default_factory=list)), ("config", Annotated[config, common.OptionGroup()])
        self.options = make_dataclass("TestOptions", own_fields, bases=(base,), kw_only=True)
        return super().fields


def run(name: str, options: Any) -> None:
    evaluation, config = EVALUATIONS.load(name), options.config
    seeds, listed = getattr(options, "random_baseline", 0), getattr(config, "list_sentences", None)
    if options.resamples is not None and not evaluation.resampled:
        raise UserError("this evaluation resamples no figure", cure="leave `resamples` out")
    if options.path and not evaluation.takes_path:
        raise UserError(f"`path` {options.path[0]}, and other options name the models", cure="leave `path` out")
    outputs = _check(options, config, seeds)
    made = evaluation(config)
    files = (Path(file) for each in made.tables for file in each.files)
    common.check_outputs(outputs, {"`data`": [str(container_of(file)) for file in files]})
    if listed is not None:
        from xrep.evaluation.encoders import write_sentences

        columns = (pair for each in made.tables for pair in zip(each.languages, each.columns, strict=True))
        count = write_sentences("/dev/stdout" if listed == "-" else listed, columns)
        print(f"{count} sentences: {listed}", file=sys.stderr if common.is_streamed(listed) else sys.stdout)
    elif not options.path and made.takes_path:
        raise UserError("no encoder named", cure="give `path`, or `list_sentences` to measure another system")
    else:
        _measure(name, made, options, seeds)


def _check(options: Any, config: Any, seeds: int) -> dict[str, str | None]:
    """Check options before the data is read, and return the files to write. Raises UserError if options do not go
    together, or matplotlib is missing."""
    if seeds and getattr(config, "every_checkpoint", False):
        raise UserError("`every_checkpoint` with `random_baseline`", cure="measure one of them at a time")
    of_one = {f"`{name}`": getattr(config, name, None) for name in ("plot", "save_translations")}
    of_one["`resamples`"], dimensions = options.resamples, getattr(config, "dimensions", None)
    several = f"{len(options.path)} models" if len(options.path) > 1 else dimensions and "`dimensions`"
    for option, file in of_one.items():
        if file is not None and several:
            raise UserError(f"{option} with {several}", cure="measure one model, and one width, for it")
    if getattr(config, "cache", None) is not None:
        common.check_here(config.cache)
        check_output(config.cache, folder=True)
    if (plot := getattr(config, "plot", None)) is not None:
        from xrep.evaluation.plots import Picture

        check_output(plot)
        Picture(plot)  # of a kind that can be drawn
    return {**of_one, "`json`": options.json, "`list_sentences`": getattr(config, "list_sentences", None)}


def _measure(name: str, evaluation: Evaluation, options: Any, seeds: int) -> None:
    from xrep.evaluation.plots import Picture
    from xrep.evaluation.runner import comparison, differences, measure, models
    from xrep.tables import table

    common.choose_device(None, "xrep-eval", getattr(evaluation.config, "precision", "float32"))
    paths, dimensions = options.path or [""], getattr(evaluation.config, "dimensions", None)
    several, plot = len(paths) > 1 or dimensions is not None, getattr(evaluation.config, "plot", None)
    records, failed, differing, first = {}, {}, {}, None
    for model in models(evaluation, paths, dimensions):
        figures, record = measure(name, evaluation, model, seeds)
        path = str(model.path)
        records[path] = record
        failed |= figures.failed
        del model  # so that it is not in memory beside the next one
        if first is not None:
            differing[path] = differences(first, figures)
        first = first or figures
        if options.json != "-":
            print(f"{path}:\n{figures.printed()}\n" if several else figures.printed())
        if plot is not None and figures.plot:
            figures.plot(Picture(plot, path))
        if options.resamples is not None:
            drawn = {key: samples.tolist() for key, samples in figures.resamples.items()}
            finite = {key: [None if math.isnan(x) else x for x in samples] for key, samples in drawn.items()}
            common.write_summary(finite, options.resamples)
    header, *rows = comparison(records, differing)
    if (several or seeds) and options.json != "-":
        print(table(header, rows) if rows else "")
    (record, *others) = records.values()
    summary = {"test": name, "models": records, "differences": differing} if others else record
    common.write_summary(summary, options.json)
    if failed:
        raise UserError(f"{', '.join(failed)} could not be measured", cure="; ".join(failed.values()))


main = Command("xrep-eval", Evaluations, below=lambda: {name: TestCommand(name) for name in EVALUATIONS.names()})

if __name__ == "__main__":
    sys.exit(main())

"""``xrep-eval``: measure an encoder, or a translator, on published test sets."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrep.config.fields import docstring, read_fields
from xrep.errors import UserError
from xrep.files import check_output, write_json
from xrep.registry import EVALUATIONS, import_plugin
from xrep_cli.common import (
    HelpFormatter,
    Parser,
    add_field,
    add_shared_options,
    check_counts,
    check_outputs,
    choose_device,
    command_parser,
    console_script,
    limit_kept_products,
    naming_options,
    say_if_slow,
    write_summary,
)

if TYPE_CHECKING:
    from xrep.evaluation.evaluation import Evaluation

DESCRIPTION = """\
Measure a sentence encoder, or a translation model, on published test sets.

  xrep-eval tatoeba --path run1/best --data tatoeba/ --langs de,fr
  xrep-eval translation --path nmt/best --data 'multi30k/test.{lang}' --langs de,fr --target-lang en
  xrep-eval all --path run1/best --data data/ --json results.json
  xrep-eval tatoeba --path run1/best --path run2/best --data tatoeba/      # both, and a table to compare them
  xrep-eval sts --help

The encoder is a checkpoint, a directory of Hugging Face or sentence-transformers, or the vectors of any other system:
--list-sentences writes the sentences of a test; put that list, as sentences.tsv, and vectors.npy [N, D] into one
folder."""
PATH = (
    "The model to measure: a checkpoint, a directory of Hugging Face or sentence-transformers, or a folder of "
    "vectors.npy [N, D] and sentences.tsv, whose lines language<TAB>sentence name the rows. Repeat it to compare "
    "models: the table then has the difference of each from the first, with its 95%% interval by a paired bootstrap."
)
RANDOM = (
    "Measure the architecture of the model with random weights, too, drawn by each of this number of seeds (3 if none "
    "is named), and print their mean and standard deviation. A classifier that was trained stays as it is."
)
JSON = "Write the results as JSON; - prints JSON alone on stdout."
RESAMPLES = (
    "Write the figures on 1,000 samples of the examples, drawn with replacement, as JSON. The samples are the same for "
    "every model, so the differences between the files of two models are those of a paired bootstrap test."
)


def build_parser(chosen: str | None = None) -> Parser:
    """Return a parser that has the summary of every registered evaluation, and the options of the chosen one."""
    parser = command_parser("xrep-eval", DESCRIPTION)
    add_shared_options(parser, "--plugin")
    commands = parser.add_subparsers(dest="evaluation", required=True, metavar="TEST")
    for name in EVALUATIONS.names():
        target = EVALUATIONS.target(name)
        description = (docstring(target) or f"({target} cannot be read)").replace("%", "%%")
        summary = description.split("\n")[0].rstrip(".")
        command = commands.add_parser(name, help=summary, description=description, formatter_class=HelpFormatter)
        if name == chosen:
            command.add_argument("--path", metavar="MODEL", action="append", default=[], help=PATH)
            specs = read_fields("", f"{target}.Config")
            for spec in sorted(specs, key=lambda spec: spec.default is not dataclasses.MISSING):
                add_field(command, spec)
            if any(spec.name == "cache" for spec in specs):  # of EncoderOptions
                seeds: dict[str, Any] = {"nargs": "?", "type": int, "const": 3, "default": 0, "metavar": "SEEDS"}
                command.add_argument("--random-baseline", help=RANDOM, **seeds)
            command.add_argument("--json", metavar="FILE", help=JSON)
            command.add_argument("--resamples", metavar="FILE", help=RESAMPLES)
            add_shared_options(command, "--plugin")
    return parser


@console_script
def main(argv: Sequence[str]) -> None:
    limit_kept_products()
    plugins = Parser(add_help=False, allow_abbrev=False)
    add_shared_options(plugins, "--plugin")
    known, others = plugins.parse_known_args(argv)
    for plugin in known.plugin:
        import_plugin(plugin)
    chosen = others[0] if others and others[0] in EVALUATIONS.names() else None
    options = vars(build_parser(chosen).parse_args(others))
    name, paths, json_file, _ = (options.pop(key) for key in ("evaluation", "path", "json", "plugin"))
    evaluation = EVALUATIONS.load(name)
    with naming_options({field: "--" + field.replace("_", "-") for field in ("path", *options)}):
        seeds, resamples = options.pop("random_baseline", 0), options.pop("resamples")
        if resamples is not None and not evaluation.resampled:
            raise UserError("this evaluation resamples no figure", cure="leave `resamples` out")
        if paths and not evaluation.takes_path:
            raise UserError(f"`path` {paths[0]}, and other options name the models", cure="leave `path` out")
        outputs = {"--json": json_file, "--plot": options.get("plot"), "--resamples": resamples}
        _check(options, outputs, seeds, len(paths))
        say_if_slow("xrep-eval", options.get("precision", "float32"), choose_device(None))
        made, listed = evaluation(evaluation.Config(**options)), options.get("list_sentences")
        files = [str(file) for examples in made.tables for file in examples.files]
        check_outputs({**outputs, "--list-sentences": listed}, {"--data": files})
        if listed is not None:
            from xrep.evaluation.encoders import write_sentences

            columns = (pair for own in made.tables for pair in zip(own.languages, own.columns, strict=True))
            print(f"{write_sentences(listed, columns)} sentences: {listed}")
        elif not paths and made.takes_path:
            raise UserError("no encoder named", cure="give --path, or --list-sentences to measure another system")
        else:
            _measure(name, made, paths or [""], outputs, seeds)


def _check(options: Mapping[str, Any], outputs: Mapping[str, str | None], seeds: int, models: int) -> None:
    """Check options before the data is read. Raises UserError if they do not go together, a number is out of range, or
    matplotlib is missing."""
    check_counts(options)
    if seeds < 0:
        raise UserError(f"--random-baseline {seeds}", cure="give a number of seeds, such as 3")
    if seeds and options.get("every_checkpoint"):
        raise UserError("`every_checkpoint` with --random-baseline", cure="measure one of them at a time")
    several = f"{models} models" if models > 1 else options.get("dimensions") and "--dimensions"
    of_one = {**outputs, "--json": None, "--save-translations": options.get("save_translations")}
    for option in (name for name, file in of_one.items() if file is not None and several):
        raise UserError(f"{option} with {several}", cure="measure one model, and one width, for it")
    if options.get("cache") is not None:
        check_output(options["cache"], folder=True)
    if (plot := options.get("plot")) is not None:
        from xrep.evaluation.plots import KINDS, check_matplotlib

        if Path(plot).suffix.lower() not in KINDS:
            kinds = ", ".join(KINDS)
            raise UserError(f"a plot is one of {kinds}", path=plot, cure="give a name that ends with one of them")
        check_matplotlib()


def _measure(name: str, evaluation: Evaluation, paths: list[str], outputs: dict[str, str | None], seeds: int) -> None:
    from xrep.evaluation.evaluation import table
    from xrep.evaluation.plots import Picture
    from xrep.evaluation.runner import comparison, differences, measure, models

    json_file, plot, resamples = (outputs[option] for option in ("--json", "--plot", "--resamples"))
    dimensions = getattr(evaluation.config, "dimensions", None)
    several = len(paths) > 1 or dimensions is not None
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
        if json_file != "-":
            print(f"{path}:\n{figures.printed()}\n" if several else figures.printed())
        if plot is not None and figures.plot:
            figures.plot(Picture(plot, path))
        if resamples is not None:
            drawn = {key: own.tolist() for key, own in figures.resamples.items()}
            write_json(resamples, {key: [None if math.isnan(x) else x for x in own] for key, own in drawn.items()})
    header, *rows = comparison(records, differing)
    if (several or seeds) and json_file != "-":
        print(table(header, rows) if rows else "")
    (record, *others) = records.values()
    write_summary({"test": name, "models": records, "differences": differing} if others else record, json_file)
    if failed:
        raise UserError(f"{', '.join(failed)} could not be measured", cure="; ".join(failed.values()))


if __name__ == "__main__":
    sys.exit(main())

"""``xrep-sweep``: train a recipe with each combination of values of some options, and rank the runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from xrep.errors import UserError
from xrep.files import write_aside
from xrep_cli.command import command_parser, console_script, naming_options
from xrep_cli.common import check_here

if TYPE_CHECKING:
    from xrep.config import RunConfig
    from xrep.training.sweep import Trial

DESCRIPTION = """\
Train a recipe with each combination of values of some options, and rank the runs by their validation.

  # Search the learning rate and the size of a batch
  xrep-sweep dap/xnli --grid optimizer.lr=1e-5,3e-5,5e-5 --grid task.batch_size=16,32 --save-dir runs/search
  # Compare two temperatures by three seeds, and train two runs at a time
  xrep-sweep recipe.yaml --grid criterion.temperature=0.04,0.05 --seeds 1,2,3 --parallel 2 --save-dir runs/search
  # Give all runs a further option of xrep-train
  xrep-sweep dap/xnli --grid optimizer.lr=1e-5,3e-5 --save-dir runs/search --max-steps 1000

Each run has a directory in --save-dir, which is named after its values, and a log beside it. The same command goes on
with runs that were stopped and trains only those that are not finished. The table of all runs, the best first, is
printed and written to sweep.tsv. With several seeds, combinations are ranked by their mean over the seeds. A
recipe with stages is ranked by the validation of its last stage, and a value of the grid applies to every stage;
--grid stages.second.optimizer.lr=1e-4,3e-4 changes only the stage `second`."""
TABLE = "sweep.tsv"
_EACH_ITS_OWN = "leave it out: each run has a folder of its own in --save-dir"
_NOT_SEARCHED = {
    "seed": "name seeds by --seeds 1,2,3",
    "save_dir": _EACH_ITS_OWN,
    "checkpoint.save_dir": _EACH_ITS_OWN,
}
TRAINING = [sys.executable, "-m", "xrep_cli.train"]
"""The command that trains a run in a process of its own."""


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-sweep", DESCRIPTION)
    parser.allow_abbrev = False
    recipe = "a recipe, by its name (xrep recipes), or a YAML file, as xrep-train --config reads it"
    parser.add_argument("config", metavar="RECIPE", help=recipe)
    grid = "values of an option, by its key, such as optimizer.lr=1e-4,3e-4 (repeatable)"
    parser.add_argument("--grid", metavar="KEY=A,B,...", action="append", required=True, help=grid)
    parser.add_argument("--seeds", metavar="A,B,...", help="train each combination with these seeds")
    parallel = "number of runs that train at a time; they take turns at the GPUs that there are"
    parser.add_argument("--parallel", metavar="N", type=int, default=1, help=parallel)
    parser.add_argument("--save-dir", metavar="DIR", required=True, help="folder of the runs and of the table")
    return parser


def _grid(given: Sequence[str]) -> dict[str, list[str]]:
    grid: dict[str, list[str]] = {}
    for text in given:
        key, _, values = text.partition("=")
        named = [value.strip() for value in values.split(",")]
        if key in _NOT_SEARCHED:
            raise UserError(f"`grid` {text!r}", cure=_NOT_SEARCHED[key])
        if "." not in key or not all(named) or key in grid:
            cure = "write `grid` SECTION.OPTION=A,B, such as optimizer.lr=1e-4,3e-4, once for each option"
            raise UserError(f"`grid` {text!r}", cure=cure)
        grid[key] = named
    return grid


@console_script("xrep-sweep")
def main(argv: Sequence[str]) -> None:
    options, others = build_parser().parse_known_args(argv)
    with naming_options({"grid": "--grid", "parallel": "--parallel"}):
        if options.parallel < 1:
            raise UserError(f"`parallel` {options.parallel}", cure="give at least 1")
        check_here(options.save_dir)
        _sweep(options, _grid(options.grid), others)


def _check_that_runs_differ(trials: Sequence[Trial], courses: Sequence[Sequence[RunConfig]]) -> None:
    """Raise UserError if two runs would train with the same options, such as 1e-3 and 0.001."""
    seen: dict[str, Trial] = {}
    for trial, course in zip(trials, courses, strict=True):
        options = repr([{**run.values, "checkpoint.save_dir": ""} for run in course])
        if (other := seen.setdefault(options, trial)) is not trial:
            problem = f"{other.directory.name} and {trial.directory.name} are the same run"
            raise UserError(problem, cure="name each value of `grid` and each seed once")
    if len({trial.directory for trial in trials}) < len(trials):
        problem = "the names of two runs, which have at most 200 characters, are the same"
        raise UserError(problem, cure="shorten the values of `grid`, by a configuration that names them")


def _sweep(options: argparse.Namespace, grid: dict[str, list[str]], others: list[str]) -> None:
    from xrep.config import runs_of
    from xrep.tables import table
    from xrep.training.stages import changed_options
    from xrep.training.sweep import ranking, run_trials, trials_of
    from xrep_cli.train_options import parse

    directory = Path(options.save_dir)
    seeds = options.seeds.split(",") if options.seeds else []
    trials = trials_of(grid, seeds, directory, ["--config", options.config, *others])
    lines = [parse(trial.options) for trial in trials]
    with naming_options(lines[0].option_names()):
        courses = [runs_of(line.layers, line.problems) for line in lines]
    _check_that_runs_differ(trials, courses)
    directory.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    failed = run_trials(TRAINING, trials, courses, options.parallel, say)
    for trial, course in zip(trials, courses, strict=True):
        trained = [run for run in course if trial not in failed and (run.directory / "last").exists()]
        if other := ", ".join(dict.fromkeys(chain.from_iterable(map(changed_options, trained)))):
            cure = f"choose another --save-dir than {directory}"
            failed[trial] = f"it had finished with another {other}, and is not trained again; {cure}"
    # One that failed may have the summary of an earlier, shorter run.
    ranked = ranking([trial for trial in trials if trial not in failed], courses[0][-1].stage)
    rows = [
        [*each.trials[0].values.values(), f"{each.mean:.4f}", f"{each.deviation:.4f}", str(len(each.scores)),
         " ".join(str(trial.directory) for trial in each.trials)]
        for each in ranked
    ]  # fmt: skip
    if ranked:
        header = [*grid, ranked[0].metric, "deviation", "runs", "directories"]
        with write_aside(directory / TABLE) as aside:
            aside.write_text("".join("\t".join(row) + "\n" for row in [header, *rows]), encoding="utf-8")
        print(table(header[:-1], [row[:-1] for row in rows]))
        print(f"the best: {ranked[0].trials[0].directory / 'best'} (the table: {directory / TABLE})")
    if failed:
        first = next(iter(failed))
        problem = f"{len(failed)} of {len(trials)} runs failed; the first: {failed[first]}"
        raise UserError(problem, path=first.log, cure="repair it and repeat the command")


if __name__ == "__main__":
    sys.exit(main())

"""``xrep-report``: one page about one run or several."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated

from xrep.files import check_output
from xrep_cli import common
from xrep_cli.command import Command


@dataclass(kw_only=True)
class Options(common.Plugins, common.Batches):
    """Write a page about a run, or about what differs between runs: a single HTML file that needs no network.

      # Compare two runs
      xrep-report run1 run2 --output report.html
      # Measure them first on the tests in data/
      xrep-report run1 run2 --data data/ --output report.html
      # Add the figures of another system, which xrep-eval --json wrote
      xrep-report run1 --results labse.json --output report.html

    The page shows the options that differ, the curves of loss and validation, tables of the evaluations with 95%
    bootstrap intervals, pictures of alignment and uniformity and of sentences, the data, the overlap with the training
    text, and versions. The evaluations are those in the directories of the runs: write them with xrep-eval --json
    run1/NAME.json. Damaged records are left out and named, on the page and on stderr. The pictures need the
    extra 'plot'."""

    runs: Annotated[list[str], common.Option(positional=True, metavar="RUN", nargs="+")]
    """Directory of a run, which xrep-train wrote."""
    output: Annotated[str, common.Option(metavar="FILE.html", writes=check_output)]
    """The page to write; - is standard output."""
    results: common.InputFiles = field(default_factory=list)
    """Further results of xrep-eval --json, also of models that are no runs."""
    data: Annotated[str, common.Option(metavar="FOLDER")] | None = None
    """Measure the best checkpoint of each run on every test whose data is in this folder, as xrep-eval all does."""


def run(options: Options) -> None:
    from xrep.evaluation.plots import check_matplotlib

    check_matplotlib()
    from xrep.report.page import render
    from xrep.report.runs import read_results, read_runs

    runs = read_runs(options.runs)
    inside = [str(path) for run in runs for path in run.path.iterdir() if path.is_file() and path.suffix != ".html"]
    common.check_outputs({"`output`": options.output}, {"a file of RUN": inside})
    results, failed = read_results(runs, options.results), []
    for line in (line for run in runs for line in run.damaged):
        print(f"warning: {line}", file=sys.stderr)
    if options.data is not None:
        from xrep.evaluation.all import measure_runs

        paths = {run.name: run.path for run in runs}
        measured, failed = measure_runs(paths, options.data, options.batch_tokens)
        for test, records in measured.items():
            results.setdefault(test, {}).update(records)
    with common.text_writer(options.output) as write:
        write(render(runs, results, failed))
    if options.output != "-":
        print(f"the report: {options.output}", file=sys.stderr)


main = Command("xrep-report", Options, run)

if __name__ == "__main__":
    sys.exit(main())

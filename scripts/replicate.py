#!/usr/bin/env python3
"""Show whether the effects of a paper appear: train its arms with several seeds, measure them and compare them.

  scripts/replicate hictl --only nmt_gain --seeds 5 --data DATA   # the same command goes on where it was stopped
  scripts/replicate dap --table                                   # the table of examples/dap/README.md

An effect is a YAML file, examples/PAPER/effects/EFFECT.yaml. `prepare` makes the data: each command writes {out}, or
prints its place (--print-path), and {NAME} stands for that place from there on. `options` are those of xrep-train that
all arms share; `settings` and `arms` have their own, and `arms` of a setting those of an arm there. xrep-sweep trains
an arm with the first seed at each point of `grid`, and with all seeds at the point that is best on dev; an arm with
`path` is only measured, and one with `command` writes a model as {out} with {seed}. `evaluations` are arguments of
xrep-eval. `claims` compare a figure of two arms, seed by seed; those that say something (`says`) are in the table.
"""

import csv
import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xrep.config import flat, over, to_yaml
from xrep.config.values import load_yaml
from xrep.errors import UserError
from xrep.files import write_aside
from xrep_cli.command import command_parser, console_script

REPOSITORY = Path(__file__).resolve().parents[1]
COLUMNS = ["effect", "setting", "arm", "seed", "metric", "value", "steps", "minutes", "chosen", "commit"]
Row = dict[str, str]
"""A line of results.csv, or some of its columns; a model that is not trained with several seeds has the seed 0."""
file_name = functools.partial(re.sub, r"[^\w+.-]", "_")


@dataclass
class Runner:
    """Runs the commands of one effect below ``folder``; ``places`` are paths by the names that stand in braces."""

    effect: Mapping[str, Any]
    folder: Path
    places: dict[str, str]
    seeds: Sequence[str]
    parallel: int

    def run(self) -> Iterator[Row]:
        """Prepare the data, train and measure every arm in every setting, and yield the figures."""
        for name, command in self.effect.get("prepare", {}).items():
            self.places[name] = self.make(self.folder.parent / "prepared" / name, command)
        for setting, (arm, own) in itertools.product(self.effect.get("settings", [""]), self.effect["arms"].items()):
            place, own = self.folder / file_name(setting or "runs") / file_name(arm), own or {}
            if "path" in own:
                models = {self.filled(own["path"]): {"seed": "0"}}
            elif "command" in own:
                models = {self.make(place / seed, own["command"], seed): {"seed": seed} for seed in self.seeds}
            else:
                models = self.train(layers_of(self.effect, setting, arm), own.get("grid", self.effect["grid"]), place)
            for model, columns in models.items():
                row = {"effect": self.folder.name, "setting": setting, "arm": arm, **columns}
                yield from self.measure(row, model, place)

    def make(self, place: Path, command: str, seed: str = "") -> str:
        """Run a command that makes ``place``, unless the same command has made it before; return what it made."""
        given = [self.filled(word).replace("{seed}", seed) for word in shlex.split(command)]
        place = place.with_name(f"{place.name}-{hashlib.sha256(repr(given).encode()).hexdigest()[:8]}")
        if not (done := place.with_name(f"{place.name}.made")).is_file():
            printed = self.call([word.replace("{out}", str(place)) for word in given], place.with_suffix(".log"))
            made = printed.rpartition("\n")[2] if "--print-path" in given else str(place)
            done.write_text(made, encoding="utf-8")
        return done.read_text(encoding="utf-8")

    def train(self, layers: Sequence[Mapping[str, Any]], grid: Mapping[str, Any], place: Path) -> dict[str, Row]:
        """Search the grid with the first seed, and train the point that is best on dev with all seeds."""
        from xrep.training.sweep import Trial, ranking, trials_of  # imports torch

        def sweep(grid: Mapping[str, Any], seeds: Sequence[str]) -> Sequence[Trial]:
            values = {key: [*map(str, own)] for key, own in grid.items()}
            given = [f"--grid={key}={','.join(own)}" for key, own in values.items()]
            given += [f"--seeds={','.join(seeds)}", f"--parallel={self.parallel}", f"--save-dir={place}"]
            self.call(["xrep-sweep", str(place / "recipe.yaml"), *given], place / "sweep.log")
            return ranking(trials_of(values, seeds, place, []))[0].trials

        place.mkdir(parents=True, exist_ok=True)
        recipe = self.filled(to_yaml(functools.reduce(over, map(flat, layers))))
        (place / "recipe.yaml").write_text(recipe, encoding="utf-8")
        best = sweep(grid, self.seeds[:1])[0].values
        chosen, models = " ".join(f"{key}={value}" for key, value in best.items()), {}
        for seed, trial in zip(self.seeds, sweep({key: [best[key]] for key in best}, self.seeds), strict=True):
            summary = json.loads((trial.directory / "summary.json").read_text(encoding="utf-8"))
            cost = {"steps": str(summary["steps"]), "minutes": f"{summary['train_seconds'] / 60:.2f}"}
            models[str(trial.directory / "best")] = {"seed": seed, "chosen": chosen, **cost}
        return models

    def measure(self, row: Row, model: str, place: Path) -> Iterator[Row]:
        """Run the evaluations of a model, and yield a row for each figure."""
        has_random = (row["arm"], row["seed"]) == (self.effect.get("random_weights"), "1")
        for name, evaluation in self.effect["evaluations"].items():
            given = f"{evaluation['run']} --path {shlex.quote(model)} {'--random-baseline' * has_random}"
            file = self.make(place / f"{row['seed']}-{file_name(name)}", f"xrep-eval {given} --json {{out}}")
            record = json.loads(Path(file).read_text(encoding="utf-8"))
            for metric, headline in evaluation["figures"].items():
                yield row | {"metric": metric, "value": f"{record['headline'][headline]:.4f}"}
                drawn = record["random_weights"]["headline"][headline]["by_seed"] if has_random else []
                own = row | {"arm": "random weights", "metric": metric, "steps": "0", "minutes": "0", "chosen": ""}
                yield from (own | {"seed": str(n + 1), "value": f"{value:.4f}"} for n, value in enumerate(drawn))

    def filled(self, text: str) -> str:
        """Return a text with each ``{name}`` that is known replaced by its place."""
        return functools.reduce(lambda done, name: done.replace(f"{{{name}}}", self.places[name]), self.places, text)

    def call(self, command: Sequence[str], log: Path) -> str:
        """Run a command and return what it printed, which is also in ``log``."""
        print(f"{command[0]}: {log}", file=sys.stderr, flush=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait()
        finally:
            process.terminate()  # after Ctrl-C it saves its work
            process.wait()
        printed = log.read_text(encoding="utf-8", errors="replace").strip()
        if process.returncode:
            problem = f"{command[0]} failed: {printed.rpartition(chr(10))[2]}"
            raise UserError(problem, path=log, cure="the same command goes on from here")
        return printed


def layers_of(effect: Mapping[str, Any], setting: str, arm: str) -> list[Mapping[str, Any]]:
    """Return the options of an arm in a setting: those of all, of the setting, of the arm, and of it in the setting."""
    shared = dict(effect.get("settings", {}).get(setting) or {})
    special = shared.pop("arms", {}).get(arm, {})
    return [effect.get("options", {}), shared, (effect["arms"][arm] or {}).get("options", {}), special]


def read_results(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def add_results(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, in place of older ones of the same effect, setting, arm, seed and metric."""
    old = read_results(path) if path.is_file() else []
    everything = list({tuple(map(row.get, COLUMNS[:5])): row for row in [*old, *rows]}.values())
    with write_aside(path) as aside, aside.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(everything)


def compare(better: Mapping[str, float], worse: Mapping[str, float]) -> tuple[float, float, int]:
    """Compare the figures of two arms, by seed; a model of seed 0 is compared with every seed of the other arm.

    Returns:
        The mean difference, half the width of the 95% interval of a paired t test (infinite for a single seed), and
        the number of seeds, which is 0 if an arm has no figures.
    """
    from scipy.stats import t  # takes half a second

    seeds = ({*better} | {*worse}) - {"0"} or {"0"}
    pairs = [(better.get(seed, better.get("0")), worse.get(seed, worse.get("0"))) for seed in seeds]
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    if (count := len(differences)) < 2:
        return sum(differences), float("inf"), count
    half = float(t.ppf(0.975, count - 1)) * statistics.stdev(differences) / count**0.5
    return statistics.fmean(differences), half, count


def table(effects: Mapping[str, Mapping[str, Any]], rows: Sequence[Row], everything: bool = False) -> str:
    """Return the claims that say something, or all, as a table of Markdown."""
    values: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        key = row["effect"], row["setting"], row["arm"], row["metric"]
        values.setdefault(key, {})[row["seed"]] = float(row["value"])
    lines = ["| effect | gain in the paper | gain here | 95% interval | seeds | verdict |", f"|{' --- |' * 6}"]
    for name, effect in effects.items():
        claims = [claim for claim in effect["claims"] if everything or "says" in claim]
        for claim, setting in itertools.product(claims, effect.get("settings", [""])):
            arms = (values.get((name, setting, claim[arm], claim["figure"]), {}) for arm in ("better", "worse"))
            gain, half, count = compare(*arms)
            if count and claim.get("setting", setting) == setting:
                says = claim.get("says", f"{claim['better']} over {claim['worse']}")
                says += f", {setting}" if setting and "setting" not in claim else ""
                cells = [says, claim.get("paper", "not in the paper"), f"{gain:+.2f} {claim['figure']}"]
                cells += [f"{gain - half:+.2f} to {gain + half:+.2f}", str(count)]
                verdict = "better" if gain > half else "worse" if -gain > half else "undecided"
                lines.append(f"| {' | '.join([*cells, verdict])} |")
    return "\n".join(lines) + "\n"


@console_script("scripts/replicate")
def main(argv: Sequence[str]) -> None:
    parser = command_parser("scripts/replicate", __doc__ or "")
    papers = sorted(path.parent.name for path in REPOSITORY.glob("examples/*/effects"))
    parser.add_argument("paper", choices=papers, help="folder of examples/")
    parser.add_argument("--table", action="store_true", help="train nothing; print the table of the figures")
    parser.add_argument("--only", metavar="EFFECT", help="one effect, the name of its file; its table has all claims")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; 1 to compare equal minutes")
    parser.add_argument("--data", default=os.environ.get("XREP_DATA", "data"), help="data sets, also $XREP_DATA")
    parser.add_argument("--results", type=Path, help="file of the figures (default: examples/PAPER/results.csv)")
    options = parser.parse_args(argv)
    files = {path.stem: path for path in sorted((REPOSITORY / "examples" / options.paper).glob("effects/*.yaml"))}
    if options.only and options.only not in files:
        raise UserError(f"no effect {options.only}", cure=f"name one of {', '.join(files)}")
    effects = {name: load_yaml(path) for name, path in files.items() if options.only in (None, name)}
    results = options.results or REPOSITORY / "examples" / options.paper / "results.csv"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    for name, effect in {} if options.table else effects.items():
        places = {"data": str(Path(options.data).resolve()), "repository": str(REPOSITORY)}
        folder, seeds = Path("runs/replicate", options.paper, name), [str(n + 1) for n in range(options.seeds)]
        rows = Runner(effect, folder, places, seeds, options.parallel).run()
        add_results(results, [row | {"commit": commit} for row in rows])
    print(table(effects, read_results(results), bool(options.only)), end="")


if __name__ == "__main__":
    sys.exit(main())

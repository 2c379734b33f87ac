#!/usr/bin/env python3
"""Show whether the effects of a paper appear: train its arms with several seeds, measure them and compare them.

  scripts/replicate hictl --only semantic_bias --seeds 5 --data DATA   # the same command goes on where it was stopped
  scripts/replicate dap --table                                   # the table of examples/dap/README.md
  scripts/replicate dap --plot > examples/dap/effects.svg         # and its picture

An effect is a YAML file, examples/PAPER/effects/EFFECT.yaml. `prepare` makes the data: each command writes {out}, or
prints its place (--print-path), and {NAME} stands for that place from there on. An entry that has {seed}, or needs one
that has it, is made once a seed, the others once for all. `options` are those of xrep-train that all arms share;
`settings` and `arms` have their own, and `arms` of a setting those of an arm there. xrep-sweep trains an arm with two
seeds at each point of `grid`, to which rates are added until the best is inside, and with all seeds at the point that
is best on dev; an arm with `path` is only measured, and one with `command` writes a model as {out} with {seed}.
`max_minutes` are those of the processor. `evaluations` are arguments of xrep-eval, and a figure may be the mean of
several of theirs.

Claims compare a figure of two arms, seed by seed. Each effect has one as its `headline`, `written` on a date, which
alone gets a verdict (claims.py); if that was `after_runs`, it is the first claim that the file had, in its first
setting. Its `gain` is the paper's, if that is a number on the same scale. Those of the other `claims` that say
something (`says`) are in the table, with their interval.

The figures of an effect replace those that results.csv had of it. In rows of November 2026, steps and minutes are means
over the seeds, the minutes are those of the clock, and the search had one seed.
"""

import csv
import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims import Effect, Row, figures_of, plot, table, verdicts

from xrep.config import flat, over, to_yaml
from xrep.config.values import load_yaml
from xrep.errors import UserError
from xrep.files import write_aside
from xrep_cli.command import command_parser, console_script

REPOSITORY = Path(__file__).resolve().parents[1]
RATE = "optimizer.lr"
KEY = ["effect", "setting", "arm", "seed", "metric"]
COLUMNS = [*KEY, "value", "steps", "minutes", "chosen", "commit"]
file_name = functools.partial(re.sub, r"[^\w+.-]", "_")


def figures(effect: Effect, folder: Path, known: Row, seeds: Sequence[str]) -> Iterator[Row]:
    """Prepare the data, train and measure every arm in every setting, and yield the figures; ``known`` are paths by the
    names that stand in braces."""
    places = {seed: {**known, "seed": seed} for seed in seeds}
    for own, (name, command) in itertools.product(places.values(), effect.get("prepare", {}).items()):
        own[name] = make(folder.parent / "prepared" / name, command, own)
    for setting, (arm, own) in itertools.product(effect.get("settings", [""]), effect["arms"].items()):
        place, own = folder / file_name(setting or "runs") / file_name(arm), own or {}
        if "path" in own:
            paths = {seed: filled(own["path"], places[seed]) for seed in seeds}
            one = len({*paths.values()}) == 1
            models = {path: {"seed": "0" if one else seed} for seed, path in paths.items()}
        elif "command" in own:
            models = {make(place / seed, own["command"], places[seed]): {"seed": seed} for seed in seeds}
        else:
            recipe = to_yaml(functools.reduce(over, map(flat, layers_of(effect, setting, arm))))
            recipes = {seed: filled(recipe, places[seed]) for seed in seeds}
            models = train(recipes, own.get("grid", effect["grid"]), place)
        for model, columns in models.items():
            row = {"effect": folder.name, "setting": setting, "arm": arm, **columns}
            yield from measure(effect, row, place, {**places.get(columns["seed"], places[seeds[0]]), "model": model})


def filled(text: str, places: Row) -> str:
    """Return a text with each ``{name}`` that is known replaced by its place."""
    return re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), text)


def make(place: Path, command: str, places: Row) -> str:
    """Run a command that makes ``place``, unless the same command has made it before; return what it made."""
    given = [filled(word, places) for word in shlex.split(command)]
    place = place.with_name(f"{place.name}-{hashlib.sha256(repr(given).encode()).hexdigest()[:8]}")
    done = place.with_suffix(".made")
    if not done.is_file():
        if not given[0].startswith("xrep-"):  # those go on with what a killed command has left
            shutil.rmtree(place, ignore_errors=True)
        printed = call([filled(word, {"out": str(place)}) for word in given], place.with_suffix(".log"))
        with write_aside(done) as aside:  # an empty one would name no place
            aside.write_text(printed[-1] if "--print-path" in given else str(place), encoding="utf-8")
    return done.read_text(encoding="utf-8")


def train(recipes: Mapping[str, str], grid: Mapping[str, Sequence[Any]], place: Path) -> dict[str, Row]:
    """Search the grid with two seeds, and train the point that is best on dev with all seeds.

    Args:
        recipes: that of each seed. They differ if they start from what was prepared with the seed.
    """
    searched = {key: [str(value) for value in values] for key, values in grid.items()}
    some = dict(itertools.islice(recipes.items(), 2))
    best, _ = sweep(some, searched, place)
    while (rates := wider(searched.get(RATE, []), best.get(RATE, ""))) is not None:
        searched[RATE] = rates
        best, _ = sweep(some, searched, place)
    best, directories = sweep(recipes, {key: [value] for key, value in best.items()}, place)
    models, chosen = dict[str, Row](), " ".join(f"{key}={value}" for key, value in best.items())
    for seed, directory in directories.items():
        summary = json.loads(Path(directory, "summary.json").read_text(encoding="utf-8"))
        cost = {"steps": str(summary["steps"]), "minutes": f"{summary['train_seconds'] / 60:.2f}"}
        models[f"{directory}/best"] = {"seed": seed, "chosen": chosen, **cost}
    return models


def wider(rates: Sequence[str], best: str) -> list[str] | None:
    """Return the rates with a further one beside the best, half or twice as high, or None if the best is inside. A
    single rate is not searched."""
    order = sorted(map(float, rates))
    if len(order) < 2 or float(best) not in (order[0], order[-1]):
        return None
    return [*rates, f"{float(best) * (2 if float(best) == order[-1] else 0.5):g}"]


def sweep(recipes: Mapping[str, str], grid: Mapping[str, Sequence[str]], place: Path) -> tuple[Row, dict[str, str]]:
    """Train the recipes of the seeds at each point of a grid; return the point whose mean on dev is best, and the
    directories of its runs by seed."""
    runs = dict[tuple[str, ...], dict[str, str]]()
    for recipe in dict.fromkeys(recipes.values()):
        seeds = [seed for seed in recipes if recipes[seed] == recipe]
        own = place.with_name(f"{place.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}")
        own.mkdir(parents=True, exist_ok=True)
        (own / "recipe.yaml").write_text(recipe, encoding="utf-8")
        given = [f"--grid={key}={','.join(values)}" for key, values in grid.items()]
        given += [f"--seeds={','.join(seeds)}", f"--save-dir={own}"]
        call(["xrep-sweep", str(own / "recipe.yaml"), *given], own / "sweep.log")
        for line in read_table(own / "sweep.tsv", "\t"):
            point = tuple(line[key] for key in grid)
            runs.setdefault(point, {}).update(zip(seeds, line["directories"].split(), strict=True))
    point = max(runs, key=lambda point: statistics.fmean(map(on_dev, runs[point].values())))
    return dict(zip(grid, point, strict=True)), runs[point]


def on_dev(directory: str) -> float:
    """Return the best validation of a run, of which more is better."""
    best = json.loads(Path(directory, "summary.json").read_text(encoding="utf-8"))["best"]
    return best["value"] if best["maximize"] else -best["value"]


def measure(effect: Effect, row: Row, place: Path, places: Row) -> Iterator[Row]:
    """Run the evaluations of a model, and yield a row for each figure."""
    has_random = (row["arm"], row["seed"]) == (effect.get("random_weights"), "1")
    for name, evaluation in effect["evaluations"].items():
        command = f"xrep-eval {evaluation['run']} --path {{model}} --json {{out}} {'--random-baseline' * has_random}"
        file = make(place / f"{row['seed']}-{file_name(name)}", command, places)
        record = json.loads(Path(file).read_text(encoding="utf-8"))
        for metric, named in evaluation["figures"].items():
            names = [named] if isinstance(named, str) else named
            yield row | {"metric": metric, "value": f"{statistics.fmean(map(record['headline'].get, names)):.4f}"}
            random = [record["random_weights"]["headline"][name]["by_seed"] for name in names] if has_random else []
            drawn = [statistics.fmean(values) for values in zip(*random, strict=True)]
            own = row | {"arm": "random weights", "metric": metric, "steps": "0", "minutes": "0", "chosen": ""}
            yield from (own | {"seed": str(n + 1), "value": f"{value:.4f}"} for n, value in enumerate(drawn))


def call(command: Sequence[str], log: Path) -> list[str]:
    """Run a command and return the lines that it printed, which are also in ``log``."""
    print(f"{command[0]}: {log}", file=sys.stderr, flush=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        # Ctrl-C reaches the command, too, which then saves its work; subprocess.run would kill it.
        code = subprocess.Popen(command, stdout=out, stderr=out).wait()
    printed = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if code:
        problem = " ".join([f"{command[0]} failed:", *printed[-1:]])
        raise UserError(problem, path=log, cure="the same command goes on from here")
    return printed


def layers_of(effect: Effect, setting: str, arm: str) -> list[Mapping[str, Any]]:
    """Return the options of an arm in a setting: those of all, of the setting, of the arm, and of it in the setting.
    Minutes are those of the processor, so that a busy machine changes nothing."""
    shared = dict(effect.get("settings", {}).get(setting) or {})
    special = shared.pop("arms", {}).get(arm, {})
    return [
        {"trainer": {"clock": "cpu"}},
        effect.get("options", {}),
        shared,
        (effect["arms"][arm] or {}).get("options", {}),
        special,
    ]


def effects_of(folder: Path) -> dict[str, Effect]:
    """Return the effects of a paper by their names."""
    return {path.stem: load_yaml(path) for path in sorted(folder.glob("effects/*.yaml"))}


def read_table(path: Path, delimiter: str = ",") -> list[Row]:
    """Return the lines of a table, none if it is not there."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter=delimiter))


@console_script("scripts/replicate")
def main(argv: Sequence[str]) -> None:
    parser = command_parser("scripts/replicate", __doc__ or "")
    papers = sorted(path.parent.name for path in REPOSITORY.glob("examples/*/effects"))
    parser.add_argument("paper", choices=papers, help="folder of examples/")
    parser.add_argument("--table", action="store_true", help="train nothing; print the table of the figures")
    parser.add_argument("--plot", action="store_true", help="train nothing; print a picture (SVG) of the table")
    parser.add_argument("--only", metavar="EFFECT", help="one effect, the name of its file; its table has all claims")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument(
        "--data", default=os.environ.get("XREP_DATA", "data"), help="a path without spaces, also $XREP_DATA"
    )
    options = parser.parse_args(argv)
    folder = REPOSITORY / "examples" / options.paper
    results = folder / "results.csv"
    described = {paper: effects_of(REPOSITORY / "examples" / paper) for paper in papers}
    effects = {name: one for name, one in described[options.paper].items() if options.only in (None, name)}
    if not effects:
        raise UserError("no such effect", path=folder / f"effects/{options.only}.yaml", cure="name one that is there")
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    rows = {tuple(map(row.get, KEY)): row for row in read_table(results)}
    for name, effect in {} if options.table or options.plot else effects.items():
        places = {"data": os.path.abspath(options.data), "repository": str(REPOSITORY)}
        seeds = [str(n + 1) for n in range(options.seeds)]
        before, rows = rows, {key: row for key, row in rows.items() if key[0] != name}
        for row in figures(effect, Path("runs/replicate", options.paper, name), places, seeds):
            key = tuple(map(row.get, KEY))
            known = before.get(key, {})
            rows[key] = row | {"commit": known["commit"] if known and known | row == known else commit}
        with write_aside(results) as aside, aside.open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows.values())
    measured = {paper: figures_of(read_table(REPOSITORY / "examples" / paper / "results.csv")) for paper in papers}
    if options.plot:
        print(plot(effects, measured[options.paper]), end="")
        return
    found = verdicts({paper: (described[paper], measured[paper]) for paper in papers})
    own = {name: verdict for (paper, name), verdict in found.items() if paper == options.paper}
    print(table(effects, measured[options.paper], own, bool(options.only)), end="")


if __name__ == "__main__":
    sys.exit(main())

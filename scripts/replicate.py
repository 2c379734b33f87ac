#!/usr/bin/env python3
"""Show whether the effects of a paper appear: train its arms with several seeds, measure them and compare them.

  scripts/replicate hictl --only nmt_gain --seeds 5 --data DATA   # the same command goes on where it was stopped
  scripts/replicate dap --table                                   # the table of examples/dap/README.md

An effect is a YAML file, examples/PAPER/effects/EFFECT.yaml. `prepare` makes the data: each command writes {out}, or
prints its place (--print-path), and {NAME} stands for that place from there on. `options` are those of xrep-train that
all arms share; `settings` and `arms` have their own, and `arms` of a setting those of an arm there. xrep-sweep trains
an arm with the first seed at each point of `grid`, and with all seeds at the point that is best on dev; an arm with
`path` is only measured, and one with `command` writes a model as {out} with {seed}. `evaluations` are arguments of
xrep-eval, and a figure may be the mean of several of theirs. `claims` compare a figure of two arms, seed by seed; those
that say something (`says`) are in the table.
The figures of an effect replace those that results.csv had of it. In rows of November 2026, steps and minutes are means
over the seeds.
"""

import csv
import functools
import hashlib
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import t

from xrep.config import flat, over, to_yaml
from xrep.config.values import load_yaml
from xrep.errors import UserError
from xrep.files import write_aside
from xrep_cli.command import command_parser, console_script

REPOSITORY = Path(__file__).resolve().parents[1]
KEY = ["effect", "setting", "arm", "seed", "metric"]
COLUMNS = [*KEY, "value", "steps", "minutes", "chosen", "commit"]
Effect = Mapping[str, Any]
Row = dict[str, str]
"""A line of results.csv, or some of its columns; a model that is not trained with several seeds has the seed 0."""
file_name = functools.partial(re.sub, r"[^\w+.-]", "_")


def figures(effect: Effect, folder: Path, places: Row, seeds: Sequence[str]) -> Iterator[Row]:
    """Prepare the data, train and measure every arm in every setting, and yield the figures; ``places`` are paths by
    the names that stand in braces."""
    for name, command in effect.get("prepare", {}).items():
        places[name] = make(folder.parent / "prepared" / name, command, places)
    for setting, (arm, own) in itertools.product(effect.get("settings", [""]), effect["arms"].items()):
        place, own = folder / file_name(setting or "runs") / file_name(arm), own or {}
        if "path" in own:
            models = {filled(own["path"], places): {"seed": "0"}}
        elif "command" in own:
            models = {make(place / seed, own["command"], {**places, "seed": seed}): {"seed": seed} for seed in seeds}
        else:
            recipe = filled(to_yaml(functools.reduce(over, map(flat, layers_of(effect, setting, arm)))), places)
            place = place.with_name(f"{place.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}")
            models = train(recipe, own.get("grid", effect["grid"]), place, seeds)
        for model, columns in models.items():
            row = {"effect": folder.name, "setting": setting, "arm": arm, **columns}
            yield from measure(effect, row, place, {**places, "model": model})


def filled(text: str, places: Row) -> str:
    """Return a text with each ``{name}`` that is known replaced by its place."""
    return re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), text)


def make(place: Path, command: str, places: Row) -> str:
    """Run a command that makes ``place``, unless the same command has made it before; return what it made."""
    given = [filled(word, places) for word in shlex.split(command)]
    place = place.with_name(f"{place.name}-{hashlib.sha256(repr(given).encode()).hexdigest()[:8]}")
    done = place.with_suffix(".made")
    if not done.is_file():
        printed = call([filled(word, {"out": str(place)}) for word in given], place.with_suffix(".log"))
        with write_aside(done) as aside:  # an empty one would name no place
            aside.write_text(printed[-1] if "--print-path" in given else str(place), encoding="utf-8")
    return done.read_text(encoding="utf-8")


def train(recipe: str, grid: Mapping[str, Any], place: Path, seeds: Sequence[str]) -> dict[str, Row]:
    """Search the grid with the first seed, and train the point that is best on dev with all seeds."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "recipe.yaml").write_text(recipe, encoding="utf-8")
    for some in (seeds[:1], seeds):
        given = [f"--grid={key}={','.join(map(str, values))}" for key, values in grid.items()]
        given += [f"--seeds={','.join(some)}", f"--save-dir={place}"]
        call(["xrep-sweep", str(place / "recipe.yaml"), *given], place / "sweep.log")
        best = read_table(place / "sweep.tsv", "\t")[0]
        grid = {key: [best[key]] for key in grid}
    models, chosen = dict[str, Row](), " ".join(f"{key}={best[key]}" for key in grid)
    for seed, directory in zip(seeds, best["directories"].split(), strict=True):
        summary = json.loads(Path(directory, "summary.json").read_text(encoding="utf-8"))
        cost = {"steps": str(summary["steps"]), "minutes": f"{summary['train_seconds'] / 60:.2f}"}
        models[f"{directory}/best"] = {"seed": seed, "chosen": chosen, **cost}
    return models


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
    """Return the options of an arm in a setting: those of all, of the setting, of the arm, and of it in the setting."""
    shared = dict(effect.get("settings", {}).get(setting) or {})
    special = shared.pop("arms", {}).get(arm, {})
    return [effect.get("options", {}), shared, (effect["arms"][arm] or {}).get("options", {}), special]


def read_table(path: Path, delimiter: str = ",") -> list[Row]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter=delimiter))


def compare(better: Mapping[str, float], worse: Mapping[str, float]) -> tuple[float, float, int]:
    """Return the mean difference of two arms by seed, half the width of its 95% interval (a paired t test), and the
    number of seeds; 0 if an arm has no figures. A model of seed 0 is compared with every seed of the other arm."""
    seeds = ({*better} | {*worse}) - {"0"} or {"0"}
    pairs = [(better.get(seed, better.get("0")), worse.get(seed, worse.get("0"))) for seed in seeds]
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    count = len(differences)
    half = t.ppf(0.975, count - 1) * statistics.stdev(differences) / count**0.5 if count > 1 else float("inf")
    return sum(differences) / max(count, 1), float(half), count


def table(effects: Mapping[str, Effect], rows: Iterable[Row], everything: bool = False) -> str:
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
    parser.add_argument(
        "--data", default=os.environ.get("XREP_DATA", "data"), help="a path without spaces, also $XREP_DATA"
    )
    options = parser.parse_args(argv)
    folder = REPOSITORY / "examples" / options.paper
    results = folder / "results.csv"
    effects = {path.stem: load_yaml(path) for path in sorted(folder.glob(f"effects/{options.only or '*'}.yaml"))}
    if not effects:
        raise UserError("no such effect", path=folder / f"effects/{options.only}.yaml", cure="name one that is there")
    git = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=8"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    rows = {tuple(map(row.get, KEY)): row for row in read_table(results)} if results.is_file() else {}
    for name, effect in {} if options.table else effects.items():
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
    print(table(effects, rows.values(), bool(options.only)), end="")


if __name__ == "__main__":
    sys.exit(main())

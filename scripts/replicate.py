#!/usr/bin/env python3
"""Show whether the effects of a paper appear: train its arms with several seeds, measure them and compare them.

  scripts/replicate hictl --only nmt_gain --seeds 3 --budget 60m
  scripts/replicate dap                      # all effects of examples/dap/effects/

Each effect is a YAML file: how the data is prepared, the options of xrep-train that its arms share, those of each arm,
a grid of learning rates, and evaluations. Every arm is trained with each point of the grid and the first seed
(xrep-sweep), and then with the point that is best on dev and the other seeds. Arms with the same seed see the same data
in the same order. The same command goes on where it was stopped: what is there is neither trained nor measured again.

It writes OUTPUT/PAPER/EFFECT.json, .md and .png. Whether an effect shows is decided by the 95% interval of the
difference between two arms, over seeds and over the examples of the test, both drawn with replacement.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replicate_results import Measured, plot, results, to_markdown

from xrep.config import flat, over, to_yaml
from xrep.config.values import load_yaml
from xrep.errors import UserError
from xrep.files import write_aside, write_json
from xrep_cli.command import console_script

REPOSITORY = Path(__file__).resolve().parents[1]
EFFECT = {"title", "paper", "arms", "evaluations", "claims"}
OPTIONAL = {"prepare", "settings", "options", "grid", "published", "random_weights"}
EVALUATION, CLAIM = {"run", "figures"}, {"better", "worse", "figure"}
ARM = {"options", "grid", "path", "command"}
UNITS = {"s": 1, "m": 60, "h": 3600}


class OutOfTime(Exception):
    """The budget is spent; what was running has saved its work."""


@dataclass
class Runner:
    """Runs the commands of one effect below ``folder`` and keeps what they gave.

    Attributes:
        places: Paths by the names that stand in braces in the YAML file.
        deadline: Time (``time.monotonic``) at which the command that runs is asked to save and stop.
    """

    effect: Mapping[str, Any]
    folder: Path
    places: dict[str, str]
    seeds: Sequence[int]
    parallel: int
    deadline: float
    is_complete: bool = True
    measured: dict[tuple[str, str], Measured] = field(default_factory=dict)

    def run(self) -> None:
        """Prepare the data, and train and measure every arm in every setting, until the budget is spent.

        Raises:
            UserError: A command failed, or what is there was made by another command.
        """
        try:
            for name, command in self.effect.get("prepare", {}).items():
                self.prepare(name, command)
            for setting, own in self.effect.get("settings", {"": {}}).items():
                for arm, values in self.effect["arms"].items():
                    self.run_arm(setting, own or {}, arm, values or {})
        except OutOfTime:
            self.is_complete = False

    def prepare(self, name: str, command: str) -> None:
        """Run a command that makes ``{name}``, unless it was made before by the same command.

        A command with --print-path prints the place; any other one writes it as ``{out}``.
        """
        place = self.folder.parent / "prepared" / name
        done = place.with_name(f"{name}.made")
        self.places["out"] = str(place)
        line = self.filled(shlex.split(command))
        if done.is_file():
            made = json.loads(done.read_text(encoding="utf-8"))
            if made["command"] != line:
                raise UserError("was made by another command", path=place, cure=f"remove it, and {done}")
            self.places[name] = made["place"]
            return
        say(f"preparing {name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        printed = self.call(line, place.with_name(f"{name}.log"))
        self.places[name] = printed.strip().split("\n")[-1] if "--print-path" in line else str(place)
        write_json(done, {"command": line, "place": self.places[name]})

    def run_arm(self, setting: str, options: Mapping[str, Any], arm: str, values: Mapping[str, Any]) -> None:
        """Train an arm in one setting with all seeds, and measure its models."""
        found = self.measured.setdefault((setting, arm), Measured())
        place = self.folder / _file_name(setting or "runs") / _file_name(arm)
        place.mkdir(parents=True, exist_ok=True)
        label = ", ".join(filter(None, [self.folder.name, setting, arm]))
        if "path" in values:
            self.measure(found, 0, self.filled([values["path"]])[0], place, label)
        elif "command" in values:
            for seed in self.seeds:
                model = place / f"seed{seed}"
                self.places |= {"out": str(model), "seed": str(seed)}
                if not (done := place / f"seed{seed}.made").is_file():
                    say(f"{label}: seed {seed}")
                    self.call(self.filled(shlex.split(values["command"])), place / f"seed{seed}.log")
                    done.touch()
                self.measure(found, seed, str(model), place / f"seed{seed}.measured", label)
        else:
            layers = [self.effect.get("options", {}), options, values.get("options", {})]
            recipe = functools.reduce(over, map(flat, layers))
            with write_aside(place / "recipe.yaml") as aside:
                aside.write_text(self.filled([to_yaml(recipe)])[0], encoding="utf-8")
            grid = values.get("grid", self.effect.get("grid", {}))
            found.grid = {key: [str(value) for value in own] for key, own in grid.items()}
            self.train(found, place, label, arm == self.effect.get("random_weights"))

    def train(self, found: Measured, place: Path, label: str, has_random: bool) -> None:
        """Search the grid with the first seed, train the best point with all seeds, and measure each run."""
        grid = "; ".join(f"{key} {', '.join(values)}" for key, values in found.grid.items())
        say(f"{label}: searching {grid} with seed {self.seeds[0]}")
        found.chosen, run = self.sweep(found.grid, self.seeds[0], place)
        for seed in self.seeds:
            if seed != self.seeds[0]:
                say(f"{label}: seed {seed}")
                _, run = self.sweep({key: [value] for key, value in found.chosen.items()}, seed, place)
            summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
            found.steps[seed], found.minutes[seed] = summary["steps"], summary["train_seconds"] / 60
            random = has_random and seed == self.seeds[0]
            self.measure(found, seed, str(run / "best"), place / f"{run.name}.measured", label, random)

    def sweep(self, grid: Mapping[str, Sequence[str]], seed: int, place: Path) -> tuple[dict[str, str], Path]:
        """Train the points of a grid that are not trained yet; return the one that is best on dev, and its run."""
        given = [f"--grid={key}={','.join(values)}" for key, values in grid.items()]
        command = ["xrep-sweep", str(place / "recipe.yaml"), *given, "--seeds", str(seed)]
        self.call([*command, "--parallel", str(self.parallel), "--save-dir", str(place)], place / "sweep.log")
        header, best, *_ = (place / "sweep.tsv").read_text(encoding="utf-8").splitlines()
        columns = dict(zip(header.split("\t"), best.split("\t"), strict=True))
        return {key: columns[key] for key in grid}, Path(columns["directories"])

    def measure(
        self, found: Measured, seed: int, model: str, place: Path, label: str, has_random: bool = False
    ) -> None:
        """Run the evaluations of a model that have no results yet, and read the results."""
        place.mkdir(exist_ok=True)
        for name, evaluation in self.effect["evaluations"].items():
            file, drawn = place / f"{_file_name(name)}.json", place / f"{_file_name(name)}.resamples.json"
            if not (file.is_file() and drawn.is_file()):
                say(f"{label}: measuring {name}" + (f", seed {seed}" if seed else ""))
                command = ["xrep-eval", *self.filled(shlex.split(evaluation["run"])), "--path", model]
                command += ["--json", str(file), "--resamples", str(drawn)]
                self.call(command + ["--random-baseline"] * has_random, place / f"{_file_name(name)}.log")
            record, resamples = (json.loads(path.read_text(encoding="utf-8")) for path in (file, drawn))
            for figure, headline in evaluation["figures"].items():
                if headline not in record["headline"]:
                    cure = f"name one of {', '.join(record['headline'])}"
                    raise UserError(f"evaluation {name} has no figure {headline!r}", path=file, cure=cure)
                found.add(figure, seed, record["headline"][headline], resamples[headline])
                if random := record.get("random_weights"):
                    found.random[figure] = random["headline"][headline]["by_seed"]

    def filled(self, words: Sequence[str]) -> list[str]:
        """Return the words with each ``{name}`` that is known replaced by its place."""
        filled = list(words)
        for name, place in self.places.items():
            filled = [word.replace(f"{{{name}}}", place) for word in filled]
        return filled

    def call(self, command: Sequence[str], log: Path) -> str:
        """Run a command and return what it printed, which is also in ``log``.

        Raises:
            UserError: It failed.
            OutOfTime: The budget is spent; the command was asked to save and to stop.
        """
        program, *arguments = command
        own = ["-m", program.replace("xrep-", "xrep_cli.")] if program.startswith("xrep-") else []
        line = [sys.executable, *own, *arguments] if own or program == "python" else list(command)
        if (left := self.deadline - time.monotonic()) <= 0:
            raise OutOfTime
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "start_new_session": True}
        with log.open("w+", encoding="utf-8") as output:
            process = subprocess.Popen(line, stdout=output, **streams)
            try:
                code = process.wait(None if left == float("inf") else left)
            except BaseException as stop:
                process.send_signal(signal.SIGINT)
                process.wait()
                raise OutOfTime if isinstance(stop, subprocess.TimeoutExpired) else stop from None
            output.seek(0)
            printed = output.read()
        if code:
            last = (printed.strip().split("\n") or [""])[-1]
            raise UserError(f"{program} failed: {last}", path=log, cure="the same command goes on from here")
        return printed


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "+-." else "_" for letter in text)


def read_effect(path: Path) -> Mapping[str, Any]:
    """Read the description of an effect and check its keys.

    Raises:
        UserError: A key is missing or unknown, or a claim names an arm or a figure that there is not.
    """
    effect = load_yaml(path)
    for own, known, needed in [
        (effect, EFFECT | OPTIONAL, EFFECT),
        *((arm or {}, ARM, set()) for arm in effect.get("arms", {}).values()),
        *((own, EVALUATION, EVALUATION) for own in effect.get("evaluations", {}).values()),
        *((claim, CLAIM, CLAIM) for claim in effect.get("claims", [])),
    ]:
        if wrong := sorted({*own} - known) or sorted(needed - {*own}):
            problem = f"key {wrong[0]!r} is {'not known' if wrong[0] in own else 'missing'}"
            raise UserError(problem, path=path, cure=f"the keys are {', '.join(sorted(known))}")
    figures = {figure for own in effect["evaluations"].values() for figure in own["figures"]}
    for claim in effect["claims"]:
        for key, known in (("better", effect["arms"]), ("worse", effect["arms"]), ("figure", figures)):
            if claim[key] not in known:
                raise UserError(f"a claim names {claim[key]!r}", path=path, cure=f"name one of {', '.join(known)}")
    return effect


def _seconds(text: str) -> float:
    try:
        return float(text[:-1]) * UNITS[text[-1:]]
    except (KeyError, ValueError):
        raise UserError(f"--budget {text}", cure="write 90s, 60m or 6h") from None


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    papers = sorted(path.parent.name for path in REPOSITORY.glob("examples/*/effects"))
    parser.add_argument("paper", choices=papers, help="folder of examples/")
    options: dict[str, dict[str, Any]] = {
        "--only": {"metavar": "EFFECT", "help": "one effect of the paper, the name of its YAML file"},
        "--seeds": {"type": int, "default": 3, "help": "number of seeds (default: 3)"},
        "--budget": {"metavar": "TIME", "help": "time after which to save and stop, such as 90s, 60m or 6h"},
        "--parallel": {"type": int, "default": 1, "help": "number of runs that train at a time (default: 1, which is "
                       "needed where arms are compared at equal minutes)"},
        "--data": {"default": os.environ.get("XREP_DATA"), "help": "folder of the data sets (default: $XREP_DATA)"},
        "--output": {"type": Path, "default": Path("runs/replicate"), "help": "folder of runs and results "
                     "(default: runs/replicate)"},
    }  # fmt: skip
    for option, values in options.items():
        parser.add_argument(option, **values)
    return parser


@console_script("scripts/replicate.py")
def main(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a shell: the commands must hear it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    if not options.data or not Path(options.data).is_dir():
        raise UserError("no such folder", path=options.data or "--data", cure="name the folder of the data by --data")
    if options.seeds < 1:
        raise UserError(f"--seeds {options.seeds}", cure="give at least 1")
    files = sorted((REPOSITORY / "examples" / options.paper / "effects").glob("*.yaml"))
    chosen = [path for path in files if options.only in (None, path.stem)]
    if not chosen:
        raise UserError(f"no effect {options.only}", cure=f"name one of {', '.join(path.stem for path in files)}")
    effects = {path.stem: read_effect(path) for path in chosen}
    deadline = time.monotonic() + _seconds(options.budget) if options.budget else float("inf")
    places = {"data": str(Path(options.data).resolve()), "repository": str(REPOSITORY)}
    folder, seeds = options.output / options.paper, list(range(1, options.seeds + 1))
    for name, effect in effects.items():
        runner = Runner(effect, folder / name, dict(places), seeds, options.parallel, deadline)
        runner.run()
        found = results(effect, runner.measured, seeds, runner.is_complete)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", found)
        with write_aside(folder / f"{name}.md") as aside:
            aside.write_text(to_markdown(found), encoding="utf-8")
        if found["rows"]:
            plot(found, folder / f"{name}.png")
        print(f"{to_markdown(found)}\n({folder / name}.json, .md and .png)", flush=True)
        if not runner.is_complete:
            say("the budget is spent; the same command goes on from here")
            break


if __name__ == "__main__":
    sys.exit(main())

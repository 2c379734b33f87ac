"""What the benchmarks share: contestants that take turns, texts and options."""

import argparse
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from results import Pairs, report

from xrep.text.resources import find_resource
from xrep.training.numbers import type_on
from xrep_cli.command import HelpFormatter

SHORT, LONG = range(4, 13), 60
"""Words of a short line, and those to which consecutive lines are joined to a long one."""
Work = Mapping[str, Callable[[Any], Any]]
"""Contestants by name: functions of one input."""


class Taken(float):
    """The seconds that a contestant returns which measures its time itself."""


class Turns(NamedTuple):
    """The seconds of each round after the warm-up, and what was returned last, by contestant."""

    seconds: dict[str, list[float]]
    results: dict[str, Any]

    def medians(self) -> dict[str, float]:
        """Return the median time of each contestant, in seconds."""
        return {name: statistics.median(seconds) for name, seconds in self.seconds.items()}


def take_turns(work: Work, inputs: Iterable[Any], *, warm_up: int = 1, device: str = "cpu") -> Turns:
    """Time contestants that take turns, so that a busy machine disturbs all of them.

    Args:
        work: The contestants, of which each goes first equally often.
        inputs: One input for each round.
        warm_up: Number of first rounds that are not measured.
        device: A time on a GPU ends when the GPU has finished.
    """
    names, turns = list(work), Turns({name: [] for name in work}, {})
    for number, value in enumerate(inputs):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            began = time.perf_counter()
            result = work[name](value)
            if device != "cpu":
                torch.cuda.synchronize(device)
            seconds = result if isinstance(result, Taken) else time.perf_counter() - began
            turns.results[name] = result
            if number >= warm_up:
                turns.seconds[name].append(seconds)
    return turns


def contest(
    options: Namespace, benchmark: str, text: str, work: Work, pairs: Pairs, inputs: Any = None, warm_up: int = 1
) -> Turns:
    """Let contestants take turns, print the ratios of ``pairs`` and append them to --csv.

    Args:
        inputs: One for each round; None: as many rounds as --repeats says, whose number is no input.
    """
    progress(f"== {benchmark}, {text}")
    turns = take_turns(work, inputs or range(options.repeats + 1), warm_up=warm_up)
    report(benchmark, text, turns.seconds, pairs, options.csv)
    return turns


def texts_of(options: Namespace, count: int = 0) -> Iterator[tuple[str, int, Path]]:
    """Yield the kinds of text that were asked for, the number of lines of each (a fifth of ``count`` if long), and an
    empty folder that is deleted in the end."""
    for kind in [options.text] if options.text else ["short", "long"]:
        with tempfile.TemporaryDirectory() as folder:
            yield kind, max(1, count // 5) if kind == "long" else count, Path(folder)


def read_pairs(kind: str, count: int | None = None, data: Sequence[str] | None = None) -> list[tuple[str, str]]:
    """Return pairs of lines (German, English): ``short`` ones, ``long`` ones that are made of consecutive lines, or
    all as they come (``mixed``).

    Args:
        count: How many, at most; None: all.
        data: Two files whose lines translate each other, the second in English; None: the demo corpus.
    """
    if data is None:
        demo = find_resource("demo").get(progress)
        data = [str(demo / "train.de-en.de"), str(demo / "train.de-en.en")]
    sides = (Path(path).read_text(encoding="utf-8").splitlines() for path in data)
    found, joined = dict[tuple[str, str], None](), list[tuple[str, str]]()  # each pair of lines once
    for pair in zip(*sides, strict=True):
        joined.append(pair)
        words = sum(len(english.split()) for _, english in joined)
        if words >= LONG or kind != "long":
            source, target = (" ".join(lines) for lines in zip(*joined, strict=True))
            if kind != "short" or words in SHORT:
                found[source, target] = None
            joined.clear()
    return list(found)[:count]


def write_corpus(pairs: Sequence[tuple[str, str]], folder: Path) -> Path:
    """Write pairs as a directory of raw text, whose validation set is the first 16."""
    folder.mkdir(parents=True)
    for split, some in {"train": pairs[16:], "valid": pairs[:16]}.items():
        for language, lines in zip(("de", "en"), zip(*some, strict=True), strict=True):
            (folder / f"{split}.de-en.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def multiplies_bfloat16() -> bool:
    """Return whether this processor multiplies in bfloat16; if it does not, nobody is measured in it."""
    return type_on(torch.device("cpu"), "bf16") == torch.bfloat16


def say_absent(name: str, reason: object) -> None:
    """Say that a contestant cannot take part, which is no error."""
    progress(f"without {name}: {str(reason).splitlines()[0]}")


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark, which prints its description as it is written."""
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--csv", metavar="FILE", help="append the rows to this file")
    kinds = "lines of 4 to 12 words, of about 60, or as they come; default: the first two"
    add("--text", choices=("short", "long", "mixed"), help=kinds)
    add("--data", nargs=2, metavar="FILE", help="two files of lines that translate each other, the second in English")
    add("--repeats", type=int, default=5, help="rounds after the warm-up")
    return parser

"""``xrep-eval all``: every test that finds its data in a folder."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xrep.errors import UserError
from xrep_cli.evaluations import common

DESCRIPTION = """\
Every test whose data lies in --data or up to four folders below it, known by the names of the files: tatoeba, bucc,
sts, senteval, alignment and language-bias. One table, one JSON with the whole result of each.

  xrep-eval all --path run1/best --data data/ --json results.json
  xrep-eval all --path run1/best --data data/ --cache vectors/     # the second time is quicker

A test that cannot be measured is named, and the others go on; the exit code is then 2. Each test has its usual options;
for others run it by its name. Of BUCC with a single split the threshold is that split's best, and labelled (oracle)."""

_DEPTH = 4
_DATA = {
    "tatoeba": r"tatoeba\..+-eng\..+",
    "bucc": r".+-.+\..+\.gold",
    "sts": r"STS\.input\..+\.txt|sts-test\.csv|SICK_test_annotated\.txt|stsb-.+-test\.csv",
    "senteval": r"(rt-polarity|custrev|mpqa)\.pos|subj\.subjective|TREC\.train|train_5500\.label|sentiment-train"
    r"|stsa\.fine\.train|msr_paraphrase_train\.txt|SICK_train\.txt",
    "alignment": r"sts-test\.csv",
    "language-bias": r"tatoeba\..+-eng\..+",
}
"""By which files a test's data is known."""
_FROM_THE_TOP = ("sts", "senteval")
"""Tests that find their own way below one folder, made once; of the others each folder with such files is measured."""
_FROM_A_FILE = ("alignment",)
"""Tests whose ``--data`` is the file itself."""


@dataclass(frozen=True)
class Test:
    """One run of a subcommand: ``name`` with ``options``, shown as ``label``."""

    name: str
    label: str
    options: list[str]


def add_options(parser: argparse.ArgumentParser) -> None:
    common.add_options(parser)
    parser.add_argument("--data", required=True, metavar="DIR", help="folder with the data of any tests")


def find_tests(root: Path) -> list[Test]:
    """The tests whose data lies below a folder, in the order of ``xrep-eval --help``.

    Raises:
        UserError: no such folder, or nothing in it.
    """
    if not root.is_dir():
        raise UserError("no such folder", path=root, cure="name a folder with data of tests")
    folders = dict(_walk(root))
    tests = [test for name in _DATA for test in _tests_of(name, root, folders)]
    if not tests:
        raise UserError("no data of any test in it", path=root, cure="xrep-eval TEST --help says what each test reads")
    return tests


def _walk(root: Path) -> Iterator[tuple[Path, list[str]]]:
    for place, folders, names in os.walk(root):
        folders.sort()
        if len(Path(place).relative_to(root).parts) >= _DEPTH:
            folders.clear()
        yield Path(place), names


def _tests_of(name: str, root: Path, folders: dict[Path, list[str]]) -> Iterator[Test]:
    pattern = re.compile(_DATA[name])
    found = {place: files for place, names in folders.items() if (files := list(filter(pattern.fullmatch, names)))}
    if name in _FROM_THE_TOP:
        if found:
            yield Test(name, name, ["--data", str(root)])
        return
    for place, files in found.items():
        label = name if len(found) == 1 else f"{name} {place.relative_to(root)}"
        pairs = {file.partition(".")[0] for file in files}
        single = name == "bucc" and len(pairs) == len(files)
        data = place / files[0] if name in _FROM_A_FILE else place
        yield Test(name, label, ["--data", str(data), *["--oracle"] * single])


def run(options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    from xrep.evaluation.result import make_result

    tests = find_tests(Path(options.data))
    encoder = encoders.open()
    results, failed = {}, {}
    for number, test in enumerate(tests, start=1):
        print(f"{number} of {len(tests)}: {test.label}", file=sys.stderr, flush=True)
        try:
            results[test.label] = _measure(test, options, encoders).result
        except (UserError, OSError) as error:
            failed[test.label] = " ".join(str(error).split("\n"))
        except Exception as error:  # a bug in one test is no reason to lose what the others found
            traceback.print_exc()
            failed[test.label] = f"{type(error).__name__}: {error}"
    if encoders.listed is not None:
        return common.Report({}, "", failed)
    headline = {
        f"{label}: {name}": value for label, found in results.items() for name, value in found["headline"].items()
    }
    result = make_result(
        "all",
        {"results": results, "failed": failed},
        headline=headline,
        encoder=encoder,
        data=[],  # each result names its own
        settings={"data": str(options.data)},
        overlap=None,
    )
    return common.Report(result, _table(results, failed), failed)


def _measure(test: Test, options: argparse.Namespace, encoders: common.Encoders) -> common.Report:
    module = importlib.import_module(f"xrep_cli.evaluations.{test.name.replace('-', '_')}")
    parser = argparse.ArgumentParser(test.name)
    module.add_options(parser)
    own = parser.parse_args(test.options)
    for name in ("path", "plugin", "batch_tokens", "cache", "drop_overlap", "list_sentences"):
        if hasattr(own, name):
            setattr(own, name, getattr(options, name))
    return module.run(own, encoders)


def _table(results: dict[str, dict], failed: dict[str, str]) -> str:
    from xrep.evaluation.overlap import Overlap
    from xrep.evaluation.text_table import table

    rows, overlaps = [], []
    for label, result in results.items():
        rows += [[label, name, f"{value:.2f}"] for name, value in result["headline"].items()] + [[]]
        if result["overlap"]:
            overlaps.append(f"{label}: {Overlap(**result['overlap']).line}")
    failures = [f"{label}: not measured: {message}" for label, message in failed.items()]
    return "\n".join([table(["test", "figure", "value"], rows[:-1]), *overlaps, *failures])

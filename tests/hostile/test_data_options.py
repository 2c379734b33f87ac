"""xrep-preprocess on hostile inputs, and the options of tasks at their extremes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.refusals import Case, case_name, check_refused
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.tasks.nli import NliTask
from xrep.tasks.translation import TranslationTask

TEXT = "--bitext de-en=x.tsv --vocab-size 40 --destdir out"
CASES = [
    (f"--bitext {spec} --destdir out", message)
    for spec, message in {
        "klingon-en=x.tsv": "cannot read the parallel text",
        "../x-en=x.tsv": "cannot read the parallel text",
        "de;rm-en=x.tsv": "cannot read the parallel text",
        "de-de=x.tsv": "names de twice",
        "de-en=": "cannot read the parallel text",
        "de-en=folder": "a folder, not a file",
        "de-en=dangling": "no such file",
        "de-en=/dev/null": "a pipe or device is read only once",
        "de-en=empty,empty": "the file is empty",
        "de-en=x.de,short.en": "lines, but short.en has",
        "de-en=bytes.tsv": "invalid UTF-8",
        "de-en=blank.tsv": "no training pair is left",
        "de-en=x.tsv:9,1": "2 columns where 9 columns are needed",
        "de-en=x.tsv:0,1": "needs two different columns",
        "de-en=x.tsv@0": "a sample of 0 pairs",
    }.items()
] + [
    (f"{TEXT} {option}", message)
    for option, message in {
        "--destdir x.tsv": "exists and is not empty",
        "--destdir folder": "exists and is not empty",
        "--destdir x.tsv/out": "x.tsv/out: Not a directory",
        "--destdir /proc/out": "/proc/out: No such file or directory",
        "--vocab-size 2147483648": "vocab",
        "--vocab-size 7": "vocab",
        "--vocab-size 1000000000": "vocab",
        "--vocab-size 9999999999999999999999": "vocab",
        "--sampling-exponent 1e308": "sampling-exponent",
        "--sampling-exponent nan": "sampling-exponent",
        "--min-length -1": "length",
        "--max-length 0": "length",
        "--max-length-ratio 0": "length",
        "--max-length inf": "max-length",
        "--sample 0": "sample",
        "--valid-size -1": "valid",
        "--seed 99999999999999999999999": "seed",
        "--tokenizer empty": "empty",
        "--tokenizer x.tsv": "not a SentencePiece model",
        "--source-tokenizer folder": "no such tokenizer",
        "--exclude nothing": "no such file",
        "--exclude bytes.tsv": "invalid UTF-8",
        "--valid de-en=x.tsv@3": "only training text is sampled",
        "--valid xx-yy=x.tsv": "no training pair is left",
        "--json x.tsv": "the same file as",
        "--json out": "the same file as",
        "--json folder": "a folder already",
        "--json nothing/x": "no such folder",
    }.items()
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    words = (("one", "two", "three"), ("red", "blue"), ("car", "bus", "cat"), ("runs", "stops", "waits"))
    lines = [" ".join(some) for some in itertools.product(*words)]
    texts = {
        "x.tsv": [f"{line[::-1]}\t{line}" for line in lines],
        "x.de": lines,
        "short.en": lines[:9],
        "empty": [],
        "blank.tsv": ["", ""],
    }
    for name, some in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in some), encoding="utf-8")
    (folder / "bytes.tsv").write_bytes(b"\xff\xfe\x00")
    (folder / "folder").mkdir()
    (folder / "folder" / ".hidden").touch()
    (folder / "dangling").symlink_to("nowhere")
    return folder


@pytest.mark.parametrize("case", [Case("preprocess", *case) for case in CASES], ids=case_name)
def test_refused(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)


@pytest.mark.slow
def test_a_link_is_followed(folder: Path, tmp_path: Path) -> None:
    from xrep_cli.preprocess import main

    for number, target in enumerate(("empty", "later")):
        (tmp_path / "empty").mkdir(exist_ok=True)
        (tmp_path / f"link{number}").symlink_to(target)
        line = f"--bitext de-en={folder}/x.tsv --vocab-size 25 --destdir {tmp_path}/link{number}".split()
        assert main(line) == 0
        assert os.path.islink(tmp_path / f"link{number}") and (tmp_path / target / "manifest.json").is_file()


# -- options of tasks -------------------------------------------------------------------------------------------------

NUMBERS = [None, -(10**30), -1, 0, 1, 2, 3, 8, 10**9, 10**12, 2**62, 2**63, 10**30]
FRACTIONS = [-1.0, 0.0, 1e-300, 0.5, 1.0, 1.5, 1e300, float("inf"), float("-inf"), float("nan")]
TASKS: list[Any] = [BitextTask, TranslationTask, MonolingualTask, NliTask]


@st.composite
def configurations(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    kind = draw(st.sampled_from(TASKS))
    numbers = {"batch_size": NUMBERS, "max_tokens": NUMBERS, "max_length": NUMBERS, "vocab_size": NUMBERS}
    values = {**numbers, "sampling_alpha": FRACTIONS, "vocabulary_alpha": FRACTIONS}
    fields = [name for name in kind.Config.__dataclass_fields__ if name in values]
    chosen = draw(st.lists(st.sampled_from(fields), unique=True, max_size=4))
    return kind, {name: draw(st.sampled_from(values[name])) for name in chosen}


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(configurations())
def test_a_configuration_is_refused_or_makes_a_batch(data_directory: Path, drawn: tuple[Any, dict[str, Any]]) -> None:
    kind, values = drawn
    optional = {"max_tokens"} | ({"batch_size"} if kind in (TranslationTask, MonolingualTask) else set())
    if any(value is None and name not in optional for name, value in values.items()):
        return  # the types of a configuration are checked before its ranges
    config = kind.Config(data=str(data_directory), **values)
    problems = config.problems()
    assert all(any(name in problem for name in values) and "\n" not in problem for problem in problems)
    if problems or kind not in (BitextTask, TranslationTask):
        return
    task = kind(config, 1)
    try:
        task.check_size(1)
    except UserError as error:
        assert "do not fill a batch" in str(error)
        return
    assert len(task.make(next(task.plan(stop=task.examples)).what)) > 0 and task.examples_per_batch > 0


def test_data_of_another_kind(data_directory: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("one sentence\n\nanother one\n", encoding="utf-8")
    cases = [
        (BitextTask, folder / "folder", "no parallel training text"),
        (BitextTask, folder / "x.tsv", "no such folder"),
        (BitextTask, folder / "nothing", "no such folder"),
        (TranslationTask, tmp_path, "makes no pairs"),
        (MonolingualTask, data_directory, ""),
        (MonolingualTask, folder / "folder", "no training text"),
        (NliTask, data_directory, ""),
        (NliTask, folder / "x.tsv", ""),
        (NliTask, tmp_path, ""),
    ]
    for kind, place, message in cases:
        with pytest.raises(UserError) as caught:
            kind(kind.Config(data=str(place)), 1)
        assert message in str(caught.value) and "\n" not in str(caught.value), (kind, place)

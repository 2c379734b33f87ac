"""xrep-predict, given hostile inputs: one line, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.annotated import write_labels
from tests.support.encoders import write_encoder
from xrep_cli import train

pytestmark = pytest.mark.slow
TINY = (
    "--task classification --criterion classification --languages de --layers 1 --hidden-size 16 --heads 2 "
    "--feedforward-size 16 --max-positions 32 --max-length 32 --vocab-size 50 --max-steps 1 --device cpu "
    "--no-tensorboard --warmup-steps 0"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    data = write_labels(folder / "data")
    assert train.main([str(data), "--save-dir", str(folder / "run"), *TINY.split()]) == 0
    write_encoder(folder / "encoder")
    (folder / "in.txt").write_text("der Koch\n", encoding="utf-8")
    (folder / "three.tsv").write_text("a\nb\tc\nd\te\tf\n", encoding="utf-8")
    (folder / "latin.txt").write_bytes(b"sch\xf6n\n")
    (folder / "zero").symlink_to("/dev/zero")
    return folder


@pytest.mark.parametrize(
    "case",
    [
        Case("predict", "--path nowhere --input in.txt", "nowhere: no such checkpoint"),
        Case("predict", "--path data --input in.txt", "data: not a checkpoint"),
        Case("predict", "--path encoder --input in.txt", "is a sentence encoder, not a classifier"),
        Case("predict", "--path run/best --input absent.txt", "absent.txt"),
        Case("predict", "--path run/best --input latin.txt", "latin.txt:1: invalid UTF-8"),
        Case("predict", "--path run/best --input three.tsv", "three.tsv:3: 3 columns, where a line is text"),
        Case("predict", "--path run/best --input three.tsv --output out.txt", "three.tsv:3: 3 columns"),
        Case("predict", "--path run/best --input in.txt --output in.txt", "--output is the same file as --input"),
        Case("predict", "--path run/best --input in.txt --output data", "data: is a folder already"),
        Case("predict", "--path run/best --input in.txt --batch-tokens 0", "--batch-tokens 0; give at least 1"),
        Case("predict", "--path run/best --input in.txt --device meta", "meta is not a device of this machine"),
        Case("predict", "--path run/best --input zero", "zero:1: "),
        Case("predict", "--input in.txt", "the following arguments are required: --path"),
    ],
    ids=case_name,
)
def test_refused(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)

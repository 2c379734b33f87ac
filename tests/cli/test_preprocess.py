"""``xrep-preprocess``: the command of the manual, vocabularies of other data, and parts of the text."""

import json
import os
from pathlib import Path

import pytest

from tests.data.test_preprocess import PAIRS, TURKISH
from tests.support.commands import Commands
from tests.support.corpus import write_lines
from xrep.data.table import DataDirectory

GERMAN, ENGLISH = (list(side) for side in zip(*PAIRS, strict=True))
FRENCH = [text for text, _ in TURKISH]  # any other language


@pytest.fixture
def text(tmp_path: Path) -> Path:
    write_lines(tmp_path / "deu-eng.tsv", [f"{en}\t{de}" for en, de in zip(ENGLISH, GERMAN, strict=True)])
    write_lines(tmp_path / "train.fr", FRENCH)
    write_lines(tmp_path / "train.en", ENGLISH)
    write_lines(tmp_path / "tatoeba" / "tatoeba.deu-eng.eng", [ENGLISH[0].upper(), ENGLISH[1]])
    return tmp_path


@pytest.mark.slow
def test_the_command_of_the_manual(text: Path, cli: Commands) -> None:
    command = "--bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en --vocab-size 75 --exclude tatoeba/ "
    done = cli("preprocess", *(command + "--destdir data-bin --json report.json").split())
    assert done.code == 0, done.err
    assert "deu-eng.tsv: column 1 is English, so column 2 is read as de" in done.out
    assert "\nnext: xrep-train data-bin --task bitext --criterion dual_moco" in done.out
    table = [line.split() for line in done.out.splitlines() if line.startswith(("corpus", "de-en", "total"))]
    assert table[0][:3] == ["corpus", "read", "excluded"] and table[-1][:3] == ["total", "360", "4"]
    report = json.loads((text / "report.json").read_text())
    assert report["cleaning"]["de-en deu-eng.tsv"]["excluded"] == 2 and report["languages"] == ["de", "en", "fr"]
    data = DataDirectory(text / "data-bin")
    pair = data.splits["train"][0]
    source, target = (data.tokenizers["shared"].decode(side[0]) for side in (pair["source"], pair["target"]))
    assert GERMAN.index(source) == ENGLISH.index(target) > 1
    assert sorted(os.listdir(text)) == ["data-bin", "deu-eng.tsv", "report.json", "tatoeba", "train.en", "train.fr"]


def test_json_alone_on_standard_output(text: Path, data_directory: Path, cli: Commands) -> None:
    command = ["--bitext", "de-en=deu-eng.tsv", "--tokenizer", data_directory, "--destdir", "out", "--json", "-"]
    done = cli("preprocess", *command, "--valid", "de-en=deu-eng.tsv:2,1")  # all of the text is validation text
    assert done.code == 2 and done.out == ""
    assert "no training pair is left (180 read, 180 in valid/test)" in done.err
    splits = json.loads(cli("preprocess", *command, "--valid-size", "0").out)["splits"]
    assert list(splits) == ["train"] and splits["train"][0]["rows"] == 180


@pytest.mark.slow
def test_the_vocabulary_of_other_data(text: Path, data_directory: Path, cli: Commands) -> None:
    """Text is prepared for an existing encoder."""
    german, french = ["--bitext", "de-en=deu-eng.tsv"], ["--bitext", "fr-en=train.fr,train.en"]
    names = ("first", "second", "third", "fourth")
    for name, bitext, options in (
        ("first", german, "--vocab-size 60"),
        ("second", french, "--tokenizer first"),
        ("third", french, f"--source-tokenizer first --target-tokenizer {data_directory}"),
        ("fourth", german, "--source-tokenizer third --target-tokenizer first"),
    ):
        done = cli("preprocess", *bitext, *options.split(), "--destdir", name)
        assert done.code == 0, done.err
    first, second, third, fourth = (DataDirectory(text / name).tokenizers for name in names)
    assert first["shared"].model == second["shared"].model == third["source"].model == fourth["shared"].model
    assert third["target"].model == DataDirectory(data_directory).tokenizers["shared"].model != third["source"].model

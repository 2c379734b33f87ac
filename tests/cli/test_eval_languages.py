"""The languages that ``xrep-eval all`` measures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.test_eval import _write_sts, data, two_tests
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation import bucc
from xrep_cli.eval import main

__all__ = ["data", "two_tests"]


@pytest.mark.usefixtures("two_tests")
def test_all_measures_the_languages_of_the_training_text(
    data: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    shutil.copytree(data, tmp_path / "data" / "tatoeba")  # de and fr
    _write_sts(tmp_path / "data" / "STSBenchmark")  # en
    options = ["--data", str(tmp_path / "data"), "--json", str(tmp_path / "out.json")]

    def measured(path: Path, *more: str) -> tuple[list[str], dict[str, str]]:
        assert main(["all", "--path", str(path), *options, *more]) == 0
        values = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["values"]
        languages = values["results"]["tatoeba"]["settings"]["languages"] if "tatoeba" in values["results"] else []
        return languages, values["left_out"]

    german = write_encoder(tmp_path / "german" / "best")
    assert measured(german) == (["de"], {})
    assert "languages of the encoder's training text: de,en" in capsys.readouterr().err
    assert measured(german, "--langs", "fra,eng") == (["fr"], {})
    assert measured(german, "--langs", "all") == (["de", "fr"], {})
    assert measured(german, "--langs", "fr, es") == (["fr"], {"sts": "no STS data for fr es"})
    assert "sts: left out: no STS data for fr es" in capsys.readouterr().out
    spanish = write_encoder(tmp_path / "spanish" / "best", languages=(["es"], ["en"]))
    assert measured(spanish) == ([], {"tatoeba": "no Tatoeba files for en es"})
    assert main(["all", "--path", str(german), *options, "--langs", "ko,ja"]) == 2
    assert "no test has data in ko,ja; name others by --langs, or all" in capsys.readouterr().err


def test_bucc_pairs_of_languages_that_are_there(tmp_path: Path) -> None:
    for pair in ("de-en", "fr-en", "zh-en"):
        (tmp_path / f"{pair}.test.gold").write_text("")
    assert list(bucc.select("de?,eng?,zh?", tmp_path)) == ["de-en", "zh-en"]
    with pytest.raises(UserError, match="no BUCC files of two of en es"):
        bucc.select("es?,en?", tmp_path)

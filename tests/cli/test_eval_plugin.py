"""An evaluation of somebody else: one file, and ``--plugin``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.encoders import write_encoder
from xrep.registry import EVALUATIONS
from xrep_cli.eval import main

PLUGIN = '''
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import EncoderOptions, Evaluation
from xrep.evaluation.evaluation import Figures, table
from xrep.registry import EVALUATIONS


@EVALUATIONS.register("mine")
class Mine(Evaluation):
    """Measure the mean cosine of neighbouring lines.

      xrep-eval mine --path run1/best --data lines.txt --scale 100
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions):
        data: str
        """File of sentences, of which 50% are enough."""
        scale: float = 1.0
        """Factor of the figure."""

    @classmethod
    def find(cls, folder):
        return {path: cls.Config(data=str(path)) for path in folder.glob("*.lines")}

    def read(self):
        if not Path(self.config.data).is_file():
            raise UserError("no such file", path=self.config.data)
        self.lines = Path(self.config.data).read_text().splitlines()

    def measure(self, encoder):
        vectors = encoder.encode(self.lines, "de")
        mean = self.config.scale * float(np.mean((vectors[1:] * vectors[:-1]).sum(axis=1)))
        return Figures(
            text=table(["what", "mean"], [["cosine", f"{mean:.3f}"]]),
            values={"mean": mean},
            headline={"cosine": mean},
            settings={"scale": self.config.scale},
            files=[self.config.data],
        )
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the plugin, an encoder and data."""
    (tmp_path / "my_evaluation.py").write_text(PLUGIN)
    (tmp_path / "a.lines").write_text("Wir trinken Wasser.\nTom liebt Musik.\nHast du das Buch gelesen?\n")
    write_encoder(tmp_path / "best")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    EVALUATIONS._targets.pop("mine", None)
    sys.modules.pop("my_evaluation", None)


def test_it_is_measured_like_the_others(place: Path, capsys: pytest.CaptureFixture) -> None:
    arguments = ["mine", "--plugin", "my_evaluation", "--data", "a.lines"]
    assert main([*arguments, "--path", "best", "--scale", "100", "--json", "out.json"]) == 0
    printed = capsys.readouterr().out
    record = json.loads((place / "out.json").read_text())
    assert record["test"] == "mine" and record["settings"]["scale"] == 100.0 and list(record["data"]) == ["a.lines"]
    assert printed == f"what      mean\n------  ------\ncosine  {record['values']['mean']:.3f}\n"
    assert record["overlap"] is None and record["model"]["path"] == "best"
    assert main([*arguments, "--list-sentences", "list.tsv"]) == 0
    assert (place / "list.tsv").read_text().splitlines()[1] == "de\tTom liebt Musik."
    assert main(["mine", "--plugin=my_evaluation", "--data", "absent", "--path", "best"]) == 2
    assert "absent: no such file" in capsys.readouterr().err


def test_it_is_in_the_help_and_in_all(place: Path, capsys: pytest.CaptureFixture) -> None:
    for arguments, expected in (
        (["--plugin", "my_evaluation", "--help"], ["mine", "Measure the mean cosine of neighbouring lines"]),
        (["mine", "--plugin", "my_evaluation", "--help"], ["--scale X", "of which 50% are enough", "xrep-eval mine"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr().out
        assert ended.value.code == 0 and all(text in printed for text in expected), printed
    assert main(["all", "--plugin", "my_evaluation", "--path", "best", "--data", ".", "--json", "-"]) == 0
    assert list(json.loads(capsys.readouterr().out)["values"]["results"]) == ["mine"]


def test_a_broken_one_does_not_hide_the_others(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(EVALUATIONS._targets, "absent", "no_such_module:Absent")
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "(no_such_module:Absent cannot be read)" in printed and "tatoeba" in printed
    assert main(["absent", "--path", "best"]) == 2
    assert "no_such_module" in capsys.readouterr().err

"""An evaluation of somebody else: one file, and ``--plugin``."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Measure
from tests.support.commands import Commands
from xrep.registry import EVALUATIONS, IMPORTED

PLUGIN = '''
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import EncoderOptions, Examples, Score, TableEvaluation
from xrep.registry import EVALUATIONS


@EVALUATIONS.register("mine")
class Mine(TableEvaluation):
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
        lines = Path(self.config.data).read_text().splitlines()
        return [Examples("lines", ("de",), (lines,), files=(Path(self.config.data),))]

    def score(self, model, examples):
        vectors = model.encode(examples.columns[0], "de")
        return Score({"cosine": self.config.scale * float(np.mean((vectors[1:] * vectors[:-1]).sum(axis=1)))})
'''


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Sentences, beside which there is the plugin."""
    (tmp_path / "my_evaluation.py").write_text(PLUGIN)
    (tmp_path / "a.lines").write_text("Wir trinken Wasser.\nTom liebt Musik.\nHast du das Buch gelesen?\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "a.lines"
    EVALUATIONS._targets.pop("mine", None)
    sys.modules.pop("my_evaluation", None)
    IMPORTED[:] = [module for module in IMPORTED if module != "my_evaluation"]


def test_it_is_measured_like_the_others(data: str, shared_encoder: Path, cli: Commands) -> None:
    line = ["mine", "--plugin", "my_evaluation", "--data", data]
    printed = cli("eval", *line, "--path", shared_encoder, "--scale", "100", "--json", "out.json").out
    record = json.loads((cli.folder / "out.json").read_text())
    assert record["test"] == "mine" and record["settings"]["scale"] == 100.0 and list(record["data"]) == ["a.lines"]
    figure = record["values"]["tables"]["lines"]["cosine"]
    assert record["headline"] == {"mean of 1": figure} and f"German (lines)         3   {figure:.2f}\n" in printed
    assert record["overlap"] == {"found": None, "total": 3, "dropped": False}
    assert record["model"]["path"] == str(shared_encoder)
    assert cli("eval", *line, "--list-sentences", "list.tsv").code == 0
    assert (cli.folder / "list.tsv").read_text().splitlines()[1] == "de\tTom liebt Musik."
    refused = cli("eval", "mine", "--plugin=my_evaluation", "--data", "absent", "--path", shared_encoder)
    assert refused.code == 2 and "absent: no such file" in refused.err


def test_it_is_in_the_help_and_in_all(data: str, shared_encoder: Path, cli: Commands, measure: Measure) -> None:
    for words, expected in (
        (["--plugin", "my_evaluation", "--help"], ["mine", "Measure the mean cosine of neighbouring lines"]),
        (["mine", "--plugin", "my_evaluation", "--help"], ["--scale X", "of which 50% are enough", "xrep-eval mine"]),
    ):
        shown = cli("eval", *words)
        assert shown.code == 0 and all(text in shown.out for text in expected), shown.out
    found = measure("all", "--plugin", "my_evaluation", "--path", shared_encoder, "--data", ".")
    assert list(found["values"]["results"]) == ["mine"]


def test_a_broken_one_does_not_hide_the_others(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EVALUATIONS._targets, "absent", "no_such_module:Absent")
    shown = " ".join(cli("eval", "--help").out.split())
    assert "(no_such_module:Absent cannot be read)" in shown and "tatoeba" in shown
    assert "no_such_module" in cli("eval", "absent", "--path", "best").err

"""Registries: parts are imported when chosen, names are unique, and plugins and broken modules are handled."""

import subprocess
import sys

import pytest
import yaml

from tests.support.runs import environment, refusal, xrep_train
from xrep.errors import UserError
from xrep.registry import CRITERIA, REGISTRIES, Registry, import_plugin

CRITERION = '''
"""A criterion of somebody else."""

from __future__ import annotations

from dataclasses import dataclass

from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.registry import CRITERIA
from xrep.criteria.translation_ranking import TranslationRanking


@CRITERIA.register("pull")
class Pull(Criterion):
    """Pulls translations together."""

    @dataclass(kw_only=True)
    class Config:
        strength: float = 1.0
        """Weight of the loss."""

        def problems(self) -> list[str]:
            return [] if self.strength > 0 else [f"strength must be above 0, not {self.strength}"]

    def __init__(self, config, model, text):
        super().__init__()
        self.config = config

    def plan(self, batch, generator):
        return Planned(batch, {"pull": len(batch)})

    def forward(self, model, planned):
        sides = planned.batch.source, planned.batch.target
        source, target = (model.encode("shared", side)[0] for side in sides)
        return Loss({"pull": Term((source - target).square().sum(), self.config.strength)})


@CRITERIA.register("warm_ranking")
class WarmRanking(TranslationRanking):
    """Inherits its options and adds one."""

    @dataclass(kw_only=True)
    class Config(TranslationRanking.Config):
        warmth: int = 3
        """How warm."""
'''


def run_python(code, path=None):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(path))


def test_a_name_is_registered_once():
    registry = Registry("criterion", {"mine": "some.where:Mine"})
    registry.register("mine", "some.where:Mine")
    with pytest.raises(UserError) as error:
        registry.register("mine")(Registry)
    assert str(error.value) == (
        "the criterion 'mine' is registered twice: by some.where:Mine and by xrep.registry:Registry; rename one of them"
    )
    assert registry.target("mine") == "some.where:Mine"


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown criterion 'dual_moko'; did you mean 'dual_moco'"):
        CRITERIA.load("dual_moko")
    with pytest.raises(UserError, match=f"unknown criterion 'xyz'; known: {', '.join(CRITERIA.names())}"):
        CRITERIA.load("xyz")


def test_every_builtin_loads():
    for registry in REGISTRIES.values():
        for name in registry.names():
            # The options of encoders are those of the model that they belong to.
            assert hasattr(registry.load(name), "Shape" if registry.kind == "encoder" else "Config")


def test_a_plugin_trains(tmp_path, data_directory):  # noqa: F811
    (tmp_path / "their_losses.py").write_text(CRITERION)
    run = tmp_path / "run"
    small = "--towers shared --layers 1 --hidden-size 16 --heads 2 --feedforward-size 16 --batch-size 20 --max-steps 3"
    words = ["--task", "bitext", "--criterion", "pull", "--strength", "2", "--device", "cpu", *small.split()]
    finished = xrep_train(data_directory, "--plugin", "their_losses", *words, "--save-dir", run, path=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert (run / "last" / "model.safetensors").exists()
    saved = (run / "last" / "config.yaml").read_text()
    assert "name: pull\n  strength: 2.0" in saved and "plugins:\n- their_losses" in saved
    # The saved configuration names the plugin, too, and problems that the plugin finds are reported like all others.
    again = xrep_train("--config", run / "config.yaml", "--strength=-1", "--lr=x", path=tmp_path)
    assert [line.split("error: ")[1] for line in again.stderr.splitlines()] == [
        "criterion.strength must be above 0, not -1.0", "optimizer.lr must be a finite number, not 'x'",
    ]  # fmt: skip


def test_a_part_may_inherit_its_options(tmp_path):
    (tmp_path / "their_losses.py").write_text(CRITERION)
    words = ["--task", "bitext", "--criterion", "warm_ranking", "--plugin", "their_losses"]
    finished = xrep_train(*words, "--temperature", "0.2", "--warmth=4", "--print-config", path=tmp_path)
    printed = yaml.safe_load(finished.stdout)["criterion"]
    assert (printed["name"], printed["temperature"], printed["warmth"]) == ("warm_ranking", 0.2, 4), finished.stderr
    assert set(printed) > {"name", "temperature", "mask_equal_sentences", "warmth"}
    shown = xrep_train(*words, "--help", path=tmp_path).stdout
    assert "--warmth INT" in shown and "How warm. (default: 3)" in shown and "--temperature FLOAT" in shown


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "ModuleNotFoundError: No module named 'their_losses'; install it"),
        ("def broken(:", "SyntaxError: invalid syntax (their_losses.py, line 1)"),
        ("x = 1\nx / 0\n", "ZeroDivisionError: division by zero ({path}:2)"),
        (
            CRITERION.replace('"pull"', '"dual_moco"'),
            "registered twice: by xrep.criteria.dual_moco:DualMoco and by their",
        ),
    ],
)
def test_a_broken_plugin_is_one_line(tmp_path, source, message):
    if source is not None:
        (tmp_path / "their_losses.py").write_text(source)
    line = refusal(xrep_train("--plugin", "their_losses", "--help", path=tmp_path))
    assert message.format(path=tmp_path / "their_losses.py") in line


def test_entry_points(tmp_path):
    """Of two installed plugins one does not work. Nothing is imported before it is used."""
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    points = (
        "criterion.pull = their_losses:Pull\ncriterion.gone = their_package.gone:Gone\nmodel.bad = bad_module:Bad\n"
    )
    (metadata / "entry_points.txt").write_text("[xrep.plugins]\n" + points)
    (tmp_path / "their_losses.py").write_text(CRITERION)
    (tmp_path / "bad_module.py").write_text("class Bad(:\n")
    # A process of its own: the programs of xrep_train have torch, with which parts are imported for their options.
    shown = run_python(
        "from xrep_cli.train import main; main('--task bitext --criterion pull --help'.split())", tmp_path
    )
    names = ", ".join(sorted([*CRITERIA.names(), "gone", "pull"]))
    assert f"{names} (chosen: pull)" in " ".join(shown.stdout.split())
    assert "Weight of the loss. (default: 1.0)" in shown.stdout
    config = xrep_train("--task", "bitext", "--criterion", "pull", "--print-config", path=tmp_path)
    assert "criterion:\n  name: pull\n  strength: 1.0\n" in config.stdout, config.stderr
    gone = refusal(xrep_train("--task", "bitext", "--criterion", "gone", path=tmp_path))
    assert gone.startswith("their_package.gone:Gone.Config cannot be loaded: No module named 'their_package'")
    bad = refusal(xrep_train("--task", "bitext", "--criterion", "pull", "--model", "bad", path=tmp_path))
    assert bad.startswith("bad_module:Bad.Config cannot be loaded: invalid syntax")


def test_a_taken_name_among_entry_points(tmp_path):
    metadata = tmp_path / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[xrep.plugins]\ncriterion.dual_moco = theirs:Moco\n")
    line = refusal(xrep_train("--help", path=tmp_path))
    assert "'dual_moco' is registered twice: by xrep.criteria.dual_moco:DualMoco and by theirs:Moco" in line


def test_a_plugin_is_imported_from_anywhere_on_the_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unique_plugin_name.py").write_text("raise RuntimeError('two\\nlines')\n")
    with pytest.raises(UserError, match=r"RuntimeError: two lines \(.*unique_plugin_name\.py:1\)"):
        import_plugin("unique_plugin_name")

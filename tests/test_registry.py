"""Registries: parts are imported when chosen, names are unique, and plugins and broken modules are handled."""

import sys

import pytest
import yaml

from tests.support.runs import options
from xrep import registry as registries
from xrep.errors import UserError
from xrep.registry import CRITERIA, REGISTRIES, Registry, import_plugin

CRITERION = '''
"""A criterion of somebody else."""

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


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on the module search path; what its modules and entry points register is forgotten after the test."""
    for registry in REGISTRIES.values():
        monkeypatch.setattr(registry, "_targets", dict(registry._targets))
    registries._register_entry_points.cache_clear()
    known = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "their_losses.py").write_text(CRITERION)
    yield tmp_path
    registries._register_entry_points.cache_clear()
    for name in ("their_losses", "bad_module"):
        if name not in known:
            sys.modules.pop(name, None)


def write_entry_points(place, lines):
    metadata = place / "their_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[xrep.plugins]\n{lines}\n")


def test_a_name_is_registered_once():
    registry = Registry("criterion", {"mine": "some.where:Mine"})
    registry.add("mine", "some.where:Mine")
    with pytest.raises(UserError, match="'mine' is registered twice: by some.where:Mine and by xrep.registry:Registry"):
        registry.register("mine")(Registry)
    assert registry.target("mine") == "some.where:Mine"


def test_every_builtin_loads():
    for registry in REGISTRIES.values():
        for name in registry.names():
            # The options of encoders are those of the model that they belong to; two kinds have none.
            others = {"encoder": "Shape", "format": "texts", "predictor": "predict_lines"}
            assert hasattr(registry.load(name), others.get(registry.kind, "Config"))


@pytest.mark.slow
def test_a_plugin_trains(place, cli, data_directory):
    words = options(criterion="pull", strength=2, plugin="their_losses", max_steps=2, save_dir="run")
    trained = cli("train", data_directory, *words)
    assert trained.code == 0, trained.err
    saved = (place / "run" / "last" / "config.yaml").read_text()
    assert "name: pull\n  strength: 2.0" in saved and "plugins:\n- their_losses" in saved
    # The saved configuration names the plugin, too, and problems that the plugin finds are reported like all others.
    again = cli("train", "--config", "run/config.yaml", "--strength=-1", "--lr=x")
    assert [line.split("error: ")[1] for line in again.err.splitlines()] == [
        "criterion.strength must be above 0, not -1.0", "optimizer.lr must be a finite number, not 'x'",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_a_part_may_inherit_its_options(cli):
    words = ["--task", "bitext", "--criterion", "warm_ranking", "--plugin", "their_losses"]
    printed = yaml.safe_load(cli("train", *words, "--temperature=0.2", "--warmth=4", "--print-config").out)["criterion"]
    assert (printed["name"], printed["temperature"], printed["warmth"]) == ("warm_ranking", 0.2, 4)
    assert set(printed) > {"name", "temperature", "mask_equal_sentences", "warmth"}
    shown = cli("train", *words, "--help").out
    assert "--warmth INT" in shown and "How warm. (default: 3)" in shown and "--temperature FLOAT" in shown


@pytest.mark.parametrize(("source", "message"), [
    ("def broken(:", "SyntaxError: invalid syntax (their_losses.py, line 1)"),
    ("x = 1\nraise RuntimeError('two\\nlines')\n", "RuntimeError: two lines ({path}:2)"),
    (CRITERION.replace('"pull"', '"dual_moco"'), "registered twice: by xrep.criteria.dual_moco:DualMoco and by"),
])  # fmt: skip
def test_a_broken_plugin_is_one_line(place, source, message):
    (place / "their_losses.py").write_text(source)
    with pytest.raises(UserError) as error:
        import_plugin("their_losses")
    assert message.format(path=place / "their_losses.py") in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_entry_points(place, cli):
    """Of three parts of an installed package two do not work. None is imported before it is used."""
    broken = "criterion.gone = their_package.gone:Gone\nmodel.bad = bad_module:Bad"
    write_entry_points(place, f"criterion.pull = their_losses:Pull\n{broken}")
    (place / "bad_module.py").write_text("class Bad(:\n")
    words = ["train", "--task", "bitext", "--criterion"]
    shown = cli(*words, "pull", "--help").out
    assert "bad_module" not in sys.modules
    assert f"{', '.join(CRITERIA.names())} (chosen: pull)" in " ".join(shown.split())
    assert "Weight of the loss. (default: 1.0)" in shown
    assert "criterion:\n  name: pull\n  strength: 1.0\n" in cli(*words, "pull", "--print-config").out
    gone, bad = cli(*words, "gone").err, cli(*words, "pull", "--model", "bad").err
    assert "error: their_package.gone:Gone cannot be loaded: No module named 'their_package'" in gone
    assert "error: bad_module:Bad cannot be loaded: invalid syntax" in bad


@pytest.mark.parametrize(("line", "message"), [
    ("criterion.dual_moco = theirs:Moco",
     "'dual_moco' is registered twice: by xrep.criteria.dual_moco:DualMoco and by theirs:Moco"),
    ("criteria.moco = theirs:Moco", "'criteria.moco' (theirs:Moco) is no part of xrep; its name must be KIND.NAME"),
])  # fmt: skip
def test_an_entry_point_that_cannot_be_used_is_named(place, cli, line, message):
    write_entry_points(place, line)
    assert message in cli("train", "--help").err

"""Every shipped recipe is a valid configuration."""

import re
import shlex
from pathlib import Path

import pytest

from tests.repository.test_docs import check_command
from xrep.config import compose, compose_course, read_yaml
from xrep.config.sections import merge
from xrep.training.run import run_directory

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("xrep/recipes/*.yaml")])
RECIPES = [path for path in FILES if path.parent.name != "effects"]  # those are of scripts/replicate


def test_there_are_recipes():
    assert {"en-zh.yaml", "de-en_small.yaml", "demo.yaml"} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_recipe_composes(path):
    given = read_yaml(path)
    runs = compose_course([(str(path), given)])
    if "stages" not in given:
        assert holds(runs[0].values, given)
        return
    common = {key: value for key, value in given.items() if key not in ("stages", "checkpoint")}
    for run, stage in zip(runs, given["stages"], strict=True):
        own = {key: value for key, value in stage.items() if key not in ("name", "init")}
        assert holds(run.values, merge(common, own))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_a_recipe_learns_does_not_depend_on_the_clock(path):
    """A slow or busy machine needs more minutes for the same steps and must not stop earlier."""
    runs = compose_course([(str(path), read_yaml(path))])
    assert [run.configs["trainer"].max_minutes for run in runs] == [None] * len(runs)


def holds(values, given):
    """Return whether the values contain everything that is given."""
    if isinstance(given, dict):
        return all(holds(values[key], value) for key, value in given.items())
    if isinstance(given, list):
        return len(values) == len(given) and all(map(holds, values, given))
    return values == given


def test_the_paper_recipe_has_the_values_of_table_9():
    run = compose([("", read_yaml(ROOT / "examples" / "moco_bert" / "en-zh.yaml"))])
    criterion, optimizer, trainer = (run.configs[name] for name in ("criterion", "optimizer", "trainer"))
    assert (criterion.queue_size, criterion.temperature, criterion.momentum) == (409600, 0.04, 0.999)
    assert (optimizer.lr, optimizer.weight_decay, run.configs["lr_scheduler"].warmup_steps) == (4e-5, 1e-4, 400)
    assert (trainer.max_epochs, trainer.clip_norm, 4 * run.configs["task"].batch_size) == (15, 10, 1024)
    assert (run.configs["model"].dropout, run.configs["model"].pooling) == (0.1, "mean")


@pytest.mark.parametrize(
    "readme", sorted(ROOT.glob("examples/*/*.md")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_the_commands_of_a_readme_that_measure_parse(readme):
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^xrep-(?:eval|export|mine|report) .*", text, flags=re.MULTILINE)
    assert commands
    for command in commands:
        check_command(shlex.split(command, comments=True))


def test_recipes_do_not_share_a_directory():
    """Recipes can run one after the other, because none finds the run of another in its directory."""
    courses = [compose_course([(str(path), read_yaml(path))]) for path in RECIPES]
    directories = [run_directory(run) for course in courses for run in course]
    assert len(set(directories)) == len(directories)


def test_the_recipe_with_nli_has_the_values_of_appendix_b():
    parts = {part["name"]: part for part in read_yaml(ROOT / "examples" / "moco_bert" / "nli.yaml")["parts"]}
    paper = read_yaml(ROOT / "examples" / "moco_bert" / "en-zh.yaml")
    assert all(parts["moco"][section] == paper[section] for section in ("task", "criterion"))
    assert parts["nli"]["weight"] == 0.1 and 4 * parts["nli"]["task"]["batch_size"] == 128
    assert holds(parts["nli"]["criterion"], {"head": "mlp", "head_size": 256, "scale_vectors": False})


def test_the_recipe_of_frozen_source_has_the_values_of_table_6():
    a, nli, b, english = compose_course([("", read_yaml(ROOT / "examples" / "frozen_source" / "zh-en.yaml"))])
    alone = compose([("", read_yaml(ROOT / "examples" / "frozen_source" / "nli.yaml"))])
    for run in (english, alone):  # section 4.2.3
        facts = run.configs["optimizer"].lr, run.configs["criterion"].temperature, run.configs["task"].batch_size
        assert facts == (1e-5, 0.05, 128)
    for run, batch_size, rate, queue_size in ((a, 200, 5e-5, 200_000), (b, 400, 2e-4, 10_000)):
        assert (run.configs["task"].batch_size, run.configs["optimizer"].lr) == (batch_size, rate)
        assert (run.configs["criterion"].queue_size, run.configs["criterion"].learnable_temperature) == (
            queue_size,
            True,
        )
    assert (nli.configs["criterion"].temperature, nli.configs["optimizer"].lr) == (0.05, 1e-5)
    assert b.init is None and nli.init == "runs/frozen_source/zh-en/A/best"
    assert b.configs["model"].source_encoder == "runs/frozen_source/zh-en/nli/best/source"


def test_the_recipes_of_hictl_have_the_values_of_table_9():
    for name, rate, betas, query in (("hictl", 2.5e-4, [0.9, 0.98], 768), ("hictl_large", 1e-4, [0.9, 0.999], 1024)):
        run = compose([("", read_yaml(ROOT / "examples" / "hictl" / f"{name}.yaml"))])
        assert (run.configs["optimizer"].lr, run.configs["optimizer"].betas) == (rate, betas)
        assert run.configs["model"].projection_size == query and run.configs["trainer"].max_steps == 200_000


def test_an_encoder_under_a_fresh_decoder_has_the_papers_rate():
    for name in ("nmt_iwslt14_de-en", "nmt_wmt14_en-de", "nmt_pair"):
        recipe = ROOT / "examples" / "hictl" / f"{name}.yaml"
        for run in compose_course([("", read_yaml(recipe))]):
            (multiplier,) = run.configs["optimizer"].lr_multipliers
            assert run.configs["optimizer"].lr * float(multiplier.rpartition("=")[2]) == pytest.approx(2e-5, rel=0.01)

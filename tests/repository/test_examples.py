"""Every recipe that is shipped is a configuration the code understands."""

from pathlib import Path

import pytest

from xrep.config import compose, read_yaml
from xrep.training.run import run_directory

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*ROOT.glob("examples/*/*.yaml"), *ROOT.glob("xrep/recipes/*.yaml")])


def test_there_are_recipes():
    assert {"en-zh.yaml", "de-en_small.yaml", "demo.yaml"} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_recipe_composes(path):
    run = compose([(str(path), read_yaml(path))])
    given = read_yaml(path)
    assert all(run.values[section][key] == value for section in given for key, value in given[section].items())


def test_the_paper_recipe_has_the_values_of_table_9():
    run = compose([("", read_yaml(ROOT / "examples" / "moco_bert" / "en-zh.yaml"))])
    criterion, optimizer, trainer = (run.configs[name] for name in ("criterion", "optimizer", "trainer"))
    assert (criterion.queue_size, criterion.temperature, criterion.momentum) == (409600, 0.04, 0.999)
    assert (optimizer.lr, optimizer.weight_decay, run.configs["lr_scheduler"].warmup_steps) == (4e-5, 1e-4, 400)
    assert (trainer.max_epochs, trainer.clip_norm, run.configs["task"].batch_size) == (15, 10, 1024)
    assert (run.configs["model"].dropout, run.configs["model"].pooling) == (0.1, "mean")


def test_recipes_do_not_share_a_directory():
    """One after the other, none is refused because another's run is in its way."""
    directories = [run_directory(compose([(str(path), read_yaml(path))])) for path in RECIPES]
    assert len(set(directories)) == len(directories)

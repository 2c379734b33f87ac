"""Recipes: the configuration files that come with xrep, which are found by name, and files whose ``base`` is another.

A file with the key ``base: moco_bert/en-zh`` has the values of that recipe, but for its own. What lies deep can be
written as one key (``optimizer.lr: 1e-5``), and parts and stages are addressed by name (``parts.nli.weight: 0.2``).
Its own list of parts or stages replaces that of the base. A part that names both its task and its criterion has nothing
from the base, also not its weight; see ``over_stage`` for the others.
"""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from xrep.config.resolve import over_stage
from xrep.config.values import Layer, read_yaml
from xrep.errors import UserError, shown
from xrep.registry import nearest

RECIPES = Path(str(importlib.resources.files("xrep"))) / "recipes"
"""Folder of the shipped recipes. A recipe's name is its path below it, without ``.yaml``: ``moco_bert/en-zh``."""


def recipe_names() -> list[str]:
    """Return the names of all shipped recipes, sorted."""
    return sorted(path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))


def find_recipe(name: str | Path) -> Path:
    """Return a YAML file that is named by its path or, if there is no such file, a shipped recipe that is named so.

    Raises:
        UserError: there is neither.
    """
    if Path(name).exists() and not Path(name).is_dir():  # also a pipe
        return Path(name)
    names, wanted = recipe_names(), str(name)
    if wanted in names:
        return RECIPES / f"{wanted}.yaml"
    cure = nearest(wanted.removesuffix(".yaml"), names) or "name a YAML file, or one of the recipes"
    raise UserError("no such file or recipe", path=name, cure=f"{cure} (xrep recipes lists them)")


def read_recipe(name: str | Path, above: tuple[Path, ...] = ()) -> Layer:
    """Return the values of a recipe or another YAML file, over those of its base.

    Args:
        name: A path, or the name of a shipped recipe.
        above: The files of which it is the base.

    Raises:
        UserError: there is no such file or base, it cannot be read, or files are bases of each other.
    """
    path = find_recipe(name)
    if path.resolve() in above:
        raise UserError("is its own base", path=path, cure="name another base")
    values = read_yaml(path)
    if (base := values.pop("base", None)) is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"base {shown(base)} is no name", path=path, cure="write for example 'base: moco_bert/en-zh'")
    beside = path.parent / base
    below = read_recipe(beside if beside.is_file() else base, (*above, path.resolve()))
    return over_stage(below, values)

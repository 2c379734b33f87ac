"""xrep-recipes: list the training recipes that come with xrep, and print one."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Annotated

from xrep.config.recipes import find_recipe, recipe_names
from xrep_cli import common
from xrep_cli.command import Command

PAPERS = {
    "": "Without a paper",
    "cmlm": "CMLM: Universal Sentence Representation Learning with Conditional Masked Language Model (EMNLP 2021)",
    "dap": "DAP: Dual-Alignment Pre-training for Cross-lingual Sentence Embedding (ACL 2023)",
    "e5": "Multilingual E5 Text Embeddings: A Technical Report (2024)",
    "frozen_source": "Learning Monolingual Sentence Embeddings with Large-scale Parallel Translation Datasets",
    "hictl": "HiCTL: On Learning Universal Representations Across Languages (ICLR 2021)",
    "labse": "LaBSE: Language-agnostic BERT Sentence Embedding (ACL 2022)",
    "moco_bert": "MoCo-BERT: Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast (EMNLP 2021)",
}
"""Titles of the papers, by the first part of the names of their recipes."""


@dataclass(kw_only=True)
class RecipeCommands(common.JsonOption):
    """List the recipes that come with xrep: configurations of xrep-train, most of them with the values of a paper.

      # List the recipes, grouped by paper
      xrep-recipes                     # a line for each
      # Print the file of a recipe, to read it or to begin one of your own
      xrep-recipes show moco_bert/en-zh
      # Write the list for a program
      xrep-recipes --json recipes.json

    xrep-train --config moco_bert/en-zh task.data=pairs trains a recipe, here on other data.
    xrep-train --config NAME --print-config prints every option of a recipe. A file of your own that begins with
    `base: moco_bert/en-zh` has the values of that recipe, but for those that it sets."""


def list_recipes(options: RecipeCommands) -> None:
    names = sorted(recipe_names(), key=lambda name: (_paper(name), name))
    about = {name: find_recipe(name).read_text(encoding="utf-8").partition("\n")[0][2:] for name in names}
    width, lines = max(map(len, names)), list[str]()
    for paper, own in itertools.groupby(names, _paper):
        lines += ["", PAPERS[paper], *(f"  {name:<{width}}  {about[name]}" for name in own)]
    found = [{"name": name, "paper": _paper(name), "about": about[name]} for name in names]
    common.write_summary(found, options.json, "\n".join(lines[1:]))


def _paper(name: str) -> str:
    return name.rpartition("/")[0].partition("/")[0]


@dataclass(kw_only=True)
class Show:
    """Print the file of a recipe."""

    name: Annotated[str, common.Option(positional=True, metavar="NAME")]
    """Name of a recipe, such as moco_bert/en-zh; xrep-recipes lists them."""


def show(options: Show) -> None:
    print(find_recipe(options.name).read_text(encoding="utf-8"), end="")


main = Command(
    "xrep-recipes", RecipeCommands, list_recipes, below=lambda: {"show": Command("xrep-recipes", Show, show)}
)

if __name__ == "__main__":
    sys.exit(main())

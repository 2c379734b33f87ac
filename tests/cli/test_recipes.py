"""``xrep-recipes`` and recipes by name, from any folder."""

import json
import re

import pytest

from tests.support.commands import Commands
from xrep.config import RECIPES, read_yaml, recipe_names


def test_the_list_has_a_sentence_for_each_recipe(cli: Commands) -> None:
    lines = cli("recipes").out.splitlines()
    found = json.loads(cli("xrep", "recipes", "--json").out)
    assert sorted(each["name"] for each in found) == recipe_names() and len(found) > 30
    for each in found:
        assert re.fullmatch(r"Trains .{20,110}\.", each["about"]) and each["name"].rpartition("/")[0].startswith(
            each["paper"]
        )
        (line,) = [line for line in lines if line.split()[:1] == [each["name"]]]
        assert line.endswith(each["about"])
    assert lines[0] == "Without a paper" and len([line for line in lines if line[:1].strip()]) == 8


def test_show_prints_the_file(cli: Commands) -> None:
    assert cli("recipes", "show", "dap/dap").out == (RECIPES / "dap" / "dap.yaml").read_text(encoding="utf-8")
    done = cli("recipes", "show", "dap/dab")
    assert done.code == 2 and "dap/dab: no such file or recipe; did you mean 'dap/dap'?" in done.err


def test_a_file_has_precedence_over_a_recipe_of_its_name(cli: Commands) -> None:
    def printed(*words: str) -> str:
        return cli("train", "--print-config", "--config", "moco_bert/de-en_small", *words).out

    assert "queue_size: 1024\n" in printed()
    (cli.folder / "own.yaml").write_text("base: moco_bert/de-en_small\ncriterion.queue_size: 7\n")
    assert "queue_size: 7\n" in cli("train", "--print-config", "--config", "own.yaml").out
    (cli.folder / "moco_bert").mkdir()
    (cli.folder / "moco_bert" / "de-en_small").write_text("task: bitext\ncriterion: {name: dual_moco, queue_size: 9}\n")
    assert "queue_size: 9\n" in printed()


def test_a_file_that_is_named_demo_is_no_recipe_of_a_run_without_data(cli: Commands) -> None:
    (cli.folder / "demo").write_text("#!/bin/sh\necho hello\n")
    assert cli("train", "--print-config", "--task", "bitext").code == 0


@pytest.mark.parametrize("name", ["moco_bert/nli", "cmlm/cmlm-br"])
def test_a_recipe_over_a_base_is_printed_as_a_whole(name: str, cli: Commands) -> None:
    (cli.folder / "whole.yaml").write_text(cli("train", "--print-config", "--config", name).out)
    assert "base" not in read_yaml(cli.folder / "whole.yaml")
    again = cli("train", "--print-config", "--config", "whole.yaml")
    assert again.out == (cli.folder / "whole.yaml").read_text() and again.code == 0

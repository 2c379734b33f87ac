"""``xrep-data`` as a user runs it."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.repository.test_docs import check_command
from tests.support.commands import Commands
from xrep.text.resources import RESOURCES


def test_list(cli: Commands) -> None:
    told = cli("data", "list").out
    resources = {resource["name"]: resource for resource in json.loads(cli("data", "list", "--json").out)}
    known = "demo tatoeba manythings multi30k newstest news-commentary un bucc sts sts-b sick senteval amazon iwslt"
    known += " wmt opus ccnet snli multinli xnli pawsx xtreme panx ud squad xquad mlqa tydiqa"
    assert {*known.split()} <= set(resources)
    corpora, encoders = told.split("Pretrained encoders\n===================\n")
    assert corpora.startswith("Corpora\n=======\n")
    for name, resource in resources.items():
        assert resource["kind"] == ("encoder" if name in ("minilm", "m3e-small") else "corpus")
        line = f"{name}: {resource['what']}"
        assert (line in corpora, line in encoders) == (resource["kind"] == "corpus", resource["kind"] == "encoder")
        texts = [resource[key] for key in ("languages", "licence", "layout", "origin", "instructions")]
        assert resource["what"] and all(text and text in told for text in texts)


@pytest.mark.slow
def test_the_commands_of_the_list_parse() -> None:
    """Each is written as it is typed, but for the names of the files."""
    commands = 0
    for resource in RESOURCES:
        for text in re.findall(r"xrep-(?:train|eval|preprocess) [^;()]*", resource.instructions):
            if "--" in text and "..." not in text and "$" not in text:
                check_command(text.removesuffix(", "))
                commands += 1
    assert commands > 25


@pytest.mark.parametrize("name", ["demo", "minilm", "m3e-small"])
def test_print_path_is_the_path_alone(name: str, cli: Commands) -> None:
    home = Path(os.environ["XREP_HOME"])
    folder = home / "demo" if name == "demo" else home / "models" / name
    if not (folder / "xrep_source.json").exists():
        pytest.skip(f"{name} is not cached in $XREP_HOME")
    done = cli("data", "get", name, "--print-path")
    assert done.out == f"{folder}\n" and done.err == ""

"""docs/ has a page for each console script, and every page is what scripts/make_docs.py makes of the options."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from xrep.registry import CRITERIA


@pytest.fixture
def script(repository: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", repository / "scripts" / "make_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_current(script: ModuleType, repository: Path) -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in (repository / "docs").iterdir()}
    pages = script.pages()
    assert sorted(committed) == sorted(pages)
    old = [name for name, text in pages.items() if committed[name] != text]
    assert old == [], "run python scripts/make_docs.py"


def test_every_command_has_a_page(script: ModuleType, console_scripts: dict) -> None:
    assert sorted(script.pages()) == sorted(["README.md", *(f"{command}.md" for command in console_scripts)])


def test_a_page_has_options_defaults_and_subcommands(script: ModuleType) -> None:
    pages = script.pages()
    assert "\n- `--version`: print the version of xrep and stop\n" in pages["xrep-encode.md"]
    assert "\n- `--path ENCODER` (required): " in pages["xrep-encode.md"]
    tatoeba = pages["xrep-eval.md"].split("\n## xrep-eval tatoeba\n")[1].split("\n## ")[0]
    assert "\n- `--margin {absolute,distance,ratio}`: " in tatoeba and "(default: absolute)\n" in tatoeba


def test_the_page_of_training_has_every_registered_objective(script: ModuleType) -> None:
    text = script.pages()["xrep-train.md"]
    for name in CRITERIA.names():
        assert f"\n## criterion {name}\n" in text
    moco = text.split("\n## criterion dual_moco\n")[1].split("\n## ")[0]
    assert "\n- `--queue-size INT`: K: " in moco and "(default: 409600)" in moco
    assert "\n## checkpoint\n" in text and "\n- `--save-dir STR`: " in text and "\n## parts.NAME\n" in text
    # The type of this option leaves a single space before its help.
    assert "\n- `--activation-checkpointing BOOL`: " in text

"""docs/: the pages made from the code are current, links lead somewhere, and every command parses or is run."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from xrep.config import compose_course
from xrep.registry import CRITERIA
from xrep_cli.options import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENTRANCES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("examples/*/*.md"))]
WRITTEN = sorted([*DOCS.glob("guides/*.md"), *DOCS.glob("papers/*.md"), DOCS / "benchmarks.md"])


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(script: ModuleType) -> dict[str, str]:
    return script.pages()


def test_pages_are_current(pages: dict[str, str]) -> None:
    committed = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    assert sorted(committed) == sorted([*pages, *(str(path.relative_to(DOCS)) for path in WRITTEN)])
    old = [name for name, text in pages.items() if committed[name] != text]
    assert old == [], "run python scripts/make_docs.py"


def test_every_command_has_a_page(pages: dict[str, str], console_scripts: dict) -> None:
    assert {f"{command}.md" for command in console_scripts} <= set(pages)


def test_a_page_has_options_defaults_and_subcommands(pages: dict[str, str]) -> None:
    assert "\n- `--version`: print the version of xrep and stop\n" in pages["xrep-encode.md"]
    assert "\n- `--path ENCODER` (required): " in pages["xrep-encode.md"]
    tatoeba = pages["xrep-eval.md"].split("\n## xrep-eval tatoeba\n")[1].split("\n## ")[0]
    assert "\n- `--margin {absolute,distance,ratio}`: " in tatoeba and "(default: absolute)\n" in tatoeba


def test_the_page_of_training_has_every_registered_objective(pages: dict[str, str]) -> None:
    text = pages["xrep-train.md"]
    for name in CRITERIA.names():
        assert f"\n## criterion {name}\n" in text
    moco = text.split("\n## criterion dual_moco\n")[1].split("\n## ")[0]
    assert "\n- `--queue-size INT`: K: " in moco and "(default: 409600)" in moco
    assert "\n## checkpoint\n" in text and "\n- `--save-dir STR`: " in text and "\n## parts.NAME\n" in text
    # The type of this option leaves a single space before its help.
    assert "\n- `--activation-checkpointing BOOL`: " in text


def test_the_reference_has_signatures_arguments_and_errors(pages: dict[str, str]) -> None:
    encode = pages["reference/models.md"].split("\n### SentenceEncoder.encode\n")[1].split("\n### ")[0]
    assert (
        "```python\nencode(\n" in encode and "    lang: str | None = None,\n" in encode and "\nArgs:\n\n- `" in encode
    )
    text = "".join(own for name, own in pages.items() if name.startswith("reference/"))
    assert "## xrep.kernels.queue_infonce\n" in text and "## xrep.criteria.criterion.Criterion\n" in text
    assert not re.search(r"0x[0-9a-f]{6}|ForwardRef|(?<!`)``(?!`)", text)


def test_docstrings_become_markdown(script: ModuleType) -> None:
    arguments = "Args:\n    a, b: The\n        sum.\n    c: More."
    docstring = f"Do ``x`` < y.\n\n>>> f(1)\n2\n\n{arguments}\n\nRaises:\n    E: No."
    expected = ["Do `x` \\< y.", "```text\n>>> f(1)\n2\n```", "Args:", "- `a, b`: The sum.\n- `c`: More."]
    assert script.markdown(docstring).split("\n\n") == [*expected, "Raises:", "- `E`: No."]


def test_links_and_files_exist() -> None:
    for page in [DOCS / "README.md", *WRITTEN, *ENTRANCES]:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), f"{page}: {target}"
        for path in re.findall(r"`((?:xrep|xrep_cli|tests|examples|scripts|benchmarks)/[\w./+-]+)", text):
            assert (ROOT / path).exists() or re.search("NAME|PAPER", path), f"{page.name}: {path}"


@pytest.mark.parametrize("page", ENTRANCES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_recipes_that_are_named_are_linked(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = {(page.parent / target).resolve() for target in re.findall(r"\]\(([^)#:]+)\)", text)}
    assert DOCS / "guides" / "quick-start.md" in links
    for name in re.findall(r"`([\w./+-]+\.(?:md|yaml))`", text):
        for file in (page.parent / name, ROOT / name):
            assert not file.exists() or file in links or file == page, f"{name} is named, but not linked"


@pytest.mark.slow
def test_the_pages_build_a_site(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "guides" / "quick-start" / "index.html").exists()


# -- commands ---------------------------------------------------------------------------------------------------------


def commands_in(page: Path) -> list[list[str]]:
    """Return the words of each command in the shell blocks of a page, without comments and redirections."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check_command(words: list[str]) -> None:
    """Parse a command as its program does, without running it."""
    if words[0] == "torchrun":
        place = words.index("-m")
        words = [f"xrep-{words[place + 1].rpartition('.')[2]}", *words[place + 2 :]]
    if not words[0].startswith("xrep-"):
        assert words[0] in ("cut", "awk", "python", "mkdocs", "pip"), f"{words[0]} is not checked"
        return
    module = importlib.import_module(f"xrep_cli.{words[0].removeprefix('xrep-')}")
    if words[0] == "xrep-train":
        if "--plugin" in words:
            return  # test_docs_run.py runs it
        line = parse(words[1:])
        compose_course(line.layers, line.problems)
        assert not line.problems
    elif words[0] == "xrep-eval":
        module.build_parser(words[1]).parse_args(words[1:])
    else:
        module.build_parser().parse_args(words[1:])


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_command_parses(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = commands_in(page)
    assert commands
    for words in commands:
        check_command(words)


def test_a_command_that_does_not_parse_is_found() -> None:
    for line in (
        "xrep-encode --path a --inptu b",
        "xrep-train --criterion nothing",
        "rm -r x",
        "xrep-eval tatoeba --k",
    ):
        with pytest.raises((Exception, SystemExit)):
            check_command(line.split())

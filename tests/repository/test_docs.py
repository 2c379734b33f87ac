"""docs/: the pages made from the code are current, links lead somewhere, and every command parses or is run."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from xrep.config import runs_of
from xrep.registry import CRITERIA
from xrep_cli.train_options import parse

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ENTRANCES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("examples/*/*.md"))]
WRITTEN = sorted([*DOCS.glob("guides/*.md"), *DOCS.glob("papers/*.md"), DOCS / "benchmarks.md"])


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "scripts" / "make_docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pages()


def test_pages_are_current(pages: dict[str, str], console_scripts: dict) -> None:
    committed = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    assert sorted(committed) == sorted([*pages, *(str(path.relative_to(DOCS)) for path in WRITTEN)])
    old = [name for name, text in pages.items() if committed[name] != text]
    assert old == [], "run python scripts/make_docs.py"
    assert {f"{command}.md" for command in console_scripts} <= set(pages)
    for name in CRITERIA.names():
        assert f"\n## criterion {name}\n" in pages["xrep-train.md"]


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
    for name in re.findall(r"`([\w./+-]+\.(?:md|yaml))`", text):
        for file in (page.parent / name, ROOT / name):
            assert not file.exists() or file in links or file == page, f"{name} is named, but not linked"


@pytest.mark.nightly
def test_the_pages_build_a_site(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "guides" / "own-data" / "index.html").exists()


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
        runs_of(line.layers, line.problems)
        assert not line.problems
    else:
        (module.build_parser().parse_args if words[0] == "xrep-sweep" else module.main.parse)(words[1:])


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_command_parses(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    commands = commands_in(page)
    assert commands
    for words in commands:
        check_command(words)

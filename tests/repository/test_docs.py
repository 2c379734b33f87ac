"""Pages: links lead somewhere, commands parse (in the guides and in each command's help), and the site builds."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from xrep.config import runs_of
from xrep.registry import CRITERIA
from xrep_cli import sweep, train_options
from xrep_cli.xrep import PROGRAMS

ROOT = Path(__file__).parents[2]
GUIDES = sorted(ROOT.glob("docs/guides/*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("examples/*/*.md"), *ROOT.glob("benchmarks/*.md")]


@pytest.mark.parametrize("page", [*PAGES, *GUIDES], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:xrep|xrep_cli|tests|examples|scripts|benchmarks)/[\w./+-]+)", text):
        assert (ROOT / path).exists() or re.search("NAME|PAPER", path), path


def check_command(command: str) -> None:
    """Parse each command of xrep in a line as its program does, without running it."""
    for part in command.split(" | "):
        check_words(shlex.split(part.removesuffix(" &"), comments=True))


def check_words(words: list[str]) -> None:
    if words[:1] == ["torchrun"]:
        place = words.index("-m")
        words = [f"xrep-{words[place + 1].rpartition('.')[2]}", *words[place + 2 :]]
    if not words or not words[0].startswith("xrep-") or "--plugin" in words:  # test_docs_run.py runs plugins
        return
    if words[0] == "xrep-train":
        line = train_options.parse(words[1:])
        runs_of(line.layers, line.problems)
        assert not line.problems
    elif words[0] == "xrep-sweep":
        sweep.build_parser().parse_known_args(words[1:])
    else:
        importlib.import_module(f"xrep_cli.{words[0].removeprefix('xrep-')}").main.parse(words[1:])


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_of_guides_parse(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for command in "".join(blocks).replace("\\\n", " ").splitlines():
        check_command(command)


@pytest.mark.parametrize("name", PROGRAMS)
def test_help_begins_with_three_uses(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        sys.exit(importlib.import_module(f"xrep_cli.{name}").main(["--help"]))
    _, _, uses, *_ = capsys.readouterr().out.split("\n\n")
    lines = [line.strip() for line in uses.splitlines()]
    assert len(lines) == 6 and all(line.startswith("# ") for line in lines[::2])
    for command in lines[1::2]:
        assert f"xrep-{name} " in command
        check_command(command)


@pytest.mark.nightly
def test_the_site_builds(tmp_path: Path) -> None:
    """--strict fails if a link leads nowhere, a page is not in the navigation, or a docstring does not fit its code."""
    for module in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert {f"xrep-{name}.html" for name in PROGRAMS} <= {path.name for path in (tmp_path / "commands").iterdir()}
    train, objectives = (
        (tmp_path / name).read_text() for name in ("commands/xrep-train.html", "reference/objectives.html")
    )
    for name in CRITERIA.names():
        assert f'id="criterion-{name}"' in train and f">{name}<" in objectives

"""The command ``xrep``: it lists the others, runs them, and completes what is typed."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys

import pytest

import xrep
from tests.support.programs import ROOT
from tests.support.runs import environment
from xrep.registry import CRITERIA, EVALUATIONS
from xrep_cli.completion import script
from xrep_cli.xrep import COMMANDS, main, summary


def test_it_lists_every_command(capsys: pytest.CaptureFixture[str], setup_arguments: dict) -> None:
    assert main([]) == main(["--help"]) == 0
    scripts = [line.partition("=")[0] for line in setup_arguments["entry_points"]["console_scripts"]]
    assert sorted(scripts) == sorted(["xrep", *(f"xrep-{name}" for name in COMMANDS)])
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f"  {name:<12}{summary(name)}\n" in shown and summary(name).endswith(".")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"xrep {xrep.__version__}\n"


@pytest.mark.slow
def test_as_a_module_that_waits_for_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xrep", "--version"], env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"xrep {xrep.__version__}\n")
    code = "import sys; from xrep_cli.xrep import main; main([]); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: xrep COMMAND"), done.stderr


def test_it_runs_a_command_and_passes_its_code_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["encode", "--path", "a", "--input", "b", "--output", "c.txt"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("xrep-encode: error: c.txt: the output is a .npy file;")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trian", "xrep: error: there is no command 'trian'; did you mean 'train'?"),
        ("banana", "xrep: error: there is no command 'banana'; known: train, eval, "),
        ("completion tcsh", "xrep: error: no completion for 'tcsh'; write xrep completion bash, or zsh or fish"),
        ("completion", "no completion for ''; write xrep completion bash"),
    ],
)
def test_what_there_is_not(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert message in printed


COMPLETED = {
    "xrep tr": ["train"],
    "xrep-train --criterion dual": ["dual_moco"],
    "xrep train --criterion dual": ["dual_moco"],
    "xrep-train --queue-s": ["--queue-size"],
    "xrep-train --precision b": ["bf16", "bfloat16"],
    "xrep-eval tato": ["tatoeba"],
    "xrep eval tato": ["tatoeba"],
    "xrep-eval tatoeba --margin r": ["ratio"],
    "/usr/bin/xrep-export --form": ["--format"],
    "xrep-export --format s": ["sentence-transformers"],
    "xrep-search bu": ["build"],
    "xrep-encode --path run": [],
}


@pytest.mark.slow
def test_bash_completes() -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash")
    text = script("bash", COMMANDS)
    for line in COMPLETED:
        text += f'COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _xrep; echo "${{COMPREPLY[@]}}"\n'
    done = subprocess.run([shell, "-s"], input=text, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and [line.split() for line in done.stdout.splitlines()] == list(COMPLETED.values())


def test_every_shell_has_every_part() -> None:
    for shell in ("bash", "zsh", "fish"):
        text = script(shell, COMMANDS)
        assert all(name in text for name in (*CRITERIA.names(), *EVALUATIONS.names(), "queue-size", "drop-overlap"))


@pytest.fixture
def setup_arguments(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Return the arguments that setup.py gives to setuptools."""
    arguments: dict = {}
    monkeypatch.setattr("setuptools.setup", lambda **given: arguments.update(given))
    runpy.run_path(str(ROOT / "setup.py"))
    return arguments

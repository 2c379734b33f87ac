"""Commands without standard streams, in a strange environment, and with names of files that are not UTF-8."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.encoders import write_encoder
from tests.support.programs import Finished, run_program
from tests.support.runs import contents, environment
from tests.support.translators import write_translator

COMMANDS = {
    "data": "list",
    "encode": "--path encoder --input s.txt --lang de --output new.npy",
    "eval": "neighbours --path encoder --data s.txt --lang de --query-file s.txt",
    "export": "--path encoder --format hf --output new",
    "generate": "--path translator --input s.txt",
    "mine": "--path encoder --source s.txt --source-lang de --target t.txt --target-lang en --neighbours 1 "
    "--output new.tsv --json -",
    "preprocess": "--bitext de-en=p.tsv --vocab-size 24 --valid-size 0 --destdir new",
    "search": "build --path encoder --input s.txt --lang de --output new",
    "train": "--task bitext --criterion dual_moco --print-config",
}
"""A command line that works, and prints something, for each command."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_encoder(folder / "encoder")
    write_translator(folder / "translator")
    return folder


@pytest.fixture
def folder(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for model in ("encoder", "translator"):
        (tmp_path / model).symlink_to(models / model)
    pairs = {f"ein {a} {b} dort": f"a {a} {b} there" for a in ("Hund", "Vogel") for b in ("läuft", "fliegt", "ist")}
    for name, lines in {
        "s.txt": pairs,
        "t.txt": pairs.values(),
        "p.tsv": ["\t".join(pair) for pair in pairs.items()],
    }.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def run_oddly(states: str, command: str) -> Finished:
    words = ["tests.hostile.odd_process", states, f"xrep_cli.{command}", *COMMANDS[command].split()]
    return run_program(*words, environment=environment())


def inputs(folder: Path) -> dict[str, bytes | str]:
    return {name: content for name, content in contents(folder).items() if not name.startswith("new")}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_without_stdout_the_output_is_refused(command: str, folder: Path) -> None:
    before = inputs(folder)
    finished = run_oddly("no-stdout", command)
    assert finished.stderr.endswith(f"xrep-{command}: error: Bad file descriptor; standard input or output is closed\n")
    assert finished.returncode == 2 and finished.stdout == "" and "Traceback" not in finished.stderr
    assert inputs(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_without_stderr_and_in_ascii_the_output_is_the_same(command: str, folder: Path) -> None:
    """Messages on a closed stderr are dropped; they neither go to stdout nor into a file."""
    before = inputs(folder)
    finished = run_oddly("no-stdin,no-stderr,ascii" if command != "generate" else "no-stdin,no-stderr", command)
    assert finished.returncode == 0 and finished.stdout.strip() and finished.stderr == "", finished
    assert inputs(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["data", "encode", "train"])
def test_in_a_folder_that_was_deleted(command: str) -> None:
    finished = run_oddly("no-folder", command)
    line = f"xrep-{command}: error: the current folder was deleted; change to another one\n"
    assert (finished.returncode, finished.stdout, finished.stderr) == (2, "", line)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["data", "preprocess"])
def test_in_a_locale_without_utf8(command: str, folder: Path) -> None:
    """Python then encodes the names of files in ASCII. This needs a process of its own, and no torch."""
    (folder / "p.tsv").rename(folder / "Bücher.tsv")
    words = COMMANDS[command].replace("p.tsv", "Bücher.tsv").split()
    variables = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program = [sys.executable, "-m", f"xrep_cli.{command}", *words]
    finished = subprocess.run(program, env=variables, capture_output=True, timeout=300)
    assert finished.returncode == 0 and finished.stdout and b"Traceback" not in finished.stderr, finished


@pytest.mark.parametrize("columns", ["1", "30", "-5", "nonsense"])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_in_a_terminal_of_any_width(
    columns: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    try:
        code = importlib.import_module(f"xrep_cli.{command}").main(["--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0 and len(capsys.readouterr().out) > 300


@pytest.mark.slow
@pytest.mark.parametrize("command", ["encode", "export", "mine", "preprocess", "search"])
def test_names_that_are_not_utf8(command: str, folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Inputs and outputs may have any name; what is printed are the bytes of the name."""
    for name in ("s.txt", "t.txt", "p.tsv"):
        (folder / name).rename(folder / f"\udcff{name}")
    line = COMMANDS[command]
    for name in ("s.txt", "t.txt", "p.tsv", "new"):
        line = line.replace(f"={name}", f"=\udcff{name}").replace(f" {name}", f" \udcff{name}")
    assert importlib.import_module(f"xrep_cli.{command}").main(line.replace("--json -", "").split()) == 0
    printed = capfdbinary.readouterr().out
    assert b"\xffnew" in printed and any(name.startswith("\udcff" + "new") for name in os.listdir(folder))


DEVICES = [
    Case(command, f"{COMMANDS[command]} --device {device}", f"{device} is not a device of this machine; choose another")
    for command in ("encode", "generate", "mine", "search")
    for device in ("meta", "cuda:99", "nonsense", "cpu:x", "xla")
]
CASES = [
    *DEVICES,
    Case("train", f"{COMMANDS['train']} --device meta", "trainer.device must be auto, cpu or cuda, not 'meta'"),
    *(Case(name, f"{COMMANDS[name]} --json .", "is a folder already") for name in ("eval", "preprocess")),
    Case("mine", COMMANDS["mine"].replace("--json -", "--json encoder"), "is a folder already"),
    Case("encode", "--path ~nobody-there/x --input s.txt --output new.npy", "no such directory"),
    Case("encode", "--path encoder", "the following arguments are required: --input, --output; xrep-encode --help"),
    Case("mine", f"{COMMANDS['mine']} --neighbours 1e30", "--neighbours: must be an integer between -2**63 and 2**63"),
    Case("mine", f"{COMMANDS['mine']} --threshold 1e400", "--threshold: must be a finite number, not '1e400'"),
    Case("mine", f"{COMMANDS['mine']} --index tree", "--index: invalid choice: 'tree'"),
    Case("generate", f"{COMMANDS['generate']} --seed {'9' * 5000}", "--seed: must be an integer between"),
    Case("preprocess", f"{COMMANDS['preprocess']} --max-length nan", "--max-length: must be a finite number"),
    Case("preprocess", f"{COMMANDS['preprocess']} --valid-size 1.5", "--valid-size: must be an integer, not '1.5'"),
    Case("eval", "nowhere --path encoder", "argument TEST: invalid choice: 'nowhere'"),
    Case("data", "get \udcff", "unknown corpus or pretrained encoder"),
    Case("train", "--config encoder", "encoder: Is a directory"),
    Case(
        "train",
        f"{COMMANDS['train']} --save-dir a\0b",
        "checkpoint.save_dir must be a string of at least one character",
    ),
    Case("train", f"{COMMANDS['train']} --max-steps 1e30", "trainer.max_steps must be an integer between"),
]


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_refused(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)


def test_the_number_of_ranks_is_a_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "many")
    check_refused(Case("mine", COMMANDS["mine"], "WORLD_SIZE is 'many', not a number"), folder, capsys)

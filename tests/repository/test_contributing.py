"""The examples of CONTRIBUTING.md run as they are written there, and each stop of its tours exists."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.programs import run_program
from tests.support.runs import SMALL, SMALL_MODEL, environment

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = {
    name: (code, command)
    for name, code, command in re.findall(r"```python\n# (\w+)\.py\n(.*?)```\n\n```sh\n(.*?)\n```", TEXT, re.DOTALL)
}
SIZES = {
    "vocab_size": 100, "max_steps": 4, "validate_every": 4, "save_every": 4,
    **{name: SMALL[name] for name in (*SMALL_MODEL, "max_length", "batch_size", "no_tensorboard", "device")},
}  # fmt: skip


def write_data(folder: Path) -> None:
    """Write the data that the commands of the examples name: ``corpus/`` and ``jsonl/``."""
    write_corpus(folder / "corpus", train=120, valid=20, test=20)
    (folder / "jsonl").mkdir()
    pairs = sentence_pairs(140)
    for split, some in (("train", pairs[:120]), ("valid", pairs[120:])):
        lines = [json.dumps({"de": source, "en": target}, ensure_ascii=False) for source, target in some]
        (folder / "jsonl" / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_command(command: str, folder: Path, home: Path):
    """Run the command of an example; ``xrep-train`` gets a small model and few steps."""
    program, *arguments = shlex.split(command)
    if program == "xrep-train":
        for name, value in SIZES.items():
            arguments += [f"--{name.replace('_', '-')}", *([] if value is None else [str(value)])]
        arguments += ["--save-dir", "run1"]
    module = f"xrep_cli.{program.removeprefix('xrep-')}"
    return run_program(module, *arguments, environment={**environment(folder), "XREP_HOME": str(home)})


def test_there_are_examples() -> None:
    assert {"cosine_distance", "jsonl_bitext"} <= set(EXAMPLES)
    assert TEXT.count("```python\n") == len(EXAMPLES)


@pytest.mark.nightly
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, command = EXAMPLES[name]
    assert f"--plugin {name}" in command and len(code.splitlines()) <= 30
    (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    if not command.startswith("xrep-train"):
        ranking = "xrep-train corpus/ --task bitext --criterion translation_ranking"
        assert run_command(ranking, tmp_path, tmp_path / "home").returncode == 0
    finished = run_command(command, tmp_path, tmp_path / "home")
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "run1" / "best" / "model.safetensors").exists()


STOPS = re.findall(r"^\| \d+ \| `(\S+\.py)`: (.*?) \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("file", "functions"), STOPS)
def test_each_stop_on_the_way_of_a_line_exists(file: str, functions: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    for name in re.findall(r"`([\w.]+)`", functions):
        for part in name.split("."):
            assert re.search(rf"^ *(def|class) {part}\b", source, re.MULTILINE), f"{file} has no {part}"

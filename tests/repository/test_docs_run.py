"""The guides of docs/ are followed as they stand: their commands and programs run in order, with small budgets."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.repository.test_readme import BUDGET, sentences
from tests.support import guide
from tests.support.corpus import write_lines

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
SMALLER = [
    (r"--max-steps \d+", "--max-steps 6"),
    (r"--vocab-size \d+", "--vocab-size 100"),
    (r"--hidden-size \d+", "--hidden-size 32"),
    (r"--feedforward-size \d+", "--feedforward-size 64"),
    (r"1\.06", "0"),  # an encoder of six steps scores no pair higher
]
Follow = Callable[[str, Path, dict[str, list[str]]], None]


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
def follow(install_commands: Callable[[Path, dict[str, list[str]]], None], repository: Path, tmp_path: Path) -> Follow:
    """``follow(guide, folder, extra)`` runs its shell blocks in a folder; commands get ``extra`` arguments."""

    def run(guide: str, folder: Path, extra: dict[str, list[str]]) -> None:
        install_commands(tmp_path / "bin", extra)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}
        environment |= {"PYTHONPATH": f"{repository}:{folder}", "XREP_HOME": str(tmp_path / "home")}
        environment["PATH"] = f"{tmp_path / 'bin'}:{environment['PATH']}"
        for block in blocks(guide, "sh"):
            for pattern, replacement in SMALLER:
                block = re.sub(pattern, replacement, block)
            command = ["bash", "-exuo", "pipefail", "-c", block]
            result = subprocess.run(command, cwd=folder, env=environment, input="", capture_output=True, text=True)
            assert result.returncode == 0, result.stderr[-4000:] + result.stdout[-2000:]

    return run


def write_sides(folder: Path, name: str, rows: list[tuple[str, str, str]]) -> None:
    write_lines(folder / f"{name}.de", [german for _, german, _ in rows])
    write_lines(folder / f"{name}.en", [english for english, _, _ in rows])


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_quick_start(follow: Follow, repository: Path, tmp_path: Path) -> None:
    rows, folder = list(sentences()), tmp_path / "own"
    write_sides(folder / "corpus", "train", [row for number, row in enumerate(rows) if number % 12])
    write_lines(folder / "test" / "tatoeba.deu-eng.deu", [german for _, german, _ in rows[::12]])
    write_lines(folder / "test" / "tatoeba.deu-eng.eng", [english for english, _, _ in rows[::12]])
    follow("quick-start", folder, BUDGET)
    assert (folder / "report.html").read_text(encoding="utf-8").count("mean of 1") == 1
    assert (folder / "mined.tsv").exists() and (folder / "my-encoder" / "modules.json").exists()
    (python,) = blocks("quick-start", "python")
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    program = f"{python}\nassert german.shape[0] == 2 and (german @ english.T).shape == (2, 2)\n"
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_mining(follow: Follow, repository: Path, tmp_path: Path) -> None:
    rows, folder = list(sentences()), tmp_path / "own"
    random.Random(0).shuffle(rows)
    for name, some in {"seed": rows[:400], "valid": rows[400:440], "test": rows[440:460]}.items():
        write_sides(folder, name, some)
    write_lines(folder / "mono.de", [german for _, german, _ in rows[460:700]])
    write_lines(folder / "mono.en", [english for english, _, _ in reversed(rows[500:740])])
    for year, some in {"newstest2011": rows[:150], "newstest2012": rows[150:300]}.items():
        write_sides(folder, year, some)
    for name in ("scripts", "benchmarks"):
        (folder / name).symlink_to(repository / name)
    follow("mining", folder, {})
    assert len((folder / "mined.hyp.en").read_text(encoding="utf-8").splitlines()) == 20
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "label_smoothed_cross_entropy" in page.replace("<wbr>", "")


@pytest.mark.nightly
def test_the_objectives_of_plugins(follow: Follow, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    write_sides(folder / "corpus", "train", list(sentences()))
    for name, code in guide.programs().items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    follow("objective", folder, {"xrep-train": [*BUDGET["xrep-train"], "--micro-batch", "4"]})
    for name in guide.programs():
        assert (folder / "runs" / f"bitext-{name}" / "best" / "model.safetensors").exists()

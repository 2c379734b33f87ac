"""Commands that are killed, or stopped by Ctrl-C, at moments spread over their work: nothing half-written is left where
a user looks, and the same command afterwards writes the bytes of one that nobody disturbed."""

import random
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.models import CLASSIFIERS, write_classifier
from tests.support.once import made_once
from tests.support.programs import Program
from tests.support.runs import contents, environment, options
from xrep.inference.search_index import SearchIndex

MOMENTS = [pytest.param(2, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.nightly)]
COMMANDS = {
    "search add": "search add index --input more.en --device cpu",
    "mine negatives": "mine negatives --path encoder --bitext de-en=more.de,more.en --output out.tsv --device cpu",
    "export": "export --path encoder --output out",
    "predict": "predict --path tagger --input words.txt --output out.txt --device cpu",
    "serve": "search serve index --port 0 --device cpu",
}
"""Commands in the folder that ``place`` makes. A server does not end by itself."""
SERVED = 3.0
"""Seconds over which the moments of a server are spread."""


@pytest.fixture(scope="module")
def place(data_directory: Path) -> Path:
    """A folder with texts, an encoder, an index and a tagger."""

    def make(folder: Path) -> None:
        write_encoder(folder / "encoder")
        write_classifier(folder / "tagger", *CLASSIFIERS["tagger"])
        write_lines(folder / "words.txt", [german for german, _ in sentence_pairs(1500)])
        for side, code in enumerate(("de", "en")):
            write_lines(folder / f"more.{code}", [f"{pair[side]} {n}" for n, pair in enumerate(sentence_pairs(1500))])
        lines = write_lines(folder / "lines.en", [english for _, english in sentence_pairs(60)])
        SearchIndex.build(folder / "encoder", lines, folder / "index", device="cpu")

    return made_once("kills", make)


def visible(folder: Path) -> Mapping[str, bytes | str]:
    """Return the files that a user sees: neither hidden ones nor the notes of a job that goes on."""
    return {
        name: content
        for name, content in contents(folder).items()
        if not any(part.startswith(".") or part.endswith(".job") for part in Path(name).parts)
    }


def start(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Start a command in a folder."""
    module, *words = COMMANDS[name].split()
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        return Program(f"xrep_cli.{module}", words, environment())


@pytest.mark.parametrize("count", MOMENTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_command_goes_on(name: str, count: int, place: Path, tmp_path: Path, monkeypatch) -> None:
    whole, draw, seconds = tmp_path / "whole", random.Random(3), SERVED
    shutil.copytree(place, whole, symlinks=True)
    before = visible(whole)
    if name != "serve":
        began = time.monotonic()
        program = start(name, whole, monkeypatch)
        _, err = program.communicate()
        assert program.returncode == 0, err
        seconds = time.monotonic() - began
    after = visible(whole)
    for number in range(count):
        folder = tmp_path / "cut"
        shutil.copytree(place, folder, symlinks=True)
        kill = signal.SIGINT if number % 2 else signal.SIGKILL
        program = start(name, folder, monkeypatch)
        time.sleep(seconds * (number + draw.random()) / count)
        program.send_signal(kill)
        _, err = program.communicate()
        where = f"{kill.name} in part {number + 1} of {count}: {err}"
        assert "Traceback" not in err or kill == signal.SIGKILL, where
        left = visible(folder)
        assert left in (before, after), f"{where}; {sorted(left)}"
        if name != "serve" and left == before:  # else it had done its work
            again = start(name, folder, monkeypatch)
            _, err = again.communicate()
            assert again.returncode == 0, err
            assert visible(folder) == after, where
            assert not list(folder.glob("*.job")), where
        shutil.rmtree(folder)


SWEEP = "recipe.yaml --grid optimizer.lr=1e-3,1e-2 --save-dir search"


def trained(folder: Path) -> dict[str, bytes]:
    """Return the table of a sweep and the weights of its runs, which do not depend on the clock."""
    files = [folder / "search" / "sweep.tsv", *sorted(folder.glob("search/*/best/model.safetensors"))]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.nightly
@pytest.mark.parametrize("count", [2, 20])
def test_the_same_sweep_goes_on(count: int, data_directory: Path, cli: Commands, monkeypatch) -> None:
    """A run whose sweep is killed trains on, and the same sweep waits for it or takes what it has made."""
    given = options(criterion="translation_ranking", max_steps=30, validate_every=5, save_every=5, warmup_steps=0)
    recipe, draw = cli("train", data_directory, *given, "--print-config").out, random.Random(3)

    def start(name: str) -> Program:
        (cli.folder / name).mkdir(exist_ok=True)
        (cli.folder / name / "recipe.yaml").write_text(recipe, encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.chdir(cli.folder / name)
            return Program("xrep_cli.sweep", SWEEP.split(), environment())

    began = time.monotonic()
    program = start("whole")
    _, err = program.communicate()
    assert program.returncode == 0, err
    seconds = time.monotonic() - began
    for number in range(count):
        kill, name = signal.SIGINT if number % 2 else signal.SIGKILL, f"cut{number}"
        program = start(name)
        time.sleep(seconds * (number + draw.random()) / count)
        program.send_signal(kill)
        program.communicate()
        program = start(name)
        _, err = program.communicate()
        assert program.returncode == 0, f"{kill.name} in part {number + 1} of {count}: {err}"
        assert trained(cli.folder / name) == trained(cli.folder / "whole")

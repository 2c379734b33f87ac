"""Ctrl-C in commands that may have worked for hours: what is done is saved, and the same command goes on from there."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import Commands, Result
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.runs import contents, options
from xrep.criteria.dual_moco import DualMoco
from xrep.data import preprocess_stages
from xrep.inference import encoding, nearest
from xrep.inference.generation.translator import Translator
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interrupts import NOTICE
from xrep.models.directory import open_checkpoint
from xrep.text import train_tokenizer as vocabulary


@pytest.fixture(autouse=True)
def heed_ctrl_c() -> Iterator[None]:
    """Handle Ctrl-C as Python does, also if the tests run in the background, where shells make programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def press(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *calls: int, number: signal.Signals = signal.SIGINT
) -> None:
    """Send this process Ctrl-C, or another signal, at the beginning of some calls of a function, counted from 1."""
    function, count = getattr(owner, name), [0]

    def interrupted(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        for _ in range(calls.count(count[0])):
            os.kill(os.getpid(), number)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, interrupted)


def train(cli: Commands, data: Path, folder: str, *more: str) -> Result:
    return cli("train", data, *options(save_dir=folder, max_steps=8, save_every=3), *more)


@pytest.mark.slow
def test_training_saves_and_goes_on(data_directory: Path, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code says that the run is not finished, so that neither SLURM nor ``&&`` takes it for complete."""
    assert train(cli, data_directory, "whole").code == 0
    names = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGUSR1: "SIGUSR1"}
    for number, name in names.items():
        with monkeypatch.context() as patch:
            press(patch, DualMoco, "forward", 5, number=number)
            stopped = train(cli, data_directory, name)
        assert stopped.code == 128 + number and stopped.err.count(NOTICE) == (number == signal.SIGINT)
        assert f"stopped by {name} after step 5; the same command goes on from {name}/last" in stopped.err
        assert open_checkpoint(cli.folder / name / "last").step == 5
        assert train(cli, data_directory, name).code == 0
        for file in ("model.safetensors", "criterion.safetensors"):
            assert (cli.folder / name / "last" / file).read_bytes() == (cli.folder / "whole/last" / file).read_bytes()


@pytest.mark.slow
def test_a_second_ctrl_c_stops_training_at_once(data_directory, cli, monkeypatch):
    with monkeypatch.context() as patch:
        press(patch, DualMoco, "forward", 5, 5)
        stopped = train(cli, data_directory, "run")
    assert stopped.code == 130 and stopped.err.endswith("xrep-train: error: interrupted\n")
    assert open_checkpoint(cli.folder / "run" / "last").step == 3
    # Ranks under torchrun ignore Ctrl-C, which it passes on with its own SIGTERM.
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    press(monkeypatch, DualMoco, "forward", 5, 5)
    assert train(cli, data_directory, "ranks").code != 0
    assert open_checkpoint(cli.folder / "ranks" / "last").step == 5


ENCODE = ("encode --input lines.txt", SentenceEncoder, "encode")
MINE = "mine --source lines.txt --target lines.txt"
NOTHING = "nothing is saved yet"
SAVED = "cut.npy.job, and the same command goes on from there"
PRESSED = {
    "encode, the third chunk": (*ENCODE, (2,), SAVED),
    "encode, twice": (*ENCODE, (3, 3), SAVED),
    "encode, twice in the first chunk": (*ENCODE, (1, 1), SAVED),
    "mine, after the last chunk of the source": (MINE, SentenceEncoder, "encode", (4,), SAVED),
    "mine, before the text is read": (MINE, encoding, "write_lines", (1, 1), NOTHING),
    "mine, the search": (MINE, nearest, "search_tile", (2,), SAVED),
    "score": ("score --keep-identical --bitext de-en=lines.txt,lines.txt", SentenceEncoder, "encode", (4,), SAVED),
    "mine negatives": ("mine negatives --bitext de-en=lines.txt,lines.txt", SentenceEncoder, "encode", (4,), SAVED),
}
"""A command on ``lines.txt``, a function and its calls at which Ctrl-C is pressed, and what it says."""


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """30 lines, of which 8 are encoded and searched at a time."""
    for name, value in (
        ("store.texts.CHUNK_LINES", 8),
        ("inference.nearest.TILE_ROWS", 8),
        ("inference.nearest._STRIP_BYTES", 1),
    ):
        monkeypatch.setattr(f"xrep.{name}", value)
    return write_lines(tmp_path / "lines.txt", [german for german, _ in sentence_pairs(30)])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESSED)
def test_commands_save_and_go_on(name, lines, shared_encoder, cli, monkeypatch):
    words, owner, function, calls, saved = PRESSED[name]
    job = cli.folder / "cut.npy.job"
    command, *line = [*words.split(), "--device", "cpu", "--path", shared_encoder, "--output"]
    assert cli(command, *line, "whole.npy").code == 0
    with monkeypatch.context() as patch:
        press(patch, owner, function, *calls)
        done = cli(command, *line, "cut.npy")
    assert done.code == 130 and done.err.endswith(f"{saved}\n") and f"xrep-{command}: error: interrupted; " in done.err
    assert done.err.count(NOTICE) == 1 and not (cli.folder / "cut.npy").exists()
    assert job.exists() == (saved != NOTHING)
    if owner is nearest:
        assert list(job.glob("done/search/*"))
    assert cli(command, *line, "cut.npy").code == 0
    assert (cli.folder / "cut.npy").read_bytes() == (cli.folder / "whole.npy").read_bytes()
    assert sorted(os.listdir(cli.folder)) == ["cut.npy", "lines.txt", "whole.npy"]


@pytest.mark.parametrize("output", ["-", "pipe"])
@pytest.mark.parametrize(
    "line", ["encode --input L", "mine --source L --target L", "mine negatives --bitext de-en=L,L"]
)
def test_nothing_is_saved_of_what_goes_to_a_stream(line, output, lines, shared_encoder, cli, monkeypatch):
    """After one Ctrl-C, at the second chunk of lines."""
    (cli.folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(cli.folder / "temporary"))
    os.mkfifo(cli.folder / "pipe")
    press(monkeypatch, SentenceEncoder, "encode", 2)
    words = line.replace("L", "lines.txt").split()
    done = cli(*words, "--device", "cpu", "--path", shared_encoder, "--output", output)
    said = "interrupted; nothing is saved, because the output is a stream; write to a file to go on later\n"
    assert done.code == 130 and done.err.endswith(said) and done.err.count(NOTICE) == 1 and "saving" not in done.err
    assert sorted(os.listdir(cli.folder)) == ["lines.txt", "pipe", "temporary"] and not done.wrote
    assert not os.listdir(cli.folder / "temporary")


def test_translations_have_no_output_before_all_are_there(lines, translator, cli, monkeypatch):
    press(monkeypatch, Translator, "translate", 2)
    words = "--device cpu --input lines.txt --output out --buffer-lines 8".split()
    done = cli("generate", "--path", translator, *words)
    assert (done.code, done.err.splitlines()[-1]) == (130, "xrep-generate: error: interrupted") and not done.wrote


BITEXT = "--bitext de-en=de,en --vocab-size 60".split()


@pytest.fixture
def sides(cli: Commands) -> str:
    """Write parallel text; return what an interrupted command says that trains its vocabulary."""
    for side, code in enumerate(("de", "en")):
        write_lines(cli.folder / code, [pair[side] for pair in sentence_pairs(170)])
    said = f"what is done is in {cli.folder / 'bin.job'}, and the same command goes on from there"
    return f"xrep-preprocess: error: interrupted; {said}\n"


@pytest.mark.slow
def test_preprocessing_stops_while_sentencepiece_trains_and_goes_on(sides, cli, monkeypatch):
    """SentencePiece itself would go on for as long as it takes."""
    line = ["preprocess", *BITEXT, "--destdir"]
    assert cli(*line, "whole").code == 0

    # It presses when its parent waits.
    wait = "import os, signal, time; time.sleep(0.5); os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
    with monkeypatch.context() as patch:
        patch.setattr(vocabulary, "_PROGRAM", wait)
        done = cli(*line, "bin")
    assert done.code == 130 and done.err.endswith(sides) and not (cli.folder / "bin").exists()
    monkeypatch.setattr(preprocess_stages, "clean", None)  # now the text is clean
    with monkeypatch.context() as patch:
        press(patch, preprocess_stages, "_tokenise", 1)
        assert cli(*line, "bin").err.endswith(sides)
    monkeypatch.setattr(vocabulary, "_PROGRAM", "no program")  # and the vocabulary is trained
    assert cli(*line, "bin").code == 0
    assert contents(cli.folder / "bin") == contents(cli.folder / "whole")
    assert sorted(os.listdir(cli.folder)) == ["bin", "de", "en", "whole"]

"""Ctrl-C in commands that may have worked for hours: what is done is saved, and the same command goes on from there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.encoders import write_encoder
from tests.support.runs import contents, options
from xrep.criteria.dual_moco import DualMoco
from xrep.data import preprocess as preprocessing
from xrep.data import spool, store
from xrep.inference import encoding
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interrupts import NOTICE
from xrep.models.directory import open_checkpoint
from xrep.retrieval import search
from xrep.text import tokenizer
from xrep_cli import encode, mine, preprocess, train

CAPTURED = pytest.CaptureFixture[str]


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


def interrupt_and_keep(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[KeyboardInterrupt]:
    """Interrupt the first call of a function. The returned list holds the error, and its traceback all that the command
    was working with, so that nothing is freed because nobody refers to it."""
    kept: list[KeyboardInterrupt] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        kept.append(KeyboardInterrupt())
        raise kept[0]

    monkeypatch.setattr(owner, name, interrupted)
    return kept


def errors(main: Callable[[list[str]], int], line: list[str], capfd: CAPTURED) -> str:
    """Run a command that is interrupted and return what it printed on stderr."""
    capfd.readouterr()
    assert main(line) == 130
    return capfd.readouterr().err


def train_line(data: Path, folder: Path) -> list[str]:
    return [str(data), *options(save_dir=folder, max_steps=8, save_every=3)]


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [(signal.SIGINT, "Ctrl-C", 130), (signal.SIGTERM, "SIGTERM", 143), (signal.SIGUSR1, "SIGUSR1", 138)],
)
def test_training_saves_and_goes_on(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURED, number, name: str, code: int
) -> None:
    """The exit code says that the run is not finished, so that neither SLURM nor ``&&`` takes it for complete."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    assert train.main(train_line(data_directory, whole)) == 0
    with monkeypatch.context() as patch:
        press(patch, DualMoco, "forward", 5, number=number)
        with pytest.raises(SystemExit) as stop:
            train.main(train_line(data_directory, run))
    printed = capfd.readouterr().err
    assert stop.value.code == code and printed.count(NOTICE) == (number == signal.SIGINT)
    assert f"stopped by {name} after step 5; the same command goes on from {run / 'last'}" in printed
    assert open_checkpoint(run / "last").step == 5
    assert train.main(train_line(data_directory, run)) == 0
    for name in ("model.safetensors", "criterion.safetensors"):
        assert (run / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()


def test_a_second_ctrl_c_stops_training_at_once(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURED
) -> None:
    press(monkeypatch, DualMoco, "forward", 5, 5)
    printed = errors(train.main, train_line(data_directory, tmp_path / "run"), capfd)
    assert printed.endswith("xrep-train: error: interrupted\n")
    assert open_checkpoint(tmp_path / "run" / "last").step == 3


def test_ranks_under_torchrun_ignore_what_it_passes_on(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    press(monkeypatch, DualMoco, "forward", 5, 5)
    with pytest.raises(SystemExit):
        train.main(train_line(data_directory, tmp_path / "run"))
    assert open_checkpoint(tmp_path / "run" / "last").step == 5


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("run") / "best")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(encoding, "CHUNK_LINES", 8)
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{german}\n" for german, _ in sentence_pairs(30)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ((2,), "16 lines are saved, and the same command goes on after them"),
        ((3, 3), "16 lines are saved, and the same command goes on after them"),
        ((1, 1), "nothing is saved yet"),
    ],
)
def test_encoding_saves_and_goes_on(
    encoder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: CAPTURED,
    calls: tuple[int, ...],
    message: str,
) -> None:
    line = ["--device", "cpu", "--path", str(encoder), "--input", str(text)]
    assert encode.main([*line, "--output", str(tmp_path / "whole.npy")]) == 0
    output = tmp_path / "vectors.npy"
    with monkeypatch.context() as patch:
        press(patch, SentenceEncoder, "encode", *calls)
        printed = errors(encode.main, [*line, "--output", str(output)], capfd)
    assert printed.endswith(f"xrep-encode: error: interrupted; {message}\n")
    assert printed.count(NOTICE) == 1 and not output.exists()
    assert encode.main([*line, "--output", str(output)]) == 0
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.parametrize(
    ("owner", "name", "calls", "saved"),
    [
        pytest.param(SentenceEncoder, "encode", (4,), True, id="after the last chunk of the source"),
        pytest.param(SentenceEncoder, "encode", (1, 1), False, id="before the first chunk"),
        pytest.param(search, "search_block", (2,), True, id="search"),
    ],
)
def test_mining_saves_and_goes_on(
    encoder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: CAPTURED,
    owner: Any,
    name: str,
    calls: tuple[int, ...],
    saved: bool,
) -> None:
    monkeypatch.setattr(search, "TILE", 8)
    monkeypatch.setattr(search, "_UNIT_BYTES", 1)
    line = ["--device", "cpu", "--path", str(encoder), "--source", str(text), "--target", str(text)]
    assert mine.main([*line, "--output", str(tmp_path / "whole.tsv")]) == 0
    output, work = tmp_path / "mined.tsv", tmp_path / "mined.tsv.work"
    with monkeypatch.context() as patch:
        press(patch, owner, name, *calls)
        printed = errors(mine.main, [*line, "--output", str(output)], capfd)
    done = f"what is done is in {work}, and the same command goes on from there" if saved else "nothing is saved yet"
    assert printed.endswith(f"xrep-mine: error: interrupted; {done}\n")
    assert work.exists() == saved and not output.exists()
    if name == "search_block":
        assert 0 < int(np.load(work / "neighbours.npz")["done"]) < 30
    assert mine.main([*line, "--output", str(output)]) == 0
    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.parametrize("output", ["-", "pipe"])
@pytest.mark.parametrize("command", ["encode", "mine", "negatives"])
def test_nothing_is_saved_of_what_goes_to_a_stream(
    encoder: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: CAPTURED,
    command: str,
    output: str,
) -> None:
    """After one Ctrl-C, at the second chunk of lines."""
    for name in ("temporary", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    os.mkfifo(tmp_path / "pipe")
    output = str(tmp_path / "pipe") if output == "pipe" else output
    inputs = {
        "encode": ["--input", str(text)],
        "mine": ["--source", str(text), "--target", str(text)],
        "negatives": ["negatives", "--bitext", f"de-en={text},{text}"],
    }
    press(monkeypatch, SentenceEncoder, "encode", 2)
    main = encode.main if command == "encode" else mine.main
    printed = errors(main, [*inputs[command], "--device", "cpu", "--path", str(encoder), "--output", output], capfd)
    said = "interrupted; nothing is saved, because the output is a stream; write to a file to go on later\n"
    assert printed.endswith(said) and printed.count(NOTICE) == 1 and "saving" not in printed
    assert not list((tmp_path / "temporary").iterdir()) and not list((tmp_path / "here").iterdir())


def test_preprocessing_stops_while_sentencepiece_trains_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURED
) -> None:
    """SentencePiece itself would go on for as long as it takes."""
    corpus = write_corpus(tmp_path / "corpus", train=50)
    files, output = f"{corpus}/train.de-en.de,{corpus}/train.de-en.en", tmp_path / "data-bin"
    line = ["--bitext", f"de-en={files}", "--vocab-size", "60", "--destdir"]
    assert preprocess.main([*line, str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        # It presses when its parent waits: a signal just before that is only seen when the wait is over.
        wait = "import os, signal, time; time.sleep(0.5); os.kill(os.getppid(), signal.SIGINT); time.sleep(600)"
        patch.setattr(tokenizer, "_TRAIN", wait)
        printed = errors(preprocess.main, [*line, str(output)], capfd)
    message = f"what is done is in {output}.work, and the same command goes on from there"
    assert printed.endswith(f"xrep-preprocess: error: interrupted; {message}\n") and not output.exists()
    with monkeypatch.context() as patch:  # now the text is clean
        patch.setattr(preprocessing, "clean", None)
        press(patch, store.DirectoryWriter, "append", 1)
        assert errors(preprocess.main, [*line, str(output)], capfd).endswith(f"{message}\n")
    with monkeypatch.context() as patch:  # and the vocabulary is trained
        patch.setattr(preprocessing, "clean", None)
        patch.setattr(tokenizer, "_TRAIN", "import sys; sys.exit(1)")
        assert preprocess.main([*line, str(output)]) == 0
    assert contents(output) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "data-bin", "whole"]


def test_preprocessing_goes_on_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURED
) -> None:
    """Workers hold the lock of the unfinished work as well. They end with the command, not with its traceback."""
    corpus, output = write_corpus(tmp_path / "corpus", train=50), tmp_path / "data-bin"
    files = f"{corpus}/train.de-en.de,{corpus}/train.de-en.en"
    line = ["--bitext", f"de-en={files}", "--vocab-size", "60", "--workers", "2"]
    assert preprocess.main([*line, "--destdir", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        kept = interrupt_and_keep(patch, store.DirectoryWriter, "append")
        printed = errors(preprocess.main, [*line, "--destdir", str(output)], capfd)
    assert printed.endswith(f"what is done is in {output}.work, and the same command goes on from there\n")
    assert multiprocessing.active_children() == []
    assert preprocess.main([*line, "--destdir", str(output)]) == 0 and len(kept) == 1
    assert contents(output) == contents(tmp_path / "whole")


def test_training_goes_on_in_the_same_process(
    data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURED
) -> None:
    line = [*train_line(data_directory, tmp_path / "run"), "--data-workers", "1"]
    with monkeypatch.context() as patch:
        kept = interrupt_and_keep(patch, DualMoco, "forward")
        assert errors(train.main, line, capfd).endswith("xrep-train: error: interrupted\n")
    assert multiprocessing.active_children() == []
    assert train.main(line) == 0 and len(kept) == 1


def test_preprocessing_begins_anew_with_another_text_or_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: CAPTURED
) -> None:
    corpus = write_corpus(tmp_path / "corpus", train=50)
    line = ["--bitext", f"de-en={corpus}/train.de-en.de,{corpus}/train.de-en.en", "--destdir"]
    with monkeypatch.context() as patch:
        press(patch, store.DirectoryWriter, "append", 1)
        errors(preprocess.main, [*line, str(tmp_path / "bin"), "--vocab-size", "60"], capfd)
    more = ["--vocab-size", "62", "--valid-size", "0"]
    for name in ("whole", "bin"):
        assert preprocess.main([*line, str(tmp_path / name), *more]) == 0
    assert contents(tmp_path / "bin") == contents(tmp_path / "whole") and not (tmp_path / "bin.work").exists()
    with monkeypatch.context() as patch:
        press(patch, spool, "read_pairs", 1)
        printed = errors(preprocess.main, [*line, str(tmp_path / "other"), *more], capfd)
    assert printed.endswith("interrupted; nothing is saved yet\n") and not (tmp_path / "other.work").exists()
    assert preprocess.main([*line, str(tmp_path / "large"), "--vocab-size", "9000"]) == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("large")] == []

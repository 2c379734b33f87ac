"""Preprocessing by several processes gives the same bytes as in one, and fails as cleanly."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_preprocess import PAIRS, TURKISH, tsv
from tests.support.runs import contents
from xrep.data import build, cleaned_text, preprocess_stages
from xrep.data import preprocess as module
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.errors import UserError
from xrep.jobs.engines import LOCAL, Engine
from xrep.text.cleaning import CleaningOptions
from xrep.text.find import Bitext, parse_bitext

ROOT = Path(__file__).parents[2]
OPTIONS = PreprocessOptions(vocabulary_size=75, valid_size=8, cleaning=CleaningOptions(sample=150))
SLURM = Engine(engine="slurm")


def silent(line: str) -> None:
    pass


@pytest.fixture
def splits(tmp_path, monkeypatch) -> dict[str, list[Bitext]]:
    monkeypatch.setattr(build, "_CHUNK", 20)
    monkeypatch.setattr(cleaned_text, "_BLOCK_ROWS", 64)
    english_first = [(en, de) for de, en in PAIRS[:60]]
    files = [("a.tsv", PAIRS[30:], "de"), ("b.tsv", TURKISH, "tr"), ("c.tsv", PAIRS + PAIRS[:9], "de")]
    train = [tsv(tmp_path / name, pairs, language) for name, pairs, language in files]
    tsv(tmp_path / "d.tsv", english_first)
    return {"train": [*train, Bitext(("de", "en"), (str(tmp_path / "d.tsv"),), (0, 1), sample=40)]}


@pytest.mark.slow
def test_the_same_bytes_with_workers(tmp_path, splits):
    alone = preprocess(splits, tmp_path / "alone", OPTIONS, silent, False)
    several = preprocess(splits, tmp_path / "several", OPTIONS, silent, False, workers=3)
    assert alone and several
    assert contents(alone.path) == contents(several.path) and multiprocessing.active_children() == []
    assert alone.cleaning == several.cleaning
    assert all(any(row[step] for row in alone.cleaning.values()) for step in ("duplicate", "sampled away"))


def task(number: int, splits: dict[str, list[Bitext]], folder: Path, made: Any) -> None:
    os.environ.update(SLURM_ARRAY_TASK_ID=f"{number}", SLURM_ARRAY_TASK_COUNT="3")
    made.put(preprocess(splits, folder, OPTIONS, silent, False, engine=SLURM))


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_the_same_bytes_by_the_tasks_of_an_array(tmp_path, splits, given):
    if given:
        splits["valid"] = [tsv(tmp_path / "v.tsv", PAIRS[:5])]
        splits["test"] = [tsv(tmp_path / "t.tsv", TURKISH[100:104], "tr")]
    whole = preprocess(splits, tmp_path / "whole", OPTIONS, silent, False)
    fork = multiprocessing.get_context("fork")
    made = fork.Queue()
    tasks = [fork.Process(target=task, args=(number, splits, tmp_path / "shared", made)) for number in range(3)]
    for process in tasks:
        process.start()
    reports = list(filter(None, (made.get(timeout=60) for _ in tasks)))
    for process in tasks:
        process.join()
    assert whole and contents(tmp_path / "shared") == contents(whole.path)
    assert reports and all(report.cleaning == whole.cleaning for report in reports)
    assert (tmp_path / "shared.job" / "finished.json").exists() and not (tmp_path / "shared.job" / "data").exists()


@pytest.mark.slow
def test_a_task_that_comes_late_finds_the_data(tmp_path, splits, monkeypatch):
    made = preprocess(splits, tmp_path / "whole", OPTIONS, silent, False)
    for name, value in (("ID", "1"), ("COUNT", "2")):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    with monkeypatch.context() as patch, pytest.raises(UserError, match="no training pair"):
        patch.setattr(preprocess_stages.DecideFates, "run", refuse)
        preprocess(splits, tmp_path / "out", OPTIONS, silent, False, engine=SLURM)
    with monkeypatch.context() as patch:
        patch.setattr(preprocess_stages, "clean", None)  # now the text is clean
        assert preprocess(splits, tmp_path / "out", OPTIONS, silent, False, engine=SLURM)
        assert preprocess(splits, tmp_path / "out", OPTIONS, silent, False, engine=SLURM) is None
    assert made and contents(tmp_path / "out") == contents(made.path)
    for engine in (SLURM, LOCAL):
        with pytest.raises(UserError, match="out: exists and is not empty"):
            preprocess(splits, tmp_path / "out", PreprocessOptions(vocabulary_size=76), silent, False, engine=engine)


def refuse(*arguments: Any) -> None:
    raise UserError("no training pair is left")


def test_stages_go_to_other_processes(tmp_path, splits, monkeypatch):
    """Ray sends them with their job."""
    sent = []
    monkeypatch.setattr(
        module, "run_job", lambda job, *arguments, **named: sent.append(pickle.loads(pickle.dumps(job)))
    )
    with open(os.devnull, "w") as stream:
        preprocess(splits, tmp_path / "out", OPTIONS, partial(print, file=stream), False)
    assert [stage.name for stage in sent[0].stages][-2:] == ["vocabulary", "tokenise"]


@pytest.mark.slow
def test_a_killed_worker_leaves_nothing_behind(tmp_path, splits, monkeypatch):
    monkeypatch.setattr(preprocess_stages, "_tokenise", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(UserError, match="a worker was killed; if memory ran out, lower"):
        preprocess(splits, tmp_path / "out", OPTIONS, silent, False, workers=2)
    assert sorted(os.listdir(tmp_path)) == before and multiprocessing.active_children() == []


SLOW = (
    "import sys, time; from xrep.data import preprocess_stages; from xrep_cli.preprocess import main; "
    "preprocess_stages.clean = lambda *_, **__: time.sleep(5); sys.exit(main(sys.argv[1:]))"
)


def started(folder: Path, script: str, text: str) -> subprocess.Popen[str]:
    command = f"--bitext de-en={text}:1,2 --destdir out --workers 2"
    return subprocess.Popen(
        [sys.executable, "-c", script, *command.split()], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_leaves_nothing_behind(tmp_path):
    text = [f"Satz {number} ist neu\tSentence {number} is new\n" for number in range(20_000)]
    (tmp_path / "x.tsv").write_text("".join(text))
    process = started(tmp_path, SLOW, "x.tsv")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 2:
        time.sleep(0.01)
    workers = children.read_text().split()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.count("\n") == 1
    assert errors.endswith("interrupted; nothing is saved yet\n")
    assert os.listdir(tmp_path) == ["x.tsv"]
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.slow
def test_text_of_a_pipe_is_read_once(tmp_path, splits):
    os.mkfifo(tmp_path / "pipe")
    pipe = {"train": [parse_bitext(f"de-en={tmp_path / 'pipe'}:1,2")]}
    writer = threading.Thread(target=lambda: tsv(tmp_path / "pipe", PAIRS))
    writer.start()
    options = PreprocessOptions(vocabulary_size=60)
    made = preprocess(pipe, tmp_path / "out", options, silent, False)
    writer.join()
    plain = preprocess({"train": [tsv(tmp_path / "plain", PAIRS)]}, tmp_path / "plain.out", options, silent, False)
    assert made and plain and made.manifest["files"] == plain.manifest["files"]
    assert not (tmp_path / "out.job").exists()


@pytest.mark.slow
def test_ctrl_c_while_a_pipe_is_read_leaves_nothing_behind(tmp_path):
    os.mkfifo(tmp_path / "x.tsv")
    process = started(tmp_path, SLOW, "x.tsv")
    with open(tmp_path / "x.tsv", "w") as text:
        text.write("Satz\tSentence\n")
        text.flush()
        while process.poll() is None and not list(tmp_path.glob("out.job/*")):
            time.sleep(0.01)
        time.sleep(0.5)  # a signal just before it waits for the pipe is only seen when the wait is over
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.count("\n") == 1
    assert "interrupted; nothing is written to out; the same command begins again" in errors
    assert os.listdir(tmp_path) == ["x.tsv"]

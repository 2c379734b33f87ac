"""Preprocessing in several processes and in shards gives the same bytes as in one, and fails as cleanly."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.data.test_preprocess import PAIRS, TURKISH, tsv
from tests.support.runs import contents
from xrep.data import preprocess as module
from xrep.data import spool
from xrep.data.preprocess import PreprocessOptions, merge, preprocess
from xrep.errors import UserError
from xrep.text.cleaning import CleaningOptions
from xrep.text.readers import Bitext

ROOT = Path(__file__).parents[2]
OPTIONS = PreprocessOptions(vocabulary_size=75, valid_size=8, cleaning=CleaningOptions(sample=150))


def silent(line: str) -> None:
    pass


@pytest.fixture
def splits(tmp_path, monkeypatch) -> dict[str, list[Bitext]]:
    monkeypatch.setattr(spool, "_CHUNK_LINES", 20)
    monkeypatch.setattr(spool, "_BLOCK_ROWS", 64)
    english_first = [(en, de) for de, en in PAIRS[:60]]
    files = [("a.tsv", PAIRS[30:], "de"), ("b.tsv", TURKISH, "tr"), ("c.tsv", PAIRS + PAIRS[:9], "de")]
    train = [tsv(tmp_path / name, pairs, language) for name, pairs, language in files]
    tsv(tmp_path / "d.tsv", english_first)
    return {"train": [*train, Bitext(("de", "en"), (str(tmp_path / "d.tsv"),), (0, 1), sample=40)]}


@pytest.mark.slow
def test_the_same_bytes_with_workers(tmp_path, splits):
    alone = preprocess(splits, tmp_path / "alone", OPTIONS, silent, False)
    several = preprocess(splits, tmp_path / "several", OPTIONS, silent, False, workers=3)
    assert contents(alone.path) == contents(several.path) and multiprocessing.active_children() == []
    assert alone.cleaning.counts == several.cleaning.counts
    assert alone.cleaning.total("duplicate") and alone.cleaning.total("sampled away")


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_merged_shards_are_the_data_of_the_whole_text(tmp_path, splits, given):
    if given:  # every shard compares its text with all evaluation text
        splits["valid"] = [tsv(tmp_path / "v.tsv", PAIRS[:5])]
        splits["test"] = [tsv(tmp_path / "t.tsv", TURKISH[100:104], "tr")]
    whole = preprocess(splits, tmp_path / "whole", OPTIONS, silent, False)
    shards = [tmp_path / f"shard{number}" for number in (1, 2, 3)]
    for number, folder in enumerate(shards, 1):
        made = preprocess(splits, folder, OPTIONS, silent, False, shard=(number, 3), workers=number)
        assert made.as_dict()["shard"] == f"{number}/3"
    assert len(list(shards[0].glob("*.text"))) == (4 if given else 2)
    before = [contents(folder) for folder in shards]
    merged = merge([shards[2], shards[0], shards[1]], tmp_path / "merged", silent, False, workers=2)
    assert contents(merged.path) == contents(whole.path)
    assert merged.cleaning.counts == whole.cleaning.counts and merged.notes == whole.notes
    assert before == [contents(folder) for folder in shards]


@pytest.mark.slow
def test_what_cannot_be_merged(tmp_path, splits):
    for number in (1, 2):
        preprocess(splits, tmp_path / str(number), OPTIONS, silent, False, shard=(number, 2))
    other = PreprocessOptions(vocabulary_size=76, valid_size=8)
    preprocess(splits, tmp_path / "other", other, silent, False, shard=(2, 2))
    first, second = tmp_path / "1", tmp_path / "2"
    (tmp_path / "again").symlink_to(second)
    for folders, problem in [
        ([first], "shard 2 of 2 is missing; name the directories of all shards"),
        ([first, tmp_path / "other"], "other: is of another text, or has other options, than .*1; make all shards"),
        ([first, tmp_path], "not a shard .no shard.json.; see xrep-preprocess --shard"),
        ([first, second, tmp_path / "again"], "again: is shard 2 of 2, as .*2 is; name one"),
    ]:
        with pytest.raises(UserError, match=problem):
            merge(folders, tmp_path / "out", silent, False)
    text = next(second.glob("*.text"))
    text.write_bytes(text.read_bytes()[:-5])
    with pytest.raises(UserError, match="2: its files are not those that shard.json names; make it again"):
        merge([first, second], tmp_path / "out", silent, False)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="5 shards of a training text with 4 files; ask for fewer"):
        preprocess(splits, tmp_path / "out", OPTIONS, silent, False, shard=(5, 5))


@pytest.mark.slow
def test_a_killed_worker_is_named_and_leaves_nothing_behind(tmp_path, splits, monkeypatch):
    monkeypatch.setattr(module, "_tokenise", lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    before = sorted(os.listdir(tmp_path))
    message = r"worker 1 of 2 \(process \d+\) was killed by SIGKILL; if memory ran out, lower"
    with pytest.raises(UserError, match=message):
        preprocess(splits, tmp_path / "out", OPTIONS, silent, False, workers=2)
    assert sorted(os.listdir(tmp_path)) == before and multiprocessing.active_children() == []


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_and_leaves_nothing_behind(tmp_path):
    """The text comes through pipes, so that the command is still reading when it is interrupted."""
    os.mkfifo(tmp_path / "x.tsv")
    command = "-m xrep_cli.preprocess --bitext de-en=x.tsv:1,2 --destdir out --workers 2"
    process = subprocess.Popen(
        [sys.executable, *command.split()], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with open(tmp_path / "x.tsv", "w") as text:
        text.writelines(f"Satz {number} ist neu\tSentence {number} is new\n" for number in range(20_000))
        text.flush()
        while process.poll() is None and len(children.read_text().split()) < 2:
            time.sleep(0.01)
        workers = children.read_text().split()
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors.count("\n") == 1
    assert "interrupted; nothing is saved yet" in errors
    assert sorted(os.listdir(tmp_path)) == ["x.tsv"]
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)

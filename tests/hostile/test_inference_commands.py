"""xrep-encode, xrep-mine, xrep-generate and xrep-export on hostile options and inputs."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from scripts.kill_commands import run_job
from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.encoders import write_encoder
from tests.support.runs import contents
from tests.support.translators import write_translator
from xrep_cli import encode, generate, mine

ENCODE = "--device cpu --path enc --input de.txt --output v.npy"
MINE = "--device cpu --output m.tsv --source-vectors x.npy --target-vectors y.npy"
GENERATE = "--device cpu --path nmt --max-length-b 5 --input de.txt --output hyp.txt"
EXPORT = "--path enc --output out"
GRAPHS = ("onnx", "openvino")

LINES = {
    "latin.txt": "latin.txt:1: invalid UTF-8 (byte 3 of the line)",
    "surrogate.txt": "surrogate.txt:1: invalid UTF-8",
    "long.txt": "long.txt:1: a line of more than 1,000,000 characters, too long for a sentence",
    "truncated.gz": "truncated.gz:1001: damaged or truncated gzip file",
    "dir": "dir: a folder, not a file",
    "absent": "absent: no such file",
    "dangling": "dangling: no such file",
}
OUTPUTS = {"dir": "dir: is a folder already", "absent/f": "absent: no such folder", "de.txt": "is the same file as"}
VECTORS = {
    "fifo": "fifo: not a regular file",
    "dir": "dir: not a regular file",
    "/dev/zero": "/dev/zero: not a regular file",
    "absent": "absent: no such file",
    "de.txt": "de.txt: not a file of vectors, or a truncated one",
    "truncated.npy": "truncated.npy: not a file of vectors, or a truncated one",
    "columns.npy": "columns.npy: the rows do not lie one after the other; save it in C order",
    "whole.npy": "whole.npy: not an array [N, D] of floats",
    "flat.npy": "flat.npy: not an array [N, D] of floats",
    "no_columns.npy": "no_columns.npy: not an array [N, D] of floats",
    "zero.npy": "zero.npy:1: the vector of this row is zero; encode that sentence again, or leave it out",
    "nan.npy": "nan.npy:3: the vector of this row is not finite",
    "inf.npy": "inf.npy:3: the vector of this row is not finite",
    "1e300.npy": "1e300.npy:1: the vector of this row is not finite",
    "same.npy": "there are 1 sentences and 40; lower --neighbours to 1, or give more sentences",
    "wide.npy": "wide.npy: vectors of 9 numbers, but y.npy has 8",
}
CASES = [
    *(Case("encode", f"{ENCODE} --input {file}", message) for file, message in LINES.items()),
    Case("encode", f"{ENCODE} --input empty.txt", "empty.txt: the file is empty"),
    Case("encode", f"{ENCODE} --output absent/v.npy", "absent: no such folder"),
    Case("encode", f"{ENCODE} --output - --json", "--json and the vectors both go to standard output; name"),
    Case("encode", f"{ENCODE} --output {'a' * 300}.npy", "File name too long"),
    *(
        Case("encode", f"{ENCODE} --output {name}.npy", f"{name}.npy.partial: not the unfinished output")
        for name in ("text", "folder", "link", "pipe")
    ),
    Case("encode", f"{ENCODE} --batch-tokens 0", "--batch-tokens 0; give at least 1"),
    Case("encode", f"{ENCODE} --batch-tokens 1{'0' * 30}", "argument --batch-tokens: must be an integer between"),
    Case("encode", f"{ENCODE} --device meta", "meta is not a device of this machine"),
    *(Case("mine", f"{MINE} --source-vectors {file}", message) for file, message in VECTORS.items()),
    Case("mine", f"{MINE} --source-vectors same.npy --target-vectors same.npy", "1 sentences a side; lower --neigh"),
    *(Case("mine", f"{MINE} --source {file}", LINES[file]) for file in ("latin.txt", "dir", "absent")),
    Case("mine", f"{MINE} --source de.txt", "de.txt:3: 2 lines, but x.npy has 50 vectors"),
    Case("mine", f"{MINE} --neighbours 41", "lower --neighbours to 40, or give more sentences"),
    Case("mine", f"{MINE} --neighbours 1{'0' * 12}", "lower --neighbours to 40"),
    Case("mine", f"{MINE} --threshold nan", "argument --threshold: must be a finite number, not 'nan'"),
    Case("mine", f"{MINE} --shard 1/0", "--shard 1/0; write --shard 1/8"),
    Case("mine", f"{MINE} --shard 3/2", "--shard 3/2; write --shard 1/8"),
    Case("mine", f"{MINE} --shard \u0661/\u0662", "write --shard 1/8, the parts being counted from 1"),
    Case("mine", f"{MINE} --shard 1/1{'0' * 30}", "write --shard 1/8, the parts being counted from 1"),
    Case("mine", f"{MINE} --shard 1/1000", "a part without sentences; cut the source into fewer parts with --shard"),
    Case("mine", f"{MINE} --merge 0", "--merge 0; give at least 1"),
    Case("mine", f"{MINE} --merge 1{'0' * 12}", "no such shard; search that part first, with --shard"),
    Case("mine", f"{MINE} --output - --json -", "the pairs and --json both go to standard output; name a file"),
    Case("mine", f"{MINE} --output /dev/null --shard 1/2", "--output /dev/null with --shard or --merge; name a file"),
    Case("mine", f"{MINE} --output mine.tsv", "mine.tsv.work: not the folder of an unfinished command; rename"),
    Case("mine", f"{MINE} --output x.npy", "x.npy: --output is the same file as --source-vectors"),
    Case("mine", f"{MINE} --json m.tsv", "m.tsv: --json is the same file as --output"),
    *(Case("generate", f"{GENERATE} --input {file}", message) for file, message in LINES.items()),
    *(Case("generate", f"{GENERATE} --output {file}", message) for file, message in OUTPUTS.items()),
    *(Case("generate", f"{GENERATE} --reference {file}", LINES[file]) for file in ("latin.txt", "dir", "absent")),
    Case("generate", f"{GENERATE} --reference empty.txt", "empty.txt: the file is empty"),
    Case("generate", f"{GENERATE} --beam 1000000", "and the vocabulary has 120 subwords; lower --beam"),
    Case("generate", f"{GENERATE} --sampling --sampling-topk 121", "has 120 subwords; lower --sampling-topk"),
    Case("generate", f"{GENERATE} --sampling --nbest 1{'0' * 9}", "1,000,000,000 hypotheses needs"),
    Case("generate", f"{GENERATE} --lenpen 1e300", "--lenpen must lie in [-10, 10], not 1e+300"),
    Case("generate", f"{GENERATE} --lenpen=-1e300", "--lenpen must lie in [-10, 10]"),
    Case("generate", f"{GENERATE} --max-length-a inf", "argument --max-length-a: must be a finite number"),
    Case("generate", f"{GENERATE} --min-length 9", "--min-length 9 is more than the greatest length 5"),
    Case("generate", f"{GENERATE} --sampling --temperature 0", "--temperature must be above 0, not 0.0"),
    Case("generate", f"{GENERATE} --sampling --temperature inf", "argument --temperature: must be a finite number"),
    Case("generate", f"{GENERATE} --sampling --sampling-topp 2", "--sampling-topp must lie in (0, 1], not 2.0"),
    Case("generate", f"{GENERATE} --seed -1", "--seed must be at least 0, not -1"),
    Case("generate", f"{GENERATE} --max-tokens 0", "--max-tokens 0; give at least 1"),
    Case("generate", f"{GENERATE} --buffer-lines 0", "--buffer-lines 0; give at least 1"),
    Case("generate", f"{GENERATE} --path enc", "enc: not a translation model: it encodes sentences"),
    Case(
        "encode", f"{ENCODE} --lang de-en", "--lang de-en: a pair, where each language is named alone; give de, or de,"
    ),
    Case("export", f"{EXPORT} --output mine.tsv.work", "mine.tsv.work: exists and is not empty"),
    Case("export", f"{EXPORT} --output de.txt", "de.txt: exists and is not empty"),
    Case("export", f"{EXPORT} --output fifo", "fifo: exists and is not empty"),
    Case("export", f"{EXPORT} --output /", "/: exists and is not empty"),
    Case("export", f"{EXPORT} --output {'b' * 300}", "File name too long"),
    Case("export", f"{EXPORT} --average 0", "--average must be at least 1, not 0"),
    Case("export", f"{EXPORT} --average 1{'0' * 12}", "enc: has 0 checkpoints"),
    Case("export", f"{EXPORT} --no-projection", "enc: has no projection to leave out; export it without --no"),
    Case("export", f"{EXPORT} --format hf --pooling cls", "are for the format sentence-transformers and graphs, not"),
    Case("export", f"{EXPORT} --path nmt", "nmt: a translation model, which sentence-transformers does not have"),
    *(Case("export", f"{EXPORT} --path nmt --format {form}", f"model, which {form} does not have") for form in GRAPHS),
    Case("export", f"{EXPORT} --path dir", "dir: not a checkpoint"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each kind and with files that are no good. No case may change it."""
    folder, draw = tmp_path_factory.mktemp("hostile"), np.random.default_rng(0)
    write_encoder(folder / "enc")
    write_translator(folder / "nmt")
    x = draw.standard_normal((50, 8)).astype(np.float32)
    arrays = {"x": x, "y": x[:40] + 1, "same": np.ones_like(x), "flat": x[0], "no_columns": x[:, :0], "whole": x > 0,
              "columns": np.asfortranarray(x), "1e300": x.astype(float) * 1e300,
              "wide": draw.standard_normal((50, 9))}  # fmt: skip
    for name, bad in (("zero", 0.0), ("nan", np.nan), ("inf", -np.inf)):
        arrays[name] = x.copy()
        arrays[name][0 if name == "zero" else 2, :] = bad
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    texts = {
        "de.txt": b"ein Haus\nder Fluss\n",
        "empty.txt": b"",
        "latin.txt": b"br\xfccke\n",
        "surrogate.txt": b"\xed\xa0\x80\n",
        "long.txt": b"Haus " * 1_000_000 + b"\n",
        "truncated.gz": gzip.compress(b"Haus\n" * 1000)[:-5],
        "truncated.npy": (folder / "x.npy").read_bytes()[:-1],
        "text.npy.partial": b"mine",
        "mine.tsv.work/notes.txt": b"mine",
        "folder.npy.partial/notes.txt": b"mine",
        "dir/notes.txt": b"mine",
    }
    for name, content in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name in ("fifo", "pipe.npy.partial"):
        os.mkfifo(folder / name)
    (folder / "dangling").symlink_to("nowhere")
    (folder / "link.npy.partial").symlink_to("de.txt")
    return folder


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_refusals(case: Case, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(case, folder, capsys)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [("5", "2", "this is process 5 of 2; the environment variable RANK must count from 0 and be below WORLD_SIZE"),
     ("2", "2", "this is process 2 of 2"), ("1", "1", "this is process 1 of 1"), ("0", "0", "this is process 0 of 0"),
     ("-1", "2", "RANK is '-1', not a number"), ("0", "1e3", "WORLD_SIZE is '1e3', not a number")],
)  # fmt: skip
def test_ranks_that_there_are_not(
    rank: str, world_size: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    check_refused(Case("encode", ENCODE, message), folder, capsys)


def test_estimates_of_memory_come_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xrep.memory.machine_memory", lambda device="cpu": 1000)
    for check in ("xrep.models.start.check_memory", "xrep.inference.placing.check_move"):
        monkeypatch.setattr(check, lambda *sizes, **more: None)  # the models alone need more
    for case in (
        Case("encode", ENCODE, "14 subwords needs 5,376 bytes of memory, and this machine has 1,000 bytes; lower"),
        Case("mine", MINE, "4 neighbours of each of 50 sentences and 4 of each of 40 needs 4,320 bytes of memory"),
        Case("generate", GENERATE, "10 hypotheses needs"),
    ):
        check_refused(case, folder, capsys)


def test_odd_but_valid_inputs_are_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines with NUL, other line ends and no letters are sentences like others; huge numbers are no limits."""
    text = tmp_path / "odd.txt"
    text.write_bytes(b"Haus\x00Berg\n\xef\xbb\xbf\n\n" + "a\u2028b\u0085c\r\n".encode() + "ü".encode() * 999_999)
    before = contents(folder)
    given = ["--device", "cpu", "--input", str(text), "--path"]
    assert encode.main([*given, str(folder / "enc"), "--output", str(tmp_path / "v.npy")]) == 0
    assert np.load(tmp_path / "v.npy").shape == (5, 16)
    huge = "--max-length-a 1e308 --max-length-b 1000000000000 --max-tokens 1000000000000 --min-length 2".split()
    assert generate.main([*given, str(folder / "nmt"), "--output", str(tmp_path / "h.txt"), *huge]) == 0
    assert (tmp_path / "h.txt").read_text(encoding="utf-8").count("\n") == 5
    vectors = ["--source-vectors", str(folder / "x.npy"), "--target-vectors", str(folder / "y.npy"), "--device", "cpu"]
    for options in (["--threshold", "1e308"], ["--probes", "1000000000", "--index", "ivf", "--neighbours", "40"]):
        assert mine.main([*vectors, "--output", str(tmp_path / "m.tsv"), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out.count(" pairs: ") == 2 and "Warning" not in printed.err and contents(folder) == before


@pytest.mark.parametrize("name", ["encode", "mine", "generate", "search-build", "search-add"])
@pytest.mark.slow
def test_killed_commands_write_the_same_in_the_end(name: str) -> None:
    report = run_job(name, kills=2)
    assert report.problems == [] and len(report.kills) == 2

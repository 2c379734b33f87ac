"""``xrep-encode`` in processes of its own: killed, refused, without disk space, and several at once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.programs import run_on_ranks
from tests.support.runs import environment, refusal
from xrep.inference import encoding
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli.encode import main

GERMAN = [pair[0] for pair in sentence_pairs(2000)]
SMALL_CHUNKS = (
    "import sys, xrep.inference.encoding; xrep.inference.encoding.CHUNK_LINES = 50\n"
    "from xrep_cli.encode import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("run") / "best", normalize=False)


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("separate") / "best", towers="separate")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("".join(line + "\n" for line in GERMAN), encoding="utf-8")
    return path


def arguments(**options: object) -> list[str]:
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def encode(**options: object) -> int:
    return main(["--device", "cpu", *arguments(**options)])


def command(**options: object) -> list[str]:
    return [sys.executable, "-c", SMALL_CHUNKS, *arguments(**options), "--device", "cpu"]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_line_says_what_was_written(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "lines.txt", tmp_path / "v.npy"
    source.write_bytes("der Fluss\n\nein Haus\nbr\xfccke\n".encode("latin1"))
    monkeypatch.setattr(encoding, "CHUNK_LINES", 2)
    assert encode(path=checkpoint, input=source, output=output) == 2
    printed = capsys.readouterr()
    error = f"{source}:4: invalid UTF-8 (byte 3 of the line); convert the file, for example: iconv -f latin1 -t utf-8"
    assert (printed.out, printed.err) == ("", f"xrep-encode: error: {error}\n")
    assert left_in(tmp_path) == ["lines.txt", "v.npy.partial", "v.npy.partial.json"]
    source.write_text("der Fluss\n\nein Haus\nbrücke\n", encoding="utf-8")
    assert encode(path=checkpoint, input=source, output=output) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("4 lines, 2 of them before, ")
    assert printed.out.endswith(f" a second, [4, 16] float32; 1 lines were empty: {output}\n") and printed.err == ""
    assert left_in(tmp_path) == ["lines.txt", "v.npy"]


@pytest.mark.slow
def test_types_of_the_file_and_of_the_computation(checkpoint: Path, source: Path, tmp_path: Path) -> None:
    single, half, brain, raw = (tmp_path / f"{name}.npy" for name in ("single", "half", "brain", "raw"))
    assert encode(path=checkpoint, input=source, output=single) == 0
    assert encode(path=checkpoint, input=source, output=half, dtype="float16") == 0
    assert encode(path=checkpoint, input=source, output=brain, precision="bfloat16") == 0
    options = arguments(path=checkpoint, input=source, output=raw, batch_tokens=100, lang="deu")
    assert main([*options, "--device", "cpu", "--no-normalize"]) == 0
    encoder = SentenceEncoder.load(checkpoint, device="cpu")
    expected = encoder.encode(GERMAN)
    np.testing.assert_allclose(np.load(single), expected, atol=1e-6)
    np.testing.assert_allclose(np.load(raw), encoder.encode(GERMAN, normalize=False), atol=1e-5)
    assert np.load(half).dtype == np.float16
    np.testing.assert_allclose(np.load(half), expected, atol=1e-3)
    cosines = (np.load(brain) * expected).sum(axis=1)
    assert 0.99 < cosines.min() < 1 - 1e-6


REFUSALS = {
    "no such encoder": ({"path": "/nowhere/best"}, "/nowhere/best: no such checkpoint; name a directory"),
    "no such input": ({"input": "absent.txt", "path": "/nowhere/best"}, "absent.txt: no such file; check the name"),
    "a folder": ({"input": "."}, ".: a folder, not a file; name a file in it"),
    "an empty input": ({"input": "/dev/null"}, "/dev/null: the file is empty; give a file with text"),
    "no such folder": ({"output": "absent/v.npy"}, "absent: no such folder; make it first, or write elsewhere"),
    "another ending": ({"output": "v.txt"}, "v.txt: the output is a .npy file; give a name that ends in .npy"),
    "batch tokens": ({"batch_tokens": 0}, "--batch-tokens 0; give at least 1"),
    "no such device": (
        {"device": "cuda:99"},
        "cuda:99 is not a device of this machine; choose another --device, such as cpu",
    ),
    "no language": ({"path": "separate"}, "a tower for each side and no language was named; known: de, en"),
    "unknown language": ({"path": "separate", "lang": "fra"}, "no tower for the language 'fr'; known: de, en"),
}


@pytest.mark.parametrize(("given", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    checkpoint: Path,
    separate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    given: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("Haus\n")
    given = {**given, "path": separate} if given.get("path") == "separate" else given
    assert encode(**{"path": checkpoint, "input": "lines.txt", "output": "v.npy", **given}) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1
    assert left_in(tmp_path) == ["lines.txt"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL on this system")
def test_killed_runs_end_in_the_same_file(
    checkpoint: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Two runs are killed at a random moment while they read from a pipe; the third reads a file."""
    monkeypatch.setattr(encoding, "CHUNK_LINES", 50)
    assert encode(path=checkpoint, input=source, output=tmp_path / "whole.npy") == 0
    output, journal = tmp_path / "v.npy", tmp_path / "v.npy.partial.json"
    line = command(path=checkpoint, input="-", output=output)
    before = 0
    for _ in range(2):
        process = subprocess.Popen(line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        process.stdin.write(source.read_bytes()[:-100])  # the run cannot end before it is killed
        process.stdin.flush()
        wanted = min(before + 50, 1950)
        while process.poll() is None and not (journal.exists() and json.loads(journal.read_text())["lines"] >= wanted):
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL and not output.exists()
        process.stdin.close()
        before = json.loads(journal.read_text())["lines"]
    capsys.readouterr()
    assert encode(path=checkpoint, input=source, output=output) == 0
    assert capsys.readouterr().out.startswith(f"2,000 lines, {before:,} of them before, ")
    assert output.read_bytes() == (tmp_path / "whole.npy").read_bytes()
    assert left_in(tmp_path) == ["lines.txt", "v.npy", "whole.npy"]


@pytest.mark.slow
def test_ranks_write_shards(checkpoint: Path, source: Path, tmp_path: Path) -> None:
    given = arguments(path=checkpoint, input=source, output=tmp_path / "v.npy", device="cpu")
    finished = run_on_ranks(2, "xrep_cli.encode", *given, "--json", environment=environment())
    assert finished.returncode == 0, finished.stderr
    written = sorted(map(json.loads, finished.stdout.splitlines()), key=lambda done: done["path"])
    assert [done["path"] for done in written] == [str(tmp_path / f"v.0000{rank}-of-00002.npy") for rank in range(2)]
    assert [done["lines"] for done in written] == [1000, 1000]
    shards = np.concatenate([np.load(done["path"]) for done in written])
    np.testing.assert_allclose(shards, SentenceEncoder.load(checkpoint, device="cpu").encode(GERMAN), atol=1e-6)
    assert left_in(tmp_path) == ["lines.txt", "v.00000-of-00002.npy", "v.00001-of-00002.npy"]


def no_namespaces() -> bool:
    tried = shutil.which("unshare") and subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True
    )
    return not tried or tried.returncode != 0


@pytest.mark.slow
@pytest.mark.skipif(no_namespaces(), reason="this system does not let a user mount a file system of his own")
def test_a_full_disk_is_one_line_and_with_space_the_run_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(encoding, "CHUNK_LINES", 50)
    checkpoint = write_encoder(tmp_path / "best", size=64)
    assert encode(path=checkpoint, input=source, output=tmp_path / "whole.npy") == 0
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    copy.mkdir()
    # A disk of 50 pages holds 15 chunks (47 pages), the journal and the next journal, but no further chunk. The disk
    # disappears with the process, so its files are copied before that.
    script = (
        'mount -t tmpfs -o size=200k none "$0" || exit 99\n'
        'out="$1"; shift; "$@"; code=$?; cp -a "$0"/. "$out"; exit $code'
    )
    line = command(path=checkpoint, input=source, output=disk / "v.npy")
    unshare = ["unshare", "-rm", "sh", "-c", script, str(disk), str(copy), *line]
    error = refusal(subprocess.run(unshare, capture_output=True, text=True, env=environment()))
    assert error == f"{disk / 'v.npy'}.partial: No space left on device; free some space and run the command again"
    assert left_in(copy) == ["v.npy.partial", "v.npy.partial.json"]
    assert encode(path=checkpoint, input=source, output=copy / "v.npy") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2,000 lines, 750 of them before, ")
    assert (copy / "v.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_lines(tmp_path: Path) -> None:
    """Compare peak memory after 10,000 lines and after 100,000, whose vectors are 13 MB, in batches of many sizes. In
    ru_maxrss Linux includes the memory of the parent process, so the process's own high-water mark is read."""
    checkpoint, words, draw = write_encoder(tmp_path / "best", size=32), " ".join(GERMAN).split(), random.Random(0)
    for count in (10_000, 100_000):
        lines = (" ".join(draw.choices(words, k=draw.randint(1, 4))) + "\n" for _ in range(count))
        (tmp_path / f"{count}.txt").write_text("".join(lines))
    script = (
        "import re, sys, xrep.inference.encoding; xrep.inference.encoding.CHUNK_LINES = 2000\n"
        "from xrep_cli.encode import main\n"
        "for count in (10_000, 100_000):\n"
        "    files = ['--input', f'{sys.argv[2]}/{count}.txt', '--output', f'{sys.argv[2]}/{count}.npy']\n"
        "    assert main(['--path', sys.argv[1], '--device', 'cpu', *files]) == 0\n"
        "    print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])"
    )
    line = [sys.executable, "-c", script, str(checkpoint), str(tmp_path)]
    # With a fixed threshold glibc frees every tensor, so the waste of its heap is not measured.
    given = {**environment(), "MALLOC_MMAP_THRESHOLD_": "131072"}
    finished = subprocess.run(line, env=given, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    few, many = (int(line) for line in finished.stdout.splitlines() if line.isdecimal())
    assert many - few < 5_000, f"{few} KB after 10,000 lines, {many} KB after 100,000"
    assert np.load(tmp_path / "100000.npy", mmap_mode="r").shape == (100_000, 32)

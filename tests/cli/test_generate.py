"""``xrep-generate`` in processes of its own: in a pipe, with files, interrupted and refused."""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.runs import environment
from tests.support.translators import write_translator
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.translator import Translator
from xrep.metrics.translation import bleu, chrf, multi_bleu
from xrep_cli.generate import main

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(60), strict=True))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("nmt") / "best")


@pytest.fixture(scope="module")
def translator(checkpoint: Path) -> Translator:
    return Translator.load(checkpoint, device="cpu")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return written(tmp_path / "test.de", GERMAN)


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def arguments(**options: object) -> list[str]:
    line = ["--device", "cpu", "--max-length-b", "8"]
    for name, value in options.items():
        line += [f"--{name.replace('_', '-')}", *([] if value is None else [str(value)])]
    return line


def generate(**options: object) -> int:
    return main(arguments(**options))


def start(**options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "xrep_cli.generate", *arguments(**options)]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    given = {**environment(), "PYTHONUNBUFFERED": ""}  # a value from the shell would hide a missing flush
    # Processes that a shell starts in the background ignore Ctrl-C, and so do their children.
    default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, env=given, bufsize=0, preexec_fn=default, **pipes)


def expected_of(translator: Translator, lines: list[str], **options: object) -> list[str]:
    found = translator.translate(lines, options=SearchOptions(**{"max_length_b": 8, **options}))
    return [best[0].text for best in found]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_file_to_file_with_scores(
    checkpoint: Path, translator: Translator, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    output, scores = tmp_path / "hyp.en", tmp_path / "scores.json"
    reference = written(tmp_path / "test.en", ENGLISH)
    given = {"beam": 3, "lenpen": 0.6, "lenpen_form": "gnmt", "no_repeat_ngram_size": 2, "min_length": 2}
    assert generate(path=checkpoint, input=source, output=output, reference=reference, json=scores, **given) == 0
    names = {"lenpen": "length_penalty", "lenpen_form": "length_penalty_form"}
    asked = {names.get(name, name): value for name, value in given.items()}
    expected = expected_of(translator, GERMAN, **asked)
    assert output.read_text(encoding="utf-8").splitlines() == expected and len(set(expected)) > 10
    printed = capsys.readouterr()
    lines = [bleu(expected, ENGLISH).text, chrf(expected, ENGLISH).text]
    assert printed.out.splitlines() == [*lines, f"{multi_bleu(expected, ENGLISH)} (multi-bleu.perl)"]
    assert printed.err.startswith("60 lines, ") and printed.err.rstrip().endswith(" tokens a second")
    values = json.loads(scores.read_text())
    assert values["lines"] == 60 and values["BLEU"]["score"] == bleu(expected, ENGLISH).value
    assert values["search"] == asdict(SearchOptions(max_length_b=8, **asked))
    assert left_in(tmp_path) == ["hyp.en", "scores.json", "test.de", "test.en"]


def test_stdout_forms(checkpoint: Path, translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress("".join(line + "\n" for line in [GERMAN[0], "", GERMAN[1]]).encode()))
    expected = expected_of(translator, [GERMAN[0], "", GERMAN[1]])
    assert generate(path=checkpoint, input=path) == 0
    printed = capsys.readouterr()
    assert printed.out.split("\n") == [*expected, ""]
    assert printed.err.startswith("3 lines, 1 of them empty, ")
    assert generate(path=checkpoint, input=path, nbest=2, buffer_lines=1) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1", "1", "2", "3", "3"] and [rows[0][2], rows[3][2]] == expected[::2]
    assert generate(path=checkpoint, input=path, jsonl=None, sampling=None, nbest=3, seed=4, sampling_topk=9) == 0
    values = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [len(value["translations"]) for value in values] == [3, 1, 3]
    assert generate(path=checkpoint, input="/dev/null", reference="/dev/null") == 2
    assert "the file is empty" in capsys.readouterr().err
    assert generate(path=checkpoint, input="/dev/null") == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_pipe_is_translated_as_it_comes(checkpoint: Path, translator: Translator) -> None:
    """A program writes a line, reads its translation, and only then writes the next."""
    lines = ["der alte Mann", "", "die kleine Katze sieht das offene Fenster"]
    with start(path=checkpoint) as process:
        for line, expected in zip(lines, expected_of(translator, lines), strict=True):
            process.stdin.write(f"{line}\n".encode())
            assert select.select([process.stdout], [], [], 60)[0]
            assert os.read(process.stdout.fileno(), 10_000).decode() == expected + "\n"
        process.stdin.close()
        assert process.wait(60) == 0 and process.stdout.read() == b""
        assert process.stderr.read().startswith(b"3 lines, 1 of them empty, ")


@pytest.mark.slow
def test_a_reader_who_leaves_ends_it_quietly(checkpoint: Path) -> None:
    with start(path=checkpoint) as process:
        process.stdin.write(b"Haus\n")
        assert os.read(process.stdout.fileno(), 100)
        process.stdout.close()
        process.stdin.write(b"Haus\n" * 10)
        process.stdin.close()
        assert process.wait(60) == 141 and process.stderr.read() == b""


@pytest.mark.slow
def test_an_interrupted_run_leaves_no_output(checkpoint: Path, tmp_path: Path) -> None:
    with start(path=checkpoint, output=tmp_path / "hyp.en") as process:
        process.stdin.write(b"Haus\n")
        while not any(path.stat().st_size for path in tmp_path.glob(".hyp.en.*.tmp")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"xrep-generate: error: interrupted\n"
    assert left_in(tmp_path) == []


def test_a_bad_line_leaves_the_old_output(
    checkpoint: Path, translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    source = tmp_path / "test.de"
    source.write_bytes("Haus\nein rotes Haus\nbr\xfccke\n".encode("latin1"))
    output = written(tmp_path / "hyp.en", ["what was there"])
    error = f"xrep-generate: error: {source}:3: invalid UTF-8 (byte 3 of the line); convert the file, for example: "
    error += "iconv -f latin1 -t utf-8\n"
    assert generate(path=checkpoint, input=source, output=output) == 2
    assert capsys.readouterr() == ("", error)
    assert output.read_text() == "what was there\n" and left_in(tmp_path) == ["hyp.en", "test.de"]
    assert generate(path=checkpoint, input=source, buffer_lines=2) == 2
    assert capsys.readouterr() == (
        "".join(f"{x}\n" for x in expected_of(translator, ["Haus", "ein rotes Haus"])),
        error,
    )


def test_long_and_unknown_lines_are_warned_of(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = written(tmp_path / "test.de", ["Haus", "das schwere Buch " * 4000 + "Haus", "Привет мир"])
    output = tmp_path / "hyp.en"
    assert generate(path=checkpoint, input=source, output=output) == 0
    assert len(output.read_text().splitlines()) == 3
    warnings = capsys.readouterr().err.splitlines()
    assert warnings[0] == f"warning: {source}:2: longer than 46 subwords, the rest is cut off"
    assert warnings[1].startswith(f"warning: {source}:3: 1 line is mostly of unknown subwords") and len(warnings) == 3


def test_output_to_a_device_is_written_there(
    checkpoint: Path, translator: Translator, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert generate(path=checkpoint, input=source, output=pipe) == 0
    assert os.read(reading, 100_000).decode().splitlines() == expected_of(translator, GERMAN)
    os.close(reading)
    assert pipe.is_fifo()


def test_target_languages(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write_translator(tmp_path / "best", languages=(["de"], ["en", "fr"]))
    source = written(tmp_path / "test.de", ["Haus"])
    outputs = set()
    for language in ("en", "fra"):
        assert generate(path=path, input=source, target_lang=language, source_lang="deu") == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 2
    for given, error in (
        ({}, f"{path}: the model has several target languages; give --target-lang, one of en, fr"),
        ({"target_lang": "cs"}, "the model does not translate into 'cs'; known: en, fr"),
        (
            {"target_lang": "en", "source_lang": "cs"},
            f"{path}: the model was not trained to read 'cs'; known: de; leave --source-lang out to try any language",
        ),
    ):
        assert generate(path=path, input=source, **given) == 2
        printed = capsys.readouterr()
        assert error in printed.err and printed.err.count("\n") == 1 and printed.out == ""


def test_progress_of_long_work(
    checkpoint: Path, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xrep.progress.SECONDS_BETWEEN_LINES", 0.0)
    assert generate(path=checkpoint, input=source, output=tmp_path / "hyp.en", max_tokens=1000) == 0
    *progress, last = (line.split(" lines, ")[0] for line in capsys.readouterr().err.splitlines())
    assert len(progress) > 3 and [*map(int, progress)] == sorted(map(int, progress)) and progress[-1] == last == "60"
    assert generate(path=checkpoint, input=source, max_tokens=1000) == 0
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_lines(checkpoint: Path, tmp_path: Path) -> None:
    """Compare peak memory after 1,000 lines and after 4,000, in batches of many sizes. ru_maxrss is not used, because
    Linux includes the memory of the parent process in it."""
    words, draw = " ".join(GERMAN).split(), random.Random(0)
    for count in (1_000, 4_000):
        written(
            tmp_path / f"{count}.txt",
            ["".join(f"{word:<400}" for word in draw.choices(words, k=draw.randint(1, 4))) for _ in range(count)],
        )
    script = (
        "import re, sys\n"
        "from xrep_cli.generate import main\n"
        "for count in (1_000, 4_000):\n"
        "    files = ['--input', f'{sys.argv[1]}/{count}.txt', '--output', f'{sys.argv[1]}/{count}.en']\n"
        "    assert main([*files, *sys.argv[2:]]) == 0\n"
        "    print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])"
    )
    options = ["--path", str(checkpoint), "--device", "cpu", "--beam", "1", "--max-length-b", "1"]
    line = [sys.executable, "-c", script, str(tmp_path), *options, "--jsonl", "--buffer-lines", "200"]
    # With a fixed threshold glibc frees every tensor, so the waste of its heap is not measured.
    given = {**environment(threads=1), "MALLOC_MMAP_THRESHOLD_": "131072"}
    finished = subprocess.run(line, env=given, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    few, many = map(int, finished.stdout.split())
    assert many - few < 4_000, f"{few} KB after 1,000 lines, {many} KB after 4,000"
    assert (tmp_path / "4000.en").read_bytes().count(b"\n") == 4_000


REFUSALS = {
    "beam": ({"beam": 0}, "--beam must be at least 1, not 0"),
    "nbest": ({"nbest": 6}, "--nbest 6 is more than the 5 hypotheses of the beam"),
    "temperature": ({"temperature": 0, "sampling": None}, "--temperature must be above 0, not 0.0"),
    "nucleus": ({"sampling_topp": 1.5, "sampling": None}, "--sampling-topp must lie in (0, 1], not 1.5"),
    "sampling": ({"sampling_topk": 5}, "--sampling-topk is an option of sampling, which is off"),
    "penalty": ({"lenpen": "nan"}, "argument --lenpen: must be a finite number"),
    "max tokens": ({"max_tokens": 0}, "--max-tokens 0; give at least 1"),
    "buffer": ({"buffer_lines": 0}, "--buffer-lines 0; give at least 1"),
    "no such input": ({"input": "absent.txt", "path": "/nowhere"}, "absent.txt: no such file; check the name"),
    "a folder": ({"input": "."}, ".: a folder, not a file; name a file in it"),
    "no such folder": ({"output": "absent/hyp.en"}, "absent: no such folder; make it first, or write elsewhere"),
    "no such checkpoint": ({"path": "/nowhere/best"}, "/nowhere/best: no such checkpoint; name a directory"),
    "an encoder": ({"path": "encoder"}, "best: not a translation model: it encodes sentences; encode them by xrep-"),
    "no reference": ({"reference": "absent.en"}, "absent.en: no such file; check the name"),
    "another reference": ({"reference": "two"}, "two: 2 lines, but lines.txt has 1; give a reference for each line"),
    "scores of nothing": ({"json": "s.json"}, "--json without scores to write; give --reference FILE"),
    "both on stdout": ({"json": "-", "reference": "one"}, "--json - and the translations both go to stdout; give"),
    "no such device": ({"device": "cuda:99"}, "cuda:99 is not a device of this machine; choose another --device"),
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder") / "best")


@pytest.mark.parametrize(("given", "message"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    checkpoint: Path,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    given: dict[str, object],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("lines.txt", ["Haus"]), ("one", ["house"]), ("two", ["house", "mouse"])):
        written(tmp_path / name, lines)
    given = {**given, "path": encoder} if given.get("path") == "encoder" else given
    assert generate(**{"path": checkpoint, "input": "lines.txt", **given}) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and message in printed.err and printed.err.count("\n") == 1
    assert left_in(tmp_path) == ["lines.txt", "one", "two"]


@pytest.mark.slow
def test_references_of_a_pipe_are_counted_at_the_end(checkpoint: Path, tmp_path: Path) -> None:
    """The translations are kept after a fault."""
    reference, output = written(tmp_path / "test.en", ENGLISH[:2]), tmp_path / "hyp.en"
    with start(path=checkpoint, output=output, reference=reference) as process:
        process.stdin.write(b"Haus\nHaus\nHaus\n")
        process.stdin.close()
        assert process.wait(60) == 2
        last = process.stderr.read().decode().splitlines()[-1]
    assert last == f"xrep-generate: error: {reference}: 2 lines, but /dev/stdin has 3; give a reference for each line"
    assert len(output.read_text().splitlines()) == 3

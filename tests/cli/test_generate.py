"""``xrep-generate`` with files and in pipes."""

import functools
import gzip
import json
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.commands import Commands, Result
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.runs import environment
from xrep.inference.generation.decoding import DecodingOptions
from xrep.inference.generation.translator import Translator
from xrep.metrics.translation import bleu, chrf, multi_bleu

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(60), strict=True))
SHORT = ["--device", "cpu", "--max-length-b", "8"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "test.de", GERMAN)


def generate(cli: Commands, path: Path, options: str, *words: object) -> Result:
    return cli("generate", "--path", path, *SHORT, *options.split(), *words)


def expected_of(path: Path, lines: list[str], **options: object) -> list[str]:
    found = Translator.load(path, device="cpu").translate(lines, options=DecodingOptions(max_length_b=8, **options))
    return [best[0].text for best in found]


@pytest.mark.slow
def test_file_to_file_with_scores(translator: Path, source: Path, cli: Commands) -> None:
    write_lines(cli.folder / "test.en", ENGLISH)
    options = "--beam 3 --lenpen 0.6 --lenpen-form gnmt --no-repeat-ngram-size 2 --min-length 2"
    files = " --input test.de --output hyp.en --reference test.en --json scores.json"
    done = generate(cli, translator, options + files)
    asked = {"beam": 3, "length_penalty": 0.6, "length_penalty_form": "gnmt", "no_repeat_ngram_size": 2}
    expected = expected_of(translator, GERMAN, min_length=2, **asked)
    written = (cli.folder / "hyp.en").read_text(encoding="utf-8").splitlines()
    assert written == expected and len(set(expected)) > 10
    lines = [
        score.format(signature=signature) for score, signature in (bleu(expected, ENGLISH), chrf(expected, ENGLISH))
    ]
    assert done.out.splitlines() == [*lines, f"{multi_bleu(expected, ENGLISH)} (multi-bleu.perl)"]
    assert done.err.startswith("60 lines, ") and done.err.rstrip().endswith(" tokens a second")
    values = json.loads((cli.folder / "scores.json").read_text())
    assert values["lines"] == 60 and values["BLEU"]["score"] == bleu(expected, ENGLISH)[0].score
    assert values["search"] == asdict(DecodingOptions(max_length_b=8, min_length=2, **asked))
    assert done.wrote == {"hyp.en", "scores.json"}


@pytest.mark.slow
def test_stdout_forms(translator: Path, cli: Commands) -> None:
    lines = [GERMAN[0], "", GERMAN[1]]
    (cli.folder / "lines.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    done = generate(cli, translator, "--input lines.gz")
    assert done.out.split("\n") == [*expected_of(translator, lines), ""]
    assert done.err.startswith("3 lines, 1 of them empty, ")
    options = DecodingOptions(beam=3, nbest=2, max_length_b=8)
    expected = Translator.load(translator, device="cpu").translate(lines, options=options)
    done = generate(cli, translator, "--input lines.gz --beam 3 --nbest 2 --buffer-lines 1")
    numbers, scores, texts = zip(*(line.split("\t") for line in done.out.splitlines()), strict=True)
    every = [one for best in expected for one in best]
    assert numbers == ("1", "1", "2", "3", "3") and list(texts) == [one.text for one in every]
    assert list(map(float, scores)) == pytest.approx([one.score for one in every], abs=1e-4)
    done = generate(cli, translator, "--input lines.gz --jsonl --beam 3 --nbest 2")
    values = [json.loads(line) for line in done.out.splitlines()]
    assert [(value["line"], value["source"]) for value in values] == [(1, lines[0]), (2, ""), (3, lines[2])]
    for value, best in zip(values, expected, strict=True):
        assert [one["text"] for one in value["translations"]] == [one.text for one in best]
        assert [one["tokens"] for one in value["translations"]] == [len(one.tokens) for one in best]
        for one in value["translations"][: len(lines[value["line"] - 1])]:
            assert sum(one["token_scores"]) / len(one["token_scores"]) == pytest.approx(one["score"], abs=1e-3)
    assert generate(cli, translator, "--input /dev/null").out == ""


def test_warnings_name_lines(translator: Path, cli: Commands) -> None:
    long = "das schwere Buch " * 100
    write_lines(cli.folder / "test.de", ["Haus", long, "Привет", "", *[long] * 12, "мир мир"])
    for most_lines in (3, 100):
        done = generate(cli, translator, f"--input test.de --output hyp.en --beam 2 --buffer-lines {most_lines}")
        # A slow machine shows in between how far it is.
        assert [line for line in done.err.splitlines() if line.startswith("warning")] == [
            "warning: test.de:2: 13 lines are longer than 46 subwords, this one first, and the rest of each is cut off",
            "warning: test.de:3: 2 lines are mostly of unknown subwords, this one first; another script or language"
            " than the model reads?",
        ]


@pytest.mark.slow
def test_chunks_do_not_change_what_is_drawn(translator: Path, source: Path, cli: Commands) -> None:
    found = []
    for most_lines in (7, 100):
        options = f"--sampling --sampling-topk 9 --nbest 2 --seed 9 --max-tokens 150 --buffer-lines {most_lines}"
        done = generate(cli, translator, f"--input test.de {options}")
        found.append([line.split("\t")[::2] for line in done.out.splitlines()])
    assert found[0] == found[1] and len(found[0]) == 2 * len(GERMAN)


@pytest.mark.slow
def test_a_pipe_is_translated_as_it_comes_until_its_reader_leaves(translator: Path) -> None:
    """A program writes a line, reads its translation, and only then writes the next. When it reads no more, the command
    ends quietly."""
    command = [sys.executable, "-m", "xrep_cli.generate", "--path", str(translator), *SHORT]
    given = {**environment(), "PYTHONUNBUFFERED": ""}  # a value from the shell would hide a missing flush
    # Processes that a shell starts in the background ignore Ctrl-C, and so do their children.
    default = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    lines = ["der alte Mann", "", "die kleine Katze sieht das offene Fenster"]
    with subprocess.Popen(command, env=given, bufsize=0, preexec_fn=default, **pipes) as process:
        for line, expected in zip(lines, expected_of(translator, lines), strict=True):
            process.stdin.write(f"{line}\n".encode())
            assert select.select([process.stdout], [], [], 60)[0]
            assert os.read(process.stdout.fileno(), 10_000).decode() == expected + "\n"
        process.stdout.close()
        process.stdin.write(b"Haus\n" * 10)
        process.stdin.close()
        assert process.wait(60) == 141 and process.stderr.read() == b""


def test_references_of_a_pipe_are_counted_at_the_end(translator: Path, cli: Commands) -> None:
    """The translations are kept after a fault. References may come from a pipe, too."""
    write_lines(cli.folder / "test.en", ENGLISH[:2])
    os.mkfifo(cli.folder / "pipe")
    write_lines(cli.folder / "two.de", ["Haus"] * 2)
    threading.Thread(target=(cli.folder / "pipe").write_text, args=["house\n" * 2], daemon=True).start()
    assert "BLEU" in generate(cli, translator, "--input two.de --output hyp.en --reference pipe").out
    threading.Thread(target=(cli.folder / "pipe").write_text, args=["Haus\n" * 3], daemon=True).start()
    done = generate(cli, translator, "--input pipe --output hyp.en --reference test.en")
    error = "test.en: 2 lines, but pipe has 3; give a reference for each line"
    assert done.code == 2 and done.err.splitlines()[-1] == f"xrep-generate: error: {error}"
    assert len((cli.folder / "hyp.en").read_text().splitlines()) == 3


def test_a_bad_line_leaves_the_old_output(translator: Path, cli: Commands) -> None:
    (cli.folder / "test.de").write_bytes("Haus\nein rotes Haus\nbr\xfccke\n".encode("latin1"))
    write_lines(cli.folder / "hyp.en", ["what was there"])
    done = generate(cli, translator, "--input test.de --output hyp.en")
    assert (done.code, done.out, done.wrote) == (2, "", frozenset())
    done = generate(cli, translator, "--input test.de --buffer-lines 2")
    assert done.code == 2 and done.out.splitlines() == expected_of(translator, ["Haus", "ein rotes Haus"])


def test_the_name_of_the_output_says_what_is_written(translator: Path, source: Path, cli: Commands) -> None:
    asked = "--beam 1 --input test.de"
    assert generate(cli, translator, f"{asked} --output hyp.en").code == 0
    text = (cli.folder / "hyp.en").read_bytes()
    assert generate(cli, translator, f"{asked} --output hyp.en.gz").code == 0
    packed = (cli.folder / "hyp.en.gz").read_bytes()
    assert packed != text == gzip.decompress(packed)
    assert generate(cli, translator, f"{asked} --output hyp.jsonl").code == 0
    records = [json.loads(line) for line in (cli.folder / "hyp.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["translations"][0]["text"] for record in records] == text.decode().splitlines()
    for name in ("hyp.tmx", "hyp.csv", "hyp.json"):
        refused = generate(cli, translator, f"{asked} --output {name}")
        assert f"{name}: this format is not written; write one of .txt, .jsonl" in refused.err and not refused.wrote

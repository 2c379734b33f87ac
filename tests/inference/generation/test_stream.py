"""Lines are read in chunks, and translations are written in the order of the lines."""

from __future__ import annotations

import gzip
import json
import os
import threading
from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs
from xrep.errors import UserError
from xrep.inference.generation import stream
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.stream import Chunks, translate_stream
from xrep.inference.generation.translator import Translator

GERMAN = [source for source, _ in sentence_pairs(20)]
OPTIONS = SearchOptions(beam=2, max_length_b=6)


def written(folder: Path, lines: list[str]) -> Path:
    path = folder / "lines.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_file_comes_in_full_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, [str(n) for n in range(1000)])
    chunks = list(Chunks(path, 64))
    assert [len(chunk) for chunk in chunks] == [64] * 15 + [40]
    assert [line for chunk in chunks for line in chunk] == [str(n) for n in range(1000)]
    monkeypatch.setattr(stream, "CHUNK_CHARACTERS", 30)
    assert [len(chunk) for chunk in Chunks(written(tmp_path, ["x" * 10] * 7), 64)] == [3, 3, 1]
    (tmp_path / "lines.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert list(Chunks(tmp_path / "lines.gz", 64)) == list(Chunks(path, 64))
    assert list(Chunks(written(tmp_path, []))) == []


def test_what_stands_in_a_pipe_is_not_kept_waiting() -> None:
    """Each line is written only after the one before was read; a full pipe is read ahead by one chunk."""
    reading, writing = os.pipe()
    chunks = iter(Chunks(f"/dev/fd/{reading}", 500))
    for number in range(5):
        os.write(writing, f"{number}\n".encode())
        assert next(chunks) == [str(number)]
    lines = [str(n) for n in range(20_000)]

    def fill() -> None:
        os.write(writing, "\n".join(lines).encode())  # without an end
        os.close(writing)

    thread = threading.Thread(target=fill)
    thread.start()
    rest = list(chunks)
    thread.join()
    os.close(reading)
    assert [line for chunk in rest for line in chunk] == lines and max(map(len, rest)) == 500


def test_what_came_before_an_error_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntwo\nbr\xfccke\nfour\n")
    chunks = iter(Chunks(path))
    assert next(chunks) == ["one", "two"]
    with pytest.raises(UserError, match=r"lines.txt:3: invalid UTF-8"):
        next(chunks)
    with pytest.raises(UserError, match="absent: no such file"):
        list(Chunks(tmp_path / "absent"))


def test_forms(loaded: Translator, tmp_path: Path) -> None:
    lines = [GERMAN[0], "", GERMAN[1]]
    path = written(tmp_path, lines)
    options = SearchOptions(beam=3, nbest=2, max_length_b=6)
    expected = loaded.translate(lines, options=options)
    texts: dict[str, str] = {}
    for form in ("plain", "nbest", "jsonl"):
        parts: list[str] = []
        given = {"options": options, "form": form, "most_lines": 2, "keep_best": True}
        summary = translate_stream(loaded, path, parts.append, **given)
        assert len(parts) == 2 and (summary.lines, summary.empty) == (3, 1)
        assert summary.tokens == sum(len(best[0].token_scores) for best in expected)
        assert summary.best == [best[0].text for best in expected]
        texts[form] = "".join(parts)
    assert texts["plain"] == "".join(best[0].text + "\n" for best in expected)
    numbers, scores, written_texts = zip(*(line.split("\t") for line in texts["nbest"].splitlines()), strict=True)
    every = [one for best in expected for one in best]
    assert numbers == ("1", "1", "2", "3", "3") and list(written_texts) == [one.text for one in every]
    assert list(map(float, scores)) == pytest.approx([one.score for one in every], abs=1e-4)
    values = [json.loads(line) for line in texts["jsonl"].splitlines()]
    assert [(value["line"], value["source"]) for value in values] == [(1, lines[0]), (2, ""), (3, lines[2])]
    for value, best in zip(values, expected, strict=True):
        assert [one["text"] for one in value["translations"]] == [one.text for one in best]
        assert [one["tokens"] for one in value["translations"]] == [len(one.tokens) for one in best]
        for one in value["translations"][: len(lines[value["line"] - 1])]:
            assert sum(one["token_scores"]) / len(one["token_scores"]) == pytest.approx(one["score"], abs=1e-3)


def test_warnings_name_lines(loaded: Translator, tmp_path: Path) -> None:
    long = "das schwere Buch " * 100
    lines = ["Haus", long, "Привет", "", *[long] * 12, "мир мир"]
    path, said = written(tmp_path, lines), list[str]()
    for most_lines in (3, 100):
        said.clear()
        given = {"options": OPTIONS, "most_lines": most_lines, "warn": said.append}
        summary = translate_stream(loaded, path, lambda text: None, **given)
        cut = [f"{path}:{line}: longer than 46 subwords, the rest is cut off" for line in (2, *range(5, 14))]
        assert said[:10] == cut and said[10] == f"{path}: 3 more lines were cut"
        assert said[11].startswith(f"{path}:3: 2 lines are mostly of unknown subwords, this one first; another script")
        assert len(said) == 12 and (summary.cut, summary.unknown, summary.first_unknown) == (13, 2, 3)


@pytest.mark.slow
def test_chunks_do_not_change_what_is_drawn(loaded: Translator, tmp_path: Path) -> None:
    path, found = written(tmp_path, GERMAN), []
    options = SearchOptions(sampling=True, nbest=2, max_length_b=8, seed=9)
    for most_lines in (7, 100):
        parts, seen = list[str](), list[int]()
        given = {"options": options, "most_lines": most_lines, "form": "nbest", "max_tokens": 150}
        translate_stream(
            loaded, path, parts.append, **given, progress=lambda done, seen=seen: seen.append(done.translated)
        )
        assert seen[-1] == len(GERMAN) and len(seen) > 3 and seen == sorted(set(seen))
        found.append([line.split("\t")[::2] for line in "".join(parts).splitlines()])
    assert found[0] == found[1]


def test_bad_options_are_refused_before_a_line_is_read(loaded: Translator, tmp_path: Path) -> None:
    for given, message in (
        ({"target_language": "fr"}, "does not translate into 'fr'"),
        ({"options": SearchOptions(beam=0)}, "beam must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            translate_stream(loaded, tmp_path / "absent", print, **given)

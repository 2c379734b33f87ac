"""Translations are written in the order of the lines, in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs
from xrep.errors import UserError
from xrep.inference.generation.options import SearchOptions
from xrep.inference.generation.stream import translate_stream
from xrep.inference.generation.translator import Translator

GERMAN = [source for source, _ in sentence_pairs(20)]
OPTIONS = SearchOptions(beam=2, max_length_b=6)


def written(folder: Path, lines: list[str]) -> Path:
    path = folder / "lines.txt"
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


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
        translate_stream(loaded, path, lambda text: None, **given)
        assert said == [
            f"{path}:2: 13 lines are longer than 46 subwords, this one first, and the rest of each is cut off",
            f"{path}:3: 2 lines are mostly of unknown subwords, this one first; another script or language than the"
            " model reads?",
        ]


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

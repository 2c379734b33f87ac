"""``xrep-eval --dimensions``: vectors that are cut to their first numbers, as encoders with matryoshka have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli import eval as command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Ten translations, and the vectors of another system, all of which lie close together."""
    monkeypatch.chdir(tmp_path)
    pairs = sentence_pairs(10)
    (tmp_path / "tatoeba").mkdir()
    for side, ending in enumerate(("deu", "eng")):
        lines = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / "tatoeba" / f"tatoeba.deu-eng.{ending}").write_text(lines, encoding="utf-8")
    keys = [f"{language}\t{pair[side]}\n" for side, language in enumerate(("de", "en")) for pair in pairs]
    draw = np.random.default_rng(0)
    half = draw.normal(size=(10, 8))
    vectors = np.concatenate([half, half + draw.normal(size=(10, 8))]).astype(np.float32)
    for name, width in (("whole", 8), ("four", 4), ("two", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sentences.tsv").write_text("".join(keys), encoding="utf-8")
        np.save(tmp_path / name / "vectors.npy", vectors[:, :width])
    return tmp_path


def measure(*arguments: str) -> dict:
    assert command.main(["tatoeba", "--data", "tatoeba", "--json", "out.json", *arguments]) == 0
    return json.loads(Path("out.json").read_text(encoding="utf-8"))


def test_cut_vectors_are_measured_like_vectors_of_that_width(folder: Path, capsys: pytest.CaptureFixture) -> None:
    found = measure("--path", "whole", "--dimensions", "4, 2")["models"]
    assert list(found) == ["whole", "whole:4", "whole:2"]
    printed = capsys.readouterr().out
    assert "whole:2" in printed.splitlines()[-2 - len(found["whole"]["headline"])]
    for name, path in (("whole", "whole"), ("whole:4", "four"), ("whole:2", "two")):
        assert found[name]["values"] == measure("--path", path)["values"]
    assert len({str(record["values"]) for record in found.values()}) == 3
    assert len({record["model"]["fingerprint"] for record in found.values()}) == 3


def test_sentences_are_encoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_encoder(folder / "run")
    count, encode = 0, SentenceEncoder.encode

    def counting(self: SentenceEncoder, sentences: list[str], *given: Any, **options: Any) -> Any:
        nonlocal count
        count += len(sentences)
        return encode(self, sentences, *given, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", counting)
    once = measure("--path", "run")
    alone, count = count, 0
    found = measure("--path", "run", "--dimensions", "8,4")["models"]
    checked = 2 * 2  # of each language, one sentence is encoded first by each of the two shorter encoders
    assert count == alone + checked and found["run"]["values"] == once["values"] and len(found) == 3


@pytest.mark.parametrize(
    ("dimensions", "message"),
    [
        ("8", "whole: --dimensions 8 of vectors of 8 numbers; name smaller ones"),
        *((text, "write numbers above 0, such as 256,128,64") for text in ("0", "-1", "x", " ", "4,,2", "9" * 20, "²")),
    ],
)
def test_dimensions_that_there_are_not(
    folder: Path, capsys: pytest.CaptureFixture, dimensions: str, message: str
) -> None:
    given = ["tatoeba", "--data", "tatoeba", "--path", "whole", f"--dimensions={dimensions}", "--json", "new.json"]
    assert command.main(given) == 2
    assert message in capsys.readouterr().err and not (folder / "new.json").exists()

"""What a run says about its encoders before its first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import compose_run
from xrep.interop.pretrained import declared_languages
from xrep.training import introduction
from xrep.training.run import train


def said(data: Path, folder: Path, capsys: pytest.CaptureFixture[str], **given: Any) -> list[str]:
    """Train and return the lines about encoders, without the numbers of parameters."""
    capsys.readouterr()
    train(compose_run(data, folder, **{"criterion": "translation_ranking", "max_steps": 1, **given}))
    lines = capsys.readouterr().err.splitlines()
    beginnings = ("tower ", "encoder ", "decoder ")
    return [line.replace(", 0.0M parameters", "") for line in lines if line.startswith(beginnings)]


def test_towers_are_named_with_languages_state_and_origin(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = said(data_directory, tmp_path / "shared", capsys)
    assert shared == ["tower shared (de, en, es): trained, random weights"]
    # The text has es-en as well, so that both are on the source side.
    frozen = {"towers": "separate", "freeze": "encoders.source,encoders.target.layers@5"}
    lines = said(data_directory, tmp_path / "run", capsys, **frozen)
    assert lines == [
        "tower source (de, es): frozen, random weights",
        "tower target (en): frozen until step 5, random weights",
    ]
    origin = f"from {tmp_path / 'run' / 'checkpoint-00000001'} (de, es, this run)"
    assert said(data_directory, tmp_path / "run", capsys, **frozen, max_steps=2)[0].endswith(f": frozen, {origin}")
    first = tmp_path / "run" / "checkpoint-00000001"
    begun = {"towers": "separate", "init": first, "freeze": "encoders.target.layers"}
    lines = said(data_directory, tmp_path / "init", capsys, **begun)
    assert lines[0] == f"tower source (de, es): trained, from {first} (de, es, init)"
    assert lines[1] == f"tower target (en): partly frozen (0.0M parameters trained), from {first} (en, init)"


def test_lora_is_named_with_what_it_trains(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(introduction, "_millions", str)
    options = {
        "towers": "separate",
        "freeze": "encoders.source,projections.source",
        "lora_rank": 2,
        "projection_size": 8,
    }
    lines = said(data_directory, tmp_path / "run", capsys, **options)
    # Products for queries, keys and values, of attention, and two of the feed-forward layer; then the projection.
    factors = 2 * ((32 + 96) + (32 + 32) + (32 + 64) + (64 + 32))
    assert lines[1].startswith(f"tower target (en): LoRA of rank 2 ({factors + 32 * 8 + 8} trained), ")
    assert lines[0].startswith("tower source (de, es): frozen, ")


@pytest.mark.parametrize(
    ("card", "languages"),
    [
        ("---\nlanguage: en\n---\n", ["en"]),
        ("---\nlanguage:\n  - deu\n  - zh-Hans\ntags: [en]\n---\n", ["de", "zh"]),
        ("---\nlicense: mit\nlanguage: [en, 'fr']\n---\n", ["en", "fr"]),
        ("---\nlanguage:\n- multilingual\n- de\n---\n", []),
        ("---\nlicense: mit\n---\nlanguage: en\n", []),
        ("language: en\n", []),
        ("---\n" * 40_000, []),
    ],
)
def test_languages_of_a_model_card(tmp_path: Path, card: str, languages: list[str]) -> None:
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert declared_languages(tmp_path) == languages


def test_languages_that_xrep_data_noted(tmp_path: Path) -> None:
    assert declared_languages(tmp_path) == []
    (tmp_path / "xrep_source.json").write_text('{"languages": "zh"}', encoding="utf-8")
    assert declared_languages(tmp_path) == ["zh"]

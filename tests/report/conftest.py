"""Two small runs on the same data, whose objectives differ, and a Tatoeba test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run
from xrep.training.run import train


@pytest.fixture(scope="session")
def two_runs(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    given = {"max_steps": 6, "log_every": 2, "save_every": 3, "validate_every": 3}
    for name, options in {"moco": {}, "ranking": {"criterion": "translation_ranking", "temperature": 0.07}}.items():
        train(compose_run(data_directory, folder / name, **given, **options))
    return folder / "moco", folder / "ranking"


@pytest.fixture(scope="session")
def tests_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Tatoeba test of German of 21 pairs."""
    folder = tmp_path_factory.mktemp("data") / "tatoeba"
    folder.mkdir()
    for side, lines in zip(("deu", "eng"), zip(*sentence_pairs(21), strict=True), strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"tatoeba.deu-eng.{side}").write_text(text, encoding="utf-8")
    return folder.parent

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from xrep.errors import UserError
from xrep.evaluation import plots, report, tatoeba
from xrep.evaluation.overlap import Overlap
from xrep.evaluation.result import to_json
from xrep.metrics.retrieval import Accuracy


def _results(languages: list[str], random: bool = False) -> tatoeba.Results:
    accuracies = {language: Accuracy(100 * i / 7, 100 * i / 9) for i, language in enumerate(languages, start=1)}
    return tatoeba.Results(
        {language: Accuracy(min(a.forward, 100.0), min(a.backward, 100.0)) for language, a in accuracies.items()},
        dict.fromkeys(languages, 1000),
        Overlap(2, 1000 * len(languages)),
        {language: Accuracy(0.1, 0.3) for language in languages} if random else {},
    )


def test_json_has_every_key_and_unrounded_percentages() -> None:
    results = _results(["de", "fr"])
    values = json.loads(to_json(report.values(results)))
    assert set(values) == {"mean", "languages", "averages", "pairs"}
    assert values["languages"]["fr"] == {
        "xx-en": 200 / 7, "en-xx": 200 / 9, "mean": (200 / 7 + 200 / 9) / 2, "pairs": 1000,
    }  # fmt: skip
    assert values["mean"] == pytest.approx((100 / 7 + 100 / 9 + 200 / 7 + 200 / 9) / 4)
    assert set(values["averages"]) == {"mean"}
    assert values["pairs"] == 2000
    assert report.headline(results) == {"mean of 2": values["mean"]}
    values = report.values(_results(list(tatoeba.GROUPS["36"]), random=True))
    assert set(values["averages"]) == {"mean", "11", "14", "28", "36"}
    assert set(values["averages"]["14"]) == {"xx-en", "en-xx", "mean"}
    assert values["random_mean"] == pytest.approx(0.2)
    assert values["languages"]["sw"]["random_mean"] == pytest.approx(0.2)


def test_the_table_says_what_was_and_what_was_not_measured() -> None:
    lines = report.table(_results(["de", "zh"], random=True)).splitlines()
    assert lines[0].split() == ["language", "pairs", "xx-en", "en-xx", "mean", "random"]
    assert lines[2].split() == ["Chinese", "(zh)", "1000", "28.57", "22.22", "25.40", "0.20"]
    assert lines[5].split() == ["mean", "of", "2", "2000", "21.43", "16.67", "19.05", "0.20"]
    assert "14 (12 missing)" in lines[6] and "11 (9 missing)" in lines[6]
    assert lines[7].startswith("overlap: 2 of 2000")
    whole = report.table(_results(list(tatoeba.GROUPS["14"])))
    assert "average of 14" in whole and "average of 28" not in whole and "random" not in whole


def test_saved_embeddings_are_the_vectors_and_replace_older_ones(tmp_path: Path) -> None:
    pool = tatoeba.Pool("deu", ["a", "b"], ["c", "d"])
    x, y = np.eye(2, 3, dtype=np.float32), np.ones((2, 3), dtype=np.float32)
    for vectors in (y, x):
        report.save_embeddings(tmp_path / "vectors", pool, vectors, y)
    loaded = np.load(tmp_path / "vectors" / "deu.deu.npy", allow_pickle=False)
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, x)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors" / "deu.eng.npy"), y)
    assert sorted(os.listdir(tmp_path / "vectors")) == ["deu.deu.npy", "deu.eng.npy"]


@pytest.mark.slow
@pytest.mark.parametrize(("count", "random"), [(1, False), (9, True), (31, True), (112, True)])
def test_a_plot_is_a_png_that_grows_with_the_languages(tmp_path: Path, count: int, random: bool) -> None:
    image = pytest.importorskip("matplotlib.image")
    names = [f"l{i:03d}" for i in range(count)]
    plots.plot_tatoeba(_results(names, random), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    height, width = image.imread(tmp_path / "out.png").shape[:2]
    columns, rows = {1: (1, 1), 9: (1, 9), 31: (2, 16), 112: (4, 28)}[count]
    assert width == max(975, 540 * columns)
    assert height == pytest.approx(150 * (1.5 + 0.29 * rows), abs=1)
    assert os.listdir(tmp_path) == ["out.png"]


def test_without_matplotlib_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'xrep\[plot\]'"):
        plots.plot_tatoeba(_results(["de"]), tmp_path / "out.png")
    assert not os.listdir(tmp_path)

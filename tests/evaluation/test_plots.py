from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from xrep.errors import UserError
from xrep.evaluation import plots
from xrep.evaluation.plots import Points
from xrep.metrics.retrieval import Accuracy

pytest.importorskip("matplotlib")
UNDRAWABLE = "\ue123"  # a character for private use, which no font has


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    """Turn warnings of matplotlib, such as those of missing glyphs and ignored arguments, into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def _check(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    assert os.listdir(path.parent) == [path.name]
    return imread(path)[..., :3]


@pytest.mark.parametrize("steps", [[None], [100], [100, 200, 250, 3000], [100, 100]])
def test_a_way_is_drawn_from_step_to_step(tmp_path: Path, steps: list[int | None]) -> None:
    alignment, uniformity = ([scale * (step or 0) for step in steps] for scale in (0.3, -2.0))
    plots.plot_alignment(steps, alignment, uniformity, "STS-B $dev", plots.Picture(tmp_path / "out.png"))
    assert _check(tmp_path / "out.png").shape == (720, 960, 3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 7, 16, 40])
def test_bars_of_any_number_of_languages(tmp_path: Path, count: int) -> None:
    shares = np.random.default_rng(count).dirichlet(np.ones(count), count) * 100
    languages = [f"l{i:02}" for i in range(count)]
    plots.plot_language_bias(
        languages, {"before": shares, "after": shares[::-1]}, "title", plots.Picture(tmp_path / "out.png")
    )
    height = _check(tmp_path / "out.png").shape[0]
    assert height == pytest.approx(150 * (1.7 + max(0.3 * count, 1.2)), abs=1)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 9, 31, 112])
def test_accuracies_of_any_number_of_languages(tmp_path: Path, count: int) -> None:
    languages = [f"l{i:03d}" for i in range(count)]
    accuracies = {language: Accuracy(100 * i / count, 90 * i / count) for i, language in enumerate(languages)}
    plots.plot_tatoeba(accuracies, {"mean": 50.0}, plots.Picture(tmp_path / "out.png"))
    height, width = _check(tmp_path / "out.png").shape[:2]
    columns, rows = {1: (1, 1), 9: (1, 9), 31: (2, 16), 112: (4, 28)}[count]
    assert width == max(975, 540 * columns)
    assert height == pytest.approx(150 * (1.5 + 0.29 * rows), abs=1)


def test_the_own_share_is_as_long_as_it_is_large(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    shares = np.array([[10.0, 60, 30], [20, 30, 50], [5, 15, 80]])
    for languages, begins in ((["de", "en", "fr"], [0, 20, 20]), ([f"l{i}" for i in range(20)], None)):
        axes = Figure().subplots()
        many = shares if begins else np.full((20, 20), 5.0)
        plots._draw_shares(axes, languages, many)
        outlined = [bar for bar in axes.patches if not bar.get_fill()]
        np.testing.assert_allclose([bar.get_width() for bar in outlined], many.diagonal())
        np.testing.assert_allclose([bar.get_x() for bar in outlined], begins or 0)
        ends = [bar.get_x() + bar.get_width() for bar in axes.patches if bar.get_fill()]
        np.testing.assert_allclose(ends[-len(languages) :], 100)
        assert len(axes.get_legend_handles_labels()[1]) == (3 if begins else 2)


def _scatter(labels: list[str], languages: list[str], tokens: bool, links: Sequence[tuple[int, int]] = ()) -> Points:
    points = np.random.default_rng(0).normal(size=(len(labels), 2))
    return Points("pca", tokens, 0.5, points, languages, labels, list(links), [{}] * 3)


def test_labels_of_any_script_are_drawn_or_explained(tmp_path: Path) -> None:
    labels = [
        "$x_1",
        "$\\frac$",
        "Straße",
        "кот",
        "بيت",
        UNDRAWABLE,
        f"a{UNDRAWABLE}",
        UNDRAWABLE,
        " \n",
        "▁the",
        "\u200d",
    ]
    found = plots.plot_points(_scatter(labels, ["de"] * 5 + ["zh"] * 6, True), plots.Picture(tmp_path / "out.png"))
    _check(tmp_path / "out.png")
    assert [line for line in found if UNDRAWABLE in line] == [
        f"label (1) stands for {UNDRAWABLE}, which no installed font has",
        f"label (2) stands for a{UNDRAWABLE}, which no installed font has",
    ]


def test_fonts_are_added_until_each_character_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plots.fonts_for("Straße, кот") == (["DejaVu Sans"], set())
    assert plots.fonts_for(f"a {UNDRAWABLE}\n")[1] == {UNDRAWABLE}
    monkeypatch.setattr(plots, "_FONT", "cmr10")  # a font with few letters; other fonts have the rest
    families, missing = plots.fonts_for("aкот")
    assert families[0] == "cmr10" and len(families) > 1 and not missing


@pytest.mark.parametrize(("count", "tokens"), [(3, False), (100, True), (4000, True), (600, False)])
def test_points_of_any_number(tmp_path: Path, count: int, tokens: bool) -> None:
    languages = [f"l{i % 9}" for i in range(count)]
    links = [] if tokens else [(0, 1), (0, 2)]
    plots.plot_points(
        _scatter([str(i) for i in range(count)], languages, tokens, links), plots.Picture(tmp_path / "out.png")
    )
    image = _check(tmp_path / "out.png")
    assert image.shape == (900, 1260, 3) and image.std() > 0.02


def test_without_matplotlib_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for draw in (
        lambda path: plots.plot_tatoeba({"de": Accuracy(1.0, 2.0)}, {}, path),
        lambda path: plots.plot_alignment([None], [0.3], [-2.0], "pairs", path),
        lambda path: plots.plot_language_bias(["de", "en"], {"as it is": np.eye(2)}, "title", path),
        lambda path: plots.plot_points(_scatter(["a", "b", "c"], ["de"] * 3, True), path),
    ):
        with pytest.raises(UserError, match=r"pip install 'xrep\[plot\]'"):
            draw(plots.Picture(tmp_path / "out.png"))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("kind", "first"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("SVG", b"<?xml")]
)
def test_the_suffix_says_the_kind_and_the_model_is_named(tmp_path: Path, kind: str, first: bytes) -> None:
    drawn = []
    for number in (1, 2):
        picture = plots.Picture(tmp_path / f"{number}.{kind}", model="run1/best")
        plots.plot_tatoeba({"de": Accuracy(1.0, 2.0)}, {}, picture)
        drawn.append(Path(picture.path).read_bytes())
    assert drawn[0].startswith(first) and drawn[0] == drawn[1]  # the clock leaves no trace
    if kind == "svg":
        assert b"<!-- run1/best -->" in drawn[0]

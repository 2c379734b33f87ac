import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xrep.evaluation import plots
from xrep.evaluation.plots import Picture

matplotlib = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """``draw(plot, *given)`` returns the figure of a plot, and the height and width of the picture. Warnings of
    matplotlib are errors."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *given, **more: (figures.append(self), save(self, *given, **more))
    )

    def drawn(plot: Callable[..., Any], *given: Any) -> tuple[Any, tuple[int, int]]:
        plot(*given, Picture(tmp_path / "out.png"))
        image = imread(tmp_path / "out.png")[..., :3]
        assert os.listdir(tmp_path) == ["out.png"] and image.std() > 0.02
        return figures[-1], image.shape[:2]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield drawn


@pytest.mark.parametrize("steps", [[None], [100, 200, 250, 3000]])
def test_a_way_is_drawn_from_step_to_step(draw: Callable[..., Any], steps: list[int | None]) -> None:
    alignment, uniformity = ([scale * (step or 0) for step in steps] for scale in (0.3, -2.0))
    figure, shape = draw(plots.plot_alignment, steps, alignment, uniformity, "STS-B $dev")
    axes = figure.axes[0]
    assert shape == (720, 960)
    np.testing.assert_allclose(axes.collections[0].get_offsets(), list(zip(uniformity, alignment, strict=True)))
    labels = [text.get_text() for text in axes.texts if text.get_text()]
    assert labels == [f"step {step}" for step in [steps[0], *steps[1:][-1:]] if step]
    assert len(axes.texts) == len(steps) - 1 + len(labels)


@pytest.mark.parametrize("count", [2, 7, 40])
def test_the_own_share_is_as_long_as_it_is_large(draw: Callable[..., Any], count: int) -> None:
    """Up to 16 languages are stacked; of more, the own language and all others."""
    shares = np.random.default_rng(count).dirichlet(np.ones(count), count) * 100
    languages = [f"l{i:02}" for i in range(count)]
    figure, shape = draw(plots.plot_language_bias, languages, {"before": shares, "after": shares[::-1]}, "title")
    assert shape[0] == pytest.approx(150 * (1.7 + max(0.3 * count, 1.2)), abs=1)
    axes = figure.axes[0]
    outlined = [bar for bar in axes.patches if not bar.get_fill()]
    np.testing.assert_allclose([bar.get_width() for bar in outlined], shares.diagonal())
    begins = [sum(shares[i, :i]) if count <= 16 else 0 for i in range(count)]
    np.testing.assert_allclose([bar.get_x() for bar in outlined], begins, atol=1e-9)
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches if bar.get_fill()]
    np.testing.assert_allclose(ends[-count:], 100)
    assert len(axes.get_legend_handles_labels()[1]) == (count if count <= 16 else 2)


@pytest.mark.parametrize(("count", "columns", "rows"), [(9, 1, 9), (31, 2, 16)])
def test_accuracies_of_any_number_of_languages(draw: Callable[..., Any], count: int, columns: int, rows: int) -> None:
    accuracies = {f"l{i:03d}": {"xx-en": i, "en-xx": 0.9 * i, "mean": 0.95 * i} for i in range(count)}
    figure, (height, width) = draw(plots.plot_tatoeba, accuracies, {"mean": 50.0})
    assert width == max(975, 540 * columns) and height == pytest.approx(150 * (1.5 + 0.29 * rows), abs=1)
    for direction, label, above in (("xx-en", "xx → en", -0.2), ("en-xx", "en → xx", 0.2)):
        containers = [own for axes in figure.axes for own in axes.containers if own.get_label() == label]
        found = [(bar.get_y() + 0.2, bar.get_width()) for own in containers for bar in own]
        best_first = [own[direction] for own in reversed(accuracies.values())]
        expected = [(number % rows + above, width) for number, width in enumerate(best_first)]
        np.testing.assert_allclose(found, expected, atol=1e-9)


def points_of(labels: list[str], languages: list[str]) -> dict[str, Any]:
    """Return random points."""
    rows = zip(labels, languages, np.random.default_rng(0).normal(size=(len(labels), 2)).tolist(), strict=True)
    points = [{"label": label, "language": language, "x": x, "y": y} for label, language, (x, y) in rows]
    return {"method": "pca", "explained": 0.5, "points": points, "sentences": [{}] * 3}


def test_labels_of_any_script_are_drawn(draw: Callable[..., Any]) -> None:
    labels = ["$x_1", "$\\frac$", "Straße", "кот", "بيت", " \n", "\u200d"]
    figure = draw(plots.plot_points, points_of(labels, ["de"] * 7), [])[0]
    assert [text.get_text() for text in figure.axes[0].texts] == [label.strip() for label in labels]


@pytest.mark.parametrize(("count", "tokens", "labels"), [(100, True, 100), (600, True, 0), (600, False, 1)])
def test_points_of_any_number(draw: Callable[..., Any], count: int, tokens: bool, labels: int) -> None:
    languages = [f"l{i % 9}" for i in range(count)]
    links = [] if tokens else [(0, 1), (0, 2)]
    figure, shape = draw(plots.plot_points, points_of([str(i) for i in range(count)], languages), links)
    axes = figure.axes[0]
    assert shape == (900, 1260) and len(axes.lines) == len(links) and len(axes.texts) == labels
    assert sum(len(group.get_offsets()) for group in axes.collections) == count


def test_the_suffix_says_the_kind_and_the_model_is_named(tmp_path: Path) -> None:
    accuracies = {"de": {"xx-en": 1.0, "en-xx": 2.0, "mean": 1.5}}
    for kind, first in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("PDF", b"%PDF")):
        files = []
        for settings in ({}, {"font.size": 20, "axes.facecolor": "red"}):
            with matplotlib.rc_context(settings):
                plots.plot_tatoeba(accuracies, {}, Picture(tmp_path / f"out.{kind}", model="run1/best"))
            files.append((tmp_path / f"out.{kind}").read_bytes())
        assert files[0].startswith(first) and files[0] == files[1]  # clock and matplotlibrc leave no trace
        assert kind != "svg" or b"<!-- run1/best -->" in files[0]


@pytest.mark.parametrize("threshold", [None, 1.05])
def test_scores_are_drawn_with_what_is_known_of_them(draw: Callable[..., Any], threshold: float | None) -> None:
    histogram = {"edges": [0.9, 1.0, 1.1, 1.2], "text": [40, 10, 80], "right": [0, 1, 4], "wrong": [0, 0, 0]}
    figure, shape = draw(plots.plot_scores, histogram, threshold)
    (axes,) = figure.axes
    assert shape == (600, 960)
    np.testing.assert_allclose(axes.patches[0].get_data().values, histogram["text"])
    np.testing.assert_allclose(axes.patches[1].get_data().values, [0, 20, 80])  # as high as the text
    labels = ["the text", "trusted pairs, right (scaled)"]
    assert axes.get_legend_handles_labels()[1] == labels + ["threshold 1.0500"] * (threshold is not None)

"""SentEval: its protocols against plain loops over scikit-learn, its figures and overlap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.evaluation.conftest import NgramEncoder, measured, save_hashes
from tests.evaluation.senteval_sets import write_sets
from xrep.errors import UserError
from xrep.evaluation.senteval.evaluate import SentEval, select
from xrep.evaluation.senteval.protocols import Examples, relatedness
from xrep.evaluation.senteval.sklearn_classifier import SklearnClassifier
from xrep.evaluation.senteval.torch_classifier import TorchClassifier

pytest.importorskip("sklearn", reason="it is in the extra 'senteval'")
PARTS = ("train", "dev", "test")


class WordEncoder(NgramEncoder):
    """An encoder that counts words in 48 bins."""

    def encode(self, sentences: list[str], lang: str | None = None, **options: bool) -> np.ndarray:
        self.asked.append((lang, sentences, options.get("normalize", True)))
        vectors = np.zeros((len(sentences), 48), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            for word in sentence.split():
                vectors[row, sum(map(ord, word)) % 48] += 1
        return vectors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sets(tmp_path / "data")


def plain_fit(x: np.ndarray, y: np.ndarray, strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, tol=1e-8, max_iter=10000).fit(x.astype(np.float64), y)


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


def vectors_of(sides: Sequence[str]) -> np.ndarray:
    return WordEncoder().encode(list(sides), "en")


@pytest.mark.slow
def test_folds_order_and_grid_are_those_of_senteval(folder: Path) -> None:
    """Nested folds, folds of a training part and a dev split are plain loops. SentEval sorts by the numbers of words
    and the class before it draws folds, and scikit-learn's C is 2^-2 to 2^3, for folds of a training part 2^-1 to
    2^5."""
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold

    options = {"data": str(folder), "sets": "MR,MRPC,SST2", "classifier": "sklearn", "folds": 3, "seeds": "1111"}
    figures = measured(SentEval, WordEncoder(), **options)

    def choice(x: np.ndarray, y: np.ndarray, grid: list[float]) -> tuple[float, float]:
        folds = list(StratifiedKFold(3, shuffle=True, random_state=1111).split(x, y))
        means = [np.mean([plain_fit(x[a], y[a], c).score(x[b], y[b]) for a, b in folds]) for c in grid]
        return grid[int(np.argmax(np.round(means, 4)))], 100 * max(means)

    samples = [
        (text, y) for y, end in ((1, "pos"), (0, "neg")) for text in read_lines(folder / f"MR/rt-polarity.{end}")
    ]
    ordered = sorted(samples, key=lambda sample: (len(sample[0].split()), sample[1]))
    x, y = vectors_of([text for text, _ in ordered]), np.array([label for _, label in ordered])
    tests, devs = [], []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=1111).split(x, y):
        strength, dev = choice(x[train], y[train], [2.0**power for power in range(-2, 4)])
        tests.append(100 * plain_fit(x[train], y[train], strength).score(x[test], y[test]))
        devs.append(dev)
    assert figures.values["MR"]["mean"] == pytest.approx({"accuracy": np.mean(tests), "dev": np.mean(devs)})

    parts = []
    for part in ("train", "test"):
        rows = [line.split("\t") for line in read_lines(folder / "MRPC" / f"msr_paraphrase_{part}.txt")[1:]]
        rows.sort(key=lambda row: (len(row[3].split()), len(row[4].split()), row[0]))
        u, v = (vectors_of([row[side] for row in rows]) for side in (3, 4))
        parts.append((np.hstack([abs(u - v), u * v]), np.array([int(row[0]) for row in rows])))
    (train, of_train), (test, of_test) = parts
    strength, dev = choice(train, of_train, [2.0**power for power in range(-1, 6)])
    model = plain_fit(train, of_train, strength)
    f1 = 100 * f1_score(of_test, model.predict(test))
    expected = {"accuracy": 100 * model.score(test, of_test), "dev": dev, "f1": f1}
    assert figures.values["MRPC"]["mean"] == pytest.approx(expected)

    lines = ([line.split("\t") for line in read_lines(folder / f"SST/binary/sentiment-{part}")] for part in PARTS)
    train, dev, test = ((vectors_of([text for text, _ in own]), np.array([int(y) for _, y in own])) for own in lines)
    models = [plain_fit(*train, 2.0**power) for power in range(-2, 4)]
    scores = [model.score(*dev) for model in models]
    accuracy = models[int(np.argmax(scores))].score(*test)
    expected = {"accuracy": 100 * accuracy, "dev": 100 * max(scores)}
    assert figures.values["SST2"]["mean"] == pytest.approx(expected)
    for name, drawn in figures.resamples.items():
        assert drawn.mean() == pytest.approx(figures.headline[name], abs=1) and 1 < drawn.std() < 7
    assert {"MR", "MRPC", "SST2"} <= set(figures.resamples)


@pytest.mark.slow
@pytest.mark.parametrize("classifier", [TorchClassifier(), SklearnClassifier()])
def test_relatedness_finds_scores_that_depend_on_the_features(classifier: Any) -> None:
    def draw(count: int, seed: int) -> Examples:
        generator = np.random.default_rng(seed)
        x = generator.normal(size=(count, 8)).astype(np.float32)
        return Examples(x, np.clip(3 + x[:, 0] + 0.3 * generator.normal(size=count), 1, 5))

    parts = draw(200, 1), draw(60, 2), draw(100, 3)
    found, drawn = relatedness(*parts, classifier, seed=1)
    assert drawn.mean() == pytest.approx(found["pearson"], abs=1)
    assert found["pearson"] > 90 and found["spearman"] > 90 and found["mse"] < 0.3
    constant = Examples(np.zeros_like(parts[2].x), parts[2].y)
    assert relatedness(parts[0], parts[1], constant, SklearnClassifier(), seed=1)[0]["pearson"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("classifier", "least"), [("senteval", (50, 20)), ("sklearn", (75, 80))])
def test_every_set_is_measured(folder: Path, classifier: str, least: tuple[float, float]) -> None:
    """A hundred examples are too few for SentEval's early stopping, and enough for the exact minimum."""
    encoder = WordEncoder()
    figures = measured(SentEval, encoder, data=str(folder), classifier=classifier, seeds="1", folds=3)
    assert {name: own["protocol"] for name, own in figures.values.items()} == {
        **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), "nested 3-fold"),
        **dict.fromkeys(("SST2", "SST5", "SICK-E"), "dev split"),
        **dict.fromkeys(("TREC", "MRPC"), "3-fold on train"),
        "SICK-R (supervised)": "dev split, regression",
    }
    head = figures.headline
    assert all(least[0] < head[name] <= 95 for name in ("MR", "CR", "SUBJ", "MPQA", "SST2"))
    assert head["TREC"] > least[1] and head["SICK-R (supervised)"] > 80 and "SICK-R" not in head
    seven = [head[name] for name in ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")]
    assert head["average of 7"] == pytest.approx(np.mean(seven))
    nine = [*seven, head["SICK-E"], head["SICK-R (supervised)"]]
    assert head["average of 9"] == pytest.approx(np.mean(nine))
    assert len(encoder.asked) == 9  # SICK-E and SICK-R have the same features
    for lang, sentences, normalize in encoder.asked:
        assert lang == "en" and not normalize and len(set(sentences)) == len(sentences)


@pytest.mark.slow
def test_mean_and_spread_over_seeds_and_what_is_left_out_of_the_test_alone(folder: Path, tmp_path: Path) -> None:
    options = {"data": str(folder), "classifier": "sklearn", "folds": 2}
    figures = measured(SentEval, WordEncoder(), sets="CR,SST2", seeds="1,2", **options)
    found = figures.values["CR"]
    by_seed = [values["accuracy"] for values in found["by_seed"].values()]
    assert len(set(by_seed)) > 1
    assert found["mean"]["accuracy"] == pytest.approx(sum(by_seed) / 2)
    assert found["spread"]["accuracy"] == pytest.approx(np.std(by_seed) * 2**0.5)
    assert figures.values["SST2"]["spread"]["accuracy"] == 0
    assert list(figures.values["SST2"]["by_seed"]) == ["1", "2"] and "average of 7" not in figures.headline
    one = measured(SentEval, WordEncoder(), sets="CR", seeds="2", **options).values["CR"]
    assert one["by_seed"] == {"2": found["by_seed"]["2"]} and one["spread"] == {"accuracy": None, "dev": None}

    sets = select("MR,MRPC", folder, "en")
    known = [sets[0].splits["all"].sides[0][0], sets[1].splits["test"].sides[1][0], sets[1].splits["train"].sides[0][5]]
    encoder = WordEncoder(training_hashes=save_hashes(tmp_path, known))
    dropped = measured(SentEval, encoder, **options, sets="MR,MRPC", drop_overlap=True)
    counts = [(own["overlap"]["found"], own["overlap"]["total"]) for own in dropped.values.values()]
    assert counts == [(1, 120), (1, 120)] and "overlap: 2 of 240 test examples" in dropped.printed()
    sizes = [own["examples"] for own in dropped.values.values()]
    assert sizes == [{"all": 119}, {"train": 120, "test": 119}] and "119" in dropped.printed().splitlines()[2]


def test_settings_that_cannot_be(folder: Path) -> None:
    for path in (folder / "SST" / "binary").iterdir():
        path.write_text(path.read_text().replace("\t1\n", "\t0\n"))  # a set of one class teaches nothing
    for options, message in (
        ({"folds": 40}, "MR has 60 training examples of class 0, 80 are needed.*fewer `folds` or without MR"),
        ({"sets": "SST2"}, "SST2 has 0 training examples of class 1, 1 are needed"),
        ({"sets": "MR,SST"}, "no set SST; the sets are MR CR SUBJ MPQA SST2"),
    ):
        with pytest.raises(UserError, match=message):
            measured(SentEval, WordEncoder(), data=str(folder), **{"sets": "MR", **options})

"""SentEval: its protocols against plain loops, its figures and overlap."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluation.conftest import NgramEncoder, measured, save_hashes
from tests.evaluation.senteval_sets import alone, write_sets
from xrep.errors import UserError
from xrep.evaluation.senteval.evaluate import SentEval

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


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").splitlines()


def vectors_of(sides: Sequence[str]) -> np.ndarray:
    return WordEncoder().encode(list(sides), "en")


@pytest.mark.slow
def test_folds_order_and_grid_are_those_of_senteval(folder: Path) -> None:
    """Nested folds, folds of a training part and a dev split are plain loops. SentEval sorts by the numbers of words
    and the class before it draws folds, and tries the weight decays 1e-5 to 1e-2."""
    from sklearn.metrics import f1_score
    from sklearn.model_selection import StratifiedKFold

    options = {"data": str(folder), "sets": "MR,MRPC,SST2", "folds": 3}
    figures = measured(SentEval, WordEncoder(), **options)
    found = {name: own["mean"] for name, own in figures.values["tables"].items()}
    grid = [1e-5, 1e-4, 1e-3, 1e-2]

    def folds_of(y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return list(StratifiedKFold(3, shuffle=True, random_state=1111).split(y, y))

    def choice(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
        means = [np.mean([alone(x, y, fold, decay, 1111)[1] for fold in folds_of(y)]) for decay in grid]
        return grid[int(np.argmax(np.round(means, 4)))], 100 * float(max(means))

    def predicted(layer: torch.nn.Linear, x: np.ndarray) -> np.ndarray:
        return layer(torch.from_numpy(x)).argmax(1).numpy()

    samples = [
        (text, y) for y, end in ((1, "pos"), (0, "neg")) for text in read_lines(folder / f"MR/rt-polarity.{end}")
    ]
    ordered = sorted(samples, key=lambda sample: (len(sample[0].split()), sample[1]))
    x, y = vectors_of([text for text, _ in ordered]), np.array([label for _, label in ordered])
    tests, devs = [], []
    for train, test in folds_of(y):
        decay, dev = choice(x[train], y[train])
        layer, _, _ = alone(x, y, (train, None), decay, 1111)
        tests.append(100 * np.mean(predicted(layer, x[test]) == y[test]))
        devs.append(dev)
    assert found["MR"] == pytest.approx({"accuracy": np.mean(tests), "dev": np.mean(devs)})

    parts = []
    for part in ("train", "test"):
        rows = [line.split("\t") for line in read_lines(folder / "MRPC" / f"msr_paraphrase_{part}.txt")[1:]]
        rows.sort(key=lambda row: (len(row[3].split()), len(row[4].split()), row[0]))
        u, v = (vectors_of([row[side] for row in rows]) for side in (3, 4))
        parts.append((np.hstack([abs(u - v), u * v]), np.array([int(row[0]) for row in rows])))
    (x, y), (test, of_test) = parts
    decay, dev = choice(x, y)
    answers = predicted(alone(x, y, (np.arange(len(y)), None), decay, 1111)[0], test)
    expected = {"accuracy": 100 * np.mean(answers == of_test), "dev": dev, "f1": 100 * f1_score(of_test, answers)}
    assert found["MRPC"] == pytest.approx(expected)

    parts = []
    for part in PARTS:
        rows = [line.split("\t") for line in read_lines(folder / f"SST/binary/sentiment-{part}")]
        rows.sort(key=lambda row: (len(row[0].split()), row[1]))
        parts.append((vectors_of([text for text, _ in rows]), np.array([int(label) for _, label in rows])))
    (train, of_train), (dev, of_dev), (test, of_test) = parts
    x, y, size = np.concatenate([train, dev]), np.concatenate([of_train, of_dev]), len(train)
    layers = [alone(x, y, (np.arange(size), np.arange(size, len(x))), decay, 1111) for decay in grid]
    layer, best, _ = max(layers, key=lambda own: round(own[1], 4))
    expected = {"accuracy": 100 * np.mean(predicted(layer, test) == of_test), "dev": 100 * best}
    assert found["SST2"] == pytest.approx(expected)
    for name, drawn in figures.resamples.items():
        assert drawn.mean() == pytest.approx(figures.headline[name], abs=1) and 1 < drawn.std() < 7
    assert {"MR", "MRPC", "SST2"} <= set(figures.resamples)


@pytest.mark.slow
def test_every_set_is_measured(tmp_path: Path) -> None:
    """A tenth of the sentences of two classes have the words of the other class."""
    encoder, folder = WordEncoder(), write_sets(tmp_path, size=240)
    figures = measured(SentEval, encoder, data=str(folder), seeds="1", folds=3)
    assert {name: own["protocol"] for name, own in figures.values["tables"].items()} == {
        **dict.fromkeys(("MR", "CR", "SUBJ", "MPQA"), "nested 3-fold"),
        **dict.fromkeys(("SST2", "SST5", "SICK-E"), "dev split"),
        **dict.fromkeys(("TREC", "MRPC"), "3-fold on train"),
        "SICK-R (supervised)": "dev split, regression",
    }
    head = figures.headline
    assert all(70 < head[name] <= 95 for name in ("MR", "CR", "SUBJ", "MPQA", "SST2", "MRPC"))
    assert head["SST5"] > 80 and head["TREC"] > 60 and head["SICK-E"] > 55
    assert head["SICK-R (supervised)"] > 80 and "SICK-R" not in head
    seven = [head[name] for name in ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")]
    assert head["average of 7"] == pytest.approx(np.mean(seven))
    nine = [*seven, head["SICK-E"], head["SICK-R (supervised)"]]
    assert head["average of 9"] == pytest.approx(np.mean(nine))
    assert len(encoder.asked) == 9  # SICK-E and SICK-R have the same features
    for lang, sentences, normalize in encoder.asked:
        assert lang == "en" and not normalize and len(set(sentences)) == len(sentences)


@pytest.mark.slow
def test_mean_and_spread_over_seeds_and_what_is_left_out_of_the_test_alone(folder: Path, tmp_path: Path) -> None:
    options = {"data": str(folder), "folds": 2}
    figures = measured(SentEval, WordEncoder(), sets="CR,SST2", seeds="1,2", **options)
    found = figures.values["tables"]["CR"]
    by_seed = [values["accuracy"] for values in found["by_seed"].values()]
    assert len(set(by_seed)) > 1 and list(found["by_seed"]) == ["1", "2"]
    assert found["test"] == found["mean"]["accuracy"] == pytest.approx(sum(by_seed) / 2)
    assert found["spread"]["accuracy"] == pytest.approx(np.std(by_seed) * 2**0.5)
    assert "average of 7" not in figures.headline
    one = measured(SentEval, WordEncoder(), sets="CR", seeds="2", **options).values["tables"]["CR"]
    assert one["by_seed"] == {"2": found["by_seed"]["2"]} and one["spread"] == {"accuracy": None, "dev": None}

    whole, train, test = SentEval(SentEval.Config(data=str(folder), sets="MR,MRPC")).tables
    known = [whole.columns[0][0], test.columns[1][0], train.columns[0][5]]
    encoder = WordEncoder(training_hashes=save_hashes(tmp_path, known))
    dropped = measured(SentEval, encoder, **options, sets="MR,MRPC", drop_overlap=True)
    tables = dropped.values["tables"].values()
    assert [(own["overlap"]["found"], own["overlap"]["total"]) for own in tables] == [(1, 120), (1, 120)]
    assert "overlap: 2 of 240 test examples" in dropped.printed()
    assert [own["splits"] for own in tables] == [{"all": 119}, {"train": 120, "test": 119}]
    assert [own["examples"] for own in tables] == [119, 119] and "119" in dropped.printed().splitlines()[2]


def test_settings_that_cannot_be(folder: Path) -> None:
    for path in (folder / "SST" / "binary").iterdir():
        path.write_text(path.read_text().replace("\t1\n", "\t0\n"))  # a set of one class teaches nothing
    for options, message in (
        ({"folds": 40}, "MR has 60 training examples of class 0, 80 are needed.*fewer `folds` or without MR"),
        ({"sets": "SST2"}, "SST2 has 0 training examples of class 1, 1 are needed"),
        ({"sets": "MR,SST"}, "no set SST; the data has MR,CR,SUBJ,MPQA,SST2"),
        ({"seeds": "1,a"}, "`seeds` '1,a'; give numbers from 0 to 4294967295, such as 1,2,3"),
        ({"seeds": "1,4294967296"}, "`seeds` '1,4294967296'; give numbers from 0"),
    ):
        with pytest.raises(UserError, match=message):
            measured(SentEval, WordEncoder(), data=str(folder), **{"sets": "MR", **options})

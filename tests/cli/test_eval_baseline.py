"""``xrep-eval --random-baseline`` and ``--resamples``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.cleaning import sentence_hashes
from xrep_cli.eval import main

PAIRS = sorted(set(sentence_pairs(12)))
GERMAN, ENGLISH = (list(side) for side in zip(*PAIRS, strict=True))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tatoeba")
    for code in ("deu", "fra"):
        for side, lines in ((code, GERMAN), ("eng", ENGLISH)):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"tatoeba.{code}-eng.{side}").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an encoder of one tower with the hash of one German sentence of its training text."""
    folder = tmp_path_factory.mktemp("run-shared")
    np.save(folder / "training_hashes.npy", sentence_hashes(GERMAN[:1]))
    return write_encoder(folder / "best", normalize=False, size=32)


def _eval(*options: object) -> int:
    return main(["tatoeba", *map(str, options)])


def test_random_weights_of_several_seeds_stand_beside_the_model(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    vectors = ["--save-embeddings", tmp_path / "vectors"]
    assert _eval("--path", shared, "--data", data, "--json", "-") == 0
    alone = json.loads(capsys.readouterr().out)
    both = ["--path", shared, "--data", data, "--random-baseline"]
    assert _eval(*both, *vectors, "--json", tmp_path / "out.json") == 0
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    random = found.pop("random_weights")
    assert found == alone and random["seeds"] == len(random["values"]) == 3
    means = [values["mean"] for values in random["values"]]
    assert len(set(means)) > 1
    own = random["headline"]["mean of 2"]
    assert own["mean"] == pytest.approx(np.mean(means)) and own["spread"] == pytest.approx(np.std(means, ddof=1))
    header, _, row = capsys.readouterr().out.splitlines()[-3:]
    assert header.split() == ["figure", str(shared), "random", "weights"]
    assert row.endswith(f"{own['mean']:.2f} ± {own['spread']:.2f}")
    kept = np.load(tmp_path / "vectors" / "deu.deu.npy")
    np.testing.assert_allclose(kept, SentenceEncoder.load(shared).encode(GERMAN, "de"), atol=1e-6)
    assert _eval(*both, "1", "--json", "-") == 0
    once = json.loads(capsys.readouterr().out)["random_weights"]
    assert once["values"] == random["values"][:1] and once["headline"]["mean of 2"]["spread"] is None
    assert _eval(*both, "1", "--drop-overlap", "--json", "-") == 0
    dropped = json.loads(capsys.readouterr().out)
    assert dropped["random_weights"]["values"][0]["pairs"] == dropped["values"]["pairs"] == 2 * len(PAIRS) - 2


def test_resampled_figures_of_two_models_are_paired(
    shared: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert _eval("--path", shared, "--data", data, "--json", "-", "--resamples", tmp_path / "drawn.json") == 0
    drawn = np.array(json.loads((tmp_path / "drawn.json").read_text())["mean of 2"])
    low, high = json.loads(capsys.readouterr().out)["intervals"]["mean of 2"]
    assert drawn.shape == (1000,) and np.percentile(drawn, [2.5, 97.5]) == pytest.approx([low, high])
    assert _eval("--path", shared, "--data", data, "--resamples", data / "tatoeba.deu-eng.deu") == 2
    assert "--resamples is the same file as --data" in capsys.readouterr().err
    lines = ["--data", str(data / "tatoeba.deu-eng.deu"), "--query", "a", "--lang", "de"]
    given = ["neighbours", "--path", str(shared), *lines, "--resamples", str(tmp_path / "none.json")]
    assert main(given) == 2 and "resamples no figure; leave --resamples out" in capsys.readouterr().err
    assert not (tmp_path / "none.json").exists()

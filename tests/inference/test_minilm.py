"""The real all-MiniLM-L6-v2 against sentence-transformers and its published quality; skipped without the data."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.resources import xrep_home

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def minilm() -> Path:
    path = xrep_home() / "models" / "minilm"
    if not (path / "model.safetensors").exists():
        pytest.skip("needs the encoder in $XREP_HOME: xrep-data get minilm")
    return path


@pytest.fixture(scope="module")
def data() -> Path:
    path = Path(os.environ.get("XREP_DATA", Path(__file__).parents[3] / "shared" / "data")) / "sts"
    if not path.is_dir():
        pytest.skip("needs the STS test sets below $XREP_DATA")
    return path


def test_same_vectors_as_sentence_transformers(minilm: Path, data: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    lines = (data.parent / "mt" / "newstest" / "newstest2012.en").read_text(encoding="utf-8").splitlines()[:1000]
    theirs = library.SentenceTransformer(str(minilm), device="cpu").encode(lines, normalize_embeddings=True)
    ours = SentenceEncoder.load(minilm, device="cpu").encode(lines)
    assert (ours * theirs).sum(1).min() > 0.99999
    half = SentenceEncoder.load(minilm, device="cpu", dtype="bfloat16").encode(lines[:200])
    assert (half * theirs[:200]).sum(1).min() > 0.9998


def test_spearman_of_the_published_test_set(minilm: Path, data: Path) -> None:
    encoder = SentenceEncoder.load(minilm, device="cpu")
    rows = [line.split("\t") for line in (data / "STSBenchmark" / "sts-test.csv").read_text().splitlines()]
    first, second = ([row[column] for row in rows] for column in (5, 6))
    cosines = (encoder.encode(first) * encoder.encode(second)).sum(1)
    found = spearmanr(cosines, np.array([float(row[4]) for row in rows])).statistic
    assert 100 * found == pytest.approx(82.03, abs=0.05)

"""The real all-MiniLM-L6-v2 against sentence-transformers and its published quality; skipped without the data."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.corpora import xrep_home

pytestmark = pytest.mark.nightly
Scored = list[tuple[str, str, float]]


@pytest.fixture(scope="module")
def minilm() -> Path:
    path = xrep_home() / "models" / "minilm"
    if not (path / "model.safetensors").exists():
        pytest.skip("needs the encoder in $XREP_HOME: xrep-data get minilm")
    return path


@pytest.fixture(scope="module")
def data() -> Path:
    path = Path(os.environ.get("XREP_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (path / "sts").is_dir():
        pytest.skip("needs the STS test sets below $XREP_DATA")
    return path


def test_same_vectors_as_sentence_transformers(minilm: Path, data: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    lines = (data / "mt" / "newstest" / "newstest2012.en").read_text(encoding="utf-8").splitlines()[:1000]
    theirs = library.SentenceTransformer(str(minilm), device="cpu").encode(lines, normalize_embeddings=True)
    ours = SentenceEncoder.load(minilm, device="cpu").encode(lines)
    assert (ours * theirs).sum(1).min() > 0.99999
    half = SentenceEncoder.load(minilm, device="cpu", dtype="bfloat16").encode(lines[:200])
    assert (half * theirs[:200]).sum(1).min() > 0.9998


def test_spearman_of_the_published_test_sets(minilm: Path, data: Path) -> None:
    encoder = SentenceEncoder.load(minilm, device="cpu")
    sets = {"STS13": subsets(data, "13"), "STS14": subsets(data, "14")}
    sets["STS-B"] = table(data / "sts" / "STSBenchmark" / "sts-test.csv", (5, 6, 4))
    sets["SICK"] = table(data / "sts" / "SICK" / "SICK_test_annotated.txt", (1, 2, 3), first=1)
    found = {name: correlation(encoder, pairs) for name, pairs in sets.items()}
    expected = {"STS-B": 82.03, "SICK": 77.15, "STS13": 80.60, "STS14": 75.59}
    assert found == pytest.approx(expected, abs=0.05)


def correlation(encoder: SentenceEncoder, pairs: Scored) -> float:
    first, second, gold = zip(*pairs, strict=True)
    cosines = (encoder.encode(first) * encoder.encode(second)).sum(1)
    return 100 * float(spearmanr(cosines, np.array(gold)).statistic)


def table(path: Path, columns: tuple[int, int, int], first: int = 0) -> Scored:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")[first:]]
    return [(row[columns[0]], row[columns[1]], float(row[columns[2]])) for row in rows]


def subsets(data: Path, year: str) -> Scored:
    """Return all subsets of a year together; lines without a gold score are not scored."""
    pairs: Scored = []
    for file in sorted((data / "sts" / f"STS{year}-en-test").glob("STS.input.*.txt")):
        lines = file.read_text(encoding="utf-8").split("\n")
        gold = file.with_name(file.name.replace("input", "gs")).read_text().split("\n")
        rows = [(line.split("\t"), score) for line, score in zip(lines, gold, strict=False) if score.strip()]
        pairs += [(row[0], row[1], float(score)) for row, score in rows]
    return pairs

"""``xrep-eval`` of several models, of random weights and of shorter vectors, and what its records say of options."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import SENTENCES, Measure
from tests.support.corpus import write_lines
from tests.support.encoders import write_encoder
from tests.support.nli_data import nli_rows, write_columns, write_jsonl
from tests.support.runs import compose_run
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.text.cleaning import sentence_hashes
from xrep.training.run import train


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[Path]]]:
    """Note the path of each encoder that is loaded, and those of the encoders that are in memory then."""
    load, models, noted = SentenceEncoder.load, list[tuple[Path, Any]](), list[tuple[Path, list[Path]]]()

    def noting(path: Path, **named: Any) -> SentenceEncoder:
        gc.collect()
        noted.append((Path(path), [other for other, model in models if model() is not None]))
        encoder = load(path, **named)
        models.append((Path(path), weakref.ref(encoder.model)))
        return encoder

    monkeypatch.setattr(SentenceEncoder, "load", noting)
    return noted


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note all sentences that are encoded."""
    encode, noted = SentenceEncoder.encode, list[str]()

    def noting(self: SentenceEncoder, sentences: list[str], *given: Any, **named: Any) -> np.ndarray:
        noted.extend(sentences)
        return encode(self, sentences, *given, **named)

    monkeypatch.setattr(SentenceEncoder, "encode", noting)
    return noted


@pytest.mark.slow
def test_models_are_in_memory_one_after_the_other(tatoeba, loaded, measure, tmp_path):
    encoders = [write_encoder(tmp_path / name / "best", seed=seed) for seed, name in enumerate("abc")]
    paths = [part for path in encoders for part in ("--path", path)]
    found = measure("tatoeba", *paths, "--dimensions", "8", "--data", tatoeba)
    assert len(found["models"]) == 6 and len(found["differences"]) == 5
    assert {path for path, _ in loaded} == set(encoders)
    assert [others for _, others in loaded if others] == []


@pytest.mark.slow
def test_runs_of_a_report_are_in_memory_one_after_the_other(data_directory, tatoeba, loaded, cli, tmp_path):
    for name in ("a", "b"):
        train(compose_run(data_directory, tmp_path / name, max_steps=2, save_every=0, validate_every=2))
    done = cli("report", "a", "b", "--data", tatoeba, "--output", "report.html")
    assert done.code == 0 and {path.parent.name for path, _ in loaded} == {"a", "b"}
    assert [(path, other) for path, others in loaded for other in others if other.parent != path.parent] == []


@pytest.mark.slow
def test_pairs_that_are_left_out_are_not_encoded(encoded: list[str], measure: Measure, tmp_path: Path) -> None:
    known, others = nli_rows(10, seed=3), nli_rows(10, seed=4)
    known = [row for row in known if not {row[0], row[1]} & {text for other in others for text in other[:2]}]
    write_jsonl(tmp_path / "train" / "snli_1.0_train.jsonl", nli_rows(60))
    write_columns(tmp_path / "train" / "dev-en.tsv", others)
    run = tmp_path / "run"
    train(compose_run(tmp_path / "train", run, task="nli", criterion="nli", vocab_size=70, max_steps=2))
    np.save(run / "training_hashes.npy", np.unique(sentence_hashes([text for row in known for text in row[:2]])))
    write_columns(tmp_path / "test" / "test-en.tsv", known + others)
    encoded.clear()
    found = measure("nli", "--path", "run/last", "--data", "test", "--drop-overlap")
    assert found["values"]["tables"]["en"]["examples"] == len(others)
    assert {*encoded} - {known[0][0], known[0][1]} == {text for row in others for text in row[:2]}


@pytest.mark.slow
def test_random_weights_of_several_seeds_stand_beside_the_model(encoder, tatoeba, cli, measure, tmp_path):
    both = ["--path", encoder, "--data", tatoeba, "--random-baseline"]
    printed = cli("eval", "tatoeba", *both, "--json", "out.json").out
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    random = found.pop("random_weights")
    assert found == measure("tatoeba", "--path", encoder, "--data", tatoeba)
    means = [values["averages"]["mean of 2"]["mean"] for values in random["values"]]
    assert random["seeds"] == len(means) == 3 and len(set(means)) > 1
    own = random["headline"]["mean of 2"]
    assert own["mean"] == pytest.approx(np.mean(means)) and own["spread"] == pytest.approx(np.std(means, ddof=1))
    header, _, row = printed.splitlines()[-3:]
    assert header.split() == ["figure", str(encoder), "random", "weights"]
    assert row.endswith(f"{own['mean']:.2f} ± {own['spread']:.2f}")
    dropped = measure("tatoeba", *both, "1", "--drop-overlap")
    once = dropped["random_weights"]
    assert once["values"][0]["averages"]["mean of 2"]["examples"] == 12 - 3
    assert once["headline"]["mean of 2"]["spread"] is None


@pytest.mark.slow
def test_resamples_have_the_interval_of_the_record(encoder, tatoeba, cli, measure, loaded, tmp_path):
    """Without a figure that is resampled, they are refused before a model is loaded."""
    given = ["--path", encoder, "--data", tatoeba, "--resamples", "drawn.json"]
    low, high = measure("tatoeba", *given)["intervals"]["mean of 2"]
    drawn = np.array(json.loads((tmp_path / "drawn.json").read_text())["mean of 2"])
    assert drawn.shape == (1000,) and np.percentile(drawn, [2.5, 97.5]) == pytest.approx([low, high])
    loaded.clear()
    for line in ("scatter --plot p.svg", "language-bias --langs de"):
        done = cli("eval", *line.split(), *given)
        assert done.code == 2 and "resamples no figure; leave --resamples out" in done.err
        assert not done.out and not done.wrote and not loaded


def test_cut_vectors_are_measured_like_vectors_of_that_width(tatoeba, cli, measure, tmp_path):
    """As those of encoders with matryoshka are. All vectors of this system lie close together."""
    keys = [f"{code}\t{text}" for code, lines in SENTENCES.items() for text in lines]
    draw = np.random.default_rng(0)
    half = draw.normal(size=(6, 8))
    vectors = np.concatenate([half + draw.normal(size=(6, 8)) for _ in SENTENCES]).astype(np.float32)
    for name, width in (("whole", 8), ("four", 4), ("two", 2)):
        write_lines(tmp_path / name / "sentences.tsv", keys)
        np.save(tmp_path / name / "vectors.npy", vectors[:, :width])
    done = cli("eval", "tatoeba", "--data", tatoeba, "--path", "whole", "--dimensions", "4, 2", "--json", "out.json")
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["models"]
    assert list(found) == ["whole", "whole:4", "whole:2"]
    assert "whole:2" in done.out.splitlines()[-2 - len(found["whole"]["headline"])]
    for name, path in (("whole", "whole"), ("whole:4", "four"), ("whole:2", "two")):
        assert found[name]["values"] == measure("tatoeba", "--data", tatoeba, "--path", path)["values"]
    assert len({str(record["values"]) for record in found.values()}) == 3
    assert len({record["model"]["fingerprint"] for record in found.values()}) == 3


def test_sentences_of_shorter_vectors_are_encoded_once(encoder, tatoeba, encoded, measure):
    given = ["--data", tatoeba, "--path", encoder, "--langs", "de"]
    once, alone = measure("tatoeba", *given), len(encoded)
    found = measure("tatoeba", *given, "--dimensions", "8,4")["models"]
    checked = 2 * 2  # of each language, one sentence is encoded first by each of the two shorter encoders
    assert len(encoded) == 2 * alone + checked
    assert found[str(encoder)]["values"] == once["values"] and len(found) == 3

"""The starts of towers: one side only, a tower of an earlier run, and the pipeline of frozen_source (figure 1)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.support.planning import token_batch
from tests.support.runs import xrep_train
from tests.training.test_pretrained_towers import arguments, pretrained, raw
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.pretrained import read_pretrained
from xrep.models.directory import open_checkpoint
from xrep.models.start import find_start
from xrep.text.sides import open_tokenizers

__all__ = ["pretrained", "raw"]
SENTENCES = {"de": ["ein rotes Haus am Morgen", "meine Schwester"], "en": ["a red house", "my sister sees it"]}


def frozen(**given) -> dict:
    return {"criterion": "frozen_source", "temperature": 0.2, "max_steps": 4, "batch_size": 20, "lr": 1e-3, **given}


def of_tower(directory: Path, tower: str) -> dict[str, torch.Tensor]:
    tensors = open_checkpoint(directory).tensors()
    prefix = f"encoders.{tower}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def first(raw: Path, pretrained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a German student from scratch, with its own tokenizer, from an English teacher on the target side."""
    directory = tmp_path_factory.mktemp("runs") / "first"
    line = arguments(raw, directory, target_encoder=pretrained["en"], vocab_size=60, source_side="target", **frozen())
    finished = xrep_train(*line, "--layers", 1, "--hidden-size", 40, "--heads", 4, "--feedforward-size", 32)
    assert finished.returncode == 0, finished.stderr
    assert "training a SentencePiece vocabulary of the source side of 60 pieces" in finished.stdout
    assert "warning" not in finished.stderr
    return directory


def test_a_pretrained_teacher_and_a_student_from_scratch(first: Path, pretrained: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(first / "last")
    architecture = checkpoint.manifest["architecture"]
    assert {name: (s["hidden_size"], s["layers"]) for name, s in architecture["towers"].items()} == {
        "source": (40, 1),
        "target": (24, 2),
    }
    assert {side: v.size for side, v in checkpoint.text.vocabularies.items()} == {"source": 60, "target": 70}
    assert list(architecture["projections"]) == ["source"], "the student comes to the teacher's width"
    assert same(of_tower(first / "last", "target"), read_pretrained(pretrained["en"]).state()[0])
    encoder = SentenceEncoder.load(first / "last")
    assert [encoder.encode(sentences, language).shape for language, sentences in SENTENCES.items()] == [
        (2, 24),
        (2, 24),
    ]
    tokenizers = open_tokenizers((first / "last" / "tokenizer").resolve())
    text = "meine Schwester sieht das Haus"
    assert tokenizers["source"].decode(tokenizers["source"].encode([text])[0]) == text
    assert len(tokenizers["target"].encode([text])[0]) > len(tokenizers["source"].encode([text])[0])


def test_a_tower_of_a_run_is_a_start(first: Path, raw: Path, pretrained: dict[str, Path], tmp_path: Path) -> None:
    given = {"source_encoder": first / "best" / "source", "target_encoder": pretrained["de"]}
    line = arguments(raw, tmp_path / "r", **frozen(**given, projection="tanh", target_pooling="cls"))
    finished = xrep_train(*line)
    assert finished.returncode == 0, finished.stderr
    second = open_checkpoint(tmp_path / "r" / "last")
    assert same(of_tower(tmp_path / "r" / "last", "source"), of_tower(first / "best", "source"))
    architecture = second.manifest["architecture"]
    assert architecture["pooling"] == {"source": "mean", "target": "cls"}
    shapes = {n: (p["input_size"], p["output_size"], p["activation"]) for n, p in architecture["projections"].items()}
    assert shapes == {"source": (40, 24, "none"), "target": (32, 24, "tanh")}
    vectors = [
        SentenceEncoder.load(path).encode(SENTENCES["de"], "de") for path in (first / "best", tmp_path / "r" / "last")
    ]
    np.testing.assert_array_equal(*vectors)


def test_starts_that_are_none(first: Path) -> None:
    with pytest.raises(UserError, match=r"which of its towers\?; .*best/source or .*best/target"):
        find_start(str(first / "best"))
    with pytest.raises(UserError, match="no tower 'middle'"):
        find_start(str(first / "best" / "middle"))
    with pytest.raises(UserError, match="no such directory"):
        find_start(str(first / "nowhere" / "target"))


def test_first_layers_of_a_tower(first: Path) -> None:
    start = find_start(str(first / "best" / "target"))
    whole, nothing = start.state(None)
    state, above = start.state(1)
    assert nothing == [] and above and {name.split(".")[1] for name in above} == {"1"}
    assert state.keys() == whole.keys() - set(above) and start.shape.layers == 2


def test_export_without_the_projection(first: Path, tmp_path: Path) -> None:
    """Table 8 compares [CLS] with the MLP, without it, and the mean, from one checkpoint."""
    encoder = SentenceEncoder.load(first / "best")
    for name, changes in {
        "as trained": {},
        "cls without": {"pooling": "cls", "no_projection": True},
        "mean without": {"no_projection": True},
    }.items():
        export_path(first / "best", tmp_path / name, "sentence-transformers", **changes)
        found = SentenceEncoder.load(tmp_path / name / "source").encode(SENTENCES["de"])
        if not changes:
            np.testing.assert_array_equal(found, encoder.encode(SENTENCES["de"], "de"))
            continue
        ids = encoder.tokenizers["source"].encode(SENTENCES["de"])
        for row, sentence in enumerate(ids):
            vocabulary = encoder.text.vocabulary("source")
            tokens = torch.tensor([[vocabulary.bos_id, *sentence, vocabulary.eos_id]])
            batch = token_batch(tokens, torch.tensor([tokens.size(1)]))
            with torch.no_grad():
                states = encoder.model.encode("source", batch)[1][0]
            vector = states[0] if "pooling" in changes else states.mean(0)
            np.testing.assert_allclose(found[row], (vector / vector.norm()).numpy(), atol=1e-5)
        readme = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert "vectors of 40 or 24 numbers" in readme and "one space" not in readme
    with pytest.raises(UserError, match="are for the format sentence-transformers and graphs, not for hf"):
        export_path(first / "best", tmp_path / "hf", "hf", no_projection=True)
    with pytest.raises(UserError, match="has no projection to leave out"):
        export_path(
            tmp_path / "mean without" / "target", tmp_path / "again", "sentence-transformers", no_projection=True
        )


def test_the_pipeline_of_figure_1(raw: Path, pretrained: dict[str, Path], tmp_path: Path) -> None:
    """In (A) an English teacher trains a German encoder, which in (B) teaches an English encoder."""
    german = tmp_path / "course" / "A" / "best" / "source"
    course = {
        "task": {"name": "bitext", "data": str(raw), "batch_size": 20, "max_length": 32, "vocab_size": 60},
        "model": {"name": "dual_encoder", "layers": 1, "hidden_size": 24, "heads": 2, "feedforward_size": 32},
        "criterion": {"name": "frozen_source", "queue_size": 30},
        "trainer": {"max_steps": 3, "device": "cpu"},
        "checkpoint": {"save_dir": str(tmp_path / "course")},
        "stages": [
            {"name": "A", "model": {"target_encoder": str(pretrained["en"])}, "criterion": {"source_side": "target"}},
            {"name": "B", "init": "none", "model": {"source_encoder": str(german)}},
        ],
    }  # fmt: skip
    (tmp_path / "course.yaml").write_text(yaml.safe_dump(course), encoding="utf-8")
    finished = xrep_train("--config", tmp_path / "course.yaml")
    assert finished.returncode == 0, finished.stderr
    a, b = (tmp_path / "course" / stage / "best" for stage in ("A", "B"))
    assert same(of_tower(a, "target"), read_pretrained(pretrained["en"]).state()[0])
    assert same(of_tower(b, "source"), of_tower(a, "source"))
    assert not same(of_tower(b, "target"), of_tower(a, "target"))
    assert json.loads((tmp_path / "course" / "B" / "summary.json").read_text())["steps"] == 3

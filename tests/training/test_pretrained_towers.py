"""Training that starts from pretrained encoders, from towers of earlier runs, and from those of transformers."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.once import made_once
from tests.support.planning import token_batch
from tests.support.runs import options
from xrep.data.batch import Vocabulary
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.exported import write_huggingface
from xrep.interop.pretrained import read_pretrained
from xrep.models.directory import open_checkpoint
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.text.sides import open_tokenizers
from xrep.text.train_tokenizer import train_tokenizer
from xrep_cli.train import main

pytestmark = pytest.mark.slow
WIDTHS = {"de": 32, "en": 24}
SENTENCES = {"de": ["ein rotes Haus am Morgen", "meine Schwester"], "en": ["a red house", "my sister sees  it"]}
UNSIZED = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions")


@pytest.fixture(scope="session")
def raw() -> Path:
    return made_once("raw", lambda folder: write_corpus(folder / "text", train=200, valid=20, test=20)) / "text"


def write_pretrained(folder: Path) -> None:
    """Write a German and an English encoder of other widths and vocabularies, as transformers does."""
    german, english = zip(*sentence_pairs(400), strict=True)
    for seed, (language, sentences) in enumerate({"de": german, "en": english}.items()):
        tokenizer = train_tokenizer(sentences, 62 + 8 * seed, folder / f"{language}-tokenizer")
        vocabulary = Vocabulary.of(tokenizer)
        shape = EncoderShape(
            vocabulary_size=vocabulary.size, pad_id=vocabulary.pad_id, hidden_size=WIDTHS[language], layers=2, heads=2,
            feedforward_size=48, max_positions=40, type_vocabulary_size=2,
        )  # fmt: skip
        torch.manual_seed(seed)
        encoder = TransformerEncoder(shape, dropout=0.1, attention_dropout=0.1)
        write_huggingface(folder / language, encoder, tokenizer, max_length=40)
        card = f"---\nlicence: mit\nlanguage:\n- {language}\ntags:\n- es\n---\n# An encoder\n"
        (folder / language / "README.md").write_text(card, encoding="utf-8")


@pytest.fixture(scope="session")
def pretrained() -> dict[str, Path]:
    """Directories of a German and an English encoder, as transformers writes them."""
    folder = made_once("pretrained", write_pretrained)
    return {language: folder / language for language in WIDTHS}


def arguments(raw: Path, save_dir: Path, **given: Any) -> list[str]:
    """Return a command line without the sizes of encoders."""
    line = options(save_dir=save_dir, **{"towers": "separate", "batch_size": 20, **given})
    for name in UNSIZED:
        place = line.index(f"--{name.replace('_', '-')}")
        del line[place : place + 2]
    return [str(raw), *line]


@pytest.fixture(scope="session")
def run(raw: Path, pretrained: dict[str, Path]) -> Path:
    """A run whose towers are the two encoders."""
    encoders = {"source_encoder": pretrained["de"], "target_encoder": pretrained["en"]}
    line = lambda folder: arguments(raw, folder / "run", max_steps=8, lr=1e-3, **encoders)  # noqa: E731
    return made_once("towers", lambda folder: main(line(folder))) / "run"


def of_tower(directory: Path, tower: str) -> dict[str, torch.Tensor]:
    prefix = f"encoders.{tower}."
    tensors = open_checkpoint(directory).tensors().items()
    return {name.removeprefix(prefix): tensor for name, tensor in tensors if name.startswith(prefix)}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def shapes_of(directory: Path) -> dict[str, Any]:
    return open_checkpoint(directory).manifest["architecture"]


# -- pretrained towers ------------------------------------------------------------------------------------------------


def test_towers_keep_their_width_and_vocabulary_and_meet_in_the_sources(run: Path) -> None:
    towers = shapes_of(run / "last")["towers"]
    assert {name: shape["hidden_size"] for name, shape in towers.items()} == {"source": 32, "target": 24}
    vocabularies = open_checkpoint(run / "last").text.vocabularies
    assert {side: vocabulary.size for side, vocabulary in vocabularies.items()} == {"source": 62, "target": 70}
    assert list(shapes_of(run / "last")["projections"]) == ["target"]
    encoder = SentenceEncoder.load(run / "best")
    vectors = {language: encoder.encode(["ein rotes Haus", "a red house"], lang=language) for language in ("de", "en")}
    assert all(v.shape == (2, 32) and np.allclose(np.linalg.norm(v, axis=1), 1) for v in vectors.values())
    assert not np.allclose(vectors["de"], vectors["en"])


def test_training_starts_from_the_weights_changes_them_and_goes_on_without_the_files(
    raw: Path, pretrained: dict[str, Path], run: Path, tmp_path: Path, cli: Commands
) -> None:
    copies = {side: tmp_path / language for side, language in (("source", "de"), ("target", "en"))}
    for copy in copies.values():
        shutil.copytree(pretrained[copy.name], copy)
    given = {f"{side}_encoder": copy for side, copy in copies.items()}
    first = cli("train", *arguments(raw, tmp_path / "r", max_steps=1, lr=1e-9, **given))
    origin = f"from {copies['source']} (de, 29 tensors, encoder type transformer)"
    assert first.code == 0 and f"tower source (de): trained, 0.0M parameters, {origin}\n" in first.err
    for tower, copy in copies.items():
        state, unused = read_pretrained(copy).state()
        still, trained = of_tower(tmp_path / "r" / "last", tower), of_tower(run / "last", tower)
        assert unused == [] and state.keys() <= still.keys()
        for name, tensor in state.items():
            torch.testing.assert_close(still[name], tensor, rtol=0, atol=1e-7)
        assert sum(not torch.equal(trained[name], tensor) for name, tensor in state.items()) > len(state) / 2
        (copy / "model.safetensors").unlink()
    again = cli("train", *arguments(raw, tmp_path / "r", max_steps=2, lr=1e-9, **given))
    assert again.code == 0 and "going on from" in again.err
    assert SentenceEncoder.load(tmp_path / "r" / "last").encode(["hallo"], "de").shape == (1, 32)


def test_first_layers_and_the_pooled_layer(raw: Path, pretrained: dict[str, Path], tmp_path: Path) -> None:
    vectors = []
    for name in ("pretrained_layers", "pooled_layer"):
        line = arguments(raw, tmp_path / name, max_steps=1, lr=1e-9, encoder=pretrained["de"], **{name: 1})
        assert main(line) == 0
        vectors.append(SentenceEncoder.load(tmp_path / name / "last").encode(["ein rotes Haus"], "de"))
    np.testing.assert_allclose(*vectors, atol=1e-6)
    layers = [[s["layers"] for s in shapes_of(tmp_path / name / "last")["towers"].values()]
              for name in ("pretrained_layers", "pooled_layer")]  # fmt: skip
    assert layers == [[1, 1], [2, 2]] and not shapes_of(tmp_path / "pretrained_layers" / "last")["projections"]


# -- towers of earlier runs -------------------------------------------------------------------------------------------


FROZEN = {"criterion": "frozen_source", "queue_size": 30, "temperature": 0.2, "max_steps": 3, "lr": 1e-3}


@pytest.fixture(scope="session")
def student(raw: Path, pretrained: dict[str, Path]) -> Path:
    """A German student from scratch, with its own tokenizer, of an English teacher on the target side."""
    sizes = {"layers": 1, "hidden_size": 40, "heads": 4, "feedforward_size": 32}
    given = {**FROZEN, "target_encoder": pretrained["en"], "vocab_size": 60, "source_side": "target"}
    more = [word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", str(size))]
    train = lambda folder: main([*arguments(raw, folder / "run", **given), *more])  # noqa: E731
    return made_once("student", train) / "run"


def test_a_pretrained_teacher_and_a_student_from_scratch(student: Path, pretrained: dict[str, Path]) -> None:
    architecture = shapes_of(student / "last")
    shapes = {name: (shape["hidden_size"], shape["layers"]) for name, shape in architecture["towers"].items()}
    assert shapes == {"source": (40, 1), "target": (24, 2)}
    vocabularies = open_checkpoint(student / "last").text.vocabularies
    assert {side: vocabulary.size for side, vocabulary in vocabularies.items()} == {"source": 60, "target": 70}
    assert list(architecture["projections"]) == ["source"], "the student comes to the teacher's width"
    assert same(of_tower(student / "last", "target"), read_pretrained(pretrained["en"]).state()[0])
    encoder = SentenceEncoder.load(student / "last")
    assert all(encoder.encode(sentences, language).shape == (2, 24) for language, sentences in SENTENCES.items())
    tokenizers, text = open_tokenizers((student / "last" / "tokenizer").resolve()), "meine Schwester sieht das Haus"
    assert tokenizers["source"].decode(tokenizers["source"].encode([text])[0]) == text
    assert len(tokenizers["target"].encode([text])[0]) > len(tokenizers["source"].encode([text])[0])


@pytest.mark.parametrize("changes", [{}, {"pooling": "cls", "no_projection": True}, {"no_projection": True}])
def test_export_without_the_projection(student: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Table 8 compares [CLS] with the MLP, without it, and the mean, from one checkpoint."""
    encoder = SentenceEncoder.load(student / "best")
    export_path(student / "best", tmp_path / "out", "sentence-transformers", **changes)
    found = SentenceEncoder.load(tmp_path / "out" / "source").encode(SENTENCES["de"])
    if not changes:
        return np.testing.assert_array_equal(found, encoder.encode(SENTENCES["de"], "de"))
    vocabulary = encoder.text.vocabulary("source")
    for row, sentence in enumerate(encoder.tokenizers["source"].encode(SENTENCES["de"])):
        tokens = torch.tensor([[vocabulary.bos_id, *sentence, vocabulary.eos_id]])
        with torch.no_grad():
            states = encoder.model.encode("source", token_batch(tokens, torch.tensor([tokens.size(1)])))[1][0]
        vector = states[0] if "pooling" in changes else states.mean(0)
        np.testing.assert_allclose(found[row], (vector / vector.norm()).numpy(), atol=1e-5)
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "vectors of 40 or 24 numbers" in readme and "one space" not in readme
    with pytest.raises(UserError, match="has no projection to leave out"):
        export_path(tmp_path / "out" / "target", tmp_path / "again", "sentence-transformers", no_projection=True)
    with pytest.raises(UserError, match="towers have vectors of 40 and 24 numbers; export it with its projections"):
        export_path(student / "best", tmp_path / "static", "static", **changes)


# -- towers that transformers computes --------------------------------------------------------------------------------


def tensors(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "last" / "model.safetensors")


def test_a_tower_of_transformers_is_trained_and_exported(raw: Path, tmp_path: Path, cli: Commands) -> None:
    """Its layers are frozen by their number, and a run that stops goes on exactly."""
    from tests.interop.foreign_models import SENTENCES as FOREIGN  # skips this test without transformers
    from tests.interop.foreign_models import library_vectors, write_model

    encoder = write_model(tmp_path / "modernbert", "modernbert")
    given = {"criterion": "translation_ranking", "batch_size": 12, "max_steps": 3, "towers": "shared"}
    given |= {"encoder": encoder}
    own = {"micro_batch": 4, "freeze": "encoders.*.token_embedding,encoders.shared.layers.0"}
    whole = cli("train", *arguments(raw, tmp_path / "whole", **given, **own))
    assert whole.code == 0, whole.err
    assert re.search(rf"from {encoder} \(\d+ tensors, encoder type transformers", whole.err)
    for steps in (1, 3):
        assert main(arguments(raw, tmp_path / "part", **{**given, "max_steps": steps}, **own)) == 0
    ours, started = tensors(tmp_path / "whole"), SentenceEncoder.load(encoder, device="cpu").model.state_dict()
    assert same(ours, tensors(tmp_path / "part"))
    still = {name for name in ours if torch.equal(ours[name], started[name])}
    assert still == {name for name in ours if ".token_embedding." in name or ".layers.0." in name}
    assert shapes_of(tmp_path / "whole" / "last")["towers"]["shared"]["type"] == "transformers"
    vectors = SentenceEncoder.load(tmp_path / "whole" / "last", device="cpu").encode(FOREIGN)
    out = tmp_path / "out" / "modernbert"
    assert cli("export", "--path", tmp_path / "whole" / "last", "--format", "hf", "--output", out).code == 0
    np.testing.assert_allclose(library_vectors(out, FOREIGN), vectors, atol=1e-5)
    given = {**given, "encoder": tmp_path / "whole" / "last", "max_steps": 1, "lr": 0}
    assert main(arguments(raw, tmp_path / "next", **given)) == 0
    assert same(ours, tensors(tmp_path / "next"))

"""Training that starts from pretrained encoders: a tower, a vocabulary and a width of its own for each side."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.runs import options, refusal, xrep_train
from xrep.data.batching import Vocabulary
from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.exported import write_huggingface
from xrep.interop.pretrained import read_pretrained
from xrep.models.directory import open_checkpoint
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.tokenizer import train_tokenizer
from xrep_cli.train import main

WIDTHS = {"de": 32, "en": 24}
UNSIZED = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "raw")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return directories of a German and an English encoder, as transformers writes them."""
    folder = tmp_path_factory.mktemp("pretrained")
    german, english = zip(*sentence_pairs(400), strict=True)
    found = {}
    for seed, (language, sentences) in enumerate({"de": german, "en": english}.items()):
        tokenizer = train_tokenizer(sentences, 62 + 8 * seed, folder / f"{language}-tokenizer")
        vocabulary = Vocabulary.of(tokenizer)
        shape = EncoderShape(
            vocabulary_size=vocabulary.size,
            pad_id=vocabulary.pad_id,
            hidden_size=WIDTHS[language],
            layers=2,
            heads=2,
            feedforward_size=48,
            max_positions=40,
            type_vocabulary_size=2,
        )
        torch.manual_seed(seed)
        encoder = TransformerEncoder(shape, dropout=0.1, attention_dropout=0.1)
        found[language] = folder / language
        ids = {"bos_id": vocabulary.bos_id, "eos_id": vocabulary.eos_id}
        write_huggingface(
            found[language],
            encoder,
            max_length=40,
            **ids,
            save_tokenizer=lambda place, tokenizer=tokenizer: save_as_huggingface(tokenizer, place, 40),
        )
        card = f"---\nlicence: mit\nlanguage:\n- {language}\ntags:\n- es\n---\n# An encoder\n"
        (found[language] / "README.md").write_text(card, encoding="utf-8")
    return found


def arguments(raw: Path, save_dir: Path, **given) -> list[str]:
    line = options(save_dir=save_dir, towers="separate", **given)
    for name in UNSIZED:
        place = line.index(f"--{name.replace('_', '-')}")
        del line[place : place + 2]
    return [str(raw), *line]


@pytest.fixture(scope="module")
def run(raw: Path, pretrained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "run"
    encoders = {"source_encoder": pretrained["de"], "target_encoder": pretrained["en"]}
    finished = xrep_train(*arguments(raw, directory, max_steps=30, lr=1e-3, **encoders))
    assert finished.returncode == 0, finished.stderr
    origin = f"from {pretrained['de']} (de, 29 tensors, encoder type transformer)"
    assert f"tower source (de): trained, 0.0M parameters, {origin}\n" in finished.stderr
    return directory


@pytest.mark.slow
def test_towers_keep_their_width_and_vocabulary_and_meet_in_the_sources(run: Path) -> None:
    checkpoint = open_checkpoint(run / "last")
    towers = checkpoint.manifest["architecture"]["towers"]
    assert {name: shape["hidden_size"] for name, shape in towers.items()} == {"source": 32, "target": 24}
    assert {side: v.size for side, v in checkpoint.text.vocabularies.items()} == {"source": 62, "target": 70}
    assert list(checkpoint.manifest["architecture"]["projections"]) == ["target"]
    encoder = SentenceEncoder.load(run / "best")
    vectors = {language: encoder.encode(["ein rotes Haus", "a red house"], lang=language) for language in ("de", "en")}
    assert all(v.shape == (2, 32) and np.allclose(np.linalg.norm(v, axis=1), 1) for v in vectors.values())
    assert not np.allclose(vectors["de"], vectors["en"])


def test_training_starts_from_the_weights_and_changes_them(
    raw: Path, pretrained: dict[str, Path], run: Path, tmp_path: Path
) -> None:
    line = arguments(
        raw, tmp_path / "r", max_steps=1, lr=1e-9, source_encoder=pretrained["de"], target_encoder=pretrained["en"]
    )
    assert xrep_train(*line).returncode == 0
    trained, still = (load_file(path / "last" / "model.safetensors") for path in (run, tmp_path / "r"))
    for tower, language in (("source", "de"), ("target", "en")):
        state, unused = read_pretrained(pretrained[language]).state()
        assert unused == []
        for name, tensor in state.items():
            mine = f"encoders.{tower}.{name}"
            torch.testing.assert_close(still[mine], tensor, rtol=0, atol=1e-7)
        moved = [name for name, tensor in state.items() if not torch.equal(trained[f"encoders.{tower}.{name}"], tensor)]
        assert len(moved) > len(state) / 2


@pytest.mark.slow
def test_a_run_goes_on_and_its_encoder_loads_without_the_pretrained_weights(
    raw: Path, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    encoders = {}
    for side, language in (("source", "de"), ("target", "en")):
        encoders[f"{side}_encoder"] = tmp_path / language
        (tmp_path / language).mkdir()
        for file in pretrained[language].iterdir():
            (tmp_path / language / file.name).write_bytes(file.read_bytes())
    assert xrep_train(*arguments(raw, tmp_path / "r", max_steps=2, **encoders)).returncode == 0
    for language in ("de", "en"):
        (tmp_path / language / "model.safetensors").unlink()
    finished = xrep_train(*arguments(raw, tmp_path / "r", max_steps=4, **encoders))
    assert finished.returncode == 0, finished.stderr
    assert "going on from" in finished.stderr
    assert SentenceEncoder.load(tmp_path / "r" / "last").encode(["hallo"], "de").shape == (1, 32)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"source_encoder": "de", "target_encoder": "nowhere/at/all"}, "nowhere/at/all"),
        ({"source_encoder": "de", "target_encoder": "en", "max_length": 64}, "64 subwords, the model has 40 positions"),
        ({"source_encoder": "de", "target_encoder": "en", "pretrained_layers": 3}, "has 2 layers, not 3"),
        ({"source_encoder": "de", "target_encoder": "en", "pooled_layer": 3}, "2 layers; lower --pooled-layer from 3"),
        ({"towers": "shared", "source_encoder": "de"}, "a shared tower has --encoder"),
        (
            {"criterion": "frozen_source", "source_encoder": "en", "vocab_size": 60},
            "en: an encoder for en would be the frozen source tower, whose text is in de; "
            "set --source-side to target, and name it by --target-encoder",
        ),
        ({"criterion": "frozen_source", "encoder": "en"}, "whose text is in de; set --source-side to target"),
        (
            {"criterion": "frozen_source", "encoder": "de", "source_side": "target"},
            "de: an encoder for de would be the frozen target tower, whose text is in en; set --source-side to source",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_line(
    raw: Path, pretrained: dict[str, Path], tmp_path: Path, given: dict, message: str
) -> None:
    named = {key: pretrained.get(value, value) if key.endswith("encoder") else value for key, value in given.items()}
    line = arguments(
        raw, tmp_path / "r", max_steps=1, **{k: v for k, v in named.items() if k not in ("towers", "max_length")}
    )
    for name in ("towers", "max_length"):
        if name in given:
            line[line.index(f"--{name.replace('_', '-')}") + 1] = str(given[name])
    assert message in refusal(xrep_train(*line))
    assert not (tmp_path / "r" / "last").exists()


def test_a_teacher_that_names_no_languages_is_mentioned(
    raw: Path, pretrained: dict[str, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    card = shutil.ignore_patterns("README.md")
    nameless = Path(shutil.copytree(pretrained["de"], tmp_path / "nameless", ignore=card))
    for encoder in (pretrained["de"], nameless):
        given = {"criterion": "frozen_source", "encoder": encoder, "queue_size": 0, "max_steps": 1}
        assert main(arguments(raw, tmp_path / f"run-{encoder.name}", **given)) == 0
        warned = [line for line in capfd.readouterr().err.splitlines() if "names no languages" in line]
        told = "make sure that it is an encoder for de, which the frozen source tower reads"
        assert warned == ([f"warning: {nameless} names no languages; {told}"] if encoder == nameless else [])


def test_data_of_another_vocabulary_is_refused(
    data_directory: Path, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    encoders = {"source_encoder": pretrained["de"], "target_encoder": pretrained["en"]}
    message = refusal(xrep_train(*arguments(data_directory, tmp_path / "r", max_steps=1, **encoders)))
    assert "was tokenised with another vocabulary than that of the pretrained encoder" in message
    assert f"--source-tokenizer {pretrained['de']} --target-tokenizer {pretrained['en']}" in message


def test_first_layers_and_the_pooled_layer(raw: Path, pretrained: dict[str, Path], tmp_path: Path) -> None:
    line = arguments(raw, tmp_path / "r", max_steps=1, lr=1e-9, encoder=pretrained["de"], pretrained_layers=1)
    assert xrep_train(*line).returncode == 0
    architecture = open_checkpoint(tmp_path / "r" / "last").manifest["architecture"]
    assert [shape["layers"] for shape in architecture["towers"].values()] == [1, 1] and not architecture["projections"]
    cut = SentenceEncoder.load(tmp_path / "r" / "last").encode(["ein rotes Haus"], "de")

    line = arguments(raw, tmp_path / "p", max_steps=1, lr=1e-9, encoder=pretrained["de"], pooled_layer=1)
    assert xrep_train(*line).returncode == 0
    pooled = SentenceEncoder.load(tmp_path / "p" / "last")
    assert len(pooled.model.encoders["source"].layers) == 2
    np.testing.assert_allclose(pooled.encode(["ein rotes Haus"], "de"), cut, atol=1e-6)


def test_export_of_two_towers_and_back(run: Path, tmp_path: Path) -> None:
    encoder, out = SentenceEncoder.load(run / "best"), tmp_path / "out"
    sentences = {"de": ["ein rotes Haus am Morgen", "meine Schwester"], "en": ["a red house", "my sister sees  it"]}
    assert list(encoder.save(out)) == [out]
    assert "- `source/` reads de\n- `target/` reads en\n" in (out / "README.md").read_text()
    whole = SentenceEncoder.load(out)
    assert whole.languages == ["de", "en"] and list(whole.model.encoders) == ["source", "target"]
    for language, tower in (("de", "source"), ("en", "target")):
        again = SentenceEncoder.load(out / tower)
        assert again.model.pooling == {"shared": "mean"} and again.text.max_length == 32
        ours, theirs = encoder.model.encoders[tower].state_dict(), again.model.encoders["shared"].state_dict()
        assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)
        expected = encoder.encode(sentences[language], language)
        np.testing.assert_array_equal(again.encode(sentences[language]), expected)
        np.testing.assert_array_equal(whole.encode(sentences[language], language), expected)
    with pytest.raises(UserError, match="exists and is not empty"):
        encoder.save(out, "hf")
    assert list(encoder.save(tmp_path / "hf", "hf")) == [tmp_path / "hf" / "source", tmp_path / "hf" / "target"]
    assert json.loads((out / "source" / "config.json").read_text())["model_type"] == "bert"


def test_exported_directories_give_the_same_vectors_in_sentence_transformers(run: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    encoder, out = SentenceEncoder.load(run / "best"), tmp_path / "out"
    (line,) = encoder.save(out).values()
    assert line.endswith('.encode(["..."], task="de")  # or en')
    exec(line)
    whole = library.SentenceTransformer(str(out), device="cpu")
    for kind in ("source", "target"):
        language = {"source": "de", "target": "en"}[kind]
        sentences = [pair[kind == "target"] for pair in sentence_pairs(400)[:40]] + ["", "ein", "X" * 300]
        theirs = library.SentenceTransformer(str(out / kind), device="cpu").encode(sentences)
        np.testing.assert_allclose(whole.encode(sentences, task=language), theirs, atol=1e-6)
        cosines = (theirs * encoder.encode(sentences, language)).sum(1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() > 0.9999
    for refused in ({}, {"task": "fr"}):  # no tower is chosen without a word
        with pytest.raises(ValueError, match="de.*en"):
            whole.encode(["ein Haus"], **refused)

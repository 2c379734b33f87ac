"""Distillation into static encoders: the vectors of a plain formula, in sentence-transformers too, that train on."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus, write_lines
from tests.support.encoders import write_encoder
from xrep.data.batch import collate
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.static import distil
from xrep.nn.static import StaticEncoder

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(40), strict=True))


def plain_tables(encoder: SentenceEncoder, size: int, counts: np.ndarray | None) -> dict[str, np.ndarray]:
    """The tables of all towers, in float64 by numpy's singular values, one subword at a time."""
    alone, vocabulary = dict[str, np.ndarray](), encoder.text.vocabulary("shared")
    for tower in encoder.model.encoders:
        batches = [collate([np.array([i])], vocabulary, encoder.text.max_length) for i in range(vocabulary.size)]
        rows = [encoder.model.before_projection(tower, batch)[0].detach().numpy()[0] for batch in batches]
        alone[tower] = np.stack(rows).astype(np.float64)
    real = [i for i in range(vocabulary.size) if i not in vocabulary.special_ids or i == vocabulary.unk_id]
    both = np.concatenate([own[real] for own in alone.values()])
    axes = np.linalg.svd(both - both.mean(0))[2][:size]
    shares = 1 / np.arange(1, len(real) + 1) if counts is None else counts[real].astype(np.float64)
    tables = {tower: np.zeros((vocabulary.size, size)) for tower in alone}
    for tower, own in alone.items():
        weights = 1e-4 / (1e-4 + shares / shares.sum())
        tables[tower][real] = (own[real] - both.mean(0)) @ axes.T * weights[:, None]
    return tables


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_the_formula(towers: str, counted: bool, request: pytest.FixtureRequest) -> None:
    encoder = SentenceEncoder.load(request.getfixturevalue(f"{towers}_encoder"), device="cpu")
    counts = np.arange(encoder.text.vocabulary("shared").size) % 7 if counted else None
    static = distil(encoder, 6, None if counts is None else {"shared": counts})
    expected = plain_tables(encoder, 6, counts)
    found = {name: part.token_embedding.weight.detach().numpy() for name, part in static.model.encoders.items()}
    signs = np.sign(sum((found[tower] * expected[tower]).sum(0) for tower in expected))
    for tower, table in expected.items():
        np.testing.assert_allclose(found[tower] * signs, table, atol=1e-5 * np.abs(table).max())


@pytest.mark.parametrize("size", [8, 24])
def test_without_its_projection(size: int, tmp_path: Path) -> None:
    """The vectors of the encoder alone are wider or narrower than those of the projection."""
    path = write_encoder(tmp_path / "run", size=16, model_options={"projection_size": size})
    export_path(path, tmp_path / "static", "static", no_projection=True)
    assert SentenceEncoder.load(tmp_path / "static", device="cpu").encode(ENGLISH).shape == (40, 16)


def test_prompts_do_not_count(tmp_path: Path, shared_encoder: Path) -> None:
    """A static encoder has none, so their subwords are not frequent in the text."""
    tables = []
    text = write_lines(tmp_path / "text.en", ENGLISH)
    for name, prompt in (("without", ""), ("with", "the dog sees a red house ")):
        own = SentenceEncoder.load(shared_encoder, device="cpu").use_prompt(prompt or None)
        own.save(tmp_path / name)
        export_path(tmp_path / name, tmp_path / f"{name} static", "static", vocabulary_from=[str(text)])
        static = SentenceEncoder.load(tmp_path / f"{name} static", device="cpu")
        tables.append(static.encode(ENGLISH, lang="en"))
        assert not static.prompts
    np.testing.assert_allclose(*tables, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_sentence_transformers_has_its_vectors(towers: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    (line,) = export_path(
        request.getfixturevalue(f"{towers}_encoder"), tmp_path / "st", "static", static_size=8
    ).values()
    assert line.startswith("from sentence_transformers import SentenceTransformer; ")
    ours, theirs = (
        SentenceEncoder.load(tmp_path / "st", device="cpu"),
        library.SentenceTransformer(str(tmp_path / "st")),
    )
    for lang, some in (("de", GERMAN), ("en", ENGLISH)):
        names = "<s> a </s> <mask> <pad> <unk>"  # ordinary text, which holds no special tokens
        sentences = [*some, "", " ".join(some), names]  # the one before the last is cut
        options = {"task": lang} if towers == "separate" else {}
        vectors = ours.encode(sentences, lang=lang)
        np.testing.assert_allclose(theirs.encode(sentences, **options), vectors, atol=1e-6)
        assert vectors.shape == (43, 8) and not vectors[40].any()
    export_path(tmp_path / "st", tmp_path / "again", "sentence-transformers")
    again = SentenceEncoder.load(tmp_path / "again", device="cpu")
    assert np.array_equal(again.encode(ENGLISH, lang="en"), ours.encode(ENGLISH, lang="en"))


@pytest.mark.slow
@pytest.mark.parametrize("criterion", ["translation_ranking", "dual_moco", "new"])
def test_training_goes_on(criterion: str, trained_run: Path, tmp_path: Path, cli: Commands) -> None:
    """From a distilled encoder, or from random rows; its export is a static encoder again."""
    raw = write_corpus(tmp_path / "raw", train=300, valid=30, test=30)
    usual = {"task": "bitext", "towers": "shared", "batch_size": 30, "max_steps": 60, "lr": 0.02, "device": "cpu"}
    if criterion == "new":
        usual |= {"criterion": "translation_ranking", "encoder_type": "static", "hidden_size": 16, "vocab_size": 100}
    else:
        text = [str(file) for file in sorted(raw.glob("train*"))]
        distilled = export_path(trained_run / "best", tmp_path / "st", "static", vocabulary_from=text, static_size=16)
        usual |= {"criterion": criterion, "encoder": next(iter(distilled))}
        usual |= {"queue_size": 100} if criterion == "dual_moco" else {}
    words = [word for name, value in usual.items() for word in (f"--{name.replace('_', '-')}", value)]
    result = cli("train", raw, *words, "--save-dir", "run", "--no-tensorboard")
    assert result.code == 0, result.err
    accuracies = [float(found) for found in re.findall(r"validation accuracy ([\d.]+)", result.err + result.out)]
    assert accuracies[-1] > 40  # of 30 sentences, 3 would be chance
    trained = SentenceEncoder.load(tmp_path / "run" / "best", device="cpu")
    (tower,) = trained.model.encoders.values()
    assert isinstance(tower, StaticEncoder) and trained.output_size == 16
    export_path(tmp_path / "run" / "best", tmp_path / "out", "sentence-transformers")
    again = SentenceEncoder.load(tmp_path / "out", device="cpu")
    assert np.array_equal(again.encode(ENGLISH, lang="en"), trained.encode(ENGLISH, lang="en"))


def test_what_a_static_encoder_cannot_become(shared_encoder: Path, tmp_path: Path) -> None:
    export_path(shared_encoder, tmp_path / "static", "static")
    with pytest.raises(UserError, match="it is a static encoder; name the encoder that it was made of"):
        export_path(tmp_path / "static", tmp_path / "again", "static")
    with pytest.raises(UserError, match="int8 is for transformer layers that xrep computes, and this model has none"):
        export_path(tmp_path / "static", tmp_path / "again", "int8")
    with pytest.raises(UserError, match="a static encoder is pooled by the mean, not by max; leave `pooling` out"):
        export_path(tmp_path / "static", tmp_path / "again", "onnx", pooling="max")
    assert not (tmp_path / "again").exists()

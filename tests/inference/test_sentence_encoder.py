"""SentenceEncoder: loading and encoding with checkpoint directories."""

import shutil

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from xrep import SentenceEncoder
from xrep.data.batch import collate
from xrep.errors import UserError

GERMAN = [pair[0] for pair in sentence_pairs(40)] + ["", "Haus", "ein " * 500]


@pytest.fixture(scope="module")
def encoder(trained_run):
    return SentenceEncoder.load(trained_run / "best", device="cpu")


def test_one_vector_a_sentence_whatever_its_company(encoder):
    vectors = encoder.encode(GERMAN)
    assert vectors.shape == (43, 32) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in GERMAN])
    np.testing.assert_allclose(vectors, alone, atol=1e-5)
    for batch_tokens in (1, 60, 100_000):
        np.testing.assert_allclose(vectors, encoder.encode(GERMAN, batch_tokens=batch_tokens), atol=1e-5)
    order = np.random.default_rng(0).permutation(len(GERMAN))
    np.testing.assert_allclose(vectors[order], encoder.encode([GERMAN[i] for i in order]), atol=1e-5)
    assert len(np.unique(vectors.round(4), axis=0)) == len(GERMAN)
    tokens = [np.asarray(ids) for ids in encoder.tokenizers["shared"].encode(GERMAN[:8])]
    with torch.no_grad():  # the model's own forward pass
        expected = encoder.model.encode("shared", collate(tokens, encoder.text.vocabulary("shared"), 32))[0].numpy()
    np.testing.assert_allclose(vectors[:8], expected, atol=1e-5)


def test_a_long_sentence_is_cut(encoder):
    subwords = encoder.tokenizers["shared"].encode(["ein " * 500])[0]
    assert len(subwords) > encoder.text.max_length == 32
    cut = encoder.tokenizers["shared"].decode(subwords[:30])
    np.testing.assert_allclose(*encoder.encode(["ein " * 500, cut]), atol=1e-5)


def test_batches_of_few_sentences(encoder, monkeypatch):
    sizes, encode = [], encoder.model.encode
    monkeypatch.setattr(encoder.model, "encode", lambda tower, batch: sizes.append(len(batch)) or encode(tower, batch))
    vectors = encoder.encode(GERMAN, batch_size=5)
    assert max(sizes) == 5 and sum(sizes) == 43
    monkeypatch.undo()
    np.testing.assert_allclose(vectors, encoder.encode(GERMAN), atol=1e-5)
    with pytest.raises(UserError, match="`batch_size` must be at least 1, not 0"):
        encoder.encode(GERMAN, batch_size=0)


def test_shapes_and_similarity(encoder):
    assert encoder.encode([]).shape == (0, 32)
    np.testing.assert_allclose(encoder.encode("Guten Tag"), encoder.encode(["Guten Tag", "Haus"])[0], atol=1e-6)
    arrays = encoder.encode(GERMAN, normalize=False)
    tensors = torch.from_numpy(arrays)
    unit = encoder.encode(GERMAN)
    for given in (arrays, tensors):  # of any length
        found = encoder.similarity(given, tensors[:3])
        assert found.shape == (43, 3)
        np.testing.assert_allclose(found.numpy(), unit @ unit[:3].T, atol=1e-5)
    assert encoder.similarity(arrays[0], arrays[1]).shape == (1, 1)


def test_prompts_as_sentence_transformers_adds_them(tmp_path):
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "run" / "best"))
    without, plain = encoder.fingerprint(), encoder.encode(["the dog"])
    encoder.prompts = {"query": "the house ", "none": ""}
    np.testing.assert_array_equal(encoder.encode(["the dog"]), plain)
    asked = encoder.encode(["the dog"], prompt_name="query")
    np.testing.assert_array_equal(asked, encoder.encode(["the house the dog"]))
    np.testing.assert_array_equal(asked, encoder.encode(["the dog"], prompt="the house "))
    with pytest.raises(UserError, match="there is no prompt 'document'; known: query, none"):
        encoder.encode(["the dog"], prompt_name="document")
    assert encoder.fingerprint() == without
    encoder.default_prompt_name = "query"
    assert encoder.fingerprint() != without
    np.testing.assert_array_equal(encoder.encode(["the dog"]), asked)
    np.testing.assert_array_equal(encoder.encode(["the dog"], prompt=""), plain)
    encoder.save(tmp_path / "out")
    again, theirs = SentenceEncoder.load(tmp_path / "out"), library.SentenceTransformer(str(tmp_path / "out"))
    assert (again.prompts, again.default_prompt_name) == (encoder.prompts, "query")
    for options in ({}, {"prompt_name": "none"}, {"prompt": "a red "}):
        expected = theirs.encode(["the dog"], **options)
        np.testing.assert_allclose(again.encode(["the dog"], **options), expected, atol=1e-5)
    np.testing.assert_allclose(again.encode(["the dog"]), asked, atol=1e-5)


def test_random_weights_are_another_encoder_and_always_the_same(trained_run, encoder):
    state = torch.get_rng_state()
    random, again = (SentenceEncoder.load(trained_run / "best", device="cpu", random_weights=0) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(random.encode(GERMAN), again.encode(GERMAN))
    assert np.abs(random.encode(GERMAN) - encoder.encode(GERMAN)).max() > 0.1
    assert not random.training_hashes and encoder.training_hashes == [trained_run / "training_hashes.npy"]


@pytest.mark.slow
def test_the_fingerprint_is_of_the_vectors_and_not_of_the_place(tmp_path):
    one, other = (write_encoder(tmp_path / name / "best", seed=seed) for name, seed in (("a", 1), ("b", 2)))
    shutil.copytree(tmp_path / "a", tmp_path / "moved")
    assert SentenceEncoder.load(one).languages == ["de", "en"]
    prints = [SentenceEncoder.load(path).fingerprint() for path in (one, tmp_path / "moved" / "best", other)]
    assert prints[0] == prints[1] != prints[2]
    half = SentenceEncoder.load(one, dtype="bfloat16")
    assert (half.fingerprint() in prints) == (half.precision == "float32")  # where bfloat16 would be emulated
    for name in ("x", "y"):
        SentenceEncoder.load(one).save(tmp_path / name)
    assert len({SentenceEncoder.load(tmp_path / name).fingerprint() for name in ("x", "y")}) == 1
    more = write_encoder(tmp_path / "c" / "best", seed=1, vocabulary_size=110)
    assert SentenceEncoder.load(more).fingerprint() not in prints

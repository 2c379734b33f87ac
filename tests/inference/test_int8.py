"""Encoders and translators in int8: loaded so, saved so, and refused where int8 serves for nothing."""

import json

import numpy as np
import pytest
import torch

from tests.kernels.test_int8 import rounded
from tests.support.encoders import write_encoder
from tests.support.translators import write_translator
from xrep.data.batch import collate
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.generation.translator import Translator
from xrep.inference.search_index import SearchIndex
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import multiplies_int8
from xrep.models.directory import open_checkpoint
from xrep.nn.layers import Int8Linear, quantise_layers
from xrep.nn.weights import read_tensors

pytestmark = pytest.mark.skipif(not multiplies_int8(), reason="torch has no exact int8 product for this processor")
LINES = ["Guten Tag", "Wie geht es dir heute?", "Ein Satz, der etwas länger ist als alle anderen Sätze hier.", "Ja"]


class InFloat64(torch.nn.Module):
    """The linear layer that ``Int8Linear`` computes, in float64 with the same quantisation."""

    def __init__(self, layer: Int8Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight.double() * layer.scale.double().unsqueeze(1), layer.bias.double()

    def forward(self, input):
        return (rounded(input) @ self.weight.t() + self.bias).float()


def in_float64(encoder: SentenceEncoder) -> SentenceEncoder:
    for layer in encoder.model.encoders["shared"].layers:
        for owner in list(layer.modules()):
            for name, child in list(owner.named_children()):
                if isinstance(child, Int8Linear):
                    setattr(owner, name, InFloat64(child))
        inner, outer = layer.feedforward_in, layer.feedforward_out
        layer._feedforward = lambda x, inner=inner, outer=outer: (outer(torch.nn.functional.gelu(inner(x))), x)
    return encoder


@pytest.fixture
def path(tmp_path):
    return write_encoder(tmp_path / "run", size=32)


def test_vectors_are_those_of_a_float64_reference(path):
    found = SentenceEncoder.load(path, device="cpu", dtype="int8")
    expected = in_float64(SentenceEncoder.load(path, device="cpu", dtype="int8"))
    np.testing.assert_allclose(found.encode(LINES, "de"), expected.encode(LINES, "de"), atol=1e-5)
    exact = SentenceEncoder.load(path, device="cpu").encode(LINES, "de")
    assert found.precision == "int8"
    alone = np.stack([found.encode(line, "de") for line in LINES])  # a vector does not depend on other sentences
    np.testing.assert_allclose(found.encode(LINES, "de"), alone, atol=1e-5)
    assert (found.encode(LINES, "de") * exact).sum(1).min() > 0.999
    assert np.abs(found.encode(LINES, "de") - exact).max() > 1e-5


@pytest.mark.parametrize("name", ["token_embedding", "norm", "layers.0.attention.qkv", "layers.0.feedforward_in"])
def test_vectors_are_not_finite_if_a_weight_is_not(path, name):
    encoder = SentenceEncoder.load(path, device="cpu", dtype="float32")
    with torch.no_grad():
        encoder.model.encoders["shared"].get_submodule(name).weight[..., 0] = float("nan")
    quantise_layers(encoder.model)
    tokens = collate([np.array([0, 5, 6])], encoder.text.vocabulary("shared"), 16)
    with torch.inference_mode():
        assert not encoder.model.encoders["shared"](tokens).isfinite().any()


def test_a_saved_encoder_gives_the_same_vectors_without_float_weights(path, tmp_path):
    (said,) = export_path(path, tmp_path / "saved", "int8").values()
    assert said == f'import xrep; xrep.SentenceEncoder.load("{tmp_path}/saved")'
    saved = SentenceEncoder.load(tmp_path / "saved")
    original = SentenceEncoder.load(path, device="cpu", dtype="int8")
    assert np.array_equal(saved.encode(LINES, "de"), original.encode(LINES, "de"))
    assert saved.fingerprint() == original.fingerprint()
    tensors = read_tensors(tmp_path / "saved" / "model.safetensors")
    assert tensors["encoders.shared.layers.0.attention.qkv.weight"].dtype == torch.int8
    matrices = [name for name, tensor in tensors.items() if tensor.dim() > 1 and tensor.dtype != torch.int8]
    assert all("embedding" in name for name in matrices)
    assert json.loads((tmp_path / "saved" / "manifest.json").read_text())["precision"] == "int8"
    export_path(tmp_path / "saved", tmp_path / "copy", "xrep")
    assert SentenceEncoder.load(tmp_path / "copy").fingerprint() == original.fingerprint()


def test_prompts_of_a_pretrained_encoder_stay_in_int8_and_in_a_copy_of_it(path, tmp_path):
    encoder = SentenceEncoder.load(path, device="cpu")
    encoder.prompts, encoder.default_prompt_name = {"query": "frage: "}, "query"
    encoder.save(tmp_path / "st")
    export_path(tmp_path / "st", tmp_path / "saved", "int8")
    export_path(tmp_path / "saved", tmp_path / "copy", "xrep")
    for name in ("saved", "copy"):
        assert SentenceEncoder.load(tmp_path / name).prompts == {"query": "frage: "}


def test_what_a_saved_encoder_cannot_do_is_refused(path, tmp_path):
    saved, other = tmp_path / "saved", tmp_path / "other"
    export_path(path, saved, "int8")
    for refused, message in (
        (lambda: SentenceEncoder.load(saved, dtype="bfloat16"), "saved in int8"),
        (lambda: export_path(saved, other, "sentence-transformers"), "int8, which cannot become sentence-transformers"),
        (open_checkpoint(saved).tensors, "its weights are in int8"),  # as training starts from it
        (lambda: SentenceEncoder.load(path, device="cpu", dtype="int8").save(other), "written for other libraries"),
        (lambda: SentenceEncoder.load(path, device="meta", dtype="int8"), "the precision int8 is for CPUs"),
    ):
        with pytest.raises(UserError, match=message):
            refused()
    assert not other.exists()


def test_an_index_remembers_int8(path, tmp_path):
    index = SearchIndex.build(path, LINES, tmp_path / "index", lang="de", precision="int8", device="cpu")
    assert index.manifest["precision"] == "int8"
    (hits,) = SearchIndex(tmp_path / "index", device="cpu").search([LINES[1]], k=1, lang="de")
    assert hits[0].text == LINES[1]
    assert hits[0].score == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_a_translator_is_loaded_and_saved_in_int8(tmp_path):
    path = write_translator(tmp_path / "nmt")
    found = Translator.load(path, "cpu", "int8")
    export_path(path, tmp_path / "saved", "int8")
    saved = Translator.load(tmp_path / "saved")
    language = found.text.target_languages[0]
    assert saved.translate(LINES, language) == found.translate(LINES, language)
    assert any(isinstance(part, Int8Linear) for part in saved.model.decoder.modules())
    states = torch.randn(2, 3, found.model.decoder.shape.hidden_size)
    exact, logits = Translator.load(path, "cpu").model.score(states), found.model.score(states)
    assert torch.equal(saved.model.score(states), logits)
    assert 1e-5 < float((logits - exact.detach()).norm() / exact.norm().detach()) < 0.03

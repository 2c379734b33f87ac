"""Graphs for ONNX Runtime and OpenVINO compute the vectors of the encoder, for batches of any size with padding."""

import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.interop.foreign_models import write_model
from tests.interop.sentence_models import SENTENCES, small_tokenizer
from tests.interop.test_exported import BERT, make_encoder
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.graphs import GRAPH_FILES, INPUTS, OUTPUTS
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.exported import write_sentence_transformers
from xrep.nn.layers import Linear

pytestmark = pytest.mark.slow  # torch takes seconds for the graph of the smallest encoder
LENGTH = 20


def written(path: Path, changes: dict[str, Any], *, normalize: bool = True, dense: int = 0, **options: Any) -> Path:
    """Write an encoder with ``changes`` to BERT and, if ``dense`` is not 0, a layer with tanh behind the pooling."""
    encoder = make_encoder(replace(BERT, **changes))
    options |= {"projection": Linear(32, dense), "activation": "tanh"} if dense else {}
    write_sentence_transformers(path, encoder, small_tokenizer(), max_length=LENGTH, normalize=normalize, **options)
    return path


# XLM-R has as many positions as the longest sentence has tokens, so that their number could become a constant. Other
# libraries have neither norms before sublayers nor CMLM's projections.
XLMR = {"position_offset": 1, "type_vocabulary_size": 1, "max_positions": LENGTH}
SPACES = {"norm": "pre", "pooling": "mean", "projection": "spaces", "projection_spaces": 3}
ENCODERS: dict[str, Callable[[Path], Path]] = {
    "bert": lambda path: written(path, {"type_vocabulary_size": 2}, pooling="cls", dense=12),
    "xlm-r": lambda path: written(path, XLMR, pooling="max", normalize=False),
    "pre-norm": lambda path: write_encoder(path, model_options=SPACES),
    "modernbert": lambda path: write_model(path, "modernbert"),
}


def need(runtime: str) -> Any:
    """Return the module of a runtime."""
    pytest.importorskip("onnxscript", reason=f"it is in the extra {runtime!r}")
    return pytest.importorskip({"onnx": "onnxruntime"}.get(runtime, runtime), reason=f"it is in the extra {runtime!r}")


def tokenize(directory: Path, sentences: list[str]) -> dict[str, np.ndarray]:
    """Return the inputs of a graph, by the tokenizer beside it."""
    from transformers import AutoTokenizer

    batch = AutoTokenizer.from_pretrained(directory)(sentences, padding=True, truncation=True, return_tensors="np")
    return {name: batch[name] for name in INPUTS}


def opened(line: str) -> Any:
    """Return what the line opens that the export prints."""
    names: dict[str, Any] = {}
    exec(line.strip().replace("; ", "; graph = "), names)
    return names["graph"]


def check_onnx(line: str, directory: Path, encoder: SentenceEncoder, lang: str | None = None) -> None:
    session = opened(line)
    for sentences in (SENTENCES, SENTENCES[:1], SENTENCES[2:4]):
        inputs = tokenize(directory, sentences)
        vectors, tokens = session.run(OUTPUTS, inputs)
        expected = encoder.encode(sentences, lang, normalize=encoder.model.config.normalize)
        np.testing.assert_allclose(vectors, expected, atol=1e-4)
        assert tokens.shape[:2] == inputs["input_ids"].shape and not tokens[inputs["attention_mask"] == 0].any()
    assert np.ptp(tokenize(directory, SENTENCES)["attention_mask"].sum(1)) > 2  # the first batch had padding


@pytest.mark.parametrize("kind", ENCODERS)
def test_onnx(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    need("onnx")
    path = ENCODERS[kind](tmp_path / "in")
    ((directory, line),) = export_path(path, tmp_path / "out", "onnx").items()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]  # torch's tell users nothing
    check_onnx(line, directory, SentenceEncoder.load(path, device="cpu"))
    assert set(os.listdir(directory / "onnx")) == {"model.onnx"}
    assert (directory / "modules.json").is_file() == (kind != "pre-norm")
    assert not (directory / "model.safetensors").exists()
    if kind != "pre-norm":
        check_sentence_transformers(directory, SentenceEncoder.load(path, device="cpu"))


def check_sentence_transformers(directory: Path, encoder: SentenceEncoder) -> None:
    """Check that sentence-transformers finds the graph, and that its modules turn the graph's token vectors into the
    vectors of the encoder. Its backend itself needs optimum, which does not work with every transformers."""
    from sentence_transformers.backend.utils import backend_should_export
    from sentence_transformers.sentence_transformer import modules

    export, place = backend_should_export(directory, True, {}, "model.onnx", "*.onnx", "ONNX")
    assert not export and Path(place["subfolder"], place["file_name"]).as_posix() == GRAPH_FILES["onnx"]
    assert "model_args" not in json.loads((directory / "sentence_bert_config.json").read_text())
    inputs = tokenize(directory, SENTENCES)
    tokens = need("onnx").InferenceSession(str(directory / GRAPH_FILES["onnx"])).run(["last_hidden_state"], inputs)[0]
    features = {"token_embeddings": tokens, "attention_mask": inputs["attention_mask"]}
    features = {name: torch.from_numpy(value) for name, value in features.items()}
    _, *chain = json.loads((directory / "modules.json").read_text())
    for entry in chain:
        module = getattr(modules, entry["type"].rpartition(".")[2]).load(str(directory / entry["path"]))
        features = module(features)
    expected = encoder.encode(SENTENCES, normalize=encoder.model.config.normalize)
    np.testing.assert_allclose(features["sentence_embedding"].detach(), expected, atol=1e-4)


def test_openvino_with_two_towers(tmp_path: Path) -> None:
    need("openvino")
    pooled = {"layers": 2, "pooled_layer": 1, "pooling": "cls"}  # vectors are those of the first of two layers
    path = write_encoder(tmp_path / "in", towers="separate", model_options=pooled)
    lines = export_path(path, tmp_path / "out", "openvino")
    assert [directory.name for directory in lines] == ["source", "target"]
    encoder = SentenceEncoder.load(path, device="cpu")
    for (directory, line), lang in zip(lines.items(), ("de", "en"), strict=True):
        graph = opened(line)
        for sentences in (SENTENCES, SENTENCES[:1]):
            found = graph(tokenize(directory, sentences))["sentence_embedding"]
            np.testing.assert_allclose(found, encoder.encode(sentences, lang), atol=1e-4)
        # OpenVINO gives the process a stack for signals and restores the one before when a graph is freed. So the
        # graphs must be freed in reverse order; otherwise a freed stack remains, and the next signal is a crash.
        del graph
    assert (tmp_path / "out" / "router_config.json").is_file()


def test_what_is_no_graph_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that looks at its tokens, one whose result depends on more than them, and a missing package."""
    need("onnx")
    encoder = SentenceEncoder.load(write_encoder(tmp_path / "in" / "best"), device="cpu")
    inner: Any = encoder.model.encoders["shared"]
    plain, calls = inner.forward, list[int]()
    os.mkdir(tmp_path / "place")

    def looks(batch: Any, layer: int | None = None) -> torch.Tensor:
        return plain(batch, layer) * (2 if bool((batch.tokens > 50).any()) else 1)

    def counts(batch: Any, layer: int | None = None) -> torch.Tensor:
        calls.append(1)
        return plain(batch, layer) + batch.mask.unsqueeze(-1) * torch.arange(16) * len(calls)

    for forward, message in ((looks, "torch cannot express this encoder as a graph"), (counts, "other vectors")):
        inner.forward = forward
        with pytest.raises(UserError, match=message) as error:
            encoder.save(tmp_path / "place" / "out", format="onnx")
        assert "\n" not in str(error.value)
    for package in ("onnxscript", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(UserError, match=rf"{package} is not installed; pip install 'xrep\[onnx\]'"):
                encoder.save(tmp_path / "place" / "out", format="onnx")
    assert os.listdir(tmp_path / "place") == []

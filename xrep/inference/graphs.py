"""Graphs of an encoder for ONNX Runtime and OpenVINO, with pooling, projection and normalisation inside."""

from __future__ import annotations

import copy
import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.registry import one_line

Runtime = Literal["onnx", "openvino"]
GRAPH_FILES: dict[str, str] = {"onnx": "onnx/model.onnx", "openvino": "openvino/openvino_model.xml"}
"""Where sentence-transformers looks for the graph of each runtime."""
INPUTS, OUTPUTS = ("input_ids", "attention_mask"), ("sentence_embedding", "last_hidden_state")
GRAPH_TOLERANCE = 1e-4
"""Largest difference of the graph's vectors from the encoder's, as a share of the largest number in them."""


def write_graph(model: DualEncoder, tower: str, directory: Path, runtime: Runtime) -> None:
    """Write the graph of a tower for a runtime in a directory, in float32, and compare its vectors with the tower's.

    Its inputs are ``input_ids`` and ``attention_mask``, int64 [B, T], of any size, padded at the end. Its outputs are
    what ``DualEncoder.encode`` returns: ``sentence_embedding`` [B, D], and the token vectors, ``last_hidden_state``
    [B, T, H]. A UserError says if a package is not installed, torch cannot express the encoder as a graph, or the graph
    computes other vectors.
    """
    for package in ("onnxscript", {"onnx": "onnxruntime", "openvino": "openvino"}[runtime]):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{package} is not installed", cure=f"pip install 'xrep[{runtime}]'")
    model, path = copy.deepcopy(model).float().cpu(), directory / GRAPH_FILES[runtime]
    path.parent.mkdir()
    with tempfile.TemporaryDirectory(dir=directory) as folder:  # on the disk that has room for the result
        source = path if runtime == "onnx" else Path(folder, "model.onnx")
        _traced(model, tower).save(source)
        # Modules are imported by their names because the type checker would need the extras, too.
        if runtime == "onnx":
            onnxruntime = importlib.import_module("onnxruntime")
            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            _compare(lambda inputs: session.run(OUTPUTS, inputs), model, tower)
        else:
            openvino = importlib.import_module("openvino")
            openvino.save_model(openvino.convert_model(source), path, compress_to_fp16=False)
            # On processors with products in bfloat16, OpenVINO would use them for a model in float32.
            graph = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            _compare(lambda inputs: [graph(inputs)[name] for name in OUTPUTS], model, tower)


class _Padded(TokenBatch):
    """A batch whose lengths are not known while it is traced, so that any of its rows may have padding."""

    @property
    def is_padded(self) -> bool:
        return True

    @property
    def density(self) -> float:
        return 1.0


class _SentenceVectors(nn.Module):
    """The computation of a tower from the tensors of a tokenizer to vectors."""

    def __init__(self, model: DualEncoder, tower: str) -> None:
        super().__init__()
        self.model, self.tower = model, tower

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """int64 [B, T], int64 [B, T] -> [B, D], [B, T, H]."""
        return self.model.encode(self.tower, _Padded(input_ids, attention_mask.sum(1), np.empty(0, dtype=np.int64)))


def _traced(model: DualEncoder, tower: str) -> Any:
    """Return a tower as torch's ONNX program."""
    batch = _random_batch(model, tower, rows=3, length=7)
    sizes = {0: "batch", 1: "tokens"}
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of libraries that are not installed, and of names of its own
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                _SentenceVectors(model, tower).eval(),
                (batch.tokens, batch.mask.long()),
                dynamo=True,
                input_names=INPUTS,
                output_names=OUTPUTS,
                dynamic_shapes=(sizes, sizes),
                verbose=False,
            )
    except Exception as error:  # of any kind: torch runs the whole encoder with symbols for its sizes
        problem = f"torch cannot express this encoder as a graph: {one_line(error)[:200]}"
        raise UserError(problem, cure="choose the format sentence-transformers") from error
    finally:
        log.setLevel(level)


def _compare(run: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]], model: DualEncoder, tower: str) -> None:
    """Raise UserError if a graph computes other vectors than a tower on batches of sizes that it was not traced on."""
    for rows, length in ((1, 2), (4, 11)):
        batch = _random_batch(model, tower, rows, length)
        with torch.no_grad():
            expected = model.encode(tower, batch)
        computed = run(dict(zip(INPUTS, (batch.tokens.numpy(), batch.mask.long().numpy()), strict=True)))
        for ours, theirs in zip(expected, computed, strict=True):
            difference = float(np.abs(ours.numpy() - theirs).max())
            if not difference <= GRAPH_TOLERANCE * max(float(ours.abs().max()), 1.0):
                problem = f"the graph of this encoder computes other vectors: they differ by {difference:.1e}"
                raise UserError(problem, cure="choose the format sentence-transformers")


def _random_batch(model: DualEncoder, tower: str, rows: int, length: int) -> TokenBatch:
    """Return random tokens, with padding in every row but the first."""
    shape, generator = model.encoders[tower].shape, torch.Generator().manual_seed(0)
    tokens = torch.randint(shape.vocabulary_size, (rows, length), generator=generator)
    lengths = torch.tensor([length, *(max(1, length - 2 - row) for row in range(1, rows))])
    tokens = tokens.masked_fill(torch.arange(length) >= lengths.unsqueeze(1), shape.pad_id or 0)
    return TokenBatch(tokens, lengths, lengths.numpy())

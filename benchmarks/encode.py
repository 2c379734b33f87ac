"""Sentences a second of SentenceEncoder.encode over those of sentence-transformers' encode, with the same weights.

Contestants take turns in one process. The script prints ratios of medians (above 1: faster than sentence-transformers
with its defaults, batches of 32) and the smallest cosine with its vectors. The other contestants are
sentence-transformers with the precision settings that ours uses ("tuned"), and OpenVINO and ONNX Runtime, which compute
the graph that xrep-export writes on our batches sorted by tokens (pip install 'xrep[openvino,onnx]'). "products alone"
is the time of nothing but the linear layers' matrix products on the real tokens, with the fastest product that torch
has: no encoder made of these products can be faster on this machine.

  python benchmarks/encode.py --path $(xrep-data get minilm --print-path) --text newstest2012.en
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from harness import make_parser, progress, say_absent, take_turns, write_json

from xrep.data.batching import batches_of, collate
from xrep.errors import UserError
from xrep.inference.graphs import FILES, INPUTS, OUTPUTS
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import float32_precision
from xrep.text.readers import read_lines

Encode = Callable[[list[str]], np.ndarray | None]
Graph = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Turns tokens and mask, int64 [B, T], into vectors [B, D]."""


def real_sentences(path: str, encoder: SentenceEncoder, count: int) -> list[str]:
    """Return the first ``count`` lines of 5 to 60 tokens."""
    lines = [text for _, text in read_lines(path)]
    tokens = encoder.tokenizers["shared"].encode(lines)
    chosen = [line for line, ids in zip(lines, tokens, strict=True) if 5 <= len(ids) + 2 <= 60][:count]
    if len(chosen) < count:
        progress(f"warning: only {len(chosen)} lines of {path} have 5 to 60 tokens")
    return chosen


def peers(path: str) -> dict[str, Encode]:
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(path, device="cpu")
    half = SentenceTransformer(path, device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})
    options = {"batch_size": 32, "normalize_embeddings": True, "show_progress_bar": False}

    def tuned(sentences: list[str]) -> np.ndarray:
        with float32_precision("medium"):
            return plain.encode(sentences, **options)

    return {
        "sentence-transformers": lambda sentences: plain.encode(sentences, **options),
        "sentence-transformers, tuned float32": tuned,
        "sentence-transformers, bfloat16": lambda sentences: half.encode(
            sentences, **options, convert_to_tensor=True
        ).float().numpy(),
    }  # fmt: skip


def openvino(file: Path, precision: str) -> Graph:
    import openvino as ov

    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
    model = ov.Core().compile_model(file, "CPU", options)  # it reads ONNX, too
    return lambda tokens, mask: model([tokens, mask])[OUTPUTS[0]]


def onnx(file: Path) -> Graph:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda *inputs: session.run(OUTPUTS[:1], dict(zip(INPUTS, inputs, strict=True)))[0]


def fed_with_our_batches(graph: Graph, encoder: SentenceEncoder, batch_tokens: int) -> Encode:
    vocabulary, longest = encoder.text.vocabulary("shared"), encoder.text.max_length

    def encode(sentences: list[str]) -> np.ndarray:
        tokens = [np.asarray(ids) for ids in encoder.tokenizers["shared"].encode(sentences)]
        vectors = np.empty((len(sentences), encoder.output_size), dtype=np.float32)
        for rows in batches_of(tokens, batch_tokens, longest):
            batch = collate([tokens[row] for row in rows], vocabulary, longest)
            vectors[rows] = graph(batch.tokens.numpy(), batch.mask.long().numpy())
        return vectors

    return encode


def products_alone(encoder: SentenceEncoder, batch_tokens: int) -> Encode:
    """Return the linear layers alone, on as many rows as each of our batches has real tokens; there are no vectors."""
    modules = encoder.model.encoders["shared"].layers.modules()
    layers = [layer for layer in modules if isinstance(layer, torch.nn.Linear)]
    vocabulary, longest = encoder.text.vocabulary("shared"), encoder.text.max_length

    def encode(sentences: list[str]) -> None:
        tokens = [np.asarray(ids) for ids in encoder.tokenizers["shared"].encode(sentences)]
        with torch.inference_mode():
            for rows in batches_of(tokens, batch_tokens, longest):
                count = int(collate([tokens[row] for row in rows], vocabulary, longest).lengths.sum())
                inputs = {width: layers[0].weight.new_zeros(count, width) for width in {x.in_features for x in layers}}
                for layer in layers:
                    layer(inputs[layer.in_features])

    return encode


def contestants(options: argparse.Namespace, encoder: SentenceEncoder) -> dict[str, Encode]:
    half = SentenceEncoder.load(options.path, device="cpu", dtype="bfloat16")
    found = peers(options.path)
    found["xrep, float32"] = lambda s: encoder.encode(s, batch_tokens=options.batch_tokens)
    found["xrep, bfloat16"] = lambda s: half.encode(s, batch_tokens=options.batch_tokens)
    found["products alone, float32"] = products_alone(encoder, options.batch_tokens)
    found["products alone, bfloat16"] = products_alone(half, options.batch_tokens)
    return found | graphs(encoder, options.batch_tokens)


def graphs(encoder: SentenceEncoder, batch_tokens: int) -> dict[str, Encode]:
    """Return the runtimes that are installed, fed with our batches."""
    runtimes: dict[str, Callable[[Path], Graph]] = {
        "OpenVINO, float32": lambda file: openvino(file, "f32"),
        "OpenVINO, bfloat16": lambda file: openvino(file, "bf16"),
        "ONNX Runtime, float32": onnx,
    }
    found = dict[str, Encode]()
    with tempfile.TemporaryDirectory() as folder:
        try:
            encoder.save(Path(folder, "graph"), format="onnx")
        except UserError as error:  # the others can be compared without these
            for name in runtimes:
                say_absent(name, error)
            return found
        for name, make in runtimes.items():
            try:
                graph = make(Path(folder, "graph", FILES["onnx"]))
                found[name] = fed_with_our_batches(graph, encoder, batch_tokens)
            except ImportError as error:
                say_absent(name, error)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--path", required=True, help="a sentence-transformers directory, such as minilm's")
    parser.add_argument("--text", required=True, help="UTF-8 text, one sentence a line")
    parser.add_argument("--sentences", type=int, default=2000, help="sentences that are encoded in each round")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens of our batches")
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the warm-up")
    options = parser.parse_args()
    encoder = SentenceEncoder.load(options.path, device="cpu")
    sentences = real_sentences(options.text, encoder, options.sentences)
    entries = contestants(options, encoder)
    turns = take_turns(entries, [sentences] * (options.repeats + 1), verbose=True)
    medians, vectors = turns.medians(), turns.results
    first = next(iter(entries))
    rows = {
        name: {
            "times_sentence_transformers": medians[first] / medians[name],
            "smallest_cosine": None if vectors[name] is None else float((vectors[name] * vectors[first]).sum(1).min()),
        }
        for name in entries
    }
    print(f"{len(sentences)} sentences, {torch.get_num_threads()} threads, {options.batch_tokens} tokens a batch")
    for name, row in rows.items():
        cosine = row["smallest_cosine"]
        agrees = "" if cosine is None else f"   cosine at least {cosine:.6f}"
        print(f"{name:38} {row['times_sentence_transformers']:6.2f}x{agrees}")
    write_json(options.json, rows)


if __name__ == "__main__":
    main()

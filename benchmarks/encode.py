"""Sentences a second of SentenceEncoder.encode over those of sentence-transformers' encode, with the same weights.

Contestants take turns in one process. The script prints ratios of medians (above 1: faster than sentence-transformers
with its defaults, batches of 32) and the smallest cosine with its vectors. The other contestants are
sentence-transformers with the precision settings that ours uses ("tuned"), and ONNX Runtime and OpenVINO, which read
the encoder as xrep-export writes it and our batches sorted by tokens, and show what can be reached outside of torch
(extras onnx and openvino). Their int8 is that of their own quantisers (pip install nncf for OpenVINO's). "OpenVINO as
its users call it" gets 32 lines at a time in the order of the text, padded by transformers' tokenizer; bfloat16 is its
default where the processor has AMX. "products alone" is the time of nothing but the linear layers' matrix products on
the real tokens, with the fastest product that torch has: no encoder made of these products can be faster on this
machine.

  python benchmarks/encode.py --path $(xrep-data get minilm --print-path) --text newstest2012.en
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import make_parser, progress, say_absent, take_turns, write_json

from xrep.data.batch import TokenBatch, batches_of, collate
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import float32_precision
from xrep.text.lines import read_lines

Encode = Callable[[list[str]], np.ndarray | None]
Run = Callable[[dict[str, np.ndarray]], Any]
"""A function of a batch that returns its results, of which the first one is the vectors."""
Figures = dict[str, float | None]
EXAMPLES = 64
"""Sentences from which OpenVINO's quantiser learns."""
WARM_UP = 20
"""Calls before those whose latency is measured."""


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


def onnxruntime(encoder: SentenceEncoder, batch_tokens: int, folder: Path) -> Iterator[tuple[str, Encode]]:
    """Yield the names and functions of ONNX Runtime in float32, and in int8 by its own quantiser."""
    import onnxruntime as ort
    from onnxruntime.quantization import QuantType, quantize_dynamic

    encoder.save(folder / "onnx", "onnx")
    graph, quantised = folder / "onnx" / "onnx" / "model.onnx", folder / "int8.onnx"
    quantize_dynamic(graph, quantised, per_channel=True, weight_type=QuantType.QInt8)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    for name, file in (("f32", graph), ("int8", quantised)):
        session = ort.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
        run = partial(session.run, None)
        yield f"ONNX Runtime, {name}", fed_with_our_batches(encoder, batch_tokens, run)


def openvino(
    encoder: SentenceEncoder, options: argparse.Namespace, folder: Path, examples: list[str]
) -> Iterator[tuple[str, Encode]]:
    """Yield the names and functions of OpenVINO in float32, bfloat16 and, by its own quantiser (nncf), int8.

    Args:
        examples: Sentences on which the quantiser measures the ranges of all activations.
    """
    import openvino as ov

    encoder.save(folder / "openvino", "openvino")
    graph = ov.Core().read_model(folder / "openvino" / "openvino" / "openvino_model.xml")

    def compiled(model: ov.Model, precision: str) -> Run:
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
        run = ov.Core().compile_model(model, "CPU", settings)
        return lambda inputs: run(inputs)[0][None]

    for precision in ("f32", "bf16"):
        run = compiled(graph, precision)
        yield f"OpenVINO, {precision}", fed_with_our_batches(encoder, options.batch_tokens, run)
        yield f"OpenVINO as its users call it, {precision}", fed_with_lines(options.path, run)
    import nncf

    measured = nncf.Dataset([inputs_of(batch) for batch, _ in sorted_batches(encoder, examples, batch_tokens=64)])
    quantised = nncf.quantize(graph, measured, model_type=nncf.ModelType.TRANSFORMER)
    yield "OpenVINO, int8", fed_with_our_batches(encoder, options.batch_tokens, compiled(quantised, "f32"))


def fed_with_lines(path: str, run: Run) -> Encode:
    """Return what encodes 32 lines at a time in the order of the file, padded to the longest by transformers'
    tokenizer, as guides of runtimes show it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)

    def encode(sentences: list[str]) -> np.ndarray:
        vectors = []
        for start in range(0, len(sentences), 32):
            inputs = tokenizer(sentences[start : start + 32], padding=True, truncation=True, return_tensors="np")
            vectors.append(run({name: inputs[name] for name in ("input_ids", "attention_mask")})[0])
        return np.concatenate(vectors)

    return encode


def sorted_batches(
    encoder: SentenceEncoder, sentences: list[str], batch_tokens: int
) -> Iterator[tuple[TokenBatch, list[int]]]:
    """Yield the batches of ``encoder.encode``, and the numbers of their sentences."""
    vocabulary, longest = encoder.text.vocabulary("shared"), encoder.text.max_length
    tokens = [np.asarray(ids) for ids in encoder.tokenizers["shared"].encode(sentences)]
    lengths = [min(len(ids) + vocabulary.special_count, longest) for ids in tokens]
    for rows in batches_of(lengths, batch_tokens):
        yield collate([tokens[row] for row in rows], vocabulary, longest), rows


def inputs_of(batch: TokenBatch) -> dict[str, np.ndarray]:
    return {"input_ids": batch.tokens.numpy(), "attention_mask": batch.mask.long().numpy()}


def fed_with_our_batches(encoder: SentenceEncoder, batch_tokens: int, run: Run) -> Encode:
    """Return what encodes our batches, sorted by tokens, with a function from names and inputs to [vectors [B, D]]."""

    def encode(sentences: list[str]) -> np.ndarray:
        vectors = np.empty((len(sentences), encoder.output_size), dtype=np.float32)
        for batch, rows in sorted_batches(encoder, sentences, batch_tokens):
            vectors[rows] = run(inputs_of(batch))[0]
        return vectors

    return encode


def products_alone(encoder: SentenceEncoder, batch_tokens: int) -> Encode:
    """Return the linear layers alone, on as many rows as each of our batches has real tokens; there are no vectors."""
    modules = encoder.model.encoders["shared"].layers.modules()
    layers = [layer for layer in modules if isinstance(layer, torch.nn.Linear)]

    def encode(sentences: list[str]) -> None:
        with torch.inference_mode():
            for batch, _ in sorted_batches(encoder, sentences, batch_tokens):
                count = batch.real_tokens
                inputs = {width: layers[0].weight.new_zeros(count, width) for width in {x.in_features for x in layers}}
                for layer in layers:
                    layer(inputs[layer.in_features])

    return encode


def contestants(
    options: argparse.Namespace, encoder: SentenceEncoder, folder: Path, sentences: list[str]
) -> dict[str, Encode]:
    found = peers(options.path)
    for precision in ("float32", "bfloat16", "int8"):
        ours = SentenceEncoder.load(options.path, device="cpu", dtype=precision)
        found[f"xrep, {precision}"] = partial(ours.encode, batch_tokens=options.batch_tokens)
        if precision != "int8":
            found[f"products alone, {precision}"] = products_alone(ours, options.batch_tokens)
    runtimes = {
        "onnxruntime": onnxruntime(encoder, options.batch_tokens, folder),
        "openvino": openvino(encoder, options, folder, sentences[:EXAMPLES]),
    }
    for runtime, entries in runtimes.items():
        try:
            found.update(entries)
        except Exception as error:  # the others can be compared without this one
            say_absent(f"a row of {runtime}", error)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--path", required=True, help="a sentence-transformers directory, such as minilm's")
    parser.add_argument("--text", required=True, help="UTF-8 text, one sentence a line")
    parser.add_argument("--sentences", type=int, default=2000, help="sentences that are encoded in each round")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens of our batches")
    parser.add_argument("--repeats", type=int, default=5, help="rounds after the warm-up")
    parser.add_argument("--calls", type=int, help="measure the latency of so many calls with one sentence each instead")
    parser.add_argument(
        "--only", action="append", help="measure only contestants with this in their names, and the first"
    )
    options = parser.parse_args()
    encoder = SentenceEncoder.load(options.path, device="cpu")
    sentences = real_sentences(options.text, encoder, options.sentences)
    with tempfile.TemporaryDirectory() as folder:
        entries = contestants(options, encoder, Path(folder), sentences)
        if options.only:
            first = next(iter(entries))
            entries = {n: e for n, e in entries.items() if n == first or any(part in n for part in options.only)}
        rows = latency(entries, sentences, options) if options.calls else throughput(entries, sentences, options)
    write_json(options.json, rows)


def throughput(entries: dict[str, Encode], sentences: list[str], options: argparse.Namespace) -> dict[str, Figures]:
    """Print the speeds of the contestants over that of the first, and the smallest cosines with its vectors."""
    turns = take_turns(entries, [sentences] * (options.repeats + 1), verbose=True)
    medians, vectors, first = turns.medians(), turns.results, next(iter(entries))
    print(f"{len(sentences)} sentences, {torch.get_num_threads()} threads, {options.batch_tokens} tokens a batch")
    rows: dict[str, Figures] = {}
    for name in entries:
        cosine = None if vectors[name] is None else float((vectors[name] * vectors[first]).sum(1).min())
        rows[name] = {"times_sentence_transformers": medians[first] / medians[name], "smallest_cosine": cosine}
        agrees = "" if cosine is None else f"   cosine at least {cosine:.6f}"
        print(f"{name:38} {medians[first] / medians[name]:6.2f}x{agrees}")
    return rows


def latency(entries: dict[str, Encode], sentences: list[str], options: argparse.Namespace) -> dict[str, Figures]:
    """Print the median and the 95th percentile of the time of a call, of each contestant over those of the first."""
    calls = [[sentences[number % len(sentences)]] for number in range(options.calls + WARM_UP)]
    turns = take_turns(entries, calls, warm_up=WARM_UP, title="one sentence")
    found = {name: statistics.quantiles(seconds, n=20, method="inclusive") for name, seconds in turns.seconds.items()}
    first = found[next(iter(entries))]
    print(f"{options.calls} calls with one sentence, {torch.get_num_threads()} threads: shares of the first one's time")
    rows: dict[str, Figures] = {}
    for name, cuts in found.items():
        rows[name] = {"p50": cuts[9] / first[9], "p95": cuts[18] / first[18]}
        print(f"{name:38} p50 {cuts[9] / first[9]:5.2f}   p95 {cuts[18] / first[18]:5.2f}")
    return rows


if __name__ == "__main__":
    main()

"""SentenceEncoder.encode beside sentence-transformers, ONNX Runtime and OpenVINO, with the same weights.

sentence-transformers runs with its defaults, 32 lines at a time, in float32 and with bfloat16 weights. ONNX Runtime and
OpenVINO read the encoder as xrep-export writes it. They get our batches, which are sorted by length, so that only their
computation is compared, and also 32 lines at a time in the order of the text, as their guides show it. Their int8 is
that of their own quantisers (OpenVINO's is nncf). The smallest cosine between vectors of a contestant and those of
sentence-transformers is printed, too: a fast encoder may be inexact. A static encoder that is distilled from the same
one has other vectors, and takes turns beside our float32.

  python benchmarks/encode.py --path $(xrep-data get minilm --print-path)
  python benchmarks/encode.py --path ... --one              # also how long a call with one line takes
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import contest, make_parser, multiplies_bfloat16, progress, read_pairs, say_absent, texts_of
from results import RESTRICTED

from xrep.data.batch import batches_of, collate
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.static import distil

Encode = Callable[[list[str]], np.ndarray]
Run = Callable[[dict[str, np.ndarray]], Any]
"""A function of ``input_ids`` and ``attention_mask``, int64 [B, N], whose first result is vectors [B, D]."""
PLAIN = "sentence-transformers"
IN_ORDER = ["ONNX Runtime, 32 lines at a time", "OpenVINO, 32 lines at a time"]
STATIC = "xrep, static"
PAIRS = {
    "xrep, float32": [PLAIN, "ONNX Runtime, float32", "OpenVINO, float32", *IN_ORDER],
    "xrep, bfloat16": [PLAIN, "sentence-transformers, bfloat16", "OpenVINO, bfloat16"],
    "xrep, int8": [PLAIN, "ONNX Runtime, int8", "OpenVINO, int8"],
    STATIC: ["xrep, float32"],
}
PRECISIONS: list[Any] = ["float32", *["bfloat16"] * multiplies_bfloat16(), "int8"]
WARM_UP_CALLS = 20


def sentence_transformers(path: str) -> Iterator[tuple[str, Encode]]:
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(path, device="cpu")
    yield PLAIN, partial(plain.encode, normalize_embeddings=True, show_progress_bar=False)
    if multiplies_bfloat16():
        half = SentenceTransformer(path, device="cpu", model_kwargs={"torch_dtype": torch.bfloat16})
        options = {"normalize_embeddings": True, "show_progress_bar": False, "convert_to_tensor": True}
        yield "sentence-transformers, bfloat16", lambda lines: half.encode(lines, **options).float().numpy()


def onnxruntime(encoder: SentenceEncoder, path: str, folder: Path) -> Iterator[tuple[str, Encode]]:
    import onnxruntime as ort
    from onnxruntime.quantization import QuantType, quantize_dynamic

    encoder.save(folder / "onnx", "onnx")
    graph, quantised = folder / "onnx" / "onnx" / "model.onnx", folder / "int8.onnx"
    quantize_dynamic(graph, quantised, per_channel=True, weight_type=QuantType.QInt8)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    for name, file in (("float32", graph), ("int8", quantised)):
        run = partial(ort.InferenceSession(file, settings, providers=["CPUExecutionProvider"]).run, None)
        yield f"ONNX Runtime, {name}", by_length(encoder, run)
        if name == "float32":
            yield IN_ORDER[0], in_order(path, run)


def openvino(encoder: SentenceEncoder, path: str, folder: Path, examples: list[str]) -> Iterator[tuple[str, Encode]]:
    import openvino as ov

    encoder.save(folder / "openvino", "openvino")
    graph = ov.Core().read_model(folder / "openvino" / "openvino" / "openvino_model.xml")

    def compiled(model: Any, precision: str) -> Run:
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": precision}
        return ov.Core().compile_model(model, "CPU", settings)

    run = compiled(graph, "f32")
    yield "OpenVINO, float32", by_length(encoder, run)
    yield IN_ORDER[1], in_order(path, run)
    if multiplies_bfloat16():
        yield "OpenVINO, bfloat16", by_length(encoder, compiled(graph, "bf16"))
    import nncf

    measured = nncf.Dataset([inputs for inputs, _ in sorted_batches(encoder, examples, batch_tokens=64)])
    quantised = nncf.quantize(graph, measured, model_type=nncf.ModelType.TRANSFORMER)
    yield "OpenVINO, int8", by_length(encoder, compiled(quantised, "f32"))


def sorted_batches(
    encoder: SentenceEncoder, lines: list[str], batch_tokens: int = 4096
) -> Iterator[tuple[dict[str, np.ndarray], list[int]]]:
    """Yield the batches of ``encoder.encode``, and the numbers of their lines."""
    vocabulary, longest = encoder.text.vocabulary("shared"), encoder.text.max_length
    tokens = [np.asarray(ids) for ids in encoder.tokenizers["shared"].encode(lines)]
    lengths = [min(len(ids) + vocabulary.special_count, longest) for ids in tokens]
    for rows in batches_of(lengths, batch_tokens):
        batch = collate([tokens[row] for row in rows], vocabulary, longest)
        yield {"input_ids": batch.tokens.numpy(), "attention_mask": batch.mask.long().numpy()}, rows


def by_length(encoder: SentenceEncoder, run: Run) -> Encode:
    """Return what encodes lines in our batches."""

    def encode(lines: list[str]) -> np.ndarray:
        vectors = np.empty((len(lines), encoder.output_size), dtype=np.float32)
        for inputs, rows in sorted_batches(encoder, lines):
            vectors[rows] = run(inputs)[0]
        return vectors

    return encode


def in_order(path: str, run: Run) -> Encode:
    """Return what encodes 32 lines at a time, padded to the longest by transformers' tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)

    def encode(lines: list[str]) -> np.ndarray:
        vectors = []
        for start in range(0, len(lines), 32):
            inputs = tokenizer(lines[start : start + 32], padding=True, truncation=True, return_tensors="np")
            vectors.append(run({name: inputs[name] for name in ("input_ids", "attention_mask")})[0])
        return np.concatenate(vectors)

    return encode


def contestants(path: str, folder: Path, examples: list[str]) -> dict[str, Encode]:
    """Return everyone who can take part; the others are named on stderr with the reason."""
    found = {}
    for precision in PRECISIONS:
        found[f"xrep, {precision}"] = SentenceEncoder.load(path, device="cpu", dtype=precision).encode
    encoder, peers = SentenceEncoder.load(path, device="cpu"), [sentence_transformers(path)]
    found[STATIC] = distil(encoder).encode
    if not RESTRICTED:  # neither of these can be held to AVX2
        peers += [onnxruntime(encoder, path, folder), openvino(encoder, path, folder, examples)]
    for entries in peers:
        try:
            found.update(entries)
        except Exception as error:  # the others can be compared without this one
            say_absent(entries.__name__, error)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--path", required=True, help="a sentence-transformers directory, such as minilm's or what xrep-export writes")
    add("--lines", type=int, default=2000, help="short lines that are encoded in a round; a fifth of that if long")
    add("--one", action="store_true", help="measure calls with one line, too")
    options = parser.parse_args()
    texts = dict[str, list[str]]()
    for kind, count, _ in texts_of(options, options.lines):
        texts[kind] = [english for _, english in read_pairs(kind, count, options.data)]
    examples = next(iter(texts.values()))[:64]  # from which OpenVINO's quantiser learns
    with tempfile.TemporaryDirectory() as folder:
        entries = contestants(options.path, Path(folder), examples)
        for kind, lines in texts.items():
            inputs = {"encode": ([lines] * (options.repeats + 1), 1)}
            if options.one:
                one = [[line] for line in lines[: WARM_UP_CALLS + 100 * options.repeats]]
                inputs["encode, one line"] = one, WARM_UP_CALLS
            for name, (calls, warm_up) in inputs.items():
                turns = contest(options, name, kind, entries, PAIRS, calls, warm_up)
                expected = turns.results.get(PLAIN, math.nan)
                for entry, seconds in turns.medians().items():
                    cosine = math.nan if entry == STATIC else np.sum(turns.results[entry] * expected, 1).min()
                    progress(f"{entry}: {1000 * seconds:.1f} ms a call, smallest cosine {cosine:.4f}")


if __name__ == "__main__":
    main()

"""Where the time of SentenceEncoder.encode goes, as shares, in each precision.

torch's profiler adds up the time that each operation takes itself. The shares are of the time of the whole call, on
one thread of torch; what no operation accounts for is Python, its calls of operations and the forming of batches.
GELU is a part of the products where oneDNN computes both in one pass. "profiled / plain" says how much slower the
profiler made the call: the shares are meaningful while it is near 1.

  python benchmarks/encode_profile.py --path $(xrep-data get minilm --print-path) --text newstest2012.en
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from encode import real_sentences
from harness import make_parser, markdown_table, write_json
from torch.profiler import ProfilerActivity, profile, record_function

from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels import int8

QUANTISING, TOKENISING, REST = "quantising", "tokenising", "Python and batches"
KINDS = {
    "products": ("_linear_pointwise", "qlinear_pointwise", "addmm", "mm", "linear"),
    "attention": ("bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu"),
    "softmax": ("_softmax", "softmax"),
    "norms": ("native_layer_norm", "layer_norm"),
    "GELU": ("gelu", "gelu_"),
    "residuals and scales": ("add", "add_", "addcmul", "mul", "mul_"),
    "copies and casts": ("copy_", "clone", "cat", "index_select", "index_copy_", "_to_copy", "contiguous", "to"),
    "allocation": ("empty", "empty_strided", "empty_like", "new_empty", "zeros", "new_zeros", "fill_", "zero_"),
}
"""Kinds of operations by their names without namespace; what is in none of them is "other operations"."""


def kind_of(event: Any) -> str:
    """Return the kind of an operation: that of the labelled part in which it ran, or that of its name."""
    inside = event
    while inside is not None:
        if inside.name in (QUANTISING, TOKENISING):
            return inside.name
        inside = inside.cpu_parent
    name = event.name.rpartition("::")[2]
    return next((kind for kind, names in KINDS.items() if name in names), "other operations")


def labelled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        with record_function(name):
            return function(*arguments)

    return run


def shares(encode: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Return the share of each kind in the time of a call, and how much longer it takes with the profiler."""
    plain = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        encode()
        plain.append(time.perf_counter() - begun)
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorded:
        begun = time.perf_counter()
        encode()
        taken = time.perf_counter() - begun
    spent: dict[str, float] = {}
    for event in recorded.events():
        spent[kind_of(event)] = spent.get(kind_of(event), 0.0) + event.self_cpu_time_total / 1e6 / taken
    spent[REST] = 1 - sum(spent.values())
    return {**spent, "profiled / plain": taken / statistics.median(plain[1:])}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--path", required=True, help="a sentence-transformers directory, such as minilm's")
    parser.add_argument("--text", required=True, help="UTF-8 text, one sentence a line")
    parser.add_argument("--sentences", type=int, default=500, help="sentences that are encoded")
    parser.add_argument("--batch-tokens", type=int, help="tokens of a batch")
    parser.add_argument("--precision", action="append", help="float32, bfloat16 or int8; can be repeated")
    parser.add_argument("--repeats", type=int, default=3, help="calls without the profiler, after one to warm up")
    options = parser.parse_args()
    size = {} if options.batch_tokens is None else {"batch_tokens": options.batch_tokens}
    int8.quantise_rows = labelled(int8.quantise_rows, QUANTISING)
    found: dict[str, dict[str, float]] = {}
    for precision in options.precision or ("float32", "bfloat16", "int8"):
        encoder = SentenceEncoder.load(options.path, device="cpu", dtype=precision)
        sentences = real_sentences(options.text, encoder, options.sentences)
        tokenizer = encoder.tokenizers["shared"]
        tokenizer.encode = labelled(tokenizer.encode, TOKENISING)
        found[precision] = shares(lambda e=encoder, s=sentences: e.encode(s, **size), options.repeats)
    kinds = dict.fromkeys(kind for row in found.values() for kind in row)
    order = [*KINDS, QUANTISING, TOKENISING, "other operations", REST, "profiled / plain"]
    rows = [["share of the time", *found]]
    rows += [[kind, *(f"{row.get(kind, 0.0):.3f}" for row in found.values())] for kind in order if kind in kinds]
    print(f"{options.sentences} sentences, {torch.get_num_threads()} threads")
    print("\n".join(markdown_table(rows)))
    write_json(options.json, found)


if __name__ == "__main__":
    main()

"""Compiles every Triton kernel to machine code for Hopper GPUs, without a GPU; ``--all``: in the variants in use."""

import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from xrep.kernels import triton_kernels, triton_norm
from xrep.kernels.residual_norm import tile_of

TARGET = GPUTarget("cuda", 90, 32)
FLOAT, IDS, INTEGER = "*fp32", "*i64", "i32"
Variant = tuple[Any, dict[str, str | None], dict[str, int | bool], int]


def variants() -> Iterator[Variant]:
    """A kernel, the types of its arguments (None: not given), constants, and warps."""
    for half, ids, mixed, limited in (
        *(("*bf16", 0, True, True), ("*bf16", 0, True, False), ("*fp16", 2, True, False), (FLOAT, 1, True, True)),
        (FLOAT, 0, False, False),
    ):
        scaled = half != FLOAT
        per_query = {"maximum": FLOAT, "total": FLOAT, "hardest": FLOAT, "mixture": FLOAT if mixed else None}
        block = {"query_ids": IDS if ids else None, "block_ids": IDS if ids else None}
        block |= dict.fromkeys(("limit", "judged"), FLOAT if limited else None)
        sizes = dict.fromkeys(("stride", "weights_stride", "judged_stride", "columns", "dimension"), INTEGER)
        types = {"scores": FLOAT, "weights": half, "scale": FLOAT if scaled else None, **per_query, **block, **sizes}
        constants = {"IDS": ids, "LIMITED": limited, "SCALED": scaled, "MIXED": mixed, "BLOCK": 8192, "BLOCK_D": 1024}
        yield triton_kernels.absorb_row, types, constants, 16
    for half in (FLOAT, "*bf16", "*fp16"):
        types = {"logits": FLOAT, "gradient": half, "target": IDS, "ignored": "*i1", "correct": "*i1"}
        types |= {"loss": FLOAT, "nll": FLOAT, "stride": INTEGER, "columns": INTEGER, "smoothing": "fp32"}
        yield triton_kernels.vocabulary_row, types, {"WANTED": True, "BLOCK": 4096}, 8
    for kinds, width, dropped, summed in (
        (("*bf16", "*bf16", "*bf16"), 768, True, False),
        (("*bf16", "*bf16", "*bf16"), 1000, False, True),
        ((FLOAT, "*fp16", FLOAT), 1024, True, False),
        ((FLOAT, FLOAT, FLOAT), 8192, True, True),
    ):
        yield from norm_variants(kinds, width, dropped, summed)


def norm_variants(kinds: tuple[str, str, str], width: int, dropped: bool, summed: bool) -> Iterator[Variant]:
    """Variants of the kernels of residual connections, by the types of x, of the change, and of the weights."""
    x, change, weight = kinds
    tile, options = tile_of(width)
    shared = {"weight": weight, "total": x, "mean": FLOAT, "scale": FLOAT, "probability": "fp32", "seed": "i64"}
    shared |= {"rows": INTEGER, "columns": INTEGER}
    types = {**shared, "x": x, "change": change, "bias": weight, "normed": x, "epsilon": "fp32"}
    for kept in (False, True):
        yield triton_norm.normalise_rows, types, {"DROPPED": dropped, "KEPT": kept, **tile}, options["num_warps"]
    separate = dropped or x != change
    types = {**shared, "of_normed": x, "of_total": x if summed else None, "of_x": x, "of_change": change}
    types |= {"parts": FLOAT, "each": INTEGER}
    constants = {"DROPPED": dropped, "SUMMED": summed, "SEPARATE": separate, **tile}
    yield triton_norm.differentiate_rows, types, constants, options["num_warps"]
    types = {"parts": FLOAT, "result": weight, "count": INTEGER, "columns": INTEGER}
    yield triton_norm.add_parts, types, {"BLOCK_P": 128, "BLOCK_C": 32}, 4


def compiled(kernel: Any, types: dict[str, str | None], constants: dict[str, int | bool], warps: int) -> bytes:
    """Return the machine code."""
    absent = {name: None for name, kind in types.items() if kind is None}
    fixed = {**constants, **absent}
    signature = {name: "constexpr" if name in fixed else types[name] for name in kernel.arg_names}
    source = ASTSource(kernel, signature=signature, constexprs=fixed)
    return triton.compile(source, target=TARGET, options={"num_warps": warps}).asm["cubin"]


def main() -> None:
    seen = []
    for kernel, types, constants, warps in variants():
        if "--all" not in sys.argv and kernel.__name__ in seen:
            continue
        code = compiled(kernel, types, constants, warps)
        assert len(code) > 1000, kernel
        seen.append(kernel.__name__)
    print(len(seen), "kernels compiled")


if __name__ == "__main__":
    main()

"""xrep-encode: lines of text in, a .npy file of their vectors out."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from xrep_cli.common import command_parser, console_script, say_if_slow

DESCRIPTION = """\
Encode each line of a text file: row i of the output is the vector of line i.

  xrep-encode --path run1/best --lang de --input lines.txt.gz --output vectors.npy
  xrep-encode --path all-MiniLM-L6-v2/ --input lines.txt --output vectors.npy --precision bfloat16 --dtype float16
  torchrun --nproc-per-node 4 -m xrep_cli.encode ...      one shard for each process: vectors.00000-of-00004.npy

Any number of lines, in constant memory. The same command goes on where a killed one stopped, and the file is the same.
Read it with numpy.load("vectors.npy", mmap_mode="r")."""


# Torch and oneDNN each keep the products they compiled, 1,024 of them, one for each size they meet, at over a megabyte:
# the batches of a long text have hundreds of sizes. A batch needs few, and the next one rarely the same.
_KEPT_PRODUCTS = {"LRU_CACHE_CAPACITY": "16", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-encode", DESCRIPTION)
    add = parser.add_argument
    add("--path", required=True, metavar="ENCODER", help="a checkpoint, or a directory of Hugging Face or "
        "sentence-transformers, or a name in the local Hugging Face cache")  # fmt: skip
    add("--input", required=True, metavar="FILE", help="UTF-8 text (.gz and .xz too), one sentence a line; -: stdin")
    add("--output", required=True, metavar="FILE.npy", help="the vectors, [lines, size]")
    add("--lang", metavar="CODE", help="language of the lines; needed where the encoder has a tower for each side")
    add("--batch-tokens", type=int, default=4096, metavar="N", help="subwords that go through the encoder at once")
    add("--dtype", choices=("float32", "float16"), default="float32", help="type of the vectors in the file")
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="type the encoder computes in; "
        "bfloat16 is faster on GPUs and on most CPUs with instructions for it (AMX, AVX512-BF16)")  # fmt: skip
    add("--no-normalize", action="store_true", help="vectors as the model gives them, not of length 1")
    add("--device", help="cpu, cuda or cuda:1 and so on (default: a GPU if there is one)")
    add("--plugin", metavar="MODULE", action="append", default=[], help="import a module that has the encoder's model")
    add("--json", action="store_true", help="print what was written as JSON")
    return parser


def _main(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)
    output = Path(options.output)
    for name, value in _KEPT_PRODUCTS.items():
        os.environ.setdefault(name, value)  # read at the first product

    from xrep.errors import UserError
    from xrep.files import check_output
    from xrep.inference.encoding import encode_file
    from xrep.inference.sentence_encoder import SentenceEncoder
    from xrep.registry import import_plugin
    from xrep.text.readers import read_lines

    if options.batch_tokens < 1:
        raise UserError(f"--batch-tokens {options.batch_tokens}", cure="give at least 1")
    if output.suffix != ".npy":
        raise UserError("the output is a .npy file", path=output, cure="name it so")
    check_output(output)
    source = Path(options.input)
    if options.input != "-" and (source.is_file() or not source.exists()):
        next(read_lines(source))  # what is wrong with it shows before the encoder is loaded
    for plugin in options.plugin:
        import_plugin(plugin)
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = _device(options.device, world_size)
    encoder = SentenceEncoder.load(options.path, device=device, dtype=options.precision)
    if rank == 0:
        say_if_slow("xrep-encode", options.precision, next(encoder.model.parameters()).device.type)
    done = encode_file(
        encoder,
        options.input,
        output,
        lang=options.lang,
        dtype=options.dtype,
        batch_tokens=options.batch_tokens,
        normalize=not options.no_normalize,
        rank=rank,
        world_size=world_size,
    )
    if options.json:
        # One write, line feed included: unbuffered, print makes two, and ranks share the stream.
        sys.stdout.write(json.dumps({**asdict(done), "path": str(done.path)}) + "\n")
        return
    resumed = f", {done.resumed:,} of them before" if done.resumed else ""
    empty = f"; {done.empty_lines:,} lines were empty" if done.empty_lines else ""
    speed = (done.lines - done.resumed) / max(done.seconds, 1e-9)
    print(f"{done.lines:,} lines{resumed}, {speed:,.0f} a second, [{done.lines}, {done.size}] {options.dtype}{empty}: "
          f"{done.path}")  # fmt: skip


def _device(named: str | None, world_size: int) -> str | None:
    """The device as named, or of several processes a GPU for each, after a look that it is there."""
    import torch

    from xrep.errors import UserError

    if named is None and world_size == 1:
        return None
    gpu = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=named or gpu)
    except (RuntimeError, AssertionError):  # the latter where torch is built without CUDA
        cure = "give another --device, such as cpu, or start no more processes than there are GPUs"
        raise UserError(f"{named or gpu}: not a device of this machine", cure=cure) from None
    return named or gpu


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())

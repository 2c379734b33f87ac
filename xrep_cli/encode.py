"""xrep-encode: write the sentence vectors of the lines of a text to a .npy file."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from xrep.errors import UserError
from xrep.files import check_output
from xrep_cli.common import (
    SHARE_DONE,
    TEXT_HELP,
    add_engine_options,
    add_shared_options,
    check_outputs,
    check_shared,
    choose_device,
    command_parser,
    command_script,
    is_streamed,
    output_file,
    print_result,
    say_if_slow,
    values_of,
)

DESCRIPTION = """\
Encode each line of a text file: row i of the output is the vector of line i.

  xrep-encode --path run1/best --lang de --input lines.txt.gz --output vectors.npy
  xrep-encode --path all-MiniLM-L6-v2/ --input lines.txt --output vectors.npy --precision bfloat16 --dtype float16
  xrep-encode --path run1/best --lang de --input lines.txt.gz --output vectors/
  xrep-encode --path run1/best --lang de --input 's3://bucket/de/*.zst' --output s3://bucket/vectors/de --engine ray
  sbatch --array=0-63 --wrap "xrep-encode ... --output vectors/ --engine slurm"

An output that ends in .npy is one file: read it with numpy.load("vectors.npy", mmap_mode="r"). Any other name is a
folder of parts and a manifest, which names the encoder, the language and a checksum of the text. xrep-mine and
--teacher-vectors of xrep-train read both. The text may have any number of lines; memory does not grow with it. If the
command is interrupted, repeat it: it continues where it stopped and writes the same vectors, also with another engine.
Files and folders may be in an object store (s3://, gs://); a pattern names several files, one after the other."""


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-encode", DESCRIPTION)
    add = parser.add_argument
    add("--path", required=True, metavar="ENCODER", help="a checkpoint, a directory of Hugging Face or "
        "sentence-transformers, or a name in the local Hugging Face cache")  # fmt: skip
    add("--input", required=True, metavar="FILE", help=TEXT_HELP)
    add("--output", required=True, metavar="FILE.npy|FOLDER", help="where to write the vectors, [lines, size]; - is "
        "standard output")  # fmt: skip
    add("--lang", metavar="CODE", help="language of the lines; needed if the encoder has a tower for each side")
    add("--dtype", choices=("float32", "float16"), default="float32", help="type of the vectors in the file")
    add("--no-normalize", action="store_true", help="write the vectors as the model gives them, not scaled to length 1")
    add_shared_options(parser, "--batch-tokens", "--precision", "--device", "--plugin")
    add_engine_options(parser)
    add("--json", action="store_true", help="print a summary as JSON")
    return parser


def _main(options: argparse.Namespace) -> None:
    from xrep.inference.encoding import encode_file
    from xrep.inference.sentence_encoder import SentenceEncoder
    from xrep.jobs.engines import Engine
    from xrep.store.addresses import is_local, matching
    from xrep.text.readers import read_text

    output, engine = options.output, Engine(**values_of(options, Engine))
    streamed, ending = is_streamed(output), Path(output).suffix
    parts = ending != ".npy" and not streamed
    if parts and ending and not Path(output).is_dir():
        cure = "give a name that ends in .npy, or that of a folder, which has no dot"
        raise UserError("the output is a .npy file or a folder", path=output, cure=cure)
    if output == "-" and options.json:
        raise UserError("`json` and the vectors both go to standard output", cure="name an `output` file")
    sources = matching(options.input)
    check_shared(engine, {"`output`": output}, sources)
    if parts and is_local(output):
        check_output(output, folder=True)
    elif not parts:
        check_outputs({"`output`": output}, {"`input`": sources}, anywhere=True)
    for source in sources:
        if not is_streamed(source):
            next(read_text(source, options.lang))  # to report errors in the file before the encoder is loaded
    device = choose_device(options.device)
    encoder = SentenceEncoder.load(options.path, device=device, dtype=options.precision)
    say_if_slow("xrep-encode", options.precision, device)
    with output_file(output) as path:
        done = encode_file(
            encoder,
            sources,
            path,
            lang=options.lang,
            dtype=options.dtype,
            batch_tokens=options.batch_tokens,
            normalize=not options.no_normalize,
            parts=parts,
            engine=engine,
        )
    if done is None:
        print(SHARE_DONE, file=sys.stderr)
        return
    if options.json:
        print(json.dumps({**asdict(done), "path": output if streamed else done.path}))
        return
    resumed = f", {done.resumed:,} of them before" if done.resumed else ""
    empty = f"; {done.empty_lines:,} lines were empty" if done.empty_lines else ""
    speed = (done.lines - done.resumed) / max(done.seconds, 1e-9)
    shape = f"[{done.lines}, {done.size}] {options.dtype}"
    said = f"{done.lines:,} lines{resumed}, {speed:,.0f} a second, {shape}{empty}"
    print_result(said, output, done.path)


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

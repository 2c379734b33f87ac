"""xrep-encode: write the sentence vectors of the lines of a text to a .npy file."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from xrep.errors import UserError
from xrep.files import check_output
from xrep.store.addresses import is_local, matching_files
from xrep_cli import common
from xrep_cli.command import Command


def is_folder_name(output: str) -> bool:
    return Path(output).suffix != ".npy" and not common.is_streamed(output)


def check(output: str) -> None:
    """Raise UserError if it is no .npy file, and no folder of parts, whose name has no ending; or cannot be written."""
    if Path(output).suffix and not Path(output).is_dir() and is_folder_name(output):
        cure = "give a name that ends in .npy, or that of a folder, which has no dot"
        raise UserError("the output is a .npy file or a folder", path=output, cure=cure)
    if is_local(output):
        check_output(output, folder=is_folder_name(output))


@dataclass(kw_only=True)
class Options(common.Computing, common.Batches, common.PromptOptions, common.JsonOption):
    """Encode each line of a text file: row i of the output is the vector of line i.

      # Write the vectors of a German text
      xrep-encode --path run1/best --lang de --input lines.txt.gz --output vectors.npy
      # Compute with a pretrained encoder in bfloat16, and write float16
      xrep-encode --path all-MiniLM-L6-v2/ --input lines.txt --output vectors.npy --precision bfloat16 --dtype float16
      # Share a large text among the machines of a cluster
      xrep-encode --path run1/best --lang de --input 's3://bucket/de/*.zst' --output s3://bucket/vectors/de --engine ray

    An output that ends in .npy is one file: read it with numpy.load("vectors.npy", mmap_mode="r"). Any other name is a
    folder of parts and a manifest, which names the encoder, the language and a checksum of the text. xrep-mine and
    --teacher-vectors of xrep-train read both. The text may have any number of lines; memory does not grow with it. If
    the command is interrupted, repeat it: it continues where it stopped and writes the same vectors, also with another
    engine. Files and folders may be in an object store (s3://, gs://); a pattern names several files, one after the
    other."""

    path: common.EncoderPath
    input: common.TextInput
    output: Annotated[str, common.Option(metavar="FILE.npy|FOLDER", writes=check)]
    """Where to write the vectors, [lines, size]; - is standard output."""
    lang: common.Language | None = None
    """Language of the lines; needed if the encoder has a tower for each side."""
    dtype: Literal["float32", "float16"] = "float32"
    """Type of the vectors in the file."""
    normalize: bool = True
    """Write the vectors as the model gives them, not scaled to length 1."""
    processes: common.Jobs


def run(options: Options) -> None:
    from xrep.inference.encoding import EncodedText, encode_file

    sources = matching_files(options.input)
    common.check_text(sources, options.lang)
    encoder = common.load_encoder(options)
    how: dict[str, Any] = {name: getattr(options, name) for name in ("lang", "dtype", "batch_tokens", "normalize")}
    how |= {"parts": is_folder_name(options.output), "engine": options.processes}

    def said(done: EncodedText) -> str:
        resumed = f", {done.resumed:,} of them before" if done.resumed else ""
        empty = f"; {done.empty_lines:,} lines were empty" if done.empty_lines else ""
        speed = (done.lines - done.resumed) / max(done.seconds, 1e-9)
        lines = f"{done.lines:,} lines{resumed}, {speed:,.0f} a second"
        return f"{lines}, [{done.lines}, {done.size}] {options.dtype}{empty}"

    common.write_output(options, lambda path: encode_file(encoder, sources, path, **how), said)


main = Command("xrep-encode", Options, run)

if __name__ == "__main__":
    sys.exit(main())

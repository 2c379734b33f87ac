"""Kinds of options: how they are written, what is checked before the work, and options that several commands have."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.files import check_output, is_stream, json_text, write_aside
from xrep.interrupts import saving_nothing
from xrep.jobs.work import Engine, number_from, share_of
from xrep.number_types import Precision
from xrep.store import addresses
from xrep.store.addresses import is_local


@dataclass(frozen=True, kw_only=True)
class Option:
    """How a field is written, where its name and its type do not tell: ``Annotated[str, Option(metavar="CODE")]``."""

    metavar: str = ""
    help: str = ""
    """What is said of every option of this kind, behind the string under the field."""
    flag: str = ""
    """Its name, such as ``-k``, if it is not that of the field."""
    positional: bool = False
    """Whether it is given without a name."""
    nargs: str | int = ""
    """Number of values, as in argparse; 1 for a list whose values are given one by one: ``--path a --path b``."""
    const: Any = None
    """The value of an option that is given without one, which ``nargs="?"`` permits."""
    reads: Callable[[str], Sequence[str]] | None = None
    """Function that returns the files to read which a value names."""
    writes: Callable[[str], None] | None = None
    """Function that raises UserError if the file that a value names, other than ``-``, cannot be written."""


@dataclass(frozen=True, kw_only=True)
class OptionGroup:
    """Options that are fields of another dataclass, the type of this field, of which the command gets an instance.

    A field that the command has itself is no second option: it gets the command's value.
    """

    title: str = ""
    """Heading of their own group in the help."""
    description: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    """Names of options that are not those of their fields."""
    without: Sequence[str] = ()
    """Fields that are no options and keep their defaults."""


# -- options that several commands have -------------------------------------------------------------------------------


def itself(file: str) -> Sequence[str]:
    return [file]


def bitext_files(text: str) -> Sequence[str]:
    """Return the files of parallel text, which is written as ``de-en=x.de,x.en``."""
    from xrep.text.find import parse_bitext

    return parse_bitext(text).paths


def check_here(output: str) -> None:
    """Raise UserError if a file or a folder, which this machine writes, is named by an address of a store."""
    if not is_local(output):
        raise UserError("is in an object store", path=output, cure="write to this machine, and copy it")


def check_file(file: str) -> None:
    """Raise UserError if a file of text cannot be written on this machine."""
    from xrep.text.lines import check_packing

    check_here(file)
    check_output(file)
    check_packing(file)


def check_anywhere(file: str) -> None:
    """Raise UserError if a file on this machine cannot be written."""
    if is_local(file):
        check_output(file)


TEXT_HELP = (
    "Text with one sentence per line, or .jsonl, .csv, .parquet, .tmx, .xlf (FILE:FIELD names the field), or a .zip of "
    "these; also .gz, .bz2, .xz and .zst; or a data set, hf:NAME:SPLIT:COLUMN; - reads standard input."
)
PACKED_HELP = "A name that ends in .gz, .bz2, .xz or .zst writes it compressed."
ENCODER_HELP = (
    "A checkpoint, a directory of Hugging Face or sentence-transformers, or organisation/name, which is fetched from "
    "the Hugging Face Hub if it is not in the local cache."
)
InputFile = Annotated[str, Option(metavar="FILE", reads=itself)]
InputFiles = Annotated[list[str], Option(metavar="FILE", reads=itself)]
TextInput = Annotated[str, Option(metavar="FILE", help=TEXT_HELP, reads=itself)]
OutputFile = Annotated[str, Option(metavar="FILE", help=PACKED_HELP, writes=check_file)]
JsonFile = Annotated[str, Option(metavar="FILE", nargs="?", const="-", writes=check_anywhere)]
EncoderPath = Annotated[str, Option(metavar="ENCODER", help=ENCODER_HELP)]
Language = Annotated[str, Option(metavar="CODE")]
PROCESSES = OptionGroup(title="several processes", description="xrep-jobs status tells how far they are")
Jobs = Annotated[Engine, PROCESSES]
CLEANING = OptionGroup(
    title="cleaning",
    description="lengths are in words; a Chinese, Japanese or Thai character counts as half a word",
    flags={"minimum_length": "--min-length", "maximum_length": "--max-length",
           "maximum_length_ratio": "--max-length-ratio"},
)  # fmt: skip


@dataclass(kw_only=True)
class Plugins:
    plugin: Annotated[list[str], Option(metavar="MODULE", nargs=1)] = field(default_factory=list)
    """Import this module, which registers parts, such as the model (repeatable)."""


@dataclass(kw_only=True)
class Device(Plugins):
    device: str | None = None
    """cpu, cuda, cuda:1 and so on (default: a GPU if there is one)."""


@dataclass(kw_only=True)
class Computing(Device):
    precision: Precision = "float32"
    """Type in which the model computes; bf16 (bfloat16) is faster on GPUs and on most CPUs that have instructions for
    it (AMX, AVX512-BF16; other CPUs compute in float32), fp16 (float16) is for GPUs, int8 is for CPUs and faster than
    float32, and than bf16 where there is no AMX."""


@dataclass(kw_only=True)
class PromptOptions:
    prompt: Annotated[str, Option(metavar="TEXT")] | None = None
    """Text that is put in front of each sentence, such as the instruction that a decoder expects."""
    prompt_name: Annotated[str, Option(metavar="NAME")] | None = None
    """The encoder's prompt that is put in front of each sentence (default: the encoder's default)."""


@dataclass(kw_only=True)
class Batches:
    batch_tokens: Count = 4096
    """Number of subwords that the encoder reads at once."""


@dataclass(kw_only=True)
class JsonOption:
    json: JsonFile | None = None
    """Write a summary as JSON to this file; without a name, or with -, print it on standard output."""


# -- checks before the work ---------------------------------------------------------------------------------------


def choose_device(named: str | None, program: str, precision: str) -> str:
    """Return the named device, or else a GPU if there is one (one for each process of several), or else the CPU. Print
    a line on stderr if the precision is not faster than float32 there. Raises UserError if this machine has no such
    device."""
    import torch

    from xrep.kernels.precision import SLOW_BFLOAT16, multiplies_bfloat16

    several = number_from(os.environ, "WORLD_SIZE", 1) > 1
    gpu = f"cuda:{number_from(os.environ, 'LOCAL_RANK', 0)}" if several else "cuda"
    device = named or (gpu if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=device).item()  # the device "meta" makes tensors, but they hold nothing
    except (RuntimeError, AssertionError, ImportError):  # torch without CUDA raises an AssertionError
        cure = "choose another `device`, such as cpu"
        cure += ", or start no more processes than there are GPUs" if several else ""
        raise UserError(f"{device} is not a device of this machine", cure=cure) from None
    if precision in ("bf16", "bfloat16") and device == "cpu" and not multiplies_bfloat16():
        print(f"{program}: {SLOW_BFLOAT16}", file=sys.stderr)
    return device


def load_encoder(options: Any) -> Any:
    """Return the encoder of the options, a ``Computing`` with a path, with the prompt that they may choose."""
    from xrep.inference.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.load(options.path, device=options.device, dtype=options.precision)
    return encoder.use_prompt(options.prompt, options.prompt_name) if isinstance(options, PromptOptions) else encoder


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError if a file to write is one that is read, or to be written for another option, too; or if more than
    one goes to standard output. Both are named by their options; None is no file."""
    written = {name: file for name, file in outputs.items() if file is not None}
    if len(printed := [name for name, file in written.items() if file == "-"]) > 1:
        raise UserError(f"{' and '.join(printed)} both go to standard output", cure="name a file for one of them")
    taken = [(name, file) for name, files in inputs.items() for file in files]
    for name, file in written.items():
        for other, its_file in taken if not is_stream(file) else ():
            if "-" not in (file, its_file) and os.path.realpath(file) == os.path.realpath(its_file):
                raise UserError(f"{name} is the same file as {other}", path=file, cure="choose another name")
        taken.append((name, file))


def check_inputs(files: Iterable[str]) -> None:
    """Raise UserError if a file of this machine that is to be read is not there. Patterns are looked up later."""
    from xrep.text.hf_datasets import is_dataset
    from xrep.text.lines import container_of
    from xrep.text.records import split_field

    for file in files:
        path = str(split_field(file)[0])
        if path != "-" and not is_dataset(path) and not glob.has_magic(path):
            if is_local(path) and not container_of(Path(path)).exists():
                raise UserError("no such file", path=path, cure="check the name")


def check_text(files: Sequence[str], lang: str | None, **options: Any) -> None:
    """Report errors at the beginning of a text before a model is loaded."""
    from xrep.text.examples import read_text

    for file in files:
        if not is_streamed(file):
            next(read_text(file, lang, **options), None)


def aligned_text(spec: str) -> Any:
    """Return parallel text that will be read several times, after printing what ``orient`` says about its sides.
    Raises UserError if it is a sample, or a pipe, or names no language."""
    from xrep.text.examples import orient
    from xrep.text.find import parse_bitext
    from xrep.text.languages import check_language

    bitext = parse_bitext(spec)
    for language in bitext.languages:
        check_language(language, spec)
    if bitext.sample is not None:
        raise UserError("pairs are not sampled here", path=bitext.paths[0], cure=f"leave out @{bitext.sample}")
    for path in bitext.paths:
        if is_streamed(path):
            raise UserError("pairs are read several times", path=path, cure="give a file, not a pipe")
    bitext, note = orient(bitext)
    if note:
        print(note, file=sys.stderr)
    return bitext


def is_jsonl(options: Any) -> bool:
    """Return whether the lines of an output are JSON, as the option ``jsonl`` or its name says. Raises UserError if the
    name is that of a file of other records."""
    from xrep.text.records import check_format, ending_of

    check_format(options.output, ("jsonl",), usual="txt")
    return options.jsonl or ending_of(options.output) == "jsonl"


# -- results ----------------------------------------------------------------------------------------------------------


def is_streamed(output: str) -> bool:
    """Return whether an output goes to standard output, a device or a pipe, so that no later command can resume it."""
    return output == "-" or (is_local(output) and is_stream(output))


@contextmanager
def text_writer(output: str) -> Iterator[Callable[[str], object]]:
    """Context manager that yields a function to write text with, in UTF-8, whatever the locale says: into a file, which
    is compressed if its name says so and appears if the block succeeds, or at once to standard output, a device or a
    pipe."""
    if not is_streamed(output):
        from xrep.text.lines import packed

        with write_aside(output) as aside, packed(aside, output) as file:
            yield file.write
        return
    with nullcontext(sys.stdout.buffer) if output == "-" else open(output, "ab") as stream:
        yield lambda text: (stream.write(text.encode()), stream.flush())


def write_summary(values: Any, file: str | None, said: str = "") -> None:
    """Write what ``--json`` asks for: a file, or ``-`` for standard output; None writes nothing. What is ``said`` is
    printed, unless the JSON is there."""
    if file is not None and not is_local(file):
        addresses.write(file, json_text(values).encode())
    elif file is not None:
        with text_writer(file) as write:
            write(json_text(values))
    if said and file != "-":
        print(said)


SHARE_DONE = "nothing is left to do here: another process of this job writes the output, or has written it"
"""What a command says that shared its work with others, which complete it."""


def say_share_done(options: Any) -> None:
    """Say that nothing is left to do, and which files that were asked for beside the output are not written."""
    lacking = [f"--{name}" for name in ("json", "plot") if getattr(options, name, None)]
    said = [SHARE_DONE, *([f"{' and '.join(lacking)} will not be written by this process"] if lacking else [])]
    print("; ".join(said), file=sys.stderr)


def write_output(options: Any, write: Callable[[str], Any], said: Callable[[Any], str]) -> None:
    """Do a job that writes ``options.output``, tell of its result, and write that as ``options.json`` says.

    ``write(path)`` gets the file itself or, for ``-``, a device or a pipe, a temporary one that is copied there at the
    end; after Ctrl-C nothing of that is left, and the message says so. It returns a dataclass with the path, or None if
    another process completes the job. What may be mixed with the output or the summary on standard output is printed on
    stderr, or not at all. Raises UserError if several processes would write one stream.
    """
    output, streamed = options.output, is_streamed(options.output)
    if streamed and share_of(options.processes).count > 1:
        raise UserError(f"several processes cannot write one stream: {output}", cure="name a file as `output`")
    if streamed:
        with write_aside("/dev/stdout" if output == "-" else output) as aside, saving_nothing():
            done = write(str(aside))
    else:
        done = write(output)
    if done is None:
        say_share_done(options)
        return
    path = output if streamed else done.path
    write_summary({**asdict(done), "path": path}, options.json)
    if options.json != "-":
        print(said(done) if streamed else f"{said(done)}: {path}", file=sys.stderr if streamed else sys.stdout)

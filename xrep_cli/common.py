"""What the console scripts share: how they end, whatever goes wrong, and options that several of them have."""

from __future__ import annotations

import argparse
import errno
import functools
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from xrep import __version__
from xrep.errors import TrainingError, UserError


class ConsoleScript(Protocol):
    """Entry point that takes arguments, by default those in ``sys.argv``, and returns an exit code."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def console_script(function: Callable[[Sequence[str]], None]) -> ConsoleScript:
    """Turn ``function(argv)`` into an entry point that returns an exit code.

    ``UserError`` and file-system errors (a full disk, no permission) are printed as one line on stderr, with exit code
    2, ``TrainingError`` with exit code 1. Ctrl-C gives exit code 130, a closed pipe (``| head``) 141. Any other
    exception is a bug and keeps its traceback.
    """

    @functools.wraps(function)
    def main(argv: Sequence[str] | None = None) -> int:
        program = f"xrep-{function.__module__.rpartition('.')[2]}" if argv is not None else _program()
        try:
            function(sys.argv[1:] if argv is None else list(argv))
        except UserError as error:
            return _fail(program, str(error), 2)
        except TrainingError as error:
            return _fail(program, str(error), 1)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:
            return _fail(program, _describe(error), 2)
        except KeyboardInterrupt:
            return _fail(program, "interrupted", 130)
        return 0

    return main


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Make errors name the options of the command: replace the fields in backticks (`queue_size`) by their options.

    Args:
        options: Maps the name of a field to its option, such as ``--queue-size``. Other fields stay as they are.
    """
    try:
        yield
    except (UserError, TrainingError) as error:
        error.args = (re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[0]), str(error)),)
        raise


def command_script(
    build_parser: Callable[[], argparse.ArgumentParser], run: Callable[[argparse.Namespace], None]
) -> ConsoleScript:
    """Turn ``run(options)`` into an entry point that parses its arguments first; errors name the options."""

    @functools.wraps(run)
    def function(argv: Sequence[str]) -> None:
        options = build_parser().parse_args(argv)
        with naming_options(names_of(vars(options))):
            check_finite(vars(options))
            run(options)

    return console_script(function)


def check_finite(options: Mapping[str, Any]) -> None:
    """Raise UserError if an option is infinite or not a number."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"`{name}` must be finite, not {value}", cure="give a finite number")


def names_of(fields: Iterable[str]) -> dict[str, str]:
    """Map fields to the names of their options: ``queue_size`` to ``--queue-size``."""
    return {name: "--" + name.replace("_", "-") for name in fields}


def choose_device(named: str | None) -> str:
    """Return the named device, or else a GPU if there is one (one for each process of several), or else the CPU.

    Raises:
        UserError: This machine has no such device.
    """
    import torch

    several = int(os.environ.get("WORLD_SIZE", 1)) > 1
    gpu = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if several else "cuda"
    device = named or (gpu if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # torch without CUDA raises an AssertionError
        cure = "choose another --device, such as cpu"
        cure += ", or start no more processes than there are GPUs" if several else ""
        raise UserError(f"{device} is not a device of this machine", cure=cure) from None
    return device


def say_if_slow(program: str, precision: str, device: str) -> None:
    """Print a line on stderr if ``precision`` is not faster than float32 on ``device``."""
    from xrep.kernels.processor import SLOW_BFLOAT16, multiplies_bfloat16

    if precision == "bfloat16" and device == "cpu" and not multiplies_bfloat16():
        print(f"{program}: {SLOW_BFLOAT16}", file=sys.stderr)


def limit_kept_products() -> None:
    """Keep torch and oneDNN from storing what they compile for each size of a product; call it before the first one.

    Each stores the last 1,024 products, at over a megabyte each. The batches of a long text have hundreds of sizes, of
    which a batch needs few, and the next batch rarely the same.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "16")


SHARED_OPTIONS: dict[str, dict[str, Any]] = {
    "--batch-tokens": {
        "type": int,
        "default": 4096,
        "metavar": "N",
        "help": "number of subwords that the encoder reads at once",
    },
    "--precision": {
        "choices": ("float32", "bfloat16"),
        "default": "float32",
        "help": "type in which the model computes; bfloat16 is faster on GPUs and on most CPUs that have instructions "
        "for it (AMX, AVX512-BF16)",
    },
    "--device": {"help": "cpu, cuda, cuda:1 and so on (default: a GPU if there is one)"},
    "--plugin": {
        "metavar": "MODULE",
        "action": "append",
        "default": [],
        "help": "import this module, which registers the model (repeatable)",
    },
}
"""Options of several commands, as arguments of ``add_argument``."""


def add_shared_options(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, **SHARED_OPTIONS[name])


def check_outputs(outputs: Mapping[str, str | None], inputs: Mapping[str, str | Sequence[str] | None]) -> None:
    """Check before the work that the files of a command can be written and that they are not among its inputs.

    Args:
        outputs: Maps options to the files they name; None and ``-`` (standard output) are ignored.
        inputs: Maps options, or other names, to the files that are read.

    Raises:
        UserError: One of the outputs cannot be written, or is the same file as an input or as another output.
    """
    from xrep.files import check_output, is_stream, same_file

    lists = {name: [files] if isinstance(files, str) else files or () for name, files in inputs.items()}
    taken = [(name, file) for name, files in lists.items() for file in files if file != "-"]
    for option, file in outputs.items():
        if file in (None, "-"):
            continue
        check_output(file)
        for other, its_file in taken if not is_stream(file) else ():
            if same_file(file, its_file):
                raise UserError(f"{option} is the same file as {other}", path=file, cure="choose another name")
        taken.append((option, file))


def write_summary(values: dict[str, Any], file: str | None) -> None:
    """Write what ``--json`` asks for: a file, or ``-`` for standard output; None writes nothing."""
    from xrep.files import write_json

    if file == "-":
        print(json.dumps(values, indent=2, ensure_ascii=False))
    elif file is not None:
        write_json(file, values)


VERSION = f"xrep {__version__}"
"""What ``--version`` of every command prints."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that keeps the line breaks of a description and prints every default that is not empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def command_parser(program: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for a console script, which prints its help as ``HelpFormatter`` does and knows ``--version``."""
    parser = argparse.ArgumentParser(program, None, description, epilog, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=VERSION, help="print the version of xrep and stop")
    return parser


def _program() -> str:
    """Return the name of the command as it was typed; ``python -m xrep_cli.train`` is xrep-train."""
    path = Path(sys.argv[0])
    return f"xrep-{path.stem}" if path.suffix == ".py" else path.name


def _describe(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    cures = {errno.ENOSPC: "; free some space and run the command again", errno.EDQUOT: "; your quota is used up"}
    return f"{where}{error.strerror or error}{cures.get(error.errno or 0, '')}"


def _fail(program: str, message: str, code: int) -> int:
    for line in message.splitlines():
        print(f"{program}: error: {line}", file=sys.stderr)
    return code

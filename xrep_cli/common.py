"""What every console script shares: one way to end, whatever goes wrong."""

from __future__ import annotations

import argparse
import errno
import functools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from xrep import __version__
from xrep.errors import TrainingError, UserError


class ConsoleScript(Protocol):
    """An entry point: its exit code, of the arguments given or else of those in ``sys.argv``."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def console_script(function: Callable[[Sequence[str]], None]) -> ConsoleScript:
    """Turn ``function(argv)`` into an entry point that returns an exit code.

    ``UserError`` and file-system errors (a full disk, no permission) are one line on stderr and exit code 2;
    ``TrainingError`` is one line and exit code 1; Ctrl-C is exit code 130; a closed pipe (``| head``) is 141. Anything
    else is a bug and keeps its traceback.
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


def choose_device(named: str | None) -> str:
    """The device as named, else a GPU if there is one; after a look that it is there.

    Raises:
        UserError: this machine has no such device.
    """
    import torch

    device = named or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # the latter where torch is built without CUDA
        raise UserError(f"{device}: not a device of this machine", cure="give another --device, such as cpu") from None
    return device


def say_if_slow(program: str, precision: str, device: str) -> None:
    """Print a line on stderr if ``precision`` is no faster than float32 on ``device``, which is this processor."""
    from xrep.kernels.processor import SLOW_BFLOAT16, multiplies_bfloat16

    if precision == "bfloat16" and device == "cpu" and not multiplies_bfloat16():
        print(f"{program}: {SLOW_BFLOAT16}", file=sys.stderr)


VERSION = f"xrep {__version__}"
"""What ``--version`` of every command prints."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the examples of a description as they are and prints each default that says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def command_parser(program: str, description: str, epilog: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for a console script, which prints its help as ``HelpFormatter`` does and knows ``--version``."""
    parser = argparse.ArgumentParser(program, None, description, epilog, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=VERSION, help="print the version of xrep and stop")
    return parser


def _program() -> str:
    """Name of the command as it was typed; ``python -m xrep_cli.train`` is xrep-train."""
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

"""What all console scripts share: exit codes, error messages and the form of the help."""

from __future__ import annotations

import argparse
import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from xrep.errors import TrainingError, UserError


class ConsoleScript(Protocol):
    """An entry point, which returns the exit code. Without ``argv`` it reads the arguments in ``sys.argv``."""

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


def choose_device(named: str | None) -> str:
    """Return the named device; without a name a GPU if there is one, otherwise the CPU.

    Raises:
        UserError: this machine has no such device.
    """
    import torch

    device = named or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):  # the latter where torch is built without CUDA
        raise UserError(
            f"{device} is not a device of this machine", cure="choose another --device, such as cpu"
        ) from None
    return device


def say_if_slow(program: str, precision: str, device: str) -> None:
    """Print a line on stderr if ``precision`` is not faster than float32 on ``device``."""
    from xrep.kernels.processor import SLOW_BFLOAT16, multiplies_bfloat16

    if precision == "bfloat16" and device == "cpu" and not multiplies_bfloat16():
        print(f"{program}: {SLOW_BFLOAT16}", file=sys.stderr)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Prints descriptions as they are, and the default of each option unless it is None, False or an empty list."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def _program() -> str:
    """Return the name of the command as it was typed; that of ``python -m xrep_cli.train`` is xrep-train."""
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

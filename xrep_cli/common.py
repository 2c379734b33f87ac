"""What the console scripts share: how they end, whatever goes wrong, and options that several of them have."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import functools
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

from xrep import __version__
from xrep.config.fields import FieldSpec, choices, convert, members, read_fields
from xrep.errors import TrainingError, UserError
from xrep.files import check_output, is_stream, json_text, same_file, write_aside, write_json
from xrep.interrupts import saving_nothing
from xrep.registry import import_plugin, nearest
from xrep.store import addresses
from xrep.store.addresses import is_local

ConsoleScript = Callable[..., int]
"""Entry point that takes arguments, by default those in ``sys.argv``, and returns an exit code."""


def console_script(function: Callable[[Sequence[str]], None]) -> ConsoleScript:
    """Turn ``function(argv)`` into an entry point that returns an exit code.

    ``UserError``, file-system errors (a full disk, no permission) and a lack of memory are printed as one line on
    stderr, with exit code 2, ``TrainingError`` with exit code 1. Ctrl-C gives exit code 130, a closed pipe (``| head``)
    141. Any other exception is a bug and keeps its traceback.
    """

    @functools.wraps(function)
    def main(argv: Sequence[str] | None = None) -> int:
        if isinstance(sys.stdout, io.TextIOWrapper):  # what the terminal cannot show becomes an escape
            sys.stdout.reconfigure(errors="backslashreplace")
        program = _command(function.__module__.rpartition(".")[2]) if argv is not None else _program()
        message, code = "", 0
        try:
            try:
                function(sys.argv[1:] if argv is None else list(argv))
            except SystemExit:  # after --help
                sys.stdout.flush()
                raise
            sys.stdout.flush()
        except BrokenPipeError:
            code = 141
        except KeyboardInterrupt as stop:  # Interrupted says what is saved
            message, code = "; ".join(filter(None, ["interrupted", str(stop)])), 130
        except TrainingError as error:
            message, code = str(error), 1
        except UserError as error:
            message, code = str(error), 2
        except OSError as error:
            message, code = _describe(error), 2
        except MemoryError as error:
            message, code = f"not enough memory ({error or 'without details'}); use less at once, or less data", 2
        for line in message.split("\n") if message else ():
            print(f"{program}: error: {line}", file=sys.stderr)
        if code:
            _discard_output()
        return code

    return main


def _discard_output() -> None:
    """Keep Python from writing what a command that failed has left in the buffer of stdout, which may fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Make errors name the options of the command: the fields in backticks (`queue_size`) are replaced by their
    ``options`` (``--queue-size``). Other fields stay as they are."""
    try:
        yield
    except (UserError, TrainingError) as error:
        error.args = (re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[0]), str(error)),)
        raise


def command_script(
    build_parser: Callable[[], argparse.ArgumentParser], run: Callable[[argparse.Namespace], None]
) -> ConsoleScript:
    """Turn ``run(options)`` into an entry point that parses its arguments and imports the plugins that they name first.
    Errors name the options."""

    @functools.wraps(run)
    def function(argv: Sequence[str]) -> None:
        limit_kept_products()
        parser = build_parser()
        options = parser.parse_args(argv)
        for plugin in vars(options).get("plugin", ()):
            import_plugin(plugin)
        named = [action for action in _actions(parser, options) if action.option_strings]
        names = {action.dest: action.option_strings[-1] for action in named}
        names |= {option.strip("-").replace("-", "_"): option for option in names.values()}
        with naming_options(names):
            check_counts(vars(options))
            run(options)

    return console_script(function)


COUNTS = (
    "batch_tokens", "buffer_lines", "cpus_per_worker", "k", "max_tokens", "neighbours", "parallel", "probes", "workers",
)  # fmt: skip
"""Options of commands that are numbers of something, at least 1."""


def check_counts(options: Mapping[str, Any]) -> None:
    """Raise UserError if one of the ``COUNTS`` is below 1."""
    for name in COUNTS:
        if isinstance(value := options.get(name), int) and value < 1:
            raise UserError(f"`{name}` {value}", cure="give at least 1")


def _actions(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[argparse.Action]:
    """Yield the options of a parser and of the subcommand that was chosen, if any."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction) and vars(options)[action.dest] is not None:
            yield from _actions(action.choices[vars(options)[action.dest]], options)


def choose_device(named: str | None) -> str:
    """Return the named device, or else a GPU if there is one (one for each process of several), or else the CPU. Raises
    UserError if this machine has no such device."""
    import torch

    from xrep.jobs.work import number_from

    several = number_from(os.environ, "WORLD_SIZE", 1) > 1
    gpu = f"cuda:{number_from(os.environ, 'LOCAL_RANK', 0)}" if several else "cuda"
    device = named or (gpu if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=device).item()  # the device "meta" makes tensors, but they hold nothing
    except (RuntimeError, AssertionError, ImportError):  # torch without CUDA raises an AssertionError
        cure = "choose another `device`, such as cpu"
        cure += ", or start no more processes than there are GPUs" if several else ""
        raise UserError(f"{device} is not a device of this machine", cure=cure) from None
    return device


def say_if_slow(program: str, precision: str, device: str) -> None:
    """Print a line on stderr if ``precision`` is not faster than float32 on ``device``."""
    from xrep.kernels.processor import SLOW_BFLOAT16, multiplies_bfloat16

    if precision in ("bf16", "bfloat16") and device == "cpu" and not multiplies_bfloat16():
        print(f"{program}: {SLOW_BFLOAT16}", file=sys.stderr)


def limit_kept_products() -> None:
    """Keep torch and oneDNN from storing what they compile for each size of a product; call it before the first one.

    Each stores the last 1,024 products, at over a megabyte each. The batches of a long text have hundreds of sizes, of
    which a batch needs few, and the next batch rarely the same.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "16")


SHARED_OPTIONS: dict[str, dict[str, Any]] = {
    "--batch-tokens": {"type": int, "default": 4096, "metavar": "N", "help": "number of subwords that the encoder "
        "reads at once"},
    "--precision": {"choices": ("float32", "bf16", "bfloat16", "fp16", "float16", "int8"), "default": "float32",
        "help": "type in which the model computes; bf16 (bfloat16) is faster on GPUs and on most CPUs that have "
        "instructions for it (AMX, AVX512-BF16), fp16 (float16) is for GPUs, int8 is for CPUs and faster than float32, "
        "and than bf16 where there is no AMX"},
    "--device": {"help": "cpu, cuda, cuda:1 and so on (default: a GPU if there is one)"},
    "--plugin": {"metavar": "MODULE", "action": "append", "default": [], "help": "import this module, which registers "
        "parts, such as the model (repeatable)"},
}  # fmt: skip
"""Options of several commands, as arguments of ``add_argument``."""


def add_shared_options(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, **SHARED_OPTIONS[name])


def add_field(parser: argparse._ActionsContainer, spec: FieldSpec, name: str | None = None) -> None:
    """Add the option that a field of a dataclass describes: its type, range, choices, default and help.

    Args:
        name: Name of the option without ``--``, if it is not that of the field.
    """
    kind, metavar = members(spec.annotation)[0], spec.name.rpartition("_")[2].upper()
    read = functools.partial(_convert, annotation=spec.annotation)
    options: dict[str, Any] = {"help": spec.help.replace("%", "%%"), "dest": spec.name}
    options |= {"required": True} if spec.default is dataclasses.MISSING else {"default": spec.default}
    if kind is bool:
        options["action"] = "store_true"
    elif choices(kind):
        options["choices"] = choices(kind)
    elif kind == list[str]:
        options |= {"action": "extend", "nargs": "+", "metavar": metavar}
    else:
        options |= {"type": read, "metavar": {int: "N", float: "X"}.get(kind, metavar)}
    parser.add_argument("--" + (name or spec.name.replace("_", "-")), **options)


def add_engine_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options that say which processes share the work: those of these names, or all."""
    group = parser.add_argument_group("several processes", "xrep-jobs status tells how far they are")
    for spec in read_fields("", "xrep.jobs.engines:Engine"):
        if not names or spec.name in names:
            add_field(group, spec)


def check_shared(engine: Any, outputs: Mapping[str, str], inputs: Sequence[str | Path | None]) -> None:
    """Raise UserError if several processes share what only one can write, or read only once."""
    from xrep.jobs.work import share_of

    if share_of(engine).count == 1:
        return
    for option, output in outputs.items():
        if is_streamed(output):
            raise UserError(f"several processes cannot write one stream: {output}", cure=f"name a file as {option}")
    for file in inputs:
        if file is not None and is_streamed(str(file)):
            problem = "several processes cannot share what can be read once only"
            raise UserError(problem, path=file, cure="name a file")


SHARE_DONE = "nothing is left to do here: another process of this job writes the output, or has written it"
"""What a command says that shared its work with others, which complete it."""


def values_of(options: argparse.Namespace, cls: type) -> dict[str, Any]:
    """Return the options that are fields of a dataclass."""
    return {field.name: vars(options)[field.name] for field in dataclasses.fields(cls) if field.name in options}


def check_outputs(
    outputs: Mapping[str, str | None],
    inputs: Mapping[str, str | Sequence[str] | None],
    *,
    anywhere: bool = False,
) -> None:
    """Check before the work that the files of a command can be written and that they are not among its inputs.

    Args:
        outputs: Maps options to the files they name; None and ``-`` (standard output) are ignored.
        inputs: Maps options, or other names, to the files that are read.
        anywhere: Whether the command can write to an object store.

    Raises:
        UserError: One of the outputs cannot be written, or is the same file as an input or as another output.
    """
    lists = {name: [files] if isinstance(files, str) else files or () for name, files in inputs.items()}
    taken = [(name, file) for name, files in lists.items() for file in files if file != "-"]
    for option, file in outputs.items():
        if file is None or file == "-":
            continue
        if is_local(file):
            check_output(file)
        elif not anywhere:
            problem = f"{option} cannot be in an object store"
            raise UserError(problem, path=file, cure="write it to this machine, and copy it")
        for other, its_file in taken if not is_stream(file) else ():
            if same_file(file, its_file):
                raise UserError(f"{option} is the same file as {other}", path=file, cure="choose another name")
        taken.append((option, file))


TEXT_HELP = (
    "text with one sentence per line, or .jsonl, .csv, .parquet, .tmx, .xlf (FILE:FIELD names the field), or a .zip of "
    "these; also .gz, .bz2, .xz and .zst; - reads standard input"
)
"""Help of options that name a text."""


def is_streamed(output: str) -> bool:
    """Return whether an output goes to standard output, a device or a pipe, so that no later command can resume it."""
    return output == "-" or (is_local(output) and is_stream(output))


def print_result(text: str, output: str, path: object) -> None:
    """Print a line about what was written: with its path or, if it may have gone to standard output, on stderr."""
    streamed = is_streamed(output)
    print(text if streamed else f"{text}: {path}", file=sys.stderr if streamed else sys.stdout)


@contextmanager
def output_file(named: str) -> Iterator[str]:
    """Context manager that yields the path to write to: the file itself or, for ``-``, a device or a pipe, a temporary
    one that is copied there if the block succeeds. After Ctrl-C nothing of that is left, and the message says so."""
    if not is_streamed(named):
        yield named
        return
    if named != "-":
        with write_aside(named) as aside, saving_nothing():
            yield str(aside)
        return
    with tempfile.TemporaryDirectory() as folder, saving_nothing():
        yield str(Path(folder) / "output")
        sys.stdout.flush()
        with open(Path(folder) / "output", "rb") as content:
            shutil.copyfileobj(content, sys.stdout.buffer)


@contextmanager
def text_writer(output: str) -> Iterator[Callable[[str], object]]:
    """Context manager that yields a function to write text with: into a file, which appears if the block succeeds, or
    at once to standard output, a device or a pipe; in UTF-8, whatever the locale says."""
    streamed = is_streamed(output)
    with nullcontext(output) if streamed else write_aside(output) as path:
        opened = nullcontext(sys.stdout.buffer) if output == "-" else open(path, "ab" if streamed else "wb")
        with opened as file:
            yield lambda text: (file.write(text.encode()), file.flush())


def write_summary(values: Any, file: str | None) -> None:
    """Write what ``--json`` asks for: a file, or ``-`` for standard output; None writes nothing."""
    if file == "-":
        print(json_text(values), end="")
    elif file is not None and not is_local(file):
        addresses.write(file, json_text(values).encode())
    elif file is not None:
        write_json(file, values)


VERSION = f"xrep {__version__}"
"""What ``--version`` of every command prints."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that keeps the line breaks of a description and prints every default that is not empty."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Parser whose errors are UserErrors, and whose values are those that a field of their type can have."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for kind in (None, str, int, float):
            self.register("type", kind, functools.partial(_convert, annotation=kind or str))

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        cure = nearest(unknown[1], self.options()) if unknown else ""
        raise UserError(message, cure=cure or f"{self.prog} --help lists the options")

    def options(self) -> list[str]:
        """Return the names of all options, also of the commands below this one."""
        below = [parser for action in self._actions if isinstance(action, argparse._SubParsersAction)
                 for parser in action.choices.values()]  # fmt: skip
        own = [name for action in self._actions for name in action.option_strings]
        return list(dict.fromkeys([*own, *(name for parser in below for name in parser.options())]))


def _convert(text: str, annotation: Any) -> Any:
    try:
        return convert(text, annotation)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def command_parser(program: str, description: str, epilog: str | None = None) -> Parser:
    """Return a parser for a console script, which prints its help as ``HelpFormatter`` does and knows ``--version``."""
    parser = Parser(program, None, description, epilog, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=VERSION, help="print the version of xrep and stop")
    return parser


def _program() -> str:
    """Return the name of the command as it was typed; ``python -m xrep_cli.train`` is xrep-train."""
    path = Path(sys.argv[0])
    return _command(path.stem) if path.suffix == ".py" else path.name


def _command(module: str) -> str:
    """Return the name of the command of a module of ``xrep_cli``; ``python -m xrep`` is xrep."""
    return "xrep" if module in ("xrep", "__main__") else f"xrep-{module}"


def _describe(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    cures = {
        errno.ENOSPC: "; free some space and run the command again",
        errno.EDQUOT: "; your quota is used up",
    }
    return f"{where}{error.strerror or error}{cures.get(error.errno or 0, '')}"

"""What a command is, a dataclass of options and a function that takes one; and how it ends, whatever goes wrong."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import functools
import io
import os
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from typing import Any, NoReturn

from xrep.config.fields import FieldSpec, choices, convert, fields_of_class, members
from xrep.errors import TrainingError, UserError
from xrep.registry import import_plugin, nearest
from xrep.version import __version__
from xrep_cli import common
from xrep_cli.common import Option, OptionGroup

VERSION = f"xrep {__version__}"
"""What ``--version`` of every command prints."""
ConsoleScript = Callable[..., int]
"""Entry point that takes arguments, by default those in ``sys.argv``, and returns an exit code."""
CURES = {
    errno.EACCES: "choose another place, or ask for its permissions",
    errno.EEXIST: "remove it, or choose another name",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f), or choose another file system",
    errno.ENOSPC: "make room on this file system, or choose another one",
    errno.ENOTDIR: "a folder of this path is a file; choose another name",
}
"""What helps against errors of the file system."""


# -- how a command ends -----------------------------------------------------------------------------------------------


def console_script(program: str) -> Callable[[Callable[[Sequence[str]], None]], ConsoleScript]:
    """Turn ``function(argv)`` into an entry point; ``program`` is the name in its errors. See ``exit_code``."""
    return lambda function: functools.partial(exit_code, program, function)


def exit_code(program: str, function: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Call ``function(argv)``, by default with ``sys.argv``, and return the exit code of the program.

    ``UserError``, file-system errors (a full disk, no permission) and a lack of memory are printed as one line on
    stderr, with exit code 2, ``TrainingError`` with exit code 1. Ctrl-C gives exit code 130, a closed pipe (``| head``)
    141, and another signal that ends a command before its work is done 128 + its number. Any other exception is a bug
    and keeps its traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # what the terminal cannot show becomes an escape
        sys.stdout.reconfigure(errors="backslashreplace")
    message, code = "", 0
    try:
        try:
            function(sys.argv[1:] if argv is None else list(argv))
        finally:  # also after --help
            sys.stdout.flush()
    except BrokenPipeError:
        code = 141
    except KeyboardInterrupt as stop:  # Interrupted says what is saved
        message, code = "; ".join(filter(None, ["interrupted", str(stop)])), 130
    except (TrainingError, UserError) as error:
        message, code = str(error), 1 if isinstance(error, TrainingError) else 2
    except OSError as error:
        named = ": ".join(filter(None, [error.filename, error.strerror or str(error)]))
        message, code = "; ".join(filter(None, [named, CURES.get(error.errno or 0)])), 2
    except MemoryError as error:
        message, code = f"not enough memory ({error or 'without details'}); use less at once, or less data", 2
    for line in filter(None, message.split("\n")):
        print(f"{program}: error: {line}", file=sys.stderr)
    try:  # Python writes what a command that failed has left in the buffer of stdout, which may fail again
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


@contextmanager
def naming_options(options: Mapping[str, str]) -> Iterator[None]:
    """Make errors name the options of the command: the fields in backticks (`queue_size`) are replaced by their
    ``options`` (``--queue-size``). Other fields stay as they are."""
    try:
        yield
    except (UserError, TrainingError) as error:
        error.args = (re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[0]), str(error)),)
        raise


# -- how its options are read -----------------------------------------------------------------------------------------


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that keeps the line breaks of a description, names in the usage only what must be given, because the
    list of options follows, and prints every default that is not empty."""

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None) -> None:
        needed = [action for action in actions if _is_named(action)]
        others = [argparse.Action([], "options", metavar="[options]")] if len(needed) < len([*actions]) else []
        super().add_usage(usage, [*needed, *others], [] if others else groups, prefix)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_shown = action.default not in (None, []) and not isinstance(action.default, bool)
        return super()._get_help_string(action) if is_shown else action.help


def _is_named(action: argparse.Action) -> bool:
    """Return whether the usage names an option or a place: what may be left out is among "[options]"."""
    return action.required or not (action.option_strings or isinstance(action, argparse._SubParsersAction))


class Parser(argparse.ArgumentParser):
    """Parser whose errors are UserErrors."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        lacking = re.match(r"argument (--[\w.-]+): expected", message)
        cure = unknown and nearest(unknown[1], self.options())
        cure = f"write {lacking[1]}=VALUE if it begins with a dash" if lacking else cure
        raise UserError(message, cure=cure or f"{self.prog} --help lists the options")

    def options(self) -> list[str]:
        """Return the names of all options."""
        return [name for action in self._actions for name in action.option_strings]


class Once(argparse.Action):
    """Option that names files and takes one value, so that of two values the first would be dropped silently."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            raise UserError(f"{option_string} is given twice", cure="give it once")
        setattr(namespace, self.dest, values)


def command_parser(program: str, description: str) -> Parser:
    """Return a parser for a console script, which prints its help as ``HelpFormatter`` does and knows ``--version``."""
    parser = Parser(program, description=description, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=VERSION, help="print the version of xrep and stop")
    return parser


def add_option(parser: argparse._ActionsContainer, spec: FieldSpec, how: Option) -> None:
    """Add the option that a field describes: its type, choices, default and help. A field that is true by default is
    the option ``--no-NAME``, and its help says what that does."""
    kind, off, required = members(spec.annotation)[0], spec.default is True, spec.default is dataclasses.MISSING
    flag = spec.name if how.positional else how.flag or f"--{'no-' * off}{spec.name.replace('_', '-')}"
    settings: dict[str, Any] = {"help": " ".join(filter(None, [spec.help, how.help])).replace("%", "%%")}
    settings |= {} if how.positional else {"dest": spec.name, "required": required}
    settings |= {} if required else {"default": spec.default}
    is_list, item = typing.get_origin(kind) is list, spec.annotation
    if is_list:
        settings |= {"nargs": how.nargs or "+"} | ({} if how.positional else {"action": "extend"})
        (item,) = typing.get_args(kind)
    elif how.nargs:
        settings |= {"nargs": how.nargs, "const": how.const}
    if (how.reads or how.writes) and not (is_list or how.positional):
        settings["action"] = Once
    if kind is bool:
        settings["action"] = "store_false" if off else "store_true"
    elif choices(kind):
        settings["choices"] = choices(kind)
    else:
        settings["type"] = functools.partial(_convert, annotation=item)
        settings["metavar"] = how.metavar or {int: "N", float: "X"}.get(kind, spec.name.rpartition("_")[2].upper())
    parser.add_argument(flag, **settings)


def _convert(text: str, annotation: Any) -> Any:
    try:
        return convert(text, annotation)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _how(hint: Any) -> Option | OptionGroup:
    """Return what a type says of how its field is written."""
    said = (found for member in (hint, *typing.get_args(hint)) for found in getattr(member, "__metadata__", ()))
    default = OptionGroup() if dataclasses.is_dataclass(hint) else Option()
    return next((found for found in said if isinstance(found, Option | OptionGroup)), default)


def _own_first(cls: type) -> list[FieldSpec]:
    """Return the fields of a class before those of its bases, which are the order of the help."""
    return sorted(fields_of_class("", cls), key=lambda spec: -len(spec.owner.__mro__))


# -- commands ---------------------------------------------------------------------------------------------------------


class Command:
    """A console script: a dataclass of options, whose docstring is the description, and a function that takes one.

    Before that, one rule for all commands imports the plugins, checks the files to write, chooses the device, and says
    if the precision is slow there. Errors name the options.

    Args:
        name: What is typed, also for a subcommand.
        run: None if only the subcommands do something.
        below: Function that returns the subcommands, when the plugins are imported.
    """

    def __init__(
        self,
        name: str,
        options: type,
        run: Callable[[Any], None] | None = None,
        below: Callable[[], Mapping[str, Command]] = dict,
    ) -> None:
        self.name, self.options, self.run, self.below = name, options, run, below
        self.description = cleandoc(options.__doc__ or "")

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command, and return its exit code."""
        return exit_code(self.name, self._main, argv)

    def _main(self, argv: Sequence[str]) -> None:
        # torch and oneDNN each store what they compile for the last 1,024 sizes of a product, at over a megabyte each.
        # The batches of a text have hundreds of sizes, of which a batch needs few, and the next one rarely the same.
        for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
            os.environ.setdefault(name, "16")
        command, parser, values = self.parse(argv)
        if command.run is None:
            parser.error("no COMMAND is named")
        names = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
        with naming_options(names | {name.strip("-").replace("-", "_"): name for name in names.values()}):
            command.run(command.read(values))

    @functools.cached_property
    def fields(self) -> list[tuple[FieldSpec, Option | OptionGroup]]:
        """The fields of the options, and how they are written."""
        return [(spec, _how(spec.annotation)) for spec in _own_first(self.options)]

    def parser(self, chosen: str | None = None) -> Parser:
        """Return the parser with the options of all subcommands or, because some are slow to read, of one."""
        parser = command_parser(self.name, self.description)
        self._add_options(parser)
        if commands := self.below():
            below = parser.add_subparsers(dest="command", required=self.run is None, metavar="COMMAND")
            for name, command in commands.items():
                summary = re.split(r"\.(?=\s|$)", command.description)[0].replace("\n", " ").replace("%", "%%")
                shown = {"description": command.description, "formatter_class": HelpFormatter}
                subparser = below.add_parser(name, help=summary, **shown)
                if chosen in (None, name):
                    command._add_options(subparser)
        return parser

    def _add_options(self, parser: Parser) -> None:
        names = {spec.name for spec, _ in self.fields}
        for spec, how in self.fields:
            if isinstance(how, Option):
                add_option(parser, spec, how)
                continue
            group = parser.add_argument_group(how.title, how.description) if how.title else parser
            options = _own_first(members(spec.annotation)[0])
            for option in sorted(options, key=lambda option: option.default is not dataclasses.MISSING):
                if option.name not in names | {*how.without}:
                    add_option(group, option, Option(flag=how.flags.get(option.name, "")))

    def parse(self, argv: Sequence[str]) -> tuple[Command, Parser, dict[str, Any]]:
        """Import the plugins, and return the command or the subcommand that is chosen, with its parser and values."""
        plugins = Parser(self.name, add_help=False, allow_abbrev=False)
        plugins.add_argument("--plugin", action="append", default=[])
        known, others = plugins.parse_known_args(argv)
        for plugin in known.plugin:
            import_plugin(plugin)
        commands, name = self.below(), next(iter(others), "")
        parser = self.parser(name)
        if name in commands:
            (choice,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
            parser = choice.choices[name]
            return commands[name], parser, vars(parser.parse_intermixed_args(others[1:]))
        return self, parser, vars(parser.parse_args(others) if commands else parser.parse_intermixed_args(others))

    def read(self, values: dict[str, Any]) -> Any:
        """Return the options of these values, and check what can be checked before the work."""
        chosen = {spec.name: values[spec.name] for spec, how in self.fields if isinstance(how, Option)}
        inputs, outputs = dict[str, list[str]](), dict[str, str]()
        for name, how in ((spec.name, how) for spec, how in self.fields if isinstance(how, Option)):
            if (value := chosen[name]) is None:
                continue
            if how.reads:
                named = value if isinstance(value, list) else [value]
                inputs[f"`{name}`"] = [file for each in named for file in how.reads(each)]
            elif how.writes:
                outputs[f"`{name}`"] = value
                if value != "-":
                    how.writes(value)
        common.check_outputs(outputs, inputs)
        common.check_inputs(file for files in inputs.values() for file in files)
        if "device" in chosen:  # it is last, because it imports torch, for which nobody waits who has misspelt a name
            chosen["device"] = common.choose_device(chosen["device"], self.name, values.get("precision", "float32"))
        for spec, how in self.fields:
            if isinstance(how, OptionGroup):
                cls = members(spec.annotation)[0]
                names = {each.name for each in dataclasses.fields(cls)} - {*how.without}
                chosen[spec.name] = cls(**{name: value for name, value in (values | chosen).items() if name in names})
        return self.options(**chosen)

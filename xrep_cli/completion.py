"""Scripts by which a shell completes commands, options and the values among which an option chooses."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import shtab

from xrep import lazy
from xrep.config.fields import choices, read_fields
from xrep.errors import UserError
from xrep.registry import REGISTRIES
from xrep_cli.train_options import CHOICES, parse, train_parser


def script(shell: str, commands: Sequence[str]) -> str:
    """Return the script of a shell for ``xrep`` and its commands. Raises UserError if there is none for the shell."""
    if shell not in shtab.SUPPORTED_SHELLS:
        cure = f"write xrep completion bash, or {', '.join(shtab.SUPPORTED_SHELLS[1:])}"
        raise UserError(f"no completion for {shell!r}", cure=cure)
    whole = argparse.ArgumentParser("xrep")
    below = whole.add_subparsers()
    parsers = [whole]
    for name in commands:
        parsers.append(_parser(name))
        below.add_parser(name, help=name)
        below.choices[name] = parsers[-1]
    return "".join(f"{shtab.complete(parser, shell)}\n" for parser in parsers)


def _parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command with all its options: those of every evaluation, or of all parts of a training."""
    if name == "train":
        targets = [REGISTRIES[kind].target(part) for kind in CHOICES for part in REGISTRIES[kind].names()]
        every = [*parse([]).fields, *(spec for target in targets for spec in read_fields("", f"{target}.Config"))]
        fields = list({spec.name: spec for spec in every}.values())
        parser = train_parser(fields, [("", {})])
        allowed = {spec.key: choices(spec.annotation) for spec in fields}
        allowed |= {kind: REGISTRIES[kind].names() for kind in CHOICES}
        for action in parser._actions:
            action.choices = allowed.get(action.dest) or None
        return parser
    module = lazy.load(f"xrep_cli.{name}")
    return module.build_parser() if name == "sweep" else module.main.parser()

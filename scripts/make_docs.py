#!/usr/bin/env python3
"""Write docs/: one page for each console script, made from its options.

  python scripts/make_docs.py

Run it after a change of options. tests/repository/test_docs.py fails if the pages are not current.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import importlib
import io
import os
import re
from pathlib import Path
from unittest import mock

from xrep.config import DEFAULT_NAMES, FIXED_SECTIONS, FieldSpec, fields_of, read_fields
from xrep.files import write_aside
from xrep.registry import REGISTRIES, class_node

COMMANDS = ("train", "eval", "preprocess", "encode", "mine", "generate", "export", "data")
DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTE = "<!-- Made by scripts/make_docs.py. Change the options in the code, not this page. -->\n"
TRAIN = """\
An option can be written in three ways: `--queue-size 65536`, `criterion.queue_size=65536` and the YAML key
`criterion: {queue_size: 65536}`, where the name before the point is that of the section, which the headings below give.
`xrep-train --task NAME --criterion NAME --help` shows the options of the chosen parts.
"""


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    texts = pages()
    for name, text in texts.items():
        with write_aside(DOCS / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for path in DOCS.glob("*.md"):
        if path.name not in texts:
            path.unlink()


def pages() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    texts = {f"xrep-{name}.md": NOTE + "\n" + (train_page() if name == "train" else page(name)) for name in COMMANDS}
    index = "".join(f"- [{name.removesuffix('.md')}]({name}): {summary_of(text)}\n" for name, text in texts.items())
    return {"README.md": f"{NOTE}\n# Commands\n\nEach page lists every option of a command.\n\n{index}", **texts}


def summary_of(text: str) -> str:
    """Return the first paragraph of a page's description."""
    return " ".join(text.split("```text\n")[1].split("\n\n")[0].splitlines()).replace("<", r"\<")


# -- commands that parse with argparse --------------------------------------------------------------------------------


def page(name: str) -> str:
    """Return the page of a command; its subcommands are sections."""
    parser = parser_of(name)
    text = f"# {parser.prog}\n\n{body(parser)}"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for chosen in [parser_of(name, choice) for choice in action.choices]:
                text += f"\n## {chosen.prog}\n\n{body(chosen)}"
    return text


def parser_of(name: str, *arguments: str) -> argparse.ArgumentParser:
    """Return the parser that prints the help when the command is called with these arguments and ``--help``."""
    recorded: list[argparse.ArgumentParser] = []
    record = mock.patch.object(argparse.ArgumentParser, "print_help", lambda self, file=None: recorded.append(self))
    with record, contextlib.suppress(SystemExit):
        importlib.import_module(f"xrep_cli.{name}").main([*arguments, "--help"])
    return recorded[0]


def body(parser: argparse.ArgumentParser) -> str:
    """Return description, options and epilog of a parser."""
    texts = [f"```text\n{parser.description.strip()}\n```\n"] if parser.description else []
    formatter = parser._get_formatter()
    for group in parser._action_groups:
        entries = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                entries += [entry(choice.dest, choice.help or "") for choice in action._choices_actions]
            elif not isinstance(action, argparse._HelpAction):
                needed = " (required)" if action.required and action.option_strings else ""
                option, text = formatter._format_action_invocation(action), formatter._expand_help(action)
                entries.append(entry(option, text, needed))
        if entries:
            title = (group.title or "").capitalize()
            texts.append(f"{title}{f' ({group.description})' if group.description else ''}:\n\n{''.join(entries)}")
    texts += [f"```text\n{parser.epilog.strip()}\n```\n"] if parser.epilog else []
    return "\n".join(texts)


def entry(option: str, text: str, needed: str = "") -> str:
    return f"- `{option}`{needed}: {' '.join(text.split())}\n".replace("<", r"\<")


# -- xrep-train, whose options are those of the registered parts ------------------------------------------------------


def train_page() -> str:
    texts = [f"# xrep-train\n\n```text\n{train_head()}\n```\n\n{TRAIN}"]
    for kind in DEFAULT_NAMES:
        for name in REGISTRIES[kind].names():
            target = REGISTRIES[kind].target(name)
            texts.append(section(f"{kind} {name}", target, read_fields(kind, target)))
    rest: dict[str, list[FieldSpec]] = {}
    for spec in fields_of({"parts": [{"name": "NAME"}]}):
        rest.setdefault(spec.section, []).append(spec)
    for name, target in FIXED_SECTIONS.items():
        texts.append(section(name, target, rest[name]))
    texts.append("## several parts\n\nOptions of each of several parts, written `parts.NAME.weight`.\n\n")
    texts[-1] += "".join(map(field_entry, rest["parts.NAME"]))
    texts.append("## run\n\nOptions that belong to no section.\n\n" + "".join(map(field_entry, rest[""])))
    return "\n".join(texts)


def train_head() -> str:
    """Return the help of ``xrep-train`` without the options of parts."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.dict(os.environ, {"COLUMNS": "120"}):
        importlib.import_module("xrep_cli.train").main(["--help"])
    kinds = "|".join([*DEFAULT_NAMES, *FIXED_SECTIONS])
    usage, description, *rest = re.split(rf"\n\n(?:{kinds})\b", printed.getvalue())[0].split("\n\n")
    return "\n\n".join([description, usage, *rest])


def section(title: str, target: str, fields: list[FieldSpec]) -> str:
    node = class_node(*target.split(":"))
    summary = ((node and ast.get_docstring(node)) or "").split("\n\n")[0]
    entries = "".join(map(field_entry, fields)) or "It has no options.\n"
    return f"## {title}\n\n{' '.join(summary.split())}\n\n{entries}".replace("<", r"\<")


def field_entry(spec: FieldSpec) -> str:
    shown = "none" if spec.default in (None, []) else spec.default
    default = "required" if spec.default is dataclasses.MISSING else f"default: {shown}"
    return entry(f"--{spec.name.replace('_', '-')}", spec.help, f" ({spec.annotation}; {default})")


if __name__ == "__main__":
    main()

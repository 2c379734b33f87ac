#!/usr/bin/env python3
"""Write docs/: one page for each console script, made from its options.

  python scripts/make_docs.py

Run it after a change of options. tests/repository/test_docs.py fails if the pages are not current.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import tempfile
from pathlib import Path
from unittest import mock

from xrep.files import write_aside
from xrep.registry import REGISTRIES

COMMANDS = ("train", "eval", "report", "preprocess", "encode", "mine", "generate", "predict", "export", "data")
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


# -- xrep-train, whose help has the options of the chosen parts -------------------------------------------------------


def train_page() -> str:
    head, _ = train_help()
    usage, description, *rest = head.strip().split("\n\n")
    text = "\n\n".join([description, usage, *rest])
    text = f"# xrep-train\n\n```text\n{text}\n```\n\n{TRAIN}"
    for kind, registry in REGISTRIES.items():
        option = f"--{kind.replace('_', '-')}"
        for name in registry.names() if f"\n  {option} NAME" in head else []:
            title = f"{kind} {name}"
            text += section(title, train_help(option, name)[1].get(title, ["It has no options."]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parts.yaml"
        path.write_text("parts: [{name: NAME, task: bitext, criterion: dual_moco}]\n", encoding="utf-8")
        sections = train_help("--config", str(path))[1]
    return text + "".join(section(title, lines) for title, lines in sections.items() if " " not in title)


def train_help(*arguments: str) -> tuple[str, dict[str, list[str]]]:
    """Return the help of ``xrep-train`` up to the options of parts, and the lines of each section below its title."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.dict(os.environ, {"COLUMNS": "120"}):
        importlib.import_module("xrep_cli.train").main([*arguments, "--help"])
    head, sections, lines = "", {}, None
    for line in printed.getvalue().splitlines():
        if title := re.match(r"(?!usage)([\w.]+(?: \w+)?):(?: |$)", line):
            lines = sections.setdefault(title[1], [line[title.end() :]])
        elif lines is None:
            head += f"{line}\n"
        else:
            lines.append(line)
    return head, sections


def section(title: str, lines: list[str]) -> str:
    """Return a section of options, whose first lines are the summary of the part."""
    paragraphs: list[str] = []
    for line in lines:
        if option := re.match(r"  (--[\w-]+|[\w.]+=) \S+", line):
            paragraphs.append(f"- `{option[0].strip()}`: {line[option.end() :].strip()}")
        elif not paragraphs:
            paragraphs.append(line)
        else:
            paragraphs[-1] = f"{paragraphs[-1].rstrip()} {line.strip()}"
    summary, *options = [paragraph.strip().replace("<", r"\<") for paragraph in paragraphs]
    return "\n\n".join(filter(None, [f"\n## {title}", summary, "\n".join(options)])) + "\n"


if __name__ == "__main__":
    main()

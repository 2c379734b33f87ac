#!/usr/bin/env python3
"""Write the pages of docs/ that are made from the code: one for each console script, from its options, and the
reference of the Python interface, from docstrings. The other pages are written by hand.

  python scripts/make_docs.py

Run it after a change of options or of docstrings. tests/repository/test_docs.py fails if the pages are not current.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any
from unittest import mock

from xrep.config.values import CHOICES
from xrep.files import write_aside
from xrep.registry import CRITERIA, FIXED_SECTIONS, REGISTRIES
from xrep_cli.xrep import PROGRAMS, help_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTE = "<!-- Made by scripts/make_docs.py. Change the options in the code, not this page. -->\n"
PROPERTIES = property, functools.cached_property
WRITTEN = {"guides": "Guides", "papers": "The papers"}
"""Folders of pages that are written by hand."""
REFERENCE: dict[str, tuple[str, str, list[str]]] = {
    "models": (
        "Models",
        "encode, search, translate and classify with what was trained.",
        ["xrep:SentenceEncoder", "xrep:Translator", "xrep.understanding:SentenceClassifier",
         "xrep.inference.search_index:SearchIndex", "xrep.inference.search_index:Hit", "xrep.inference.adapters:*",
         "xrep.inference.mining:mine", "xrep.inference.mining:Text", "xrep.inference.mining:MiningOptions",
         "xrep.inference.hard_negatives:mine_negatives", "xrep.inference.hard_negatives:NegativeOptions",
         "xrep.inference.hard_negatives:MinedNegatives"],
    ),
    "kernels": ("Losses", "functions of arrays and no other part of xrep.", ["xrep.kernels:*"]),
    "metrics": ("Figures of evaluations", "functions of arrays or of lines of text.", ["xrep.metrics:*"]),
    "extending": (
        "Contracts of the parts",
        "what a plugin derives from.",
        ["xrep.registry:Registry", "xrep.criteria.criterion:Criterion", "xrep.criteria.criterion:Planned",
         "xrep.criteria.criterion:Loss", "xrep.criteria.criterion:Term",
         "xrep.criteria.contrastive:ContrastiveCriterion", "xrep.tasks.task:Task", "xrep.tasks.task:ExampleKind",
         "xrep.models.model:Model", "xrep.models.model:ForTransformers",
         "xrep.nn.encoder:Encoder", "xrep.training.validator:Validator", "xrep.evaluation.evaluation:Evaluation",
         "xrep.evaluation.evaluation:TableEvaluation", "xrep.evaluation.evaluation:Figures",
         "xrep.evaluation.encoders:MeasuredEncoder", "xrep.text.exclusion:TextFormat", "xrep.errors:UserError"],
    ),
}  # fmt: skip
"""Pages of the reference: title, summary and the names on the page; ``*`` is all that a module defines or lists."""
SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Use", "Yields")
TRAIN = """\
An option can be written in three ways: `--queue-size 65536`, `criterion.queue_size=65536` and the YAML key
`criterion: {queue_size: 65536}`, where the name before the point is that of the section, which the headings below give.
`xrep-train --task NAME --criterion NAME --help` shows the options of the chosen parts.
"""


def main() -> None:
    texts = pages()
    for name, text in texts.items():
        (DOCS / name).parent.mkdir(parents=True, exist_ok=True)
        with write_aside(DOCS / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for path in DOCS.rglob("*.md"):
        if str(path.relative_to(DOCS)) not in texts and path.read_text(encoding="utf-8").startswith(NOTE):
            path.unlink()


def pages() -> dict[str, str]:
    """Return the text of each page by its path in docs/."""
    usage, _, text = help_text().partition("\n\n")
    texts = {"xrep.md": f"{NOTE}\n# xrep\n\n```text\n{text}\n{usage}\n```\n"}
    texts |= {f"xrep-{name}.md": NOTE + "\n" + (train_page() if name == "train" else page(name)) for name in PROGRAMS}
    each = "".join(f"- [{name.removesuffix('.md')}]({name}): {summary_of(text)}\n" for name, text in texts.items())
    reference = {f"reference/{name}.md": f"{NOTE}\n{reference_page(*given)}" for name, given in REFERENCE.items()}
    reference["reference/objectives.md"] = f"{NOTE}\n{objectives_page()}"
    listed = "- [Objectives](reference/objectives.md): what each needs, when to choose it, and an example.\n"
    listed += "".join(f"- [{given[0]}](reference/{name}.md): {given[1]}\n" for name, given in REFERENCE.items())
    guides = "".join(f"\n## {title}\n\n{links(folder)}" for folder, title in WRITTEN.items())
    index = f"{NOTE}\n# Documentation\n{guides}\n## Commands\n\nEach page lists every option of a command.\n\n{each}"
    python = f"## Python\n\n{listed}"
    speed = "## Speed\n\n- [Benchmarks](benchmarks.md): xrep beside other programs, by `benchmarks/run.py`.\n"
    return {"README.md": f"{index}\n{python}\n{speed}", **texts, **reference}


def links(folder: str) -> str:
    """Return a list of the pages in a folder that are written by hand, by their first lines; the first is first."""
    titles = {
        path: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for path in (DOCS / folder).glob("*.md")
    }
    ordered = sorted(titles, key=lambda path: (not titles[path].startswith("Quick start"), titles[path]))
    return "".join(f"- [{titles[path]}]({folder}/{path.name})\n" for path in ordered)


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
    """Return description and options of a parser."""
    texts = [f"```text\n{parser.description.strip()}\n```\n"] if parser.description else []
    texts += [section(parser, group) for group in parser._action_groups]
    return "\n".join(filter(None, texts))


def section(parser: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> str:
    """Return the title and the options of a group; empty if it has none."""
    formatter, entries = parser._get_formatter(), []
    for action in group._group_actions:
        if isinstance(action, argparse._SubParsersAction):
            entries += [entry(choice.dest, choice.help or "") for choice in action._choices_actions]
        elif not isinstance(action, argparse._HelpAction) and action.help != argparse.SUPPRESS:
            needed = " (required)" if action.required and action.option_strings else ""
            option, text = formatter._format_action_invocation(action), formatter._expand_help(action)
            entries.append(entry(option, text, needed))
    title = (group.title or "").capitalize()
    about = f" ({group.description})" if group.description else ""
    return f"{title}{about}:\n\n{''.join(entries)}" if entries else ""


def entry(option: str, text: str, needed: str = "") -> str:
    return f"- `{option}`{needed}: {' '.join(text.split())}\n".replace("<", r"\<")


# -- xrep-train, whose help has the options of the chosen parts -------------------------------------------------------


def train_page() -> str:
    """Return the page of xrep-train, whose help has the options of the chosen parts."""
    parser = parser_of("train")
    chosen = [group for group in parser._action_groups if group.title in ("options", "parts to choose")]
    summary, others = str(parser.description).split("\n\n", 1)
    texts = [f"# xrep-train\n\n```text\n{summary}\n\nusage: {parser.usage}\n\n{others}\n```\n\n{TRAIN}"]
    texts += [section(parser, group) for group in chosen]
    for kind in CHOICES:
        for name in REGISTRIES[kind].names():
            option = f"--{kind.replace('_', '-')}"
            texts.append(part(parser_of("train", option, name), f"{kind} {name}"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "parts.yaml"
        path.write_text("parts: [{name: NAME, task: bitext, criterion: dual_moco}]\n", encoding="utf-8")
        parser = parser_of("train", "--config", str(path))
    fixed = [*FIXED_SECTIONS, "parts.NAME", "run"]
    return "\n".join([*texts, *(part(parser, title) for title in fixed)])


def part(parser: argparse.ArgumentParser, title: str) -> str:
    """Return the options of one part below its title."""
    group = next(group for group in parser._action_groups if group.title == title)
    options = section(parser, group).partition(":\n\n")[2] if group._group_actions else ""
    return f"## {title}\n\n{group.description}\n\n{options.strip() or 'It has no options.'}\n"


# -- the reference of the Python interface ----------------------------------------------------------------------------


def reference_page(title: str, summary: str, names: list[str]) -> str:
    """Return a page of the reference; ``REFERENCE`` explains the arguments."""
    texts = [f"# {title}\n\n{summary[0].upper()}{summary[1:]}\n"]
    for full in names:
        module_name, _, name = full.partition(":")
        module = importlib.import_module(module_name)
        if name == "*":
            own = (key for key, value in vars(module).items() if getattr(value, "__module__", "") == module_name)
            chosen = vars(module).get("__all__") or [key for key in own if not key.startswith("_")]
        else:
            chosen = [name]
        texts += [described(module_name, key, getattr(module, key)) for key in chosen]
    return "\n".join(texts)


def objectives_page() -> str:
    """Return the page of all criteria, whose docstrings say what each needs and when to choose it."""
    texts = ["# Objectives\n\nWhat `--criterion` can be. [xrep-train](../xrep-train.md) lists the options of each.\n"]
    texts += [f"## {name}\n\n{markdown(inspect.getdoc(CRITERIA.load(name)) or '')}\n" for name in CRITERIA.names()]
    return "\n".join(texts)


def described(module: str, name: str, value: Any) -> str:
    """Return the sections of a class with its public methods, or of a function."""
    kind = "class " if inspect.isclass(value) else ""
    texts = [f"## {module}.{name}\n\n{signature(kind + name, value)}\n\n{markdown(inspect.getdoc(value) or '')}\n"]
    for key, member in vars(value).items() if kind else ():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if key.startswith("_") or not (inspect.isfunction(function) or isinstance(member, PROPERTIES)):
            continue
        if doc := inspect.getdoc(getattr(value, key)):
            head = f"`{key}`, a property" if isinstance(member, PROPERTIES) else ""
            texts.append(f"### {name}.{key}\n\n{head or signature(key, function)}\n\n{markdown(doc)}\n")
    return "\n".join(texts)


def signature(name: str, value: Any) -> str:
    """Return the name and the arguments of a function or class as Python code."""
    try:
        given = inspect.signature(value)
    except ValueError:
        return f"```python\n{name}\n```"
    arguments = [argument for argument in given.parameters.values() if argument.name not in ("self", "cls")]
    ending = "" if given.return_annotation is inspect.Signature.empty else f" -> {given.return_annotation}"
    shown, starred = [], False
    for argument in arguments:
        if argument.kind is argument.KEYWORD_ONLY and not starred:
            shown.append("*")
        starred = starred or argument.kind in (argument.KEYWORD_ONLY, argument.VAR_POSITIONAL)
        # Annotations are texts, of which str() shows the quotes.
        plain = re.sub(r""": (['"])(.*?)\1( = |$)""", r": \2\3", str(argument))
        shown.append(re.sub(r"ForwardRef\('(\w+)'\)", r"\1", re.sub(r"<f.*>", "...", plain)))
    line = f"{name}({', '.join(shown)}){ending}"
    if len(line) > 100:
        line = f"{name}(\n{''.join(f'    {each},{chr(10)}' for each in shown)}){ending}"
    return f"```python\n{line}\n```"


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown: sections such as Args become lists, examples become code."""
    texts: list[str] = []
    for block in re.split(r"\n\s*\n", docstring.strip()):
        lines = block.splitlines()
        title = lines[0].rstrip(":")
        if title in SECTIONS and lines[0].endswith(":"):
            items: list[str] = []
            for line in textwrap.dedent("\n".join(lines[1:])).splitlines():
                if line.startswith(" ") and items:
                    items[-1] += " " + line.strip()
                else:
                    items.append(line)
            entries = [re.sub(r"^([\w, *.]+): ", r"`\1`: ", item) for item in items]
            texts.append(f"{title}:\n\n" + "\n".join(f"- {prose(entry)}" for entry in entries))
        elif lines[0] == "Example:":
            texts.append("Example:\n\n```sh\n" + textwrap.dedent("\n".join(lines[1:])) + "\n```")
        elif lines[0].startswith((">>>", "    ", "  xrep")):
            texts.append("```text\n" + textwrap.dedent(block) + "\n```")
        else:
            texts.append("\n".join(prose(line) for line in lines))
    return "\n\n".join(texts)


def prose(text: str) -> str:
    """Return a line of a docstring as Markdown."""
    return text.replace("``", "`").replace("<", r"\<").replace("::", ":")


if __name__ == "__main__":
    main()

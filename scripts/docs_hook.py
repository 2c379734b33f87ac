"""What mkdocs calls while it builds the site: it makes the pages of commands, objectives, recipes and benchmarks, takes
others from the repository, and turns links between files into links between pages."""

import argparse
import contextlib
import csv
import importlib
import itertools
import posixpath
import re
import tempfile
from functools import partial
from pathlib import Path
from textwrap import dedent
from unittest import mock

import griffe
from mkdocs.structure.files import File

from xrep.config.values import CHOICES
from xrep.registry import CRITERIA, FIXED_SECTIONS, REGISTRIES
from xrep_cli.xrep import PROGRAMS, help_text

ROOT = Path(__file__).resolve().parents[1]
COPIES = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md", "benchmarks.md": "benchmarks/README.md"}
EXAMPLES = [path.relative_to(ROOT) for path in sorted(ROOT.glob("examples/*/*.md"))]
COPIES |= {f"papers/{path.parent.name}_{path.stem}.md".replace("_README", ""): str(path) for path in EXAMPLES}
COPIES["guides/clusters.md"] = COPIES.pop("papers/cluster.md")


def on_files(files, config):
    pages = {page: (ROOT / path).read_text(encoding="utf-8") for page, path in COPIES.items()}
    pages["benchmarks.md"] += measured()
    recipes = {path: path.relative_to(ROOT / "xrep/recipes") for path in sorted(ROOT.glob("xrep/recipes/**/*.yaml"))}
    texts = [f"## {name.with_suffix('')}\n\n```yaml\n{path.read_text()}```" for path, name in recipes.items()]
    pages["papers/recipes.md"] = "\n\n".join(["# Recipes", *texts])
    pages["commands/xrep.md"] = f"# xrep\n\n```text\n{help_text()}```\n"
    pages |= {f"commands/xrep-{name}.md": command(name) for name in PROGRAMS}
    for name, (text, *paths) in config.extra["reference"].items():
        titles = {path: re.sub(r"\.(\w+)\.\1$", r".\1", path) for path in paths}  # xrep.kernels.queue_infonce
        if name == "objectives":
            titles = {CRITERIA.target(each).replace(":", "."): each for each in CRITERIA.names()}
        parts = [f"\n::: {path}\n    options: {{heading: {title}}}\n" for path, title in titles.items()]
        pages[f"reference/{name}.md"] = text + "".join(parts)
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    for section in config.nav:
        for title in [title for title, folder in section.items() if str(folder).endswith("/")]:
            section[title] = [page for page in pages if page.startswith(section[title])]


def on_page_markdown(markdown, page, **_):
    """Let links lead to pages; a file of the repository that is no page is named without a link."""
    pages, place = {path: page for page, path in COPIES.items()}, page.file.src_uri

    def link(found):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(COPIES.get(place, f"docs/{place}")), found[2]))
        if path in pages or path.startswith("docs/"):
            to = pages.get(path, path.removeprefix("docs/"))
            return f"[{found[1]}]({posixpath.relpath(to, posixpath.dirname(place) or '.')}{found[3]})"
        return found[1] if (ROOT / path).exists() else found[0]

    return re.sub(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*|)\)", link, markdown)


def on_page_content(html, **_):
    """Let the lines of a command break between words, and not at the hyphens of an option."""
    words, word = re.compile(r"<[^>]+>|[^\s<>]*-[^\s<>]*"), '<span class="word">{}</span>'.format
    kept = partial(words.sub, lambda found: found[0] if found[0].startswith("<") else word(found[0]))
    return re.sub(r"<code>.*?</code>", lambda found: kept(found[0]), html, flags=re.DOTALL)


class Sections(griffe.Extension):
    """Shows the sections "Use" and "Example" of the docstring of a class as a list and as code."""

    def on_class_instance(self, *, cls, **_):
        for title, show in {"Use": uses, "Example": code}.items() if cls.docstring else ():
            block = re.compile(rf"^{title}:\n((    .*\n?)+)", re.MULTILINE)
            cls.docstring.value = block.sub(lambda found, show=show: show(dedent(found[1])), cls.docstring.value)


def uses(text):
    return re.sub("^(Needs|Choose it|Related|Left open):", r"- **\1:**", text, flags=re.M).replace("<", "&lt;")


def code(text):
    return f"```{'python' if '>>>' in text else 'sh'}\n{dedent(re.sub(' *# doctest.*', '', text)).strip()}\n```\n"


def command(name, *words):
    """Return the page of a command, or the section of a subcommand."""
    parser = parser_of(name, *words)
    texts = [f"{'##' if words else '#'} {parser.prog}"]
    for is_code, lines in itertools.groupby(parser.description.splitlines(), lambda line: line.startswith("  ")):
        text = "\n".join(lines)
        texts.append(code(text) if is_code else text.replace("<", "&lt;"))
    if name == "train":
        texts += parts_to_train(parser)
    else:
        texts += [options(parser, group, f"**{group.title.capitalize()}**") for group in parser._action_groups]
    below = next((action.choices for action in parser._actions if isinstance(action.choices, dict)), ())
    return "\n\n".join([*texts, *(command(name, choice) for choice in below)])


def parts_to_train(parser):
    """Return a section for each part: the help of xrep-train has only the options of those that are chosen."""
    names = [(kind, name) for kind in CHOICES for name in REGISTRIES[kind].names()]
    parts = {"options": parser, "parts to choose": parser}
    parts |= {f"{kind} {name}": parser_of("train", f"--{kind.replace('_', '-')}", name) for kind, name in names}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        print("parts: [{name: NAME, task: bitext, criterion: dual_moco}]", file=file, flush=True)
        parts |= dict.fromkeys((*FIXED_SECTIONS, "parts.NAME", "run"), parser_of("train", "--config", file.name))
    groups = [(parser, group, title) for title, parser in parts.items() for group in parser._action_groups]
    return [options(parser, group, f"## {title}") for parser, group, title in groups if group.title == title]


def parser_of(name, *words):
    """Return the parser that prints the help of a command with these words."""
    found = []
    record = mock.patch.object(argparse.ArgumentParser, "print_help", lambda self, file=None: found.append(self))
    with record, contextlib.suppress(SystemExit):
        importlib.import_module(f"xrep_cli.{name}").main([*words, "--help"])
    return found[0]


def options(parser, group, heading):
    """Return the options of a group below its title, as terms and their definitions."""
    formatter, texts = parser._get_formatter(), list(filter(None, [uses(group.description or "")]))
    for action in group._group_actions:
        if action.help not in (None, argparse.SUPPRESS) and action.dest not in ("help", "version"):
            needed = " (required)" if action.required and action.option_strings else ""
            text = formatter._expand_help(action).replace("<", "&lt;")
            texts.append(f"`{formatter._format_action_invocation(action)}`{needed}\n:   {text}")
    return "\n\n".join([heading, *texts]) if texts else ""


def measured():
    """Return the figures of the benchmarks, a table for each machine and day."""
    rows, text = [*csv.DictReader((ROOT / "benchmarks/results.csv").open(encoding="utf-8"))], "\n## Each machine\n"
    for place in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        text += (
            f"\n**{place}**\n\n| benchmark | text | ours | beside | ratio | low | high | rounds |\n{'| --- ' * 8}|\n"
        )
        line = "| {benchmark} | {text} | {ours} | {beside} | {ratio} | {low} | {high} | {rounds} |\n"
        text += "".join(line.format_map(row) for row in rows if f"{row['machine']}, {row['date']}" == place)
    return text

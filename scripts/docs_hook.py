"""What mkdocs calls while it builds the site: it makes the pages of commands, objectives, recipes and benchmarks, takes
others from the repository, and turns links between files into links between pages."""

import argparse
import csv
import importlib
import itertools
import posixpath
import re
from pathlib import Path
from textwrap import dedent

from mkdocs.structure.files import File

from xrep.config.recipes import find_recipe, recipe_names
from xrep.config.sections import fields_of
from xrep.config.values import CHOICES, flat
from xrep.registry import CRITERIA, FIXED_SECTIONS, REGISTRIES
from xrep_cli.train_options import train_parser
from xrep_cli.xrep import PROGRAMS, help_text

ROOT = Path(__file__).resolve().parents[1]
COPIES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "benchmarks/README.md": "benchmarks.md"}
for path in sorted([*ROOT.glob("examples/*/*.md"), *ROOT.glob("examples/*/*.svg")]):
    page = f"papers/{path.parent.name}_{path.name}".replace("_README", "")
    COPIES[str(path.relative_to(ROOT))] = page.replace("papers/cluster", "guides/clusters")


def on_files(files, config):
    pages = {page: (ROOT / path).read_text(encoding="utf-8") for path, page in COPIES.items()}
    header, *rows = csv.reader((ROOT / "benchmarks/results.csv").open(encoding="utf-8"))
    rows = [f"| {' | '.join(row)} |\n" for row in [header, ["---"] * len(header), *rows]]
    pages["benchmarks.md"] += f"\n## All figures\n\n{''.join(rows)}"
    recipes = [f"## {name}\n\n```yaml\n{find_recipe(name).read_text(encoding='utf-8')}```" for name in recipe_names()]
    pages["papers/recipes.md"] = "\n\n".join(["# Recipes", *recipes])
    pages["commands/xrep.md"] = f"# xrep\n\n```text\n{help_text()}```\n"
    for name in PROGRAMS:
        module = importlib.import_module(f"xrep_cli.{name}")
        parser = None if name == "train" else module.build_parser() if name == "sweep" else module.main.parser()
        pages[f"commands/xrep-{name}.md"] = command(parser) if parser else train()
    criteria = {CRITERIA.target(name).replace(":", "."): name for name in CRITERIA.names()}
    for name, (text, *paths) in config.extra["reference"].items():
        for path in paths or criteria:
            title = criteria.get(path, re.sub(r"\.(\w+)\.\1$", r".\1", path))  # xrep.kernels.queue_infonce
            members = ", members: []" if path in criteria else ""
            text += f"\n::: {path}\n    options: {{heading: {title}, toc_label: {title.split('.')[-1]}{members}}}\n"
        pages[f"reference/{name}.md"] = text
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    for section in config.nav:
        for title in [title for title, folder in section.items() if str(folder).endswith("/")]:
            section[title] = [page for page in pages if page.startswith(section[title]) and page.endswith(".md")]


def on_page_markdown(markdown, page, **_):
    """Let links lead to pages; a file of the repository that is no page is named without a link."""
    place = page.file.src_uri
    origin = next((path for path, copy in COPIES.items() if copy == place), f"docs/{place}")

    def link(found):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[2]))
        to = COPIES.get(path, path.removeprefix("docs/"))
        if to == path:
            return found[1] if (ROOT / path).exists() else found[0]
        return f"[{found[1]}]({posixpath.relpath(to, posixpath.dirname(place) or '.')}{found[3]})"

    return re.sub(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*|)\)", link, markdown)


def on_page_content(html, **_):
    """Let the lines of a command break between words, and not at the hyphens of an option."""
    word, span = re.compile(r"[^\s<>]*-[^\s<>]*(?=[\s<])(?![^<]*>)"), r'<span class="word">\g<0></span>'
    return re.sub("<code>.*?</code>", lambda found: word.sub(span, found[0]), html, flags=re.DOTALL)


def command(parser, level="#"):
    """Return the page of a command, or below it the section of a subcommand."""
    texts = [f"{level} {parser.prog}"]
    for is_code, lines in itertools.groupby(parser.description.splitlines(), lambda line: line.startswith("  ")):
        text = "\n".join(lines)
        texts.append(f"```sh\n{dedent(text)}\n```" if is_code else text.replace("<", "&lt;"))
    if parser.prog != "xrep-train":
        texts += [options(parser, group.title, f"**{group.title.capitalize()}**") for group in parser._action_groups]
    below = next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})
    return "\n\n".join([*texts, *(command(each, "##") for each in below.values())])


def train():
    """Return the page of xrep-train, with a section for each part: its help has those that are chosen alone."""
    parts = {f"{kind} {name}": {f"{kind}.name": name} for kind in CHOICES for name in REGISTRIES[kind].names()}
    mixture = flat({"parts": [{"name": "NAME", "task": "bitext", "criterion": "dual_moco"}]})
    parts |= dict.fromkeys((*FIXED_SECTIONS, "parts.NAME", "run"), mixture)
    chosen = {"options": {}, "parts to choose": {}, **parts}
    parsers = {title: train_parser(fields_of(values), [("", values)]) for title, values in chosen.items()}
    sections = [options(parser, title, f"## {title}") for title, parser in parsers.items()]
    return "\n\n".join([command(parsers["options"]), *sections])


def options(parser, title, heading):
    """Return the options of a group below its heading, as terms and their definitions."""
    group, formatter = next(each for each in parser._action_groups if each.title == title), parser._get_formatter()
    texts = [group.description.replace("<", "&lt;")] if group.description else []
    for action in group._group_actions:
        if action.help not in (None, argparse.SUPPRESS) and action.dest not in ("help", "version"):
            needed = " (required)" if action.required and action.option_strings else ""
            text = formatter._expand_help(action).replace("<", "&lt;")
            texts.append(f"`{formatter._format_action_invocation(action)}`{needed}\n:   {text}")
    return "\n\n".join([heading, *texts]) if texts else ""

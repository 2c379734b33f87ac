"""The figures that READMEs, recipes and effects quote from the papers are those of examples/published.tsv."""

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from xrep.config.values import load_yaml

ROOT = Path(__file__).parents[2]
with (ROOT / "examples/published.tsv").open(encoding="utf-8", newline="") as lines:
    FACTS = list(csv.DictReader(lines, delimiter="\t"))
LINES = (" paper,", " Transformer ", " BERT-fused", " HiCTL (")
"""How rows of figures begin in tables that have others, too."""
PAPERS = sorted({fact["paper"] for fact in FACTS})


def quotes(paper: str) -> Iterator[str]:
    """Yield what is quoted: claims of effects, comments of recipes, and tables and paragraphs that name the paper."""
    for path in (ROOT / "examples" / paper / "effects").glob("*.yaml"):
        effect = load_yaml(path)
        yield from (claim["paper"] for claim in (effect["headline"], *effect["claims"]) if "paper" in claim)
    for path in (ROOT / "xrep/recipes" / paper).rglob("*.yaml"):
        yield from re.findall(r"# table.* gives .*", path.read_text(encoding="utf-8"))
    for path in (ROOT / "examples" / paper).glob("*.md"):
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            rows = [re.split(r"(?<!\\)\|", row)[1:-1] for row in block.splitlines() if row.startswith("| ")]
            head = [cell.strip() for cell in rows[0]] if rows else []
            named = [i for i, cell in enumerate(head) if cell in ("published", "gain in the paper")]
            yield from (row[i] for row in rows[1:] for i in named)
            yield from (" ".join(row) for row in rows if row[0].startswith(LINES))
            if not rows and re.match(r"Published|Translation ranking alone, from mBERT", block):
                yield block


@pytest.mark.parametrize("paper", PAPERS)
def test_figures_are_those_of_the_papers(paper: str) -> None:
    """A figure with a sign may also be the difference of two that stand in one column of a table."""
    columns: dict[tuple[str, str], list[float]] = {}
    for fact in FACTS:
        if fact["paper"] == paper:
            columns.setdefault((fact["table"], fact["column"]), []).append(float(fact["value"]))
    known = {value for values in columns.values() for value in values}
    gains = {round(a - b, 2) for values in columns.values() for a, b in itertools.permutations(values, 2)}
    count = 0
    for quoted in quotes(paper):
        for sign, number in re.findall(r"([+−-]?)(\d+\.\d+)", quoted):
            value = float(f"{'-' if sign in ('−', '-') else ''}{number}")
            if not sign and value < 10:
                continue  # a section, or a temperature
            assert value in (known | gains if sign else known), f"{value} of {quoted!r} is no fact"
            count += 1
    assert count > 10


def test_a_fact_stands_once() -> None:
    keys = [tuple(fact.values())[:-1] for fact in FACTS]
    assert len({*keys}) == len(keys) and all(fact["row"] and fact["column"] for fact in FACTS)

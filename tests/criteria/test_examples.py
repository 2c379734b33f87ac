"""The docstring of each objective says when to choose it, and its example runs."""

import inspect
import re
import shlex

import pytest

from tests.support.annotated import write_labels, write_questions, write_tags
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus, write_lines
from tests.support.encoders import write_encoder
from tests.support.nli_data import nli_rows, write_parallel
from xrep.registry import CRITERIA

NAMES = [name for name in CRITERIA.names() if CRITERIA.load(name).__module__.startswith("xrep.")]
TINY = "--layers 2 --hidden-size 16 --heads 2 --feedforward-size 16 --max-positions 64 --vocab-size 60 --max-steps 1"
TINY += " --batch-size 8 --max-length 30 --device cpu --no-tensorboard --save-dir run"


def sections(name: str) -> dict[str, str]:
    """Return the sections of a docstring that are indented below a title."""
    doc = inspect.getdoc(CRITERIA.load(name)) or ""
    return {title: inspect.cleandoc("\n" + text) for title, text in re.findall(r"^(\w+):\n((?:    .*\n?)+)", doc, re.M)}


def examples(name: str) -> list[str]:
    """Return the commands of the section Example, which is a block of Markdown."""
    first, *commands, last = sections(name)["Example"].splitlines()
    assert (first, last) == ("```sh", "```") and commands
    return commands


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_helps_to_choose(name: str) -> None:
    told = re.findall(r"^- ([\w ]+):", sections(name)["Use"], re.M)
    assert told[:3] == ["Needs", "Choose it", "Related"] and told[3:] in ([], ["Left open"])
    for line in examples(name):
        assert line.startswith("xrep-train ") and f" --criterion {name}" in line


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs(name: str, cli: Commands) -> None:
    write_corpus(cli.folder / "text", 40, 9, 9)
    for language in ("de", "en"):
        for split in ("train", "valid"):
            lines = (cli.folder / "text" / f"{split}.de-en.{language}").read_text(encoding="utf-8")
            (cli.folder / "mono").mkdir(exist_ok=True)
            (cli.folder / "mono" / f"{split}.{language}.txt").write_text(lines, encoding="utf-8")
    (cli.folder / "nli").mkdir()
    for split, premises in (("train", 10), ("dev", 3)):
        write_parallel(cli.folder / "nli", split, nli_rows(premises))
    for split, first in (("train", 0), ("dev", 40)):
        rows = [f"{n % 6}\t{one}\t{other}" for n, (one, other) in enumerate(sentence_pairs(60)[first : first + 40])]
        write_lines(cli.folder / "scored" / f"{split}.tsv", rows)
    for folder, write in {"xnli": write_labels, "panx": write_tags, "squad": write_questions}.items():
        write(cli.folder / folder)
    write_encoder(cli.folder / "minilm", languages=(["en"], ["en"]))
    for line in examples(name):
        words = shlex.split(line)[1:]
        words += ["--languages", "de"] if words[0] in ("xnli/", "panx/", "squad/") else []
        done = cli("train", *words, *TINY.split(), *(["--validation", "loss"] if "loss" not in words else []))
        assert done.code == 0, done.err
        assert (cli.folder / "run" / "last" / "model.safetensors").is_file()

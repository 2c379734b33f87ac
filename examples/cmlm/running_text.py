#!/usr/bin/env python3
"""Gather documents whose neighbouring lines are neighbouring sentences, which the criterion cmlm trains on.

  examples/cmlm/running_text.py --output text/train.en newstest2008.en tydiqa.goldp.en.train.json en_ewt-ud-train.conllu

Questions in the form of SQuAD (.json) give their paragraphs, which are cut into sentences after each . ! or ? that
stands before a capital letter or a digit. A treebank of Universal Dependencies (.conllu) gives the sentences of its
documents. Other files are text, one sentence a line, with an empty line between documents. Each document is written
once.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from xrep.files import write_aside
from xrep.text.find import TextFile
from xrep.text.lines import read_lines
from xrep.understanding.formats import read_questions
from xrep_cli.command import console_script

_END = re.compile(r"(?<=[.!?])[\"”)]*\s+(?=[\"“(]?[A-Z0-9])")
_REFERENCE = re.compile(r"\[\d+\]")  # to a footnote of Wikipedia


@console_script("examples/cmlm/running_text.py")
def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="text, .json or .conllu")
    parser.add_argument("--output", required=True, type=Path, help="the text, such as text/train.en")
    options = parser.parse_args(argv)
    documents = dict.fromkeys(tuple(document) for file in options.files for document in _documents(file) if document)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with write_aside(options.output) as aside:
        aside.write_text("\n".join("".join(f"{line}\n" for line in document) for document in documents), "utf-8")
    print(f"{options.output}: {len(documents):,} documents, {sum(map(len, documents)):,} sentences")


def _documents(file: Path) -> Iterator[list[str]]:
    if file.name.endswith(".json"):
        for context in dict.fromkeys(question.context for question in read_questions(TextFile("en", file))):
            yield [sentence.strip() for sentence in _END.split(_REFERENCE.sub("", " ".join(context.split())))]
        return
    treebank, document = file.name.endswith(".conllu"), list[str]()
    for _, line in read_lines(file):
        begins = line.startswith("# newdoc") if treebank else not line.strip()
        if begins:
            yield document
            document = []
        elif not treebank or line.startswith("# text = "):
            document.append(line.removeprefix("# text = ").strip() if treebank else line.strip())
    yield document


if __name__ == "__main__":
    sys.exit(main())

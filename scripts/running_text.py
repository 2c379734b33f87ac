#!/usr/bin/env python3
"""Gather documents whose neighbouring lines are neighbouring sentences, which the criterion cmlm trains on.

  scripts/running_text.py --output text/train.en newstest2008.en newstest2009.en tydiqa.goldp.en.train.json \\
      en_ewt-ud-train.conllu

A file of questions in SQuAD's form (.json) gives its paragraphs, which are cut into sentences after each . ! or ?
before a capital letter or a digit. A treebank of Universal Dependencies (.conllu) gives the sentences of its documents.
Other files are text, one sentence a line, with an empty line between documents. Each document is written once.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.text.find import TextFile
from xrep.text.lines import read_lines
from xrep.understanding.formats import read_questions

_END = re.compile(r"(?<=[.!?])[\"”)]*\s+(?=[\"“(]?[A-Z0-9])")
_REFERENCE = re.compile(r"\[\d+\]")  # to a footnote of Wikipedia


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="text, .json or .conllu")
    parser.add_argument("--output", required=True, type=Path, help="the text, such as text/train.en")
    options = parser.parse_args(arguments)
    try:
        print(gather(options.files, options.output))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def gather(files: Iterable[Path], output: Path) -> str:
    """Write the documents of all files to ``output`` and return a line that counts them. Raises UserError if a file
    cannot be read."""
    documents = dict.fromkeys(tuple(document) for file in files for document in _documents(file) if document)
    output.parent.mkdir(parents=True, exist_ok=True)
    with write_aside(output) as aside:
        aside.write_text("\n".join("".join(f"{line}\n" for line in document) for document in documents), "utf-8")
    return f"{output}: {len(documents):,} documents, {sum(map(len, documents)):,} sentences"


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

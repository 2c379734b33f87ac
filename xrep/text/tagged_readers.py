"""Readers of words with tags: parts of speech in CoNLL-U (Universal Dependencies), entities as in PAN-X (WikiAnn).

A ``.conllu`` file has ten columns, of which the second is the word and the fourth the part of speech (UPOS). Lines of
multi-word tokens (``3-4``) and of empty nodes (``5.1``) are skipped, as in XTREME. A ``.tsv`` or ``.txt`` file has a
word and a tag on each line, separated by a tab or, if there is none, by the last space; the word may have the prefix of
its language (``en:Paris``), as in the files of WikiAnn. Empty lines separate sentences in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from xrep.errors import UserError
from xrep.text.annotated import AnnotatedFile, TaggedSentence
from xrep.text.readers import plain_name, read_lines

SUFFIXES = (".conllu", ".tsv", ".txt", ".bio", ".iob2")
_COLUMNS = 10
_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]+)?:(?=.)")


def is_tagged(path: Path) -> bool:
    """Return whether a file of a folder may be tagged words; one such as README.txt is not."""
    name = plain_name(path)
    return name.endswith(SUFFIXES) and not name.lower().startswith(("readme", "license"))


def read_tagged(file: AnnotatedFile) -> Iterator[TaggedSentence]:
    """Yield the tagged sentences of a file. Raises UserError if a line has another number of columns, or a word has no
    tag."""
    conllu = ".conllu" in file.path.name
    prefix: bool | None = None
    words, tags, first = list[str](), list[str](), 1
    for number, line in read_lines(file.path):
        if not line.strip():
            if words:
                yield TaggedSentence(tuple(words), tuple(tags), file.language, file.path, first)
            words, tags = [], []
            continue
        if conllu and line.startswith("#"):
            continue
        pair = _conllu_word(line, file, number) if conllu else _tagged_word(line, file, number)
        if pair is None:
            continue
        word, tag = pair
        if not conllu:
            prefix = bool(_PREFIX.match(word)) if prefix is None else prefix
            word = _PREFIX.sub("", word, count=1) if prefix else word
        first = first if words else number
        words.append(word)
        tags.append(tag)
    if words:
        yield TaggedSentence(tuple(words), tuple(tags), file.language, file.path, first)


def _conllu_word(line: str, file: AnnotatedFile, number: int) -> tuple[str, str] | None:
    columns = line.split("\t")
    if len(columns) != _COLUMNS:
        problem = f"{len(columns)} columns where CoNLL-U has {_COLUMNS}"
        raise UserError(problem, path=file.path, line=number, cure="separate them by tabs")
    identity, word, _, tag = columns[:4]
    if re.fullmatch(r"\d+[-.]\d+", identity):
        return None
    if tag in ("", "_"):
        raise UserError(f"the word {word!r} has no UPOS", path=file.path, line=number, cure="tag it, or leave it out")
    return word, tag


def _tagged_word(line: str, file: AnnotatedFile, number: int) -> tuple[str, str]:
    columns = line.split("\t") if "\t" in line else line.rsplit(" ", 1)
    if len(columns) < 2 or not columns[0] or not columns[-1].strip():
        cure = "write word<TAB>tag, and an empty line after each sentence"
        raise UserError("not a word and its tag", path=file.path, line=number, cure=cure)
    return columns[0], columns[-1].strip()

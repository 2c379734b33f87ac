"""Monolingual text: which files of which language there are, and the sentences of their documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xrep.errors import UserError
from xrep.text.languages import canonical
from xrep.text.readers import is_language, read_lines, split_of

_CODE = r"[A-Za-z]{2,3}(?:[-_][A-Z][a-z]{3})?"
_SPEC = re.compile(rf"({_CODE})=(.+)")
_ENDINGS = (".gz", ".xz", ".txt")
_LAYOUTS = "expected news.de, train.de or de.txt (each also .gz or .xz; valid.* likewise), or de=FILE,en=FILE instead"


@dataclass(frozen=True)
class TextFile:
    """A file of sentences, one a line, in one language; a blank line ends a document."""

    language: str
    path: Path


def find_text(data: str | Path) -> dict[str, list[TextFile]]:
    """Text by split: ``{"train": [...], "valid": [...]}``, the latter left out where there is none.

    Args:
        data: ``de=FILE,en=FILE`` (a language may come again), all of it training text; or a folder, in which the last
            part of a file's name is a language (``news.2012.de``, ``de.txt``, ``train.de.gz``) and a part of it may be
            a split, else it is training text. Other files, and those of the split test, are left alone.

    Raises:
        UserError: another form, no such folder, no training text in it.
    """
    specs = [_SPEC.fullmatch(spec) for spec in re.split(rf",(?={_CODE}=)", str(data))]
    if all(specs) and not Path(data).exists():
        return {"train": [TextFile(canonical(spec[1]), Path(spec[2])) for spec in specs if spec]}
    folder = Path(data)
    if not folder.is_dir():
        raise UserError("no such folder", path=folder, cure=f"check the name; {_LAYOUTS}")
    found: dict[str, list[TextFile]] = {"train": [], "valid": [], "test": []}
    for path in sorted(folder.iterdir()):
        name = path.name
        for ending in _ENDINGS:
            name = name.removesuffix(ending)
        parts = name.split(".")
        if path.is_file() and not name.startswith(".") and is_language(parts[-1]):
            found[split_of(parts)].append(TextFile(canonical(parts[-1]), path))
    if not found["train"]:
        raise UserError("no training text found", path=folder, cure=_LAYOUTS)
    return {split: files for split, files in found.items() if files and split != "test"}


def read_sentences(file: TextFile) -> Iterator[tuple[str, bool]]:
    """Each sentence, white space made one space, and whether it is the first of a document.

    Raises:
        UserError: what ``read_lines`` raises.
    """
    first = True
    for _, line in read_lines(file.path):
        if sentence := " ".join(line.split()):
            yield sentence, first
        first = not sentence

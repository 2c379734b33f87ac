"""Monolingual text: find the files of each language, and read the sentences of their documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from xrep.errors import UserError
from xrep.text.languages import canonical
from xrep.text.readers import LANGUAGE_CODE, is_language, read_lines, split_of

_SPEC = re.compile(rf"({LANGUAGE_CODE})=(.+)")
_ENDINGS = (".gz", ".xz", ".txt")
_LAYOUTS = "expected news.de, train.de or de.txt (each also .gz or .xz; valid.* likewise), or de=FILE,en=FILE instead"


@dataclass(frozen=True)
class TextFile:
    """A file of sentences in one language, one sentence per line; a blank line ends a document."""

    language: str
    path: Path


def find_text(data: str | Path) -> dict[str, list[TextFile]]:
    """Find the text files by split: ``{"train": [...], "valid": [...]}``, without ``valid`` if there is none.

    Args:
        data: Either ``de=FILE,en=FILE``, all of it training text, where a language may occur more than once; or a
            folder. In a folder, the last part of a file's name must be a language (``news.2012.de``, ``de.txt``,
            ``train.de.gz``). A file is training text unless its name contains another split. Other files, and those of
            the split test, are ignored.

    Raises:
        UserError: If ``data`` has another form, or the folder does not exist or has no training text.
    """
    specs = [_SPEC.fullmatch(spec) for spec in re.split(rf",(?={LANGUAGE_CODE}=)", str(data))]
    if all(specs) and not Path(data).exists():
        return {"train": [TextFile(canonical(spec[1]), Path(spec[2])) for spec in specs if spec]}
    folder = Path(data)
    if not folder.is_dir():
        raise UserError("no such folder", path=folder, cure=f"check the name; {_LAYOUTS}")
    splits: dict[str, list[TextFile]] = {"train": [], "valid": [], "test": []}
    for path in sorted(folder.iterdir()):
        name = path.name
        for ending in _ENDINGS:
            name = name.removesuffix(ending)
        parts = name.split(".")
        if path.is_file() and not name.startswith(".") and is_language(parts[-1]):
            splits[split_of(parts)].append(TextFile(canonical(parts[-1]), path))
    if not splits["train"]:
        raise UserError("no training text found", path=folder, cure=_LAYOUTS)
    return {split: files for split, files in splits.items() if files and split != "test"}


def read_sentences(file: TextFile) -> Iterator[tuple[str, bool]]:
    """Yield each sentence, with runs of white space replaced by one space, and whether it is the first of a document.

    Raises:
        UserError: As ``read_lines``.
    """
    first = True
    for _, line in read_lines(file.path):
        if sentence := " ".join(line.split()):
            yield sentence, first
        first = not sentence

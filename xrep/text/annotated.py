"""Annotated text: sentences with a label, words with tags, and questions with answers; and where it is in a folder.

The readers of the published files are ``labelled_readers`` (classification), ``tagged_readers`` (parts of speech, named
entities) and ``question_readers`` (question answering). Each of them yields examples of its own type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from xrep.errors import UserError
from xrep.text.languages import canonical, name
from xrep.text.readers import LANGUAGE_CODE, plain_name

Split = Literal["train", "valid", "test"]
_SPLITS: dict[str, Split] = {
    "train": "train", "training": "train", "dev": "valid", "valid": "valid", "val": "valid", "validation": "valid",
    "matched": "valid", "test": "test",
}  # fmt: skip
_PARTS = re.compile(r"[._-]+")
_CODES = {"jp": "ja"}
"""Codes in the names of data sets that are no language codes: the Amazon reviews have a folder jp."""
DEPTH = 3
"""Number of levels of folders that are searched."""


@dataclass(frozen=True)
class AnnotatedFile:
    """A file of annotated text.

    Attributes:
        path: The file.
        split: Its split, from its name; None if the name has none.
        language: Canonical code of the language of its sentences.
    """

    path: Path
    split: Split | None
    language: str


@dataclass(frozen=True)
class LabelledText:
    """A sentence, or a pair of sentences that is read as one sequence, and its label; and where it is written."""

    sentences: tuple[str, ...]
    label: str
    language: str
    path: Path
    line: int


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and the tag of each word; and where the first word is written."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    language: str
    path: Path
    line: int

    @property
    def text(self) -> str:
        """The sentence, with one space between two words."""
        return " ".join(self.words)


@dataclass(frozen=True)
class Answer:
    """An answer: characters ``start`` to ``start + len(text)`` of the context."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """A question, the context that it is asked about, and the answers of the annotators."""

    identity: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    language: str

    @property
    def texts(self) -> list[str]:
        """The question, and the paragraphs of the context."""
        return [self.question, *filter(None, self.context.splitlines())]

    @property
    def spans(self) -> list[Answer]:
        """The answers that are where their ``start`` says; an empty one is nowhere."""
        return [a for a in self.answers if a.text and self.context[a.start : a.start + len(a.text)] == a.text]


def discover(
    path: str | Path, language: str, what: str, forms: str, accepts: Callable[[Path], bool]
) -> list[AnnotatedFile]:
    """Find the files of annotated text in a folder and its subfolders; a single file may be named as well.

    The split and the language are parts of the file's name (``dev-de.tsv``, ``xquad.es.json``,
    ``en_ewt-ud-train.conllu``), or of the names of its folders (``de/test_2k.tsv``).

    Args:
        language: Language of files that do not name it.
        what: What the files are, for the error message.
        forms: Their endings, for the error message.
        accepts: Function that says whether a file of a folder is one of them.

    Raises:
        UserError: The path does not exist, or no file is suitable.
    """
    path = Path(path)
    if not path.exists():
        raise UserError("no such file or folder", path=path, cure="check the name")
    if path.is_file():
        return [_described(path, path.parent, canonical(language))]
    files = [_described(f, path, canonical(language)) for f in sorted(_files_below(path, DEPTH)) if accepts(f)]
    if not files:
        raise UserError(f"no {what}", path=path, cure=f"name a file, or a folder of files that end in {forms}")
    return files


def of_split(
    files: Iterable[AnnotatedFile], split: Split, languages: Sequence[str] | None = None
) -> list[AnnotatedFile]:
    """Return the files of a split, and of some languages unless ``languages`` is None.

    A file whose name has no split may be training text as well as a test; it is never a dev split.
    """
    splits = (split,) if split == "valid" else (split, None)
    return [file for file in files if file.split in splits and (languages is None or file.language in languages)]


def _files_below(folder: Path, depth: int) -> Iterable[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_dir() and depth:
            yield from _files_below(entry, depth - 1)
        elif entry.is_file():
            yield entry


def _described(path: Path, root: Path, language: str) -> AnnotatedFile:
    """Return the file with its split and language, which the nearest name that has them decides."""
    names = [plain_name(path), *(folder.name for folder in path.parents)]
    inside = len(path.relative_to(root).parts)
    split: Split | None = None
    code: str | None = None
    for title in names[:inside]:
        parts = [_CODES.get(part, part) for part in _PARTS.split(title)]
        split = split or next((_SPLITS[part.lower()] for part in parts if part.lower() in _SPLITS), None)
        code = code or next((part for part in reversed(parts) if _is_code(part)), None)
    return AnnotatedFile(path, split, canonical(code) if code else language)


def _is_code(part: str) -> bool:
    """Return whether a part of a name is a language that xrep knows; other short words are not taken for one."""
    return part not in _SPLITS and re.fullmatch(LANGUAGE_CODE, part) is not None and name(part) != canonical(part)

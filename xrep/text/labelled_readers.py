"""Readers of sentences and pairs of sentences with a label: XNLI, MultiNLI, SNLI, PAWS-X, Amazon reviews, own files.

The following files are read, each also compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``), but for the XML:

- ``.tsv`` and ``.txt`` with a header that names the columns: XNLI, MultiNLI and SNLI (``sentence1``, ``sentence2``,
  ``gold_label``), PAWS-X (``sentence1``, ``sentence2``, ``label``), or own names out of ``COLUMNS``;
- ``.tsv`` without a header: label and text, or two texts and label (``dev-de.tsv`` of XNLI and PAWS-X);
- ``.jsonl`` with the same names as keys;
- three files ``s1.dev``, ``s2.dev`` and ``labels.dev``, which belong together line by line;
- ``.review``: the Amazon reviews of Prettenhofer and Stein (2010), where more than three stars are ``positive`` and
  fewer ``negative``.

Rows without a label (``-`` or empty) and rows whose text is ``NS`` (PAWS-X: a sentence without a translation) are left
out and counted.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from xrep.errors import UserError
from xrep.text.annotated import AnnotatedFile, LabelledText
from xrep.text.languages import canonical
from xrep.text.lines import is_too_long
from xrep.text.readers import plain_name, read_lines, read_parallel

SUFFIXES = (".tsv", ".txt", ".jsonl", ".review")
PARALLEL = re.compile(r"s1\.(train|dev|valid|test)")
COLUMNS = (
    ("gold_label", "sentence1", "sentence2"), ("label", "sentence1", "sentence2"), ("label", "premise", "hypothesis"),
    ("label", "premise", "hypo"), ("label", "sentence"), ("label", "text"),
)  # fmt: skip
"""Names of the columns: the label, then the texts. The first line of this table whose names are all there is used."""
MAXIMUM_STARS = 3
"""Reviews with more stars are positive (CMLM, section 4.5.2)."""
_HALF = re.compile("[\ud800-\udfff]")

Row = tuple[int, tuple[str, ...], str, str | None]
"""Line, texts, label, and the language if the row names it."""


def is_labelled(path: Path) -> bool:
    """Return whether a file of a folder may be labelled text; one such as README.txt is not."""
    name = plain_name(path)
    if PARALLEL.fullmatch(name):
        return True
    beside = name.lower().startswith(("readme", "license", "labels.", "s2."))
    return name.endswith(SUFFIXES) and not beside


def read_labelled(file: AnnotatedFile, counts: Counter[str] | None = None) -> Iterator[LabelledText]:
    """Yield the labelled sentences of a file.

    Args:
        counts: Counter to which rows are added: ``read``, and those left out (``no label``, ``no text``, ``too long``).

    Raises:
        UserError: The file is damaged, a row has another number of columns, or the texts are not one or two.
    """
    counts = Counter() if counts is None else counts
    for line, texts, label, language in read_rows(file.path):
        counts["read"] += 1
        sentences, label = tuple(" ".join(text.split()) for text in texts), label.strip()
        if label in ("", "-"):
            counts["no label"] += 1
        elif not all(sentences) or "NS" in sentences:
            counts["no text"] += 1
        elif any(map(is_too_long, sentences)):
            counts["too long"] += 1
        else:
            code = canonical(language) if language else file.language
            yield LabelledText(sentences, label, code, file.path, line)


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file of any of these forms as they are written; raises as ``read_labelled``."""
    name = plain_name(path)
    kind = "parallel" if PARALLEL.fullmatch(name) else Path(name).suffix
    readers = {"parallel": _parallel_rows, ".jsonl": _json_rows, ".review": _review_rows}
    return readers.get(kind, _table_rows)(path)


def _table_rows(path: Path) -> Iterator[Row]:
    places, width, language, named = list[int](), 0, -1, False
    for number, line in read_lines(path, most_words=None):
        row = line.split("\t")
        if number == 1 and (names := columns_of(row)):
            places, named = [row.index(name) for name in names], True
            language = row.index("language") if "language" in row else -1
            width = 1 + max(*places, language)
            continue
        if number == 1:
            width = len(row)
            if width not in (2, 3):
                problem = f"{width} columns and no header that names them"
                cure = "write label<TAB>text, or text<TAB>text<TAB>label, or a header such as label<TAB>text"
                raise UserError(problem, path=path, line=1, cure=cure)
            places = [0, 1] if width == 2 else [2, 0, 1]
        if len(row) < width or len(row) > width and not named:
            problem, cure = f"{len(row)} columns where {width} are needed", "separate the columns by one tab each"
            raise UserError(problem, path=path, line=number, cure=cure)
        label, *texts = (row[place] for place in places)
        yield number, tuple(texts), label, row[language] if language >= 0 else None


def columns_of(names: Iterable[str]) -> tuple[str, ...] | None:
    """Return the names of the columns of label and texts in a table or record that has these names, or None."""
    known = set(names)
    return next((columns for columns in COLUMNS if known.issuperset(columns)), None)


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path, most_words=None):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError("not a line of JSON", path=path, line=number, cure="fetch the file again") from None
        names = columns_of(row) if isinstance(row, dict) else None
        if names is None:
            cure = f"name them {', '.join(COLUMNS[0])}, or {', '.join(COLUMNS[-1])}"
            raise UserError("no keys of a label and a text", path=path, line=number, cure=cure)
        (label, *texts), language = (row[name] for name in names), row.get("language") or ""
        if not all(isinstance(text, str) for text in (*texts, language)) or not isinstance(label, str | int):
            problem = "the texts, the label and the language must be strings"
            raise UserError(problem, path=path, line=number, cure="fetch the file again")
        if _HALF.search("".join(texts)):
            raise UserError("half of a surrogate pair in a text", path=path, line=number, cure="fetch the file again")
        yield number, tuple(texts), str(label), language or None


def _parallel_rows(path: Path) -> Iterator[Row]:
    paths = [path, *(path.with_name(path.name.replace("s1.", f"{other}.", 1)) for other in ("s2", "labels"))]
    for missing in (other for other in paths if not other.is_file()):
        raise UserError("no such file", path=missing, cure=f"it belongs to {path.name}; put it there")
    for number, (first, second, label) in read_parallel(paths, cut=True):
        yield number, (first, second), label, None


def _review_rows(path: Path) -> Iterator[Row]:
    """Yield the reviews of a file. The line is the number of the review, because the parser counts no lines."""
    number = 0
    try:
        for _, element in ElementTree.iterparse(path):
            if element.tag != "item":
                continue
            number += 1
            rating, text = element.findtext("rating") or "", element.findtext("text") or ""
            try:
                label = "positive" if float(rating) > MAXIMUM_STARS else "negative"
            except ValueError:
                problem = f"the rating {rating!r} of review {number} is no number"
                raise UserError(problem, path=path, cure="fetch the file again") from None
            yield number, (text,), label, None
            element.clear()
    except ElementTree.ParseError as error:
        raise UserError(f"not an XML file of reviews ({error})", path=path, cure="fetch the file again") from None

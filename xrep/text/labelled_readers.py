"""Readers of sentences and pairs of sentences with a label: XNLI, MultiNLI, SNLI, PAWS-X, Amazon reviews, own files.

The following files are read, each also with ``.gz`` or ``.xz``, but for the XML:

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

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from xrep.errors import UserError
from xrep.text.annotated import AnnotatedFile, LabelledText
from xrep.text.languages import canonical
from xrep.text.readers import plain_name, read_lines

SUFFIXES = (".tsv", ".txt", ".jsonl", ".review")
PARALLEL = re.compile(r"s1\.(train|dev|valid|test)")
COLUMNS = (
    ("gold_label", "sentence1", "sentence2"), ("label", "sentence1", "sentence2"), ("label", "premise", "hypothesis"),
    ("label", "premise", "hypo"), ("label", "sentence"), ("label", "text"),
)  # fmt: skip
"""Names of the columns: the label, then the texts. The first line of this table whose names are all there is used."""
MAXIMUM_STARS = 3
"""Reviews with more stars are positive (CMLM, section 4.5.2)."""

_Row = tuple[int, tuple[str, ...], str, str | None]
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
        counts: Counter to which rows are added: ``read``, and those left out (``no label``, ``no text``).

    Raises:
        UserError: The file is damaged, a row has another number of columns, or the texts are not one or two.
    """
    counts = Counter() if counts is None else counts
    for line, texts, label, language in _reader_of(file.path)(file.path):
        counts["read"] += 1
        sentences, label = tuple(" ".join(text.split()) for text in texts), label.strip()
        if label in ("", "-"):
            counts["no label"] += 1
        elif not all(sentences) or "NS" in sentences:
            counts["no text"] += 1
        else:
            code = canonical(language) if language else file.language
            yield LabelledText(sentences, label, code, file.path, line)


def _reader_of(path: Path) -> Callable[[Path], Iterator[_Row]]:
    name = plain_name(path)
    if PARALLEL.fullmatch(name):
        return _parallel_rows
    return {".jsonl": _json_rows, ".review": _review_rows}.get(Path(name).suffix, _table_rows)


def _table_rows(path: Path) -> Iterator[_Row]:
    places, width, language = list[int](), 0, -1
    for number, line in read_lines(path):
        row = line.split("\t")
        if number == 1:
            width, names = len(row), _columns_of(row)
            if names:
                places = [row.index(name) for name in names]
                language = row.index("language") if "language" in row else -1
                continue
            if width not in (2, 3):
                problem = f"{width} columns and no header that names them"
                cure = "write label<TAB>text, or text<TAB>text<TAB>label, or a header such as label<TAB>text"
                raise UserError(problem, path=path, line=1, cure=cure)
            places = [0, 1] if width == 2 else [2, 0, 1]
        if len(row) != width:
            problem = f"{len(row)} columns, where the first line has {width}"
            raise UserError(problem, path=path, line=number, cure="separate the columns by one tab each")
        label, *texts = (row[place] for place in places)
        yield number, tuple(texts), label, row[language] if language >= 0 else None


def _columns_of(names: Iterable[str]) -> tuple[str, ...] | None:
    known = set(names)
    return next((columns for columns in COLUMNS if known.issuperset(columns)), None)


def _json_rows(path: Path) -> Iterator[_Row]:
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError("not a line of JSON", path=path, line=number, cure="fetch the file again") from None
        names = _columns_of(row) if isinstance(row, dict) else None
        if names is None:
            cure = f"name them as in {', '.join(COLUMNS[-1])}"
            raise UserError("no keys of a label and a text", path=path, line=number, cure=cure)
        label, *texts = (row[name] for name in names)
        if not all(isinstance(text, str) for text in texts) or not isinstance(label, str | int):
            raise UserError("the texts and the label must be strings", path=path, line=number)
        language = row.get("language")
        yield number, tuple(texts), str(label), language if isinstance(language, str) else None


def _parallel_rows(path: Path) -> Iterator[_Row]:
    paths = [path, *(path.with_name(path.name.replace("s1.", f"{other}.", 1)) for other in ("s2", "labels"))]
    for missing in (other for other in paths if not other.is_file()):
        raise UserError("no such file", path=missing, cure=f"it belongs to {path.name}; put it there")
    for rows in itertools.zip_longest(*map(read_lines, paths)):
        if None in rows:
            shortest = paths[rows.index(None)]
            raise UserError("fewer lines than the files beside it", path=shortest, cure="align them line by line")
        (_, first), (_, second), (number, label) = rows
        yield number, (first, second), label, None


def _review_rows(path: Path) -> Iterator[_Row]:
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

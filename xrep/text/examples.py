"""Readers of raw text: sentences, pairs of sentences, and sentences with a label, whatever file they are in.

Sentences with a label are read from these files, each also compressed:

- ``.tsv`` and ``.txt`` with a header that names the columns: XNLI, MultiNLI and SNLI (``sentence1``, ``sentence2``,
  ``gold_label``), PAWS-X (``sentence1``, ``sentence2``, ``label``), or own names out of ``COLUMNS``;
- ``.tsv`` without a header: label and text, or two texts and label (``dev-de.tsv`` of XNLI and PAWS-X);
- ``.jsonl`` and other records with the same names;
- three files ``s1.dev``, ``s2.dev`` and ``labels.dev``, which belong together line by line;
- ``.review``: the Amazon reviews of Prettenhofer and Stein (2010), where more than three stars are ``positive`` and
  fewer ``negative``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from xrep.errors import UserError, abbreviated
from xrep.files import is_stream
from xrep.text.find import Bitext, TextFile, columns_of_pairs
from xrep.text.languages import canonical, count_english_words
from xrep.text.lines import is_too_long, names_in_zip, read_lines
from xrep.text.records import (
    READERS,
    Record,
    ending_of,
    field_of,
    has_records,
    plain_name,
    read_field,
    read_records,
    refuse_absent,
    split_field,
)
from xrep.text.tmx import xml_events

COLUMNS = (
    ("gold_label", "sentence1", "sentence2"), ("label", "sentence1", "sentence2"), ("label", "premise", "hypothesis"),
    ("label", "premise", "hypo"), ("score", "sentence1", "sentence2"), ("label", "question", "sentence"),
    ("label", "sentence"), ("label", "text"),
)  # fmt: skip
"""Names of the columns: the label, then the texts. The first line of this table whose names are all there is used."""
UNNAMED = {2: ["label", "text"], 3: ["sentence1", "sentence2", "label"]}
"""The columns of a table without a header, by their number."""
MAXIMUM_STARS = 3
"""Reviews with more stars are positive (CMLM, section 4.5.2)."""
_SCORES = re.compile(r"((?:-?\d+(?:\.\d+)?\t)*)[^\t]*\t")
"""What xrep-score and xrep-mine write before the text of a line, or numbers of sentences (Tatoeba), and the source."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Example:
    """A sentence, or several that belong together, and their label; and where they are written.

    Attributes:
        sentences: One sentence; a pair, such as premise and hypothesis; or a triplet (anchor, positive, hard negative).
        languages: The language of each sentence.
        label: What is written, or the number of its class; None of a triplet, and where it is not known.
        path, line: The file, and the line or number in it.
    """

    sentences: tuple[str, ...]
    languages: tuple[str, ...]
    label: Any = None
    path: Path = field(default=Path(), compare=False)
    line: int = field(default=0, compare=False)

    @property
    def language(self) -> str:
        """The language of the first sentence."""
        return self.languages[0]


# -- sentences --------------------------------------------------------------------------------------------------------


def read_text(path: str | Path, lang: str | None = None, *, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each sentence of a file of lines, of records or of an archive with such a file.

    Args:
        path: The file; of records also ``FILE:FIELD``; ``-`` is standard input, which has lines.
        lang: Language of the text, by which translation memories, fields and files of archives are chosen.
        allow_empty: As in ``read_lines``.

    Raises:
        UserError: As ``read_lines``, ``read_field`` and ``members_of``.
    """
    path, field = split_field("/dev/stdin" if str(path) == "-" else path)
    if str(path).endswith(".zip") and Path(path).is_file():
        path = members_of(path, [lang and canonical(lang)])[0]
    return read_field(path, field, lang) if has_records(path) else read_lines(path, allow_empty=allow_empty)


def read_sentences(file: TextFile) -> Iterator[tuple[str, bool]]:
    """Yield each sentence, with single spaces, and whether it is the first of a document; raises as ``read_text``. The
    caller drops sentences that are too long (``is_too_long``)."""
    first = True
    for _, line in read_text(file.path, file.language):
        if sentence := " ".join(line.split()):
            yield sentence, first
        first = not sentence


def members_of(path: str | Path, languages: Sequence[str | None]) -> tuple[str, ...]:
    """Return the files of a zip archive that have text in some languages: a file for each, or one file of pairs. In
    OPUS's archives the last part of a name is the language.

    Raises:
        UserError: It is damaged, or its files do not say which of them are meant.
    """
    names = names_in_zip(path)
    by_language = [[name for name in names if _language_at_end(name) == language] for language in languages]
    if all(len(some) == 1 for some in by_language):
        return tuple(f"{path}/{name}" for (name,) in by_language)
    kinds = ("tsv", *READERS, *(["txt"] if len(languages) == 1 else []))
    others = [name for name in names if ending_of(name) in kinds and not Path(name).name.startswith(("README", "LIC"))]
    if len(others) == 1 and not any(by_language):
        return (f"{path}/{others[0]}",)
    wanted = " and ".join(language for language in languages if language) or "text"
    problem = f"has not one file of {wanted}, but {abbreviated(', '.join(names)) or 'none'}"
    raise UserError(problem, path=path, cure=f"name the file in it: {path}/NAME")


def _language_at_end(name: str) -> str:
    return canonical(plain_name(name).removesuffix(".txt").rpartition(".")[2])


# -- pairs ------------------------------------------------------------------------------------------------------------


def read_parallel(
    paths: Sequence[str | Path], languages: Sequence[str | None] | None = None
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the number and the texts of each line of files whose lines belong together.

    Raises:
        UserError: As ``read_text``, and if the files have unequal line counts.
    """
    sides = [read_text(path, language) for path, language in zip(paths, languages or [None] * len(paths), strict=True)]
    rows = itertools.zip_longest(*sides)
    for count, row in enumerate(rows):
        if None in row:
            shorter, longer = row.index(None), next(place for place, line in enumerate(row) if line is not None)
            counts = {shorter: count, longer: count + 1 + sum(rest[longer] is not None for rest in rows)}
            first, other = sorted(counts)
            problem = f"{counts[first]:,} lines, but {paths[other]} has {counts[other]:,}"
            raise UserError(problem, path=paths[first], line=count + 1, cure="align the files line by line")
        yield count + 1, tuple(text for _, text in row)


def read_pairs(bitext: Bitext) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line number, source, target)`` of each pair, as written. A blank line of a TSV file gives empty sides; a
    line without a tab that ``is_too_long`` is both sides, so that the caller drops it.

    Raises:
        UserError: As ``read_text``, also at the end of a memory that lacks a language, and if a TSV row has too few
            columns, its lines begin with numbers and the user named no columns, or two files have unequal line counts.
    """
    if bitext.paths[0].endswith(".zip"):
        bitext = orient(bitext)[0]
    path, columns = bitext.paths[0], bitext.columns
    if len(bitext.paths) == 2:
        for number, (source, target) in read_parallel(bitext.paths, bitext.languages):
            yield number, source, target
    elif columns is None:
        first, second = bitext.fields or bitext.languages
        record, found = Record(), set[str]()
        for number, record in read_records(path):
            texts = field_of(record, first, path, number), field_of(record, second, path, number)
            found.update(name for name, text in zip((first, second), texts, strict=True) if text)
            yield number, *texts
        for name in (name for name in (first, second) if name not in found):
            refuse_absent(name, record, path)
    else:
        width, lines = max(columns) + 1, read_lines(path)
        head = list(itertools.islice(lines, 10))
        scores = min((match[1].count("\t") if (match := _SCORES.match(line)) else 0 for _, line in head), default=0)
        if scores and not bitext.columns_given:
            cells = itertools.zip_longest(*(line.split("\t") for _, line in head), fillvalue="0")
            texts = [str(place) for place, own in enumerate(cells, 1) if not all(map(_NUMBER.fullmatch, own))]
            cure = f"name the columns of the text, {path}:{','.join(texts[:2] if len(texts) > 1 else '12')}"
            raise UserError("its lines begin with numbers", path=path, cure=cure)
        for number, line in itertools.chain(head, lines):
            row, text = line.split("\t"), line.strip()
            if len(row) >= width:
                yield number, row[columns[0]], row[columns[1]]
            elif not text or is_too_long(text):
                yield number, text, text
            else:
                need = "two columns" if width == 2 else f"{width} columns"
                have = f"{len(row)} column{'s' if len(row) > 1 else ''}"
                cure = "separate source and target by a tab"
                raise UserError(f"{have} where {need} are needed", path=path, line=number, cure=cure)


def orient(bitext: Bitext) -> tuple[Bitext, str | None]:
    """Choose the files of an archive, and swap the columns of a TSV file if they are in the opposite order to the
    languages in its name.

    ``deu-eng.tsv`` of manythings.org, for example, has English first. Sides seem swapped only if one language is
    English and the first 1,000 rows show clearly that it is on the other side. Columns and files that the user named
    are kept.

    Raises:
        UserError: As ``read_pairs``, and if the file is a pipe or device, which cannot be read again.

    Returns:
        The bitext to read, and one line of text for the user if the columns were swapped or the sides that the user
        named seem to be (else None).
    """
    if len(bitext.paths) == 1 and bitext.paths[0].endswith(".zip"):
        members = members_of(bitext.paths[0], bitext.languages)
        bitext = replace(bitext, paths=members, columns=columns_of_pairs(members))
    path, source = bitext.paths[0], bitext.languages[0]
    is_named = bitext.columns_given or len(bitext.paths) == 2
    if (bitext.columns is None and not is_named) or bitext.languages[1] != "en":
        return bitext, None
    if any(map(is_stream, bitext.paths)):
        if is_named:
            return bitext, None
        problem = "its columns cannot be recognised, because a pipe or device is read only once"
        raise UserError(problem, path=path, cure="name the columns (FILE:2,1), or copy it to a file")
    if not _seems_swapped(bitext):
        return bitext, None
    if bitext.columns is None:
        return bitext, f"{path}: looks like English, but is read as {source}; are the two files swapped?"
    english, other = bitext.columns[0] + 1, bitext.columns[1] + 1
    if is_named:
        return bitext, f"{path}: column {english} looks like English, but is read as {source}; are both swapped?"
    note = f"{path}: column {english} is English, so column {other} is read as {source}"
    return replace(bitext, columns=(other - 1, english - 1)), note


def _seems_swapped(bitext: Bitext) -> bool:
    """Return whether the first rows have English clearly on the source side."""
    rows = list(itertools.islice(read_pairs(bitext), 1000))
    in_source, words = count_english_words(source for _, source, _ in rows)
    in_target, others = count_english_words(target for _, _, target in rows)
    share = in_source / max(1, words)
    return in_source >= 3 and share >= 0.02 and share >= 4 * in_target / max(1, others)


# -- labels -----------------------------------------------------------------------------------------------------------


def read_rows(file: TextFile, unnamed: Mapping[int, list[str]] = UNNAMED, label: str = "") -> Iterator[Example]:
    """Yield every row of a file of labelled text, with single spaces in its texts and its label as it is written.

    Args:
        unnamed: The columns of a table without a header, by their number.
        label: Name of the column of the label, of several that there may be; empty: as ``COLUMNS`` is ordered.

    Raises:
        UserError: The file is damaged, a row has another number of columns, or the texts are not one or two.
    """
    for line, texts, value, language in _rows(file, unnamed, label):
        code = canonical(language) if language else file.language
        sentences = tuple(" ".join(text.split()) for text in texts)
        yield Example(sentences, (code,) * len(sentences), value.strip(), file.path, line)


def _rows(
    file: TextFile, unnamed: Mapping[int, list[str]], label: str
) -> Iterator[tuple[int, Sequence[str], str, str | None]]:
    """Yield the line, the texts and the label of each row, and its language if the row names it."""
    path = file.path
    if ending_of(path) == "review":
        yield from _reviews(path)
    elif len(file.paths) > 1:
        for number, (first, second, value) in read_parallel(file.paths):
            yield number, (first, second), value, None
    else:
        for number, record in read_records(path) if has_records(path) else _table(path, unnamed, label):
            names = columns_of(record, label)
            if names is None:
                cure = f"name them {', '.join(COLUMNS[0])}, or {', '.join(COLUMNS[-1])}"
                raise UserError("no keys of a label and a text", path=path, line=number, cure=cure)
            (value, *texts), language = (record[name] for name in names), record.get("language") or ""
            are_texts = all(isinstance(text, str) for text in (*texts, language))
            if not are_texts or not isinstance(value, str | int | float):
                problem = "the texts, the label and the language must be strings"
                raise UserError(problem, path=path, line=number, cure="fetch the file again")
            yield number, texts, str(value), language


def columns_of(names: Iterable[str], label: str = "") -> tuple[str, ...] | None:
    """Return the names of the columns of label and texts in a table or record that has these names, or None. If there
    are several, those with this name of the label are taken."""
    known, ordered = set(names), sorted(COLUMNS, key=lambda columns: columns[0] != label)
    return next((columns for columns in ordered if known.issuperset(columns)), None)


def _table(path: Path, unnamed: Mapping[int, list[str]], label: str) -> Iterator[tuple[int, Record]]:
    header, least, most = list[str](), 0, 0
    for number, line in read_lines(path):
        row = line.split("\t")
        if number == 1 and (names := columns_of(row, label)):
            header, least, most = row, 1 + max(map(row.index, names)), 1 << 30
            continue
        if number == 1:
            if len(row) not in unnamed:
                problem = f"{len(row)} columns and no header that names them"
                cure = f"write {', or '.join('<TAB>'.join(names) for names in unnamed.values())}, or a header"
                raise UserError(problem, path=path, line=1, cure=cure)
            header, least, most = unnamed[len(row)], len(row), len(row)
        if not least <= len(row) <= most:
            problem, cure = f"{len(row)} columns where {least} are needed", "separate the columns by one tab each"
            raise UserError(problem, path=path, line=number, cure=cure)
        yield number, dict(zip(header, row, strict=False))


def _reviews(path: Path) -> Iterator[tuple[int, Sequence[str], str, None]]:
    """Yield the reviews of a file, with their numbers."""
    items = (element for event, element in xml_events(path) if event == "end" and element.tag == "item")
    for number, item in enumerate(items, 1):
        rating, text = item.findtext("rating") or "", item.findtext("text") or ""
        try:
            label = "positive" if float(rating) > MAXIMUM_STARS else "negative"
        except ValueError:
            problem = f"the rating {rating!r} of review {number} is no number"
            raise UserError(problem, path=path, cure="fetch the file again") from None
        yield number, (text,), label, None
        item.clear()

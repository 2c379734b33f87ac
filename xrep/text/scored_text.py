"""Pairs with scores in formats that ``read_pairs`` reads, written one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, TextIO

from xrep.errors import UserError
from xrep.text.records import ending_of, has_records, plain_name
from xrep.text.tmx import as_xml, write_memory


class _Format(NamedTuple):
    """What a file begins with, a unit of it and its end, with names in braces, and how texts are written in it."""

    begin: str
    unit: str
    end: str
    text: Callable[[str], str]


_XLIFF = _Format(
    '<?xml version="1.0" encoding="UTF-8"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
    '<file original="xrep" datatype="plaintext" source-language="{x}" target-language="{y}"><body>\n',
    '<trans-unit id="{number}"><source>{source}</source><target>{target}</target>'
    '<note from="x-score">{score:.6f}</note></trans-unit>\n',
    "</body></file>\n</xliff>\n",
    as_xml,
)
_CSV = _Format(
    "score,cosine,{x},{y}\n",
    "{score:.6f},{cosine:.6f},{source},{target}\n",
    "",
    lambda text: '"' + text.replace('"', '""') + '"',
)
_JSON_LINES = _Format(
    "",
    '{{"score": {score:.6f}, "cosine": {cosine:.6f}, "{x}": {source}, "{y}": {target}}}\n',
    "",
    lambda text: json.dumps(text, ensure_ascii=False),
)
_LINES = _Format("", "{score:.6f}\t{cosine:.6f}\t{source}\t{target}\n", "", lambda text: text.replace("\t", " "))
_FORMATS = {"xlf": _XLIFF, "xliff": _XLIFF, "csv": _CSV, "jsonl": _JSON_LINES}


def check_scored(output: str | Path) -> None:
    """Raise a UserError unless the format that a name says is written."""
    ending = ending_of(output)
    is_packed = plain_name(output) != Path(output).name or ending == "zip"
    if is_packed or (has_records(output) and ending not in ("tmx", *_FORMATS)):
        cure = f"write .tsv, .tmx, .{', .'.join(_FORMATS)}, and convert or compress that"
        raise UserError("this format is not written", path=output, cure=cure)


def write_scored(
    file: TextIO, output: str | Path, languages: tuple[str, str], rows: Iterable[tuple[float, float, str, str]]
) -> None:
    """Write score, cosine, source and target of pairs to a file of UTF-8, in the format that the output's name says;
    lines score<TAB>cosine<TAB>source<TAB>target if it says none."""
    if ending_of(output) == "tmx":
        write_memory(file, languages, ((score, source, target) for score, _, source, target in rows))
        return
    how, codes = _FORMATS.get(ending_of(output), _LINES), dict(zip("xy", languages, strict=True))
    file.write(how.begin.format(**codes))
    for number, (score, cosine, *texts) in enumerate(rows, 1):
        source, target = map(how.text, texts)
        file.write(how.unit.format(number=number, score=score, cosine=cosine, source=source, target=target, **codes))
    file.write(how.end)

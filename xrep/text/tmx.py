"""Translation memories: the units of TMX 1.4 and XLIFF 1.2 and 2.0, read one at a time, and TMX 1.4 and XLIFF 1.2,
written.

Text within inline markup is kept where it is text of the sentence (``g``, ``mrk``, ``hi``, ``pc``), and left out where
it is code of another format (``bpt``, ``ph`` and so on); of a line break a space is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

from xrep.errors import UserError
from xrep.text.lines import unpacked
from xrep.version import __version__

_CODES = frozenset(("bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "sub", "note", "prop"))
_UNITS = frozenset(("tu", "trans-unit", "segment"))
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML may have."""
_TMX = (
    """<?xml version="1.0" encoding="UTF-8"?>
<tmx version="1.4">
<header creationtool="xrep" creationtoolversion="{version}" segtype="sentence" o-tmf="xrep" adminlang="en" \
srclang="{source}" datatype="plaintext"/>
<body>
""",
    '<tu><prop type="x-score">{score:.6f}</prop><tuv xml:lang="{languages[0]}"><seg>{source}</seg></tuv>'
    '<tuv xml:lang="{languages[1]}"><seg>{target}</seg></tuv></tu>\n',
    "</body>\n</tmx>\n",
)
_XLIFF = (
    """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
<file original="xrep {version}" source-language="{source}" target-language="{target}" datatype="plaintext">
<body>
""",
    '<trans-unit id="{number}"><source>{source}</source><target>{target}</target>'
    '<note from="xrep">score {score:.6f}</note></trans-unit>\n',
    "</body>\n</file>\n</xliff>\n",
)
"""What a file begins with, each of its units, and what it ends with."""
MEMORIES = {"tmx": _TMX, "xlf": _XLIFF, "xliff": _XLIFF}
"""The forms in which memories are written, by the ending of the name of the file."""
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_memory(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each unit and its texts by language. Raises UserError as ``read_lines``, and if the file is
    not well-formed XML or no memory."""
    languages, ancestors = {"source": "source", "target": "target"}, list[Element]()
    units, inside, is_memory = 0, 0, False
    for event, element in xml_events(path):
        name = _name(element)
        if event == "start":
            ancestors.append(element)
            inside += name in _UNITS
            if name in ("tmx", "xliff", "file"):
                is_memory = True
                for side, attribute in (("source", "srcLang"), ("target", "trgLang")):
                    languages[side] = element.get(f"{side}-language") or element.get(attribute) or languages[side]
            continue
        ancestors.pop()
        if name in _UNITS:
            units, inside = units + 1, inside - 1
            if texts := _texts(element, languages):
                yield units, texts
        if ancestors and not inside:
            ancestors[-1].remove(element)  # or the whole file would stay in memory
    if not is_memory:
        raise UserError("neither TMX nor XLIFF", path=path, cure="give a translation memory of one of these formats")


def write_memory(
    file: TextIO, languages: tuple[str, str], units: Iterable[tuple[float, str, str]], ending: str = "tmx"
) -> int:
    """Write a translation memory, and return the number of its units.

    Args:
        file: An open file of UTF-8.
        languages: Codes of source and target.
        units: Score, source and target of each unit. The score becomes the property ``x-score`` of TMX, and a note in
            XLIFF.
        ending: That of the name of the file, one of ``MEMORIES``.
    """
    number, (head, unit, end) = 0, MEMORIES[ending]
    file.write(head.format(version=__version__, source=languages[0], target=languages[1]))
    for number, (score, *texts) in enumerate(units, 1):
        source, target = (escape(_NO_XML.sub(" ", text)) for text in texts)
        file.write(unit.format(number=number, score=score, languages=languages, source=source, target=target))
    file.write(end)
    return number


def xml_events(path: str | Path) -> Iterator[tuple[str, Element]]:
    """Yield ``start`` and ``end`` with each element of a file of XML; a UserError says that it is not well-formed."""
    with unpacked(path) as stream:
        try:
            yield from ElementTree.iterparse(stream, events=("start", "end"))
        except (ElementTree.ParseError, LookupError, ValueError) as error:
            raise UserError(f"not well-formed XML ({error})", path=path, cure="export it again") from None


def _texts(unit: Element, languages: dict[str, str]) -> dict[str, str]:
    """Return the texts of a unit by language: of TMX those of its variants, of XLIFF its source and target."""
    texts = dict[str, str]()
    for part in unit:
        name = _name(part)
        segments = [part] if name in languages else [child for child in part if name == "tuv" and _name(child) == "seg"]
        language = part.get(_LANGUAGE) or part.get("lang") or languages.get(name)
        if segments and language:
            texts[language] = " ".join(_text(segments[0]).split())
    return texts


def _text(element: Element) -> str:
    pieces = [element.text or ""]
    for part in element:
        code = " " if "lb" in (part.get("ctype"), part.get("type")) else ""
        pieces += [code if _name(part) in _CODES else _text(part), part.tail or ""]
    return "".join(pieces)


def _name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]

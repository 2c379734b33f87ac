"""Translation memories: the units of TMX 1.4 and XLIFF 1.2 and 2.0, read one at a time by the standard XML parser.

Text within inline markup is kept where it is text of the sentence (``g``, ``mrk``, ``hi``, ``pc``), and left out where
it is code of another format (``bpt``, ``ph`` and so on). Entities cannot be declared, so none can be expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.parsers import expat

from xrep.errors import UserError
from xrep.text.lines import MAXIMUM_CHARACTERS, Unpacked

_BLOCK = 1 << 16
_CODES = frozenset(("bpt", "ept", "ph", "it", "ut", "x", "bx", "ex", "sub", "note", "prop"))
_UNITS = frozenset(("tu", "trans-unit", "segment"))
_OTHERS = frozenset(("alt-trans", "seg-source", "ignorable"))
"""Elements of XLIFF that repeat or propose texts."""


def read_memory(path: str | Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line where a unit begins and its texts by language. Raises UserError as ``read_lines``, and if it is
    not well-formed XML, declares entities, or is no memory."""
    reader = _Reader(path)
    line = 1
    with Unpacked(path) as stream:
        while block := stream.read(_BLOCK, line):
            reader.feed(block)
            line = reader.line
            yield from reader.take()
    reader.feed(b"", last=True)
    yield from reader.take()
    if not reader.is_memory:
        raise UserError("neither TMX nor XLIFF", path=path, cure="give a translation memory of one of these formats")


class _Reader:
    def __init__(self, path: str | Path) -> None:
        self._path, self.is_memory = path, False
        self._units = list[tuple[int, dict[str, str]]]()
        self._texts: dict[str, str] | None = None
        self._languages = {"source": "", "target": ""}
        self._pieces: list[str] | None = None
        self._language, self._skipped, self._characters = "", 0, 0
        self._begin = 1
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.CharacterDataHandler, self._parser.EntityDeclHandler = self._text, self._entity
        self._parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    @property
    def line(self) -> int:
        return self._parser.CurrentLineNumber

    def feed(self, block: bytes, last: bool = False) -> None:
        try:
            self._parser.Parse(block, last)
        except expat.ExpatError as error:
            problem = f"not well-formed XML ({expat.ErrorString(error.code)})"
            raise UserError(problem, path=self._path, line=error.lineno, cure="export it again") from None
        except (ValueError, LookupError):
            raise UserError("XML of an unknown encoding", path=self._path, line=1, cure="convert it to UTF-8") from None

    def take(self) -> list[tuple[int, dict[str, str]]]:
        units, self._units = self._units, []
        return units

    def _wrong(self, problem: str) -> UserError:
        return UserError(problem, path=self._path, line=self.line, cure="export it again")

    def _entity(self, name: str, *declared: object) -> None:
        raise self._wrong(f"declares the entity {name[:40]!r}, which a translation memory does not need")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2]
        if self._skipped or name in _OTHERS or (self._pieces is not None and name in _CODES):
            self._skipped += 1
        elif name in ("tmx", "xliff", "file"):
            self.is_memory = True
            for side, own in (("source", "srcLang"), ("target", "trgLang")):
                given = attributes.get(f"{side}-language") or attributes.get(own)
                self._languages[side] = given or self._languages[side]
        elif name in _UNITS:
            self._texts, self._begin = {}, self.line
        elif self._texts is not None and name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif self._texts is not None and name in ("seg", "source", "target"):
            own = attributes.get("xml:lang") or self._languages.get(name, "")
            self._language = self._language if name == "seg" else own or name
            self._pieces, self._characters = [], 0

    def _end(self, tag: str) -> None:
        name = tag.rpartition(":")[2]
        if self._skipped:
            self._skipped -= 1
        elif name in _UNITS and self._texts is not None:
            if self._texts:
                self._units.append((self._begin, self._texts))
            self._texts = None
        elif name in ("seg", "source", "target") and self._texts is not None and self._pieces is not None:
            if self._language:
                self._texts[self._language] = " ".join("".join(self._pieces).split())
            self._pieces = None

    def _text(self, text: str) -> None:
        if self._pieces is not None and not self._skipped:
            self._characters += len(text)
            if self._characters > MAXIMUM_CHARACTERS:
                raise self._wrong(f"a text of more than {MAXIMUM_CHARACTERS:,} characters")
            self._pieces.append(text)

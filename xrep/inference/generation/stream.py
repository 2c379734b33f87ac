"""Translation of any number of lines, in their order and in constant memory."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from xrep.inference.generation.options import DEFAULTS, SearchOptions
from xrep.inference.generation.translator import Translation, Translator
from xrep.text.readers import read_text

CHUNK_LINES = 4096
"""Number of lines that are read, sorted by length and translated at a time."""
CHUNK_CHARACTERS = 2_000_000
"""A chunk of long lines ends after so many characters, so that memory does not grow with the length of the lines."""
NAMED = 10
"""Number of cut lines that are named one by one. Of the others only the number is reported."""

Format = Literal["plain", "nbest", "jsonl"]


class Chunks:
    """The lines of a file in chunks: full ones for a regular file, what has arrived so far for a pipe or a terminal.

    A thread reads ahead by at most one chunk.

    Args:
        path: a file as ``read_text`` reads it; for example ``/dev/stdin``.
        lang: the language of the text, if it is known.
    """

    def __init__(self, path: str | Path, most_lines: int = CHUNK_LINES, lang: str | None = None) -> None:
        self._path, self._most, self._lang = path, most_lines, lang
        self._waits = os.path.isfile(path)
        self._lines: list[str] = []
        self._characters = 0
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the chunks. If reading fails, the lines before the error are yielded first.

        Raises:
            UserError: see ``read_text``.
        """
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._full or (self._lines and not self._waits))
                chunk, self._lines, self._characters = self._lines, [], 0
                ended = self._ended
                self._changed.notify()
            if chunk:
                yield chunk
            if ended:
                break
        if self._error is not None:
            raise self._error

    @property
    def _full(self) -> bool:
        return len(self._lines) >= self._most or self._characters >= CHUNK_CHARACTERS

    def _read(self) -> None:
        try:
            for _, line in read_text(self._path, self._lang, allow_empty=True, most_words=None):
                with self._changed:
                    self._changed.wait_for(lambda: not self._full)
                    self._lines.append(line)
                    self._characters += len(line)
                    if self._full or not self._waits:
                        self._changed.notify()
        except BaseException as error:  # the iterator raises it again
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify()


@dataclass
class Summary:
    """Statistics of a translated file."""

    lines: int = 0
    translated: int = 0
    """Lines with text that are translated, but perhaps not yet written."""
    empty: int = 0
    cut: int = 0
    unknown: int = 0
    first_unknown: int = 0
    """Number (from 1) of the first line that consists mostly of unknown subwords."""
    tokens: int = 0
    """Number of tokens of the best translations, including eos."""
    seconds: float = 0.0
    best: list[str] = field(default_factory=list)
    """The best translation of each line, if asked for."""


def translate_stream(
    translator: Translator,
    path: str | Path,
    write: Callable[[str], object],
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    options: SearchOptions = DEFAULTS,
    max_tokens: int = 4096,
    most_lines: int = CHUNK_LINES,
    form: Format = "plain",
    keep_best: bool = False,
    warn: Callable[[str], None] = lambda line: None,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Translate each line of a file.

    Args:
        source_language: language of the text, by which ``read_text`` chooses texts of records.
        write: called with the text of a chunk of at most ``most_lines`` lines as soon as they are translated.
        form: plain: one line for each line; nbest: lines ``number<TAB>score<TAB>text``, one for each translation;
            jsonl: one object for each line.
        keep_best: fill ``Summary.best``.
        warn: called with a sentence for the user if lines were cut, or if the model cannot read lines.
        progress: called after each batch.

    Raises:
        UserError: see ``read_text`` and ``Translator.translate``.
    """
    summary, started = Summary(), time.monotonic()
    options.check()
    translator.target(target_language)

    def count(sentences: int, tokens: int) -> None:
        summary.translated += sentences
        summary.tokens += tokens
        summary.seconds = time.monotonic() - started
        progress(summary)

    for lines in Chunks(path, most_lines, source_language):
        source = translator.read(lines)
        for row in source.cut[: max(0, NAMED - summary.cut)]:
            most = translator.longest_source
            warn(f"{path}:{summary.lines + row + 1}: longer than {most} subwords, the rest is cut off")
        summary.cut += len(source.cut)
        translated = translator.translate(source, target_language, options, max_tokens, summary.lines, count)
        write("".join(_written(summary.lines + 1, lines, translated, form)))
        summary.unknown += len(source.unknown)
        if source.unknown and not summary.first_unknown:
            summary.first_unknown = summary.lines + source.unknown[0] + 1
        summary.lines += len(lines)
        summary.empty += sum(not len(tokens) for tokens in source.tokens)
        if keep_best:
            summary.best += [best[0].text for best in translated]
    if summary.cut > NAMED:
        warn(f"{path}: {summary.cut - NAMED:,} more lines were cut")
    if summary.unknown:
        lines_are = "line is" if summary.unknown == 1 else "lines are"
        warn(f"{path}:{summary.first_unknown}: {summary.unknown:,} {lines_are} mostly of unknown subwords, this one "
             "first; another script or language than the model reads?")  # fmt: skip
    return summary


def _written(first: int, lines: list[str], translated: list[list[Translation]], form: Format) -> Iterator[str]:
    for number, (line, translations) in enumerate(zip(lines, translated, strict=True), first):
        if form == "jsonl":
            values = [
                {
                    "text": translation.text,
                    "score": round(translation.score, 4),
                    "tokens": len(translation.tokens),
                    "token_scores": [round(score, 4) for score in translation.token_scores],
                }
                for translation in translations
            ]
            yield json.dumps({"line": number, "source": line, "translations": values}, ensure_ascii=False) + "\n"
        elif form == "nbest":
            yield from (f"{number}\t{one.score:.4f}\t{_one_line(one.text)}\n" for one in translations)
        else:
            yield _one_line(translations[0].text) + "\n"


def _one_line(text: str) -> str:
    """Replace line breaks, which a model of bytes may write, by spaces."""
    return text.replace("\n", " ").replace("\r", " ")

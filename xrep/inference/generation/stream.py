"""Translation of any number of lines, in their order and in constant memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from xrep.inference.generation.hypotheses import Hypothesis
from xrep.inference.generation.options import DEFAULTS, SearchOptions
from xrep.inference.generation.translator import Translator
from xrep.text.chunks import CHUNK_LINES, read_chunks

Format = Literal["plain", "nbest", "jsonl"]


@dataclass
class Summary:
    """Statistics of a translated file.

    Attributes:
        translated: Non-empty lines translated so far.
        tokens: Number of tokens of the best translations, including eos.
        best: The best translation of each line, if asked for.
    """

    lines: int = 0
    translated: int = 0
    empty: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: list[str] = field(default_factory=list)


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
    """Translate each line of a file, and return ``Summary``, which ``progress`` gets after each batch.

    Args:
        source_language: Language of the text, by which ``read_text`` chooses texts of records.
        write: Called with the text of a chunk of at most ``most_lines`` lines as soon as they are translated.
        form: plain: one line for each line; nbest: lines ``number<TAB>score<TAB>text``, one for each translation;
            jsonl: one object for each line.
        warn: Called at the end with a sentence for the user if lines were cut, and if the model cannot read lines.

    Raises:
        UserError: See ``read_text`` and ``Translator.translate``.
    """
    summary, started = Summary(), time.monotonic()
    translator.translate([], target_language, options)  # refuses bad options before a line is read
    cut = f"longer than {translator.longest_source} subwords, this one first, and the rest of each is cut off"
    unknown = "mostly of unknown subwords, this one first; another script or language than the model reads?"
    problems: dict[str, tuple[int, int]] = {}  # the number of lines of each problem, and the first of them

    def count(sentences: int, tokens: int) -> None:
        summary.translated += sentences
        summary.tokens += tokens
        summary.seconds = time.monotonic() - started
        progress(summary)

    for lines in read_chunks(path, most_lines, source_language):
        source = translator.read(lines)
        translated = translator.translate(source, target_language, options, max_tokens, summary.lines, count)
        write("".join(_written(summary.lines + 1, lines, translated, form)))
        for problem, rows in ((cut, source.cut), (unknown, source.unknown)):
            if rows:
                number, first = problems.get(problem, (0, summary.lines + rows[0] + 1))
                problems[problem] = number + len(rows), first
        summary.lines += len(lines)
        summary.empty += sum(not len(tokens) for tokens in source.tokens)
        if keep_best:
            summary.best += [best[0].text for best in translated]
    for problem, (number, first) in problems.items():
        warn(f"{path}:{first}: {number:,} {'line is' if number == 1 else 'lines are'} {problem}")
    return summary


def _written(first: int, lines: list[str], translated: list[list[Hypothesis]], form: Format) -> Iterator[str]:
    for number, (line, translations) in enumerate(zip(lines, translated, strict=True), first):
        if form == "jsonl":
            values = [
                {"text": one.text, "score": round(one.score, 4), "tokens": len(one.tokens)}
                | {"token_scores": [round(score, 4) for score in one.token_scores]}
                for one in translations
            ]
            yield json.dumps({"line": number, "source": line, "translations": values}, ensure_ascii=False) + "\n"
            continue
        for one in translations if form == "nbest" else translations[:1]:
            text = one.text.replace("\n", " ").replace("\r", " ")  # a model of bytes may write line breaks
            yield f"{number}\t{one.score:.4f}\t{text}\n" if form == "nbest" else f"{text}\n"

"""Find the sentences nearest to a query in text of any size.

This is the analysis of "Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast" (table 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.evaluation import EncoderOptions, Evaluation
from xrep.evaluation.figures import Figures
from xrep.evaluation.reading import read_sentences
from xrep.text.readers import read_lines

CHUNK_LINES = 16384
"""Number of sentences that are encoded and compared at a time."""
_CHUNK_CHARACTERS = 8_000_000
_QUERIES = 1024
"""Number of queries that are compared at a time; the similarities then take 64 MB."""


@dataclass(frozen=True)
class Hit:
    """A sentence of the text, with its cosine to the query and the file and line of its first occurrence."""

    similarity: float
    file: str
    line: int
    sentence: str


@dataclass(frozen=True)
class Chunk:
    """Distinct sentences of a file, and the lines of their first occurrences in the chunk."""

    file: str
    sentences: list[str]
    lines: list[int]


def read_queries(queries: Sequence[str], file: str | Path | None) -> list[str]:
    """Return the given queries and those in the lines of a file, without blank and repeated ones.

    Raises:
        UserError: There is no query.
    """
    lines = read_sentences(Path(file)) if file is not None else []
    found = list(dict.fromkeys(query for query in [*queries, *lines] if query.strip()))
    if not found:
        raise UserError("no query", cure="give `query` 'a sentence', or `query_file` with one on each line")
    return found


class Neighbours(Evaluation):
    """Find the sentences of a text that are nearest to a query, by the cosine of their vectors.

      xrep-eval neighbours --path run1/best --query 'Wir trinken Wasser.' --lang de --data corpus.en --data-lang en
      xrep-eval neighbours --path run1/best --query-file queries.en --data part1.en part2.en.gz --top 5 --json near.json

    The text may be of any size. Equal sentences count once, and a sentence that equals the query does not count.
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions):
        data: list[str]
        """Files of text, with one sentence per line."""
        query: list[str] = field(default_factory=list)
        """Sentences to search for; can be repeated."""
        query_file: str | None = None
        """File of queries, with one per line."""
        lang: str | None = None
        """Language of the queries, for an encoder that needs it."""
        data_lang: str | None = None
        """Language of the text. The default is that of the queries."""
        top: int = 3
        """Number of sentences for each query. Of equally near sentences, the earlier ones are taken."""

    config: Config

    def read(self) -> None:
        if self.config.top < 1:
            raise UserError(f"`top` {self.config.top}", cure="give at least 1")
        self.queries = read_queries(self.config.query, self.config.query_file)

    def measure(self, encoder: Encoder) -> Figures:
        config = self.config
        text_lang = config.data_lang or config.lang
        hits = nearest(encoder, self.queries, config.data, config.top, config.lang, text_lang)
        lines = []
        for query, found in zip(self.queries, hits, strict=True):
            lines += [f"query: {query}", *(f"{h.similarity:6.3f}  {h.file}:{h.line}  {h.sentence}" for h in found), ""]
        return Figures(
            text="\n".join(lines[:-1]),
            values={
                "queries": [
                    {"query": query, "nearest": [asdict(hit) for hit in found]}
                    for query, found in zip(self.queries, hits, strict=True)
                ]
            },
            settings={"top": config.top, "lang": config.lang, "text_lang": text_lang},
            files=[*config.data, *([config.query_file] if config.query_file else [])],
        )


def nearest(
    encoder: Encoder,
    queries: Sequence[str],
    files: Sequence[str | Path],
    top: int = 3,
    lang: str | None = None,
    text_lang: str | None = None,
) -> list[list[Hit]]:
    """Return the ``top`` sentences nearest to each query by cosine, nearest first.

    The text is read in chunks, so memory does not grow with its size. Blank lines are skipped.

    Args:
        lang, text_lang: Languages of the queries and of the text, for encoders that need them.

    Raises:
        UserError: The encoder refuses a language, the text has too few sentences, or a file cannot be read.
    """
    if lang:
        check_languages(encoder, {lang: queries[0]})
    vectors_QD = encoder.encode(list(queries), lang)
    hits: list[list[Hit]] = [[] for _ in queries]
    with tqdm(disable=None, unit=" lines", unit_scale=True, leave=False) as progress:
        for number, chunk in enumerate(_chunks(files)):
            if text_lang and number == 0:
                check_languages(encoder, {text_lang: chunk.sentences[0]})
            chunk_CD = encoder.encode(chunk.sentences, text_lang)
            for start in range(0, len(queries), _QUERIES):
                similarity_QC = vectors_QD[start : start + _QUERIES] @ chunk_CD.T
                for place, row in enumerate(similarity_QC, start=start):
                    hits[place] = _merge(hits[place], row, chunk, queries[place], top)
            progress.update(len(chunk.lines))
    fewest = min(map(len, hits))
    if fewest < top:
        problem = f"`top` {top}, but {fewest} different sentences to find"
        raise UserError(problem, path=files[0], cure="give a smaller `top`, or more text")
    return hits


def _chunks(files: Sequence[str | Path]) -> Iterator[Chunk]:
    for file in files:
        first_line: dict[str, int] = {}
        characters = 0
        for number, line in read_lines(file):
            if line.strip() and line not in first_line:
                first_line[line] = number
                characters += len(line)
            if len(first_line) >= CHUNK_LINES or characters >= _CHUNK_CHARACTERS:
                yield Chunk(str(file), list(first_line), list(first_line.values()))
                first_line, characters = {}, 0
        if first_line:
            yield Chunk(str(file), list(first_line), list(first_line.values()))


def _merge(hits: list[Hit], similarity_C: np.ndarray, chunk: Chunk, query: str, top: int) -> list[Hit]:
    """Return the best ``top`` of ``hits`` and a chunk. The chunk may also contain known hits and the query itself."""
    near = np.flatnonzero(similarity_C > hits[-1].similarity) if len(hits) == top else np.arange(len(similarity_C))
    best = near[np.argsort(-similarity_C[near], kind="stable")[: top + 1]]
    known = {query, *(hit.sentence for hit in hits)}
    found = [Hit(float(similarity_C[i]), chunk.file, chunk.lines[i], chunk.sentences[i]) for i in best.tolist()]
    both = hits + [hit for hit in found if hit.sentence not in known]
    return sorted(both, key=lambda hit: -hit.similarity)[:top]

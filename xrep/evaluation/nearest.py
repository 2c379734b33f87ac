"""Find the sentences nearest to a query in text of any size, as in table 10 of "Aligning Cross-lingual Sentence
Representations with Dual Momentum Contrast"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from pathlib import Path
from typing import Any

from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures
from xrep.evaluation.reading import check_least, read_sentences
from xrep.retrieval.neighbours import neighbours
from xrep.text.chunks import CHUNK_LINES, read_chunks
from xrep.text.languages import check_language
from xrep.text.readers import read_lines


@dataclass(frozen=True)
class Hit:
    """A sentence of the text, with its cosine to the query and the file and line of its first occurrence."""

    similarity: float
    file: str
    line: int
    sentence: str


class Neighbours(Evaluation):
    """Find the sentences of a text that are nearest to a query, by the cosine of their vectors.

      xrep-eval neighbours --path run1/best --query 'Wir trinken Wasser.' --lang de --data corpus.en --data-lang en
      xrep-eval neighbours --path run1/best --query-file queries.en --data part1.en part2.en.gz --top 5 --json near.json

    The text may be of any size. Equal sentences count once, and a sentence that equals the query does not count.
    """

    resampled = False
    unrecorded = Evaluation.unrecorded | {"query", "query_file"}

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

    def read(self) -> list[Examples]:
        """Return the queries and, only to list its sentences, the text, which may be larger than the memory."""
        config = self.config
        check_least(config, top=1)
        check_language(config.lang, "lang")
        check_language(config.data_lang, "data_lang")
        queries, lang = read_queries(config.query, config.query_file), config.lang or ""
        files = config.data if config.list_sentences else []
        text = list(dict.fromkeys(sentence for _, lines in _chunks(files) for sentence in lines))
        tables = ("query", lang, queries), ("data", config.data_lang or lang, text)
        return [Examples(name, (language,), (column,)) for name, language, column in tables if column]

    def measure(self, model: Encoder) -> Figures:
        config, (queries,) = self.config, self.tables[0].columns
        text_lang = config.data_lang or config.lang
        hits = nearest(model, queries, config.data, config.top, config.lang, text_lang)
        lines, found = list[str](), list[dict[str, Any]]()
        for query, own in zip(queries, hits, strict=True):
            lines += [f"query: {query}", *(f"{h.similarity:6.3f}  {h.file}:{h.line}  {h.sentence}" for h in own), ""]
            found.append({"query": query, "nearest": list(map(asdict, own))})
        return Figures(
            text="\n".join(lines[:-1]),
            values={"queries": found},
            settings={**self.settings(), "data_lang": text_lang},
            files=[*config.data, *filter(None, [config.query_file])],
        )


def read_queries(queries: Sequence[str], file: str | Path | None) -> list[str]:
    """Return the given queries and those in the lines of a file, without blank and repeated ones."""
    lines = read_sentences(Path(file)) if file is not None else []
    distinct = list(dict.fromkeys(query for query in [*queries, *lines] if query.strip()))
    if not distinct:
        raise UserError("no query", cure="give `query` 'a sentence', or `query_file` with one on each line")
    for query in distinct:
        if any("\ud800" <= character <= "\udfff" for character in query):
            raise UserError(f"`query` {query!r} is not UTF-8", cure="give it in a `query_file`, which is UTF-8")
    return distinct


def nearest(
    encoder: Encoder,
    queries: Sequence[str],
    files: Sequence[str | Path],
    top: int = 3,
    lang: str | None = None,
    text_lang: str | None = None,
) -> list[list[Hit]]:
    """Return the ``top`` sentences nearest to each query by cosine, nearest first, without holding all of the text.

    Args:
        lang, text_lang: Languages of the queries and of the text, for encoders that need them.
    """
    first = next((line for file in files for _, line in read_lines(file) if line.strip()), "")
    check_languages(encoder, {code: line for code, line in ((text_lang, first), (lang, queries[0])) if code})
    vectors, best = encoder.encode(list(queries), lang), [list[Hit]() for _ in queries]
    for file, lines in tqdm(_chunks(files), disable=None, unit=" lines", unit_scale=CHUNK_LINES, leave=False):
        sentences = list(lines)
        # One more than needed, because the query itself may be among them.
        near, _ = neighbours(vectors, encoder.encode(sentences, text_lang), min(top + 1, len(sentences)), 0)
        for row, (similarities, columns) in enumerate(zip(near.similarity.tolist(), near.index.tolist(), strict=True)):
            known = {queries[row], *(hit.sentence for hit in best[row])}
            for similarity, sentence in zip(similarities, (sentences[column] for column in columns), strict=True):
                if sentence not in known:
                    best[row].append(Hit(similarity, file, lines[sentence], sentence))
            best[row] = nlargest(top, best[row], key=lambda hit: hit.similarity)  # of equal ones the first
    if (fewest := min(map(len, best))) < top:
        problem = f"`top` {top}, but {fewest} different sentences to find"
        raise UserError(problem, path=files[0], cure="give a smaller `top`, or more text")
    return best


def _chunks(files: Sequence[str | Path]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield each chunk of each file: the file, and its sentences with the lines where they first occur."""
    for file in files:
        count = 0
        for chunk in read_chunks(file, CHUNK_LINES):
            lines = dict[str, int]()
            for line, sentence in enumerate(chunk, start=count + 1):
                if sentence.strip():
                    lines.setdefault(sentence, line)
            count += len(chunk)
            if lines:
                yield str(file), lines

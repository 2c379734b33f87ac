"""Find the sentences nearest to a query in text of any size, as in table 10 of "Aligning Cross-lingual Sentence
Representations with Dual Momentum Contrast"."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures
from xrep.retrieval.in_memory import neighbours
from xrep.text.chunks import CHUNK_LINES, read_chunks
from xrep.text.languages import check_language
from xrep.text.lines import read_lines


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
        top: Count = 3
        """Number of sentences for each query. Of equally near sentences, the earlier ones are taken."""

    config: Config

    def read(self) -> list[Examples]:
        """Return the queries and, only to list its sentences, the text, which may be larger than the memory."""
        config = self.config
        check_language(config.lang, "lang")
        check_language(config.data_lang, "data_lang")
        listed = read_lines(config.query_file) if config.query_file else ()
        given = [*config.query, *(line for _, line in listed)]
        queries = list(dict.fromkeys(query for query in given if query.strip()))
        if not queries:
            raise UserError("no query", cure="give `query` 'a sentence', or `query_file` with one on each line")
        files, lang = config.data if config.list_sentences else [], config.lang or ""
        text = [sentence for _, lines in _chunks(files) for sentence in lines]
        tables = ("query", lang, queries), ("data", config.data_lang or lang, text)
        read = tuple(map(Path, [*config.data, *filter(None, [config.query_file])]))
        return [Examples(name, (language,), (column,), files=read) for name, language, column in tables if column]

    def measure(self, model: MeasuredEncoder) -> Figures:
        """Search without holding all of the text. The values for JSON are a list of ``queries``, each with its
        ``nearest`` sentences: the cosine as ``similarity``, and the ``file`` and ``line`` of the first occurrence."""
        config, (queries,) = self.config, self.tables[0].columns
        lang, text_lang, top = config.lang, config.data_lang or config.lang, config.top
        vectors, best = model.encode(queries, lang), [dict[str, dict[str, Any]]() for _ in queries]
        for file, lines in tqdm(_chunks(config.data), disable=None, unit=" lines", unit_scale=CHUNK_LINES, leave=False):
            sentences = list(lines)
            # One more than needed, because the query itself may be among them.
            near, _ = neighbours(vectors, model.encode(sentences, text_lang), min(top + 1, len(sentences)), 0)
            for row, query in enumerate(queries):
                for similarity, column in zip(near.similarity[row].tolist(), near.index[row].tolist(), strict=True):
                    if (sentence := sentences[column]) != query:
                        hit = {"similarity": similarity, "file": file, "line": lines[sentence], "sentence": sentence}
                        best[row].setdefault(sentence, hit)
                ranked = sorted(best[row].items(), key=lambda item: -item[1]["similarity"])  # of equal ones the first
                best[row] = dict(ranked[:top])
        if (fewest := min(map(len, best))) < top:
            problem = f"`top` {top}, but {fewest} different sentences to find"
            raise UserError(problem, path=config.data[0], cure="give a smaller `top`, or more text")
        found = {query: list(hits.values()) for query, hits in zip(queries, best, strict=True)}
        shown = "{similarity:6.3f}  {file}:{line}  {sentence}"
        texts = ["\n".join([f"query: {query}", *map(shown.format_map, hits)]) for query, hits in found.items()]
        return Figures(
            text="\n\n".join(texts),
            values={"queries": [{"query": query, "nearest": hits} for query, hits in found.items()]},
            settings={**self.settings(), "data_lang": text_lang},
            files=self.tables[0].files,
        )


def _chunks(files: Sequence[str]) -> Iterator[tuple[str, dict[str, int]]]:
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
                yield file, lines

"""Find the sentences nearest to a query in text of any size.

This is the analysis of "Aligning Cross-lingual Sentence Representations with Dual Momentum Contrast" (table 10).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm

from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, check_languages
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Examples, Figures
from xrep.evaluation.reading import read_sentences
from xrep.inference.encoding import CHUNK_CHARACTERS, CHUNK_LINES
from xrep.retrieval.neighbours import neighbours
from xrep.retrieval.topk import TopK
from xrep.text.languages import check_language
from xrep.text.readers import read_lines

Place = tuple[str, int, str]
"""A file, the number of a line, and the sentence in it."""


@dataclass(frozen=True)
class Hit:
    """A sentence of the text, with its cosine to the query and the file and line of its first occurrence."""

    similarity: float
    file: str
    line: int
    sentence: str


def read_queries(queries: Sequence[str], file: str | Path | None) -> list[str]:
    """Return the given queries and those in the lines of a file, without blank and repeated ones."""
    lines = read_sentences(Path(file)) if file is not None else []
    distinct = list(dict.fromkeys(query for query in [*queries, *lines] if query.strip()))
    for query in distinct:
        if not query.isascii() and any("\ud800" <= character <= "\udfff" for character in query):
            raise UserError(f"`query` {query!r} is not UTF-8", cure="give it in a `query_file`, which is UTF-8")
    if not distinct:
        raise UserError("no query", cure="give `query` 'a sentence', or `query_file` with one on each line")
    return distinct


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
        if config.top < 1:
            raise UserError(f"`top` {config.top}", cure="give at least 1")
        check_language(config.lang, "lang")
        check_language(config.data_lang, "data_lang")
        queries, lang = read_queries(config.query, config.query_file), config.lang or ""
        files = config.data if config.list_sentences else []
        text = (sentence for chunk in _chunks(files) for *_, sentence in chunk)
        tables = ("query", lang, queries), ("data", config.data_lang or lang, list(dict.fromkeys(text)))
        return [Examples(own, (language,), (column,)) for own, language, column in tables if column]

    def measure(self, model: Encoder) -> Figures:
        config, (queries,) = self.config, self.tables[0].columns
        hits = nearest(model, queries, config.data, config.top, config.lang, config.data_lang or config.lang)
        lines = list[str]()
        for query, own in zip(queries, hits, strict=True):
            lines += [f"query: {query}", *(f"{h.similarity:6.3f}  {h.file}:{h.line}  {h.sentence}" for h in own), ""]
        found = [{"query": query, "nearest": list(map(asdict, own))} for query, own in zip(queries, hits, strict=True)]
        return Figures(
            text="\n".join(lines[:-1]),
            values={"queries": found},
            settings=self.settings(),
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
    """
    if lang:
        check_languages(encoder, {lang: queries[0]})
    vectors, best = encoder.encode(list(queries), lang), TopK.none(len(queries), top)
    places, count = (
        dict[int, Place](),
        0,
    )  # of the best so far: the number of a sentence in all of the text -> its place
    with tqdm(disable=None, unit=" lines", unit_scale=True, leave=False) as progress:
        for chunk in _chunks(files):
            sentences = [sentence for *_, sentence in chunk]
            if text_lang and not count:
                check_languages(encoder, {text_lang: sentences[0]})
            # One more than needed, because the query itself may be among them.
            near, _ = neighbours(vectors, encoder.encode(sentences, text_lang), min(top + 1, len(chunk)), 0)
            known = {sentence: number for number, (*_, sentence) in places.items()}
            numbers = [known.get(sentence, count + row) for row, sentence in enumerate(sentences)]
            rows = {sentence: row for row, sentence in enumerate(sentences)}
            is_query = near.index == torch.tensor([[rows.get(query, -1)] for query in queries])
            index = torch.tensor(numbers)[near.index].masked_fill(is_query, -1)
            best.merge(TopK(near.similarity.masked_fill(is_query, -torch.inf), index))
            places = dict(zip(numbers, chunk, strict=True)) | places
            places = {number: places[number] for number in best.index.unique().tolist() if number >= 0}
            count += len(chunk)
            progress.update(len(chunk))
    if (fewest := int((best.index >= 0).sum(dim=1).min())) < top:
        problem = f"`top` {top}, but {fewest} different sentences to find"
        raise UserError(problem, path=files[0], cure="give a smaller `top`, or more text")
    pairs = (zip(*row, strict=True) for row in zip(best.similarity.tolist(), best.index.tolist(), strict=True))
    return [[Hit(similarity, *places[number]) for similarity, number in row] for row in pairs]


def _chunks(files: Sequence[str | Path]) -> Iterator[list[Place]]:
    """Yield the distinct sentences of a part of a file, at their first occurrences there."""
    for file in files:
        places = dict[str, Place]()
        characters = 0
        for number, line in read_lines(file):
            if line.strip() and line not in places:
                places[line] = str(file), number, line
                characters += len(line)
            if len(places) >= CHUNK_LINES or characters >= CHUNK_CHARACTERS:
                yield list(places.values())
                places, characters = {}, 0
        if places:
            yield list(places.values())

"""Tables of monolingual text: the sentences of documents, or passages of several sentences, by language.

The directory is built once for the same files and options. Each language of a split has a table with the columns
``text`` (tokens), ``hashes`` (uint64 [n]) and ``followed`` (int64: the rows whose next row goes on with their document,
sorted).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from xrep.data.batch import Vocabulary
from xrep.data.build import Builder, build, chunks
from xrep.data.table import HASH, ColumnType, DataDirectory, flatten, token_type
from xrep.hashing import GOLDEN, mix
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.examples import read_sentences
from xrep.text.find import TextFile, find_text
from xrep.text.lines import is_too_long
from xrep.text.sides import SHARED, Tokenizers


class SentenceRows(NamedTuple):
    """Sentences or passages: their ids, their hashes, and whether each goes on with the document of the row before."""

    ids: list[list[int]]
    hashes: np.ndarray
    follows: np.ndarray


def prepare_text(
    data: str | Path, tokenizers: Tokenizers, passage_length: int | None = None, **options: Any
) -> DataDirectory:
    """Read and tokenise text unless this was done before, and open the result.

    Args:
        data: Specification of the text, see ``xrep.text.find.find_text``.
        tokenizers: The shared tokenizer; empty to train one on the training text.
        passage_length: Join the consecutive sentences of a document while a row has at most this number of tokens,
            special tokens included. None: each sentence is a row.
        options: ``vocabulary_size``, ``exponent`` and ``exclude`` of ``build``.

    Raises:
        UserError: For the same reasons as ``find_text`` and ``read_sentences``, or if no training sentence is left.
    """
    files = find_text(data)

    def fill(builder: Builder) -> None:
        held_out = (text for file in files.get("valid", []) for text, _ in read_sentences(file))
        builder.excluded.add(sentence_hashes(held_out))
        for split, some in files.items():
            for language in sorted({file.language for file in some}):
                of_language = [file for file in some if file.language == language]
                _write(builder, split, language, of_language, passage_length)

    def sentences() -> Iterator[tuple[str, str]]:
        text = ((file.language, text) for file in files["train"] for text, _ in read_sentences(file))
        return (pair for pair in text if not is_too_long(pair[1]))

    return build(
        "text",
        [{split: [(file.language, str(file.path)) for file in some] for split, some in files.items()}, passage_length],
        [file.path for some in files.values() for file in some],
        fill,
        tokenizers,
        sentences,
        title=str(data),
        **options,
    )


def _write(builder: Builder, split: str, language: str, files: list[TextFile], passage_length: int | None) -> None:
    """Write the table of a language, and print how many sentences it has."""
    counts, pairs, tokenizer = Counter[str](), 0, builder.tokenizers[SHARED]
    schema = {
        "text": token_type(tokenizer.vocabulary_size),
        "hashes": HASH,
        "followed": ColumnType("<i8"),
    }
    rows = _sentences(builder, split, files, counts)
    if passage_length is not None:
        rows = join_sentences(rows, passage_length - Vocabulary.of(tokenizer).special_count)
    with builder.table(split, language, schema, languages=[language]) as table:
        for chunk in rows:
            followed = table.rows + np.flatnonzero(chunk.follows) - 1
            pairs += len(followed)
            table.append({"text": flatten(chunk.ids), "hashes": chunk.hashes, "followed": followed})
    left_out = f" of {counts['read']:,}" if counts["read"] > counts["kept"] else ""
    left_out += f" ({counts['too long']:,} are too long)" if counts["too long"] else ""
    joined = f" in {table.rows:,} passages" if passage_length is not None else ""
    print(f"{split} {language}: {counts['kept']:,} sentences{left_out}{joined}, {pairs:,} followed by another")


def _sentences(builder: Builder, split: str, files: list[TextFile], counts: Counter[str]) -> Iterator[SentenceRows]:
    """Yield the sentences that the split may have, and count those that are read, kept and too long."""
    before = False
    for chunk in chunks(itertools.chain.from_iterable(map(read_sentences, files))):
        hashes, first = sentence_hashes(text for text, _ in chunk), np.array([first for _, first in chunk])
        keep = np.array([not is_too_long(text) for text, _ in chunk])
        counts["too long"] += int(np.count_nonzero(~keep))
        keep[keep] = builder.allow(split, hashes[keep])
        follows = keep & np.append(before, keep[:-1]) & ~first
        before, counts["read"] = keep[-1], counts["read"] + len(chunk)
        counts["kept"] += int(np.count_nonzero(keep))
        ids = builder.tokenizers[SHARED].encode([chunk[row][0] for row in np.flatnonzero(keep)])
        yield SentenceRows(ids, hashes[keep], follows[keep])


def join_sentences(sentences: Iterable[SentenceRows], max_tokens: int) -> Iterator[SentenceRows]:
    """Join the consecutive sentences of each document into passages of at most ``max_tokens`` tokens; a sentence that
    is longer stays alone. Memory holds one chunk of sentences and the passage that is not complete yet."""
    ids, hashes = list[list[int]](), np.empty(0, np.uint64)
    starts, follows, size = list[int](), list[bool](), 0

    def passages(count: int) -> SentenceRows:
        borders = [*starts, len(ids)][: count + 1]
        joined = [list(itertools.chain.from_iterable(ids[start:end])) for start, end in itertools.pairwise(borders)]
        its_hashes = passage_hashes(hashes[: borders[-1]], np.array(starts[:count], dtype=np.int64))
        return SentenceRows(joined, its_hashes, np.array(follows[:count], dtype=bool))

    for chunk in sentences:
        for sentence, goes_on in zip(chunk.ids, chunk.follows.tolist(), strict=True):
            if not starts or not goes_on or size + len(sentence) > max_tokens:
                starts.append(len(ids))
                follows.append(goes_on)
                size = 0
            ids.append(sentence)
            size += len(sentence)
        hashes = np.concatenate([hashes, chunk.hashes])
        if len(starts) > 1:
            yield passages(len(starts) - 1)
            ids, hashes, starts, follows = ids[starts[-1] :], hashes[starts[-1] :], [0], follows[-1:]
    if starts:
        yield passages(1)


def passage_hashes(hashes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the hashes of passages, uint64 [M], which depend on the order of their sentences.

    The hash of a passage of one sentence is that of the sentence. Sentences without words do not count, as they do not
    in ``sentence_hash`` of a whole text; a passage that has no others gets ``NO_KEY``.

    Args:
        hashes: Hashes of the sentences, uint64 [n].
        starts: Place of the first sentence of each passage, int64 [M], ascending, from 0.
    """
    has_words = hashes != NO_KEY
    before = np.cumsum(has_words) - has_words  # sentences with words before each sentence
    places = (before - np.repeat(before[starts], np.diff(starts, append=len(hashes)))).astype(np.uint64)
    mixed = np.where(places, mix(hashes + places * np.uint64(GOLDEN)), hashes)  # Overflow is harmless in a hash.
    return np.add.reduceat(mixed * has_words, starts)

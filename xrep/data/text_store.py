"""Tokenised monolingual text on disk: the sentences of documents, by language.

A directory is built once for the same files and options, in ``$XREP_HOME/text/``. Its columns are languages, and it
has, besides the files of every directory of tokenised text (``xrep.data.store``), for each language::

    {split}.{lang}.followed    int64, rows whose next row is the next sentence of their document, sorted

While a directory is built, memory does not grow with the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.building import build_cached, files_in, train_vocabulary
from xrep.data.hash_runs import HashRuns
from xrep.data.store import TOKENIZER_DIRECTORY, Corpus, DataDirectory, DirectoryWriter, Kind, joined, write_manifest
from xrep.errors import UserError
from xrep.hashing import GOLDEN, mix
from xrep.text.cleaning import NO_KEY, HashSet, sentence_hashes
from xrep.text.exclusion import load_exclusion
from xrep.text.lines import is_too_long
from xrep.text.readers import TextFile, find_text, read_sentences
from xrep.text.sides import SHARED, Tokenizers, save_tokenizers

TEXT = Kind("xrep-text", 3, "remove its directory; it is made again", arrays=("hashes", "followed"))
_CHUNK = 8192


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options for turning raw text into a directory."""

    vocabulary_size: int | None = None
    """Number of subwords of the vocabulary that is trained if no tokenizer is given.
    None: 16,000, or fewer if the text is too small."""
    vocabulary_alpha: float = 0.3
    """A language with n sentences has the weight n ** vocabulary_alpha in the text used to train the vocabulary."""
    exclude: list[str] = field(default_factory=list)
    """Files or folders of evaluation sets, whose sentences are dropped from the training text."""


def prepare_text(data: str | Path, options: TextOptions, tokenizers: Tokenizers) -> DataDirectory:
    """Read and tokenise text unless this was done before, and open the result.

    Args:
        data: Specification of the text, see ``xrep.text.readers.find_text``.
        tokenizers: The shared tokenizer; empty to train one on the training text.

    Raises:
        UserError: For the same reasons as ``find_text`` and ``read_sentences``, or if no training sentence is left.
    """
    files = find_text(data)

    def build(folder: Path, place: Path) -> None:
        print(f"tokenising {data} (once; kept in {place})")
        _Writer(folder, files, options).write(tokenizers)

    read = [file.path for some in files.values() for file in some] + files_in(options.exclude)
    languages = {split: [(file.language, str(file.path)) for file in some] for split, some in files.items()}
    return DataDirectory(build_cached("text", TEXT, [languages, asdict(options)], read, build, tokenizers), TEXT)


def packed(corpus: Corpus, most: int) -> Corpus:
    """Join the consecutive sentences of each document into rows of at most ``most`` tokens; a longer one stays alone.

    The rows of a document follow each other, as its sentences did. Memory grows with the text: by some 10 bytes
    for each sentence while they are joined, and by up to 24 for each row of the result.
    """
    offsets, is_last = corpus.source.offsets, np.ones(len(corpus), dtype=bool)
    is_last[corpus.arrays["followed"]] = False
    starts, start = list[int](), 0
    for end in (np.flatnonzero(is_last) + 1).tolist():  # of a document
        while start < end:
            starts.append(start)
            fitting = int(np.searchsorted(offsets[start : end + 1], offsets[start] + most, side="right")) - 1
            start += max(fitting, 1)
    rows = np.array(starts, dtype=np.int64)
    arrays = {
        "hashes": _passage_hashes(corpus.hashes, rows),
        "followed": np.flatnonzero(~is_last[rows[1:] - 1]),
    }
    return Corpus(corpus.names, (corpus.source.runs(rows),), arrays, corpus.salt)


def _passage_hashes(hashes: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the hashes of passages, uint64 [M, 1], which depend on the order of their sentences.

    The hash of a passage of one sentence is that of the sentence. Sentences without words do not count, as they do not
    in ``sentence_hash`` of a whole text; a passage that has no others gets ``NO_KEY``.

    Args:
        hashes: Hashes of the sentences, uint64 [n, 1].
        starts: Row of the first sentence of each passage, int64 [M], ascending.
    """
    borders, parts = np.append(starts, len(hashes)), [hashes[:0, 0]]
    for first in range(0, len(starts), _CHUNK):
        own = starts[first : first + _CHUNK]
        some, own = hashes[own[0] : borders[first + len(own)], 0], own - own[0]
        has_words = some != NO_KEY
        before = np.cumsum(has_words) - has_words  # sentences with words before each sentence
        places = (before - np.repeat(before[own], np.diff(own, append=len(some)))).astype(np.uint64)
        mixed = np.where(places, mix(some + places * np.uint64(GOLDEN)), some)  # Overflow is harmless in a hash.
        parts.append(np.add.reduceat(mixed * has_words, own))
    return np.concatenate(parts)[:, None]


class _Writer:
    """Writer of the directory ``output``."""

    def __init__(self, output: Path, files: dict[str, list[TextFile]], options: TextOptions) -> None:
        self.output, self.files, self.options = output, files, options
        self.dropped, self.training = HashSet(), HashRuns(output)

    def write(self, tokenizers: Tokenizers) -> None:
        self.dropped = load_exclusion(self.options.exclude)
        for chunk in _chunks(self.files.get("valid", [])):
            self.dropped.add(sentence_hashes(sentence for sentence, _ in chunk))
        tokenizers = self._tokenizers(tokenizers)
        splits = {split: self._write_split(split, tokenizers) for split in self.files}
        if not splits["train"]:
            path = self.files["train"][0].path
            raise UserError("no training sentence is left", path=path, cure="check the text and `exclude`")
        facts = {"splits": splits, "options": asdict(self.options)}
        write_manifest(self.output, TEXT, tokenizers, self.training, facts)

    def _tokenizers(self, given: Tokenizers) -> Tokenizers:
        def sentences() -> Iterator[tuple[str, str]]:
            text = ((file.language, text) for file in self.files["train"] for text, _ in read_sentences(file))
            return (own for own in text if not is_too_long(own[1]))

        size, exponent = self.options.vocabulary_size, self.options.vocabulary_alpha
        place = self.output / TOKENIZER_DIRECTORY
        save_tokenizers(given, place)
        return given or {SHARED: train_vocabulary(sentences, size, place, print, exponent=exponent)}

    def _write_split(self, split: str, tokenizers: Tokenizers) -> list[dict[str, Any]]:
        """Tokenise the text of a split, and return the facts of each language that has sentences."""
        languages = sorted({file.language for file in self.files[split]})
        facts = [self._write_language(split, language, tokenizers) for language in languages]
        return [row for row in facts if row["rows"]]

    def _write_language(self, split: str, language: str, tokenizers: Tokenizers) -> dict[str, Any]:
        before, read, pairs, too_long, tokenizer = False, 0, 0, 0, tokenizers[SHARED]
        own = [file for file in self.files[split] if file.language == language]
        with DirectoryWriter(self.output, split, [language], TEXT.arrays, tokenizer.vocabulary_size) as writer:
            for chunk in _chunks(own):
                hashes, first = sentence_hashes(text for text, _ in chunk), np.array([first for _, first in chunk])
                keep = np.array([not is_too_long(text) for text, _ in chunk])
                too_long += np.count_nonzero(~keep)
                if split == "train":
                    keep &= ~self.dropped.contains(hashes)
                    self.training.add(hashes[keep])
                follows = keep & np.append(before, keep[:-1]) & ~first
                followed = (writer.rows + np.cumsum(keep) - 2)[follows]  # the row before the sentence that follows
                ids = tokenizer.encode([chunk[i][0] for i in np.flatnonzero(keep)])
                writer.append([joined(ids)], {"hashes": hashes[keep], "followed": followed})
                before, read, pairs = keep[-1], read + len(chunk), pairs + len(followed)
        left_out = f" of {read:,}" if read > writer.rows else ""
        left_out += f" ({too_long:,} are too long)" if too_long else ""
        print(f"{split} {language}: {writer.rows:,} sentences{left_out}, {pairs:,} followed by another")
        return {"languages": [language], **writer.facts}


def _chunks(files: list[TextFile]) -> Iterator[list[tuple[str, bool]]]:
    sentences = itertools.chain.from_iterable(map(read_sentences, files))
    while chunk := list(itertools.islice(sentences, _CHUNK)):
        yield chunk

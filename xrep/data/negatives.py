"""Hard negatives of translation pairs on disk, such as ``xrep-mine negatives`` finds.

The files have lines source<TAB>target<TAB>negative and any number of further negatives. They are tokenised once for the
same files and vocabulary, into a directory in ``$XREP_HOME/negatives/`` with a negative in each row of its only column.
It has, besides the files of every directory of tokenised text (``xrep.data.store``)::

    train.negative.pairs    uint64 [n], xrep.text.cleaning.pair_hashes of the pair that each negative belongs to
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from xrep.data.batch import HardNegatives, TextSpec, pad
from xrep.data.building import build_cached, files_in
from xrep.data.hash_runs import HashRuns
from xrep.data.store import (
    MANIFEST_FILE,
    TOKENIZER_DIRECTORY,
    DataDirectory,
    DirectoryWriter,
    Kind,
    joined,
    write_manifest,
)
from xrep.errors import UserError
from xrep.text.cleaning import NO_KEY, HashSet, pair_hashes, sentence_hashes
from xrep.text.exclusion import load_exclusion
from xrep.text.lines import read_lines
from xrep.text.sides import SHARED, save_tokenizers
from xrep.text.tokenizer import Tokenizer

NEGATIVES = Kind("xrep-negatives", 1, "remove its directory; it is made again", "columns", ("pairs",))
_CHUNK = 8192


class NegativeStore:
    """The hard negatives of pairs, found by the hashes of the pairs. It holds 16 bytes of memory for each negative.

    Attribute: ``fingerprint``, a hex digest that changes if any of them changes.

    Raises:
        UserError: The directory is damaged.
    """

    def __init__(self, data: DataDirectory) -> None:
        corpora = data.splits["train"]
        if len(corpora) != 1:
            problem = f"the manifest has {len(corpora)} sets of negatives"
            raise UserError(problem, path=data.path / MANIFEST_FILE, cure=NEGATIVES.cure)
        self._column, pairs = corpora[0].columns[0], corpora[0].arrays["pairs"]
        self._rows = np.argsort(pairs, kind="stable")
        self._pairs = pairs[self._rows]
        self._data, self.fingerprint = data, data.fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def counts(self, hashes: np.ndarray) -> np.ndarray:
        """Return how many negatives each pair has: uint64 [B, 2], the hashes of both sides, -> int64 [B]."""
        first, last = self._places(hashes)
        return last - first

    def of(self, hashes: np.ndarray, text: TextSpec) -> HardNegatives:
        """Return the negatives of the pairs of a batch, given the hashes of both sides, uint64 [B, 2]."""
        first, last = self._places(hashes)
        counts = last - first
        owners = np.repeat(np.arange(len(hashes)), counts)
        places = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        vocabulary = text.vocabulary("target")
        ids, lengths = self._column.gather(self._rows[places], text.max_length - vocabulary.special_count)
        return HardNegatives(pad(ids, lengths, vocabulary), torch.from_numpy(owners), owners)

    def copy_hashes(self, path: Path) -> None:
        """Write the sorted hashes of the negatives to a file, as ``DataDirectory.copy_training_hashes`` does."""
        self._data.copy_training_hashes(path)

    def _places(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wanted = pair_hashes(hashes)
        return np.searchsorted(self._pairs, wanted, "left"), np.searchsorted(self._pairs, wanted, "right")


def prepare_negatives(
    files: Sequence[str], tokenizer: Tokenizer, exclude: Sequence[str] = (), log: Callable[[str], None] = print
) -> NegativeStore:
    """Read and tokenise hard negatives unless this was done before, and open them.

    Repeated negatives of a pair are left out, also those that equal one of its sides, and sentences of ``exclude``
    (files or folders of evaluation sets).

    Raises:
        UserError: A file cannot be read, a line has not three columns or more, or no negative is left.
    """

    def build(folder: Path, place: Path) -> None:
        log(f"tokenising {', '.join(files)} (once; kept in {place})")
        save_tokenizers({SHARED: tokenizer}, folder / TOKENIZER_DIRECTORY)
        row, kept = _write(folder, files, tokenizer, load_exclusion(exclude))
        write_manifest(folder, NEGATIVES, {SHARED: tokenizer}, kept, {"splits": {"train": [row]}})

    read = [*map(Path, files), *files_in(exclude)]
    facts = [list(files), list(exclude)]
    path = build_cached("negatives", NEGATIVES, facts, read, build, {SHARED: tokenizer})
    return NegativeStore(DataDirectory(path, NEGATIVES))


def _write(folder: Path, files: Sequence[str], tokenizer: Tokenizer, excluded: HashSet) -> tuple[dict, HashRuns]:
    """Write the tokens and pairs; return the facts for the manifest, and the hashes of the negatives."""
    seen, kept, rows = HashSet(), HashRuns(folder), itertools.chain.from_iterable(map(_read, files))
    with DirectoryWriter(folder, "train", ["negative"], ["pairs"], tokenizer.vocabulary_size) as writer:
        while chunk := list(itertools.islice(rows, _CHUNK)):
            sources, targets, negatives = zip(*chunk, strict=True)
            sides, hashes = (
                np.stack([sentence_hashes(sources), sentence_hashes(targets)], 1),
                sentence_hashes(negatives),
            )
            pairs = pair_hashes(sides)
            usable = (pairs != NO_KEY) & (hashes[:, None] != sides).all(1) & ~excluded.contains(hashes)
            usable[usable] = seen.add(pair_hashes(np.stack([pairs, hashes], 1))[usable])
            kept.add(hashes[usable])
            texts = [negatives[i] for i in np.flatnonzero(usable)]
            writer.append([joined(tokenizer.encode(texts))], {"pairs": pairs[usable]})
    if not writer.rows:
        raise UserError("no negatives are left", path=files[0], cure="mine them again with other options")
    return {"columns": ["negative"], **writer.facts}, kept


def _read(file: str) -> Iterator[tuple[str, str, str]]:
    """Yield source, target and negative of each negative in a file."""
    for number, line in read_lines(file, most_words=None):
        texts = line.split("\t")
        if len(texts) < 3 or not all(text.strip() for text in texts):
            cure = "give what xrep-mine negatives writes: source, target and negatives, separated by tabs"
            raise UserError("not a pair with negatives", path=file, line=number, cure=cure)
        for negative in texts[2:]:
            yield texts[0], texts[1], negative

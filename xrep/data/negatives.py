"""Hard negatives of translation pairs on disk, such as ``xrep-mine negatives`` finds.

The files have lines source<TAB>target<TAB>negative and any number of further negatives. They are tokenised once for the
same files and vocabulary, into a table with a negative in each row. Its columns are ``pairs`` (uint64 [n], sorted:
``xrep.text.cleaning.pair_hashes`` of the pair that each negative belongs to) and ``negative`` (tokens).
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from xrep.data.batch import HardNegatives, TextSpec, pad
from xrep.data.build import Builder, build, chunks
from xrep.data.disk_sort import DiskSort
from xrep.data.table import HASH, DataDirectory, TableWriter, flatten, open_table, token_type
from xrep.errors import UserError
from xrep.text.cleaning import NO_KEY, pair_hashes, sentence_hashes
from xrep.text.lines import read_lines
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer


class NegativeStore:
    """The hard negatives of pairs, found on disk by the hashes of the pairs."""

    def __init__(self, data: DataDirectory) -> None:
        (table,) = data.splits["train"]
        self.data, self._negatives, self._pairs = data, table["negative"], table["pairs"].values

    def __len__(self) -> int:
        return len(self._pairs)

    def counts(self, hashes: np.ndarray) -> np.ndarray:
        """Return how many negatives each pair has: uint64 [B, 2], the hashes of both sides, -> int64 [B]."""
        first, last = self._places(hashes)
        return last - first

    def of(self, hashes: np.ndarray, text: TextSpec) -> HardNegatives:
        """Return the negatives of the pairs of a batch, given the hashes of both sides, uint64 [B, 2]."""
        first, last = self._places(hashes)
        counts = last - first
        owners = np.repeat(np.arange(len(hashes)), counts)
        rows = np.arange(counts.sum()) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        vocabulary = text.vocabulary("target")
        ids, lengths = self._negatives.gather(rows, text.max_length - vocabulary.special_count)
        return HardNegatives(pad(ids, lengths, vocabulary), torch.from_numpy(owners), owners)

    def _places(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        wanted = pair_hashes(hashes)
        return np.searchsorted(self._pairs, wanted, "left"), np.searchsorted(self._pairs, wanted, "right")


def prepare_negatives(
    files: Sequence[str], tokenizer: Tokenizer, exclude: Sequence[str] = (), prompt: str = ""
) -> NegativeStore:
    """Read and tokenise hard negatives unless this was done before, and open them.

    Repeated negatives of a pair are left out, also those that equal one of its sides, and sentences of ``exclude``
    (files or folders of evaluation sets). The ``prompt`` is put in front of each.

    Raises:
        UserError: A file cannot be read, a line has not three columns or more, or no negative is left.
    """

    def fill(builder: Builder) -> None:
        _write(builder, files, tokenizer, prompt)
        if "train" not in builder.splits:
            raise UserError("no negatives are left", path=files[0], cure="mine them again with other options")

    shared, title = {SHARED: tokenizer}, ", ".join(files)
    paths = list(map(Path, files))
    facts = [*files, *([prompt] if prompt else [])]
    data = build("negatives", facts, paths, fill, shared, lambda: iter(()), title=title, exclude=exclude)
    return NegativeStore(data)


def _write(builder: Builder, files: Sequence[str], tokenizer: Tokenizer, prompt: str) -> None:
    """Write the negatives as they come, and then by the hashes of their pairs, each negative of a pair once."""
    schema = {"pairs": HASH, "negative": token_type(tokenizer.vocabulary_size)}
    with tempfile.TemporaryDirectory(dir=builder.folder) as folder:
        order = DiskSort(Path(folder), 3)  # hash of the pair, hash of the negative and row of each negative
        with TableWriter(Path(folder), "read", schema) as read:
            for chunk in chunks(itertools.chain.from_iterable(map(_read, files))):
                sources, targets, negatives = zip(*chunk, strict=True)
                sides = np.stack([sentence_hashes(sources), sentence_hashes(targets)], 1)
                pairs, hashes = pair_hashes(sides), sentence_hashes(negatives)
                usable = (pairs != NO_KEY) & (hashes[:, None] != sides).all(1)
                usable &= ~builder.excluded.contains(hashes)
                builder.training.add(hashes[usable])
                pairs, texts = pairs[usable], [prompt + negatives[row] for row in np.flatnonzero(usable)]
                order.add(np.stack([pairs, hashes[usable], read.rows + np.arange(len(pairs), dtype=np.uint64)], 1))
                read.append({"pairs": pairs, "negative": flatten(tokenizer.encode(texts))})
        written = open_table("read", read.facts, lambda name: Path(folder) / f"read.{name}")
        with builder.table("train", "negatives", schema) as table:
            for part in order.parts():
                first = np.unique(part[:, :2], axis=0, return_index=True)[1]
                part = part[np.union1d(first, np.flatnonzero(part[:, 1] == NO_KEY))]
                table.append({"pairs": part[:, 0], "negative": written["negative"].gather(part[:, 2].astype(np.int64))})


def _read(file: str) -> Iterator[tuple[str, str, str]]:
    """Yield source, target and negative of each negative in a file."""
    for number, line in read_lines(file):
        texts = line.split("\t")
        if len(texts) < 3 or not all(text.strip() for text in texts):
            cure = "give what xrep-mine negatives writes: source, target and negatives, separated by tabs"
            raise UserError("not a pair with negatives", path=file, line=number, cure=cure)
        for negative in texts[2:]:
            yield texts[0], texts[1], negative

"""Cleaning of sentence pairs: keys and hashes of sentences, sets of hashes, the rules and how many pairs each drops."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from xrep.config.fields import Count, NotNegative, check_options
from xrep.hashing import GOLDEN, find_sorted, hash_bytes
from xrep.tables import table

NO_KEY = 0
"""The hash of a text without any word character. It is in no set and never counts as equal to another hash."""

_MARKS = "".join(filter(lambda mark: unicodedata.category(mark)[0] == "M", map(chr, range(0x0780, 0x1C50))))
"""Vowel signs, tones and the like of the scripts of South and South-East Asia, which ``\\w`` leaves out."""
_WORDS = re.compile(rf"[\w{_MARKS}]+")
_PLACEHOLDERS = re.compile(r"\{[^{}]*\}|\d+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)


def sentence_key(text: str) -> str:
    """Return a key that is the same for different spellings of a sentence.

    The key holds the words of the text, normalised to NFKC and case-folded, with one space between them.

    >>> sentence_key("Ｈello, WORLD!")
    'hello world'
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(_WORDS.findall(text.casefold()))


def sentence_hash(text: str) -> int:
    """Return 64 bits of blake2b of the sentence key; ``NO_KEY`` if the key is empty."""
    key = sentence_key(text)
    return hash_bytes(key.encode("utf-8")) if key else NO_KEY


def sentence_hashes(texts: Iterable[str]) -> np.ndarray:
    """Return the ``sentence_hash`` of each text: uint64 [N]."""
    return np.fromiter((sentence_hash(text) for text in texts), dtype=np.uint64)


def template_hash(text: str, text_hash: int | None = None) -> int:
    """Return the ``sentence_hash`` of the text without numbers and ``{placeholders}``: the same for near-duplicates.

    Args:
        text_hash: The ``sentence_hash`` of the text itself, if it is known.
    """
    template = _PLACEHOLDERS.sub(" ", text)
    return text_hash if text_hash is not None and template == text else sentence_hash(template)


def pair_hashes(hashes: np.ndarray) -> np.ndarray:
    """Return one hash per pair of sentence hashes: uint64 [N, 2] -> [N]; ``NO_KEY`` where either side is ``NO_KEY``."""
    mixed = hashes[:, 0] * np.uint64(GOLDEN) + hashes[:, 1]  # Overflow is harmless in a hash.
    return np.where((hashes == NO_KEY).any(axis=1), np.uint64(NO_KEY), mixed)


def sentence_length(text: str) -> float:
    """Return the number of words in a text.

    Each character of a script written without spaces (Han, kana, Thai, Lao, Khmer, Burmese) counts as half a word.
    """
    if text.isascii():
        return float(len(text.split()))
    spaced, unspaced = _UNSPACED.subn(" ", text)
    # Punctuation between ideographs would count as a word if the text were split at spaces; in text with spaces it is
    # attached to a word.
    return len(_WORDS.findall(spaced)) + unspaced / 2 if unspaced else float(len(spaced.split()))


class HashSet:
    """A set of 64-bit hashes that needs 8 bytes per hash, and a few times as many while some are added. ``NO_KEY`` is
    never a member."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, hashes: np.ndarray) -> None:
        """Add uint64 [N], of which ``NO_KEY`` is left out. It sorts all members, so add many at a time."""
        self._sorted = np.union1d(self._sorted, hashes[hashes != NO_KEY])

    def contains(self, hashes: np.ndarray) -> np.ndarray:
        """Return whether each hash is a member: uint64 [...] -> bool [...]."""
        return find_sorted(self._sorted, hashes) >= 0

    def count_in(self, hashes: np.ndarray) -> int:
        """Return how many members there are among hashes that are sorted, uint64 [N], such as those of a file."""
        return int(np.count_nonzero(find_sorted(hashes, self._sorted) >= 0))


@dataclass(kw_only=True)
class CleaningOptions:
    """The rules that decide which training pairs are kept. Lengths are those of ``sentence_length``."""

    deduplicate: bool = True
    """Keep only the first of all pairs with the same two sentence keys, over all corpora of a language pair."""
    minimum_length: NotNegative = 0.5
    """Drop a pair if one of its sides has fewer words than this."""
    maximum_length: NotNegative = 200.0
    """Drop a pair if one of its sides has more words than this."""
    maximum_length_ratio: Annotated[float, "[1, inf)"] = 4.0
    """Drop a pair if (words of the longer side + 2) / (words of the shorter side + 2) is greater than this."""
    drop_identical: bool = True
    """Drop a pair whose sides have the same sentence key, because the line is untranslated."""
    sample: Count | None = None
    """Keep at most this many pairs of each corpus, drawn uniformly after all other rules. None keeps all."""

    def __post_init__(self) -> None:
        check_options(self)

    def problems(self) -> list[str]:
        least, most = self.minimum_length, self.maximum_length
        return [f"minimum_length {least:g} is more than `maximum_length` {most:g}"] if least > most else []


CLEANING_STEPS = (
    "read", "empty", "identical", "too short", "too long", "length ratio", "excluded", "in valid/test", "duplicate",
    "held out", "near held out", "sampled away", "kept",
)  # fmt: skip


def cleaning_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return a text table with one line per corpus and one column per step that dropped something.

    Args:
        counts: The number of pairs per corpus and cleaning step. Every pair is counted under ``read``, and under the
            first step that dropped it or under ``kept``.
    """
    totals = {step: sum(row[step] for row in counts.values()) for step in CLEANING_STEPS}
    steps = [step for step, total in totals.items() if step in ("read", "kept") or total]
    rows = {**counts, "total": totals} if len(counts) > 1 else counts
    return table(["corpus", *steps], [[name, *(f"{row[step]:,}" for step in steps)] for name, row in rows.items()])


def drop_reason(source: str, target: str, hashes: Sequence[int], options: CleaningOptions) -> str | None:
    """Return the first rule that drops the pair (one of ``CLEANING_STEPS``) by itself, or None.

    Args:
        hashes: ``sentence_hash`` of source and target.
    """
    if not source.strip() or not target.strip():
        return "empty"
    if options.drop_identical and (source.strip() == target.strip() or hashes[0] == hashes[1] != NO_KEY):
        return "identical"
    shorter, longer = sorted((sentence_length(source), sentence_length(target)))
    if shorter < options.minimum_length:
        return "too short"
    if longer > options.maximum_length:
        return "too long"
    # Two words are added to both sides, because the ratio of very short sentences ("Go." and "Vete ya, por favor.")
    # says nothing about alignment.
    return "length ratio" if longer + 2 > options.maximum_length_ratio * (shorter + 2) else None

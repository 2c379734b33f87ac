"""Keys, hash sets and rules of cleaning, against Python's sets and by hand."""

import numpy as np
import pytest

from xrep.errors import UserError
from xrep.text.cleaning import (
    NO_KEY,
    CleaningOptions,
    HashSet,
    drop_reason,
    pair_hashes,
    sentence_hash,
    sentence_hashes,
    sentence_key,
    sentence_length,
    template_hash,
)


@pytest.mark.parametrize(("text", "key"), [
    ("Hello, WORLD!", "hello world"), ("\uff28\uff45llo\u3000  world\u2026", "hello world"), ("Stra\u00dfe", "strasse"),
    ("e\u0301te\u0301", "\u00e9t\u00e9"), ("\ufb01ne", "fine"), ("3\u00d74 = 12", "3 4 12"), ("...!?", ""),
    ("\u0915\u0940, \u0915\u093e\u0964", "\u0915\u0940 \u0915\u093e"),
    ("\u0e19\u0e49\u0e33", "\u0e19\u0e49\u0e4d\u0e32"),
])  # fmt: skip
def test_sentence_key(text, key):
    assert sentence_key(text) == key
    assert (sentence_hash(text) == NO_KEY) == (key == "")


def test_hashes_are_stable():
    """The hashes are stored in files, so they must never change."""
    assert sentence_hash("Hello, world!") == 0x50B1A332AA338687


@pytest.mark.parametrize(("text", "length"), [
    ("one two  three.", 3), ("don't you?", 2), ("Grüße an dich", 3), ("我是学生。", 2), ("LED を消灯します。", 4),
    ("วันนี้", 3), ("", 0),
])  # fmt: skip
def test_sentence_length(text, length):
    assert sentence_length(text) == length


def test_templates_are_equal_without_numbers_and_placeholders():
    assert template_hash("Turn {name} on in 10 s") == template_hash("turn on in {n} 5 S.") != template_hash("Turn off")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_hash_set_against_a_python_set(size):
    generator = np.random.default_rng(size)
    hashes, reference = HashSet(), set()
    for _ in range(60):
        batch = generator.integers(0, 20 * size, size, dtype=np.uint64)  # there are many repeats and NO_KEY among them
        hashes.add(batch)
        reference |= {*batch.tolist()} - {NO_KEY}
    probe = np.arange(25 * size, dtype=np.uint64)
    assert hashes.contains(probe).tolist() == [value in reference for value in probe.tolist()]
    assert len(hashes) == len(reference)
    assert hashes.contains(probe[:24].reshape(12, 2)).shape == (12, 2)


def test_texts_without_words_match_nothing():
    pairs = np.array([[NO_KEY, 5], [NO_KEY, 5], [7, 8], [8, 7]], dtype=np.uint64)
    hashes = HashSet()
    hashes.add(pairs[:0, 0])
    hashes.add(pair_hashes(pairs))
    assert len(hashes) == 2 and hashes.contains(pair_hashes(pairs)).tolist() == [False, False, True, True]


@pytest.mark.parametrize(("source", "target", "reason"), [
    ("", "one", "empty"),
    ("eins", " \t", "empty"),
    ("Home Assistant", "home assistant!", "identical"),
    ("...", "...", "identical"),
    ("... ...", "!!! !!!", None),
    ("ja", "yes of course", "too short"),
    ("eins zwei drei vier fünf sechs", "one two three four five six", "too long"),
    ("zwei Wörter", "a b c d e", None),
    ("zwei Wörter", "a b c d e f", "too long"),
])  # fmt: skip
def test_rules(source, target, reason):
    options = CleaningOptions(minimum_length=1.5, maximum_length=5, maximum_length_ratio=2)
    assert drop_reason(source, target, sentence_hashes([source, target]).tolist(), options) == reason


def test_length_ratio_adds_two_words():
    options = CleaningOptions(maximum_length_ratio=2)
    assert drop_reason("geh", "one two three four", (1, 2), options) is None
    assert drop_reason("geh", "one two three four five", (1, 2), options) == "length ratio"
    with pytest.raises(UserError, match="must be at least 1"):
        CleaningOptions(maximum_length_ratio=0.5)

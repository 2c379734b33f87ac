"""The demo corpus: interface translations of Home Assistant, nine languages with English.

Source: ``homeassistant/components/*/translations/{lang}.json`` inside the PyPI wheel ``homeassistant==2024.3.3``
(Apache-2.0). The wheel is read as a zip file; it is never installed or imported.

The strings are templated ("Failed to connect to {host}"). They are therefore divided into train, valid and test by a
hash of the English string without case, punctuation, digits and ``{placeholders}``: all strings of one template, in
all languages, fall into the same split.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePath

from xrep.text.cleaning import sentence_key, template_hash

LANGUAGES = {  # code: (file name in the wheel, code in the file names of LASER's Tatoeba test)
    "de": ("de", "deu"),
    "tr": ("tr", "tur"),
    "ja": ("ja", "jpn"),
    "es": ("es", "spa"),
    "ko": ("ko", "kor"),
    "it": ("it", "ita"),
    "zh": ("zh-Hans", "cmn"),
    "ru": ("ru", "rus"),
    "fr": ("fr", "fra"),
}
CORPUS_VERSION = 1
"""Version of the rules below. A cached corpus of another version is made again."""
_ENGLISH = "homeassistant/components/*/translations/en.json"
_MINIMUM_ENGLISH_WORDS = 3
_TEST_PERCENT, _VALID_PERCENT = 5, 4

TextPairs = list[tuple[str, str]]


def write_corpus(wheel: Path, folder: Path) -> dict[str, dict[str, int]]:
    """Write the corpus in the wheel to an empty folder, and return the number of pairs by split and language.

    The files are ``{train,valid}.{xx}-en.{xx,en}`` and ``test/tatoeba.{xxx}-eng.{xxx,eng}`` (the layout that
    ``xrep-eval tatoeba`` reads).
    """
    splits = split_pairs(read_wheel(wheel))
    (folder / "test").mkdir()
    for language, (_, code) in LANGUAGES.items():
        for split, rows in splits.items():
            stem, *sides = ("test/tatoeba.", code, "eng") if split == "test" else (f"{split}.", language, "en")
            for side, suffix in enumerate(sides):
                text = "".join(f"{pair[side]}\n" for pair in rows[language])
                path = folder / f"{stem}{'-'.join(sides)}.{suffix}"
                path.write_text(text, encoding="utf-8", newline="\n")
    return {split: {language: len(pairs) for language, pairs in rows.items()} for split, rows in splits.items()}


def read_wheel(wheel: Path) -> dict[str, TextPairs]:
    """Return ``{language: [(text, English), ...]}``: strings with the same component and key path in both languages.

    Each string is on one line, and the English one has three or more words. The pairs are in the order of the file
    names. Untranslated strings and repeated pairs are left out.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        english_names = sorted(name for name in names if PurePath(name).match(_ENGLISH))
        english = {name: dict(_strings(json.loads(archive.read(name)))) for name in english_names}
        corpus: dict[str, TextPairs] = {}
        for language, (file_name, _) in LANGUAGES.items():
            pairs: dict[tuple[str, str], tuple[str, str]] = {}
            for english_name in english_names:
                name = f"{english_name.removesuffix('en.json')}{file_name}.json"
                strings = dict(_strings(json.loads(archive.read(name)))) if name in names else {}
                for path, target in english[english_name].items():
                    pair = strings.get(path, ""), target
                    keys = sentence_key(pair[0]), sentence_key(target)
                    if len(target.split()) >= _MINIMUM_ENGLISH_WORDS and all(keys) and keys[0] != keys[1]:
                        pairs.setdefault(keys, pair)
            corpus[language] = list(pairs.values())
    return corpus


def split_pairs(corpus: dict[str, TextPairs]) -> dict[str, dict[str, TextPairs]]:
    """Return ``{split: {language: pairs}}``, split by the template of the English string.

    No split has near-duplicates of another, and no sentence of either side of test is in valid or train, in any
    language, nor one of valid in train. In valid and test, no sentence of a language pair occurs twice on its side.
    """
    buckets: dict[str, dict[str, TextPairs]] = {
        split: {lang: [] for lang in corpus} for split in ("train", "valid", "test")
    }
    for language, pairs in corpus.items():
        for pair in pairs:
            buckets[_split_of(pair[1])][language].append(pair)
    taken: set[str] = set()
    for split in ("test", "valid"):
        buckets[split] = {language: _unique(_without(pairs, taken)) for language, pairs in buckets[split].items()}
        taken |= {sentence_key(text) for pairs in buckets[split].values() for pair in pairs for text in pair}
    buckets["train"] = {language: _without(pairs, taken) for language, pairs in buckets["train"].items()}
    return buckets


def _split_of(english: str) -> str:
    percent = template_hash(english) % 100
    return "test" if percent < _TEST_PERCENT else "valid" if percent < _TEST_PERCENT + _VALID_PERCENT else "train"


def _without(pairs: TextPairs, taken: set[str]) -> TextPairs:
    return [pair for pair in pairs if taken.isdisjoint(map(sentence_key, pair))]


def _unique(pairs: TextPairs) -> TextPairs:
    """Return the pairs whose two sentences are both new on their side."""
    seen: tuple[set[str], set[str]] = (set(), set())
    pool = []
    for pair in pairs:
        keys = sentence_key(pair[0]), sentence_key(pair[1])
        if keys[0] not in seen[0] and keys[1] not in seen[1]:
            pool.append(pair)
            seen[0].add(keys[0])
            seen[1].add(keys[1])
    return pool


def _strings(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield ``(key path, text on one line)`` for every string in a JSON tree."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _strings(value, f"{path}/{key}")
    elif isinstance(tree, str):
        yield path, " ".join(tree.split())

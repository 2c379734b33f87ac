"""Language codes: conversion of the spellings that data sets use to one spelling per language.

Inside xrep, a language is its ISO 639-1 code if one exists (``de``) and its ISO 639-3 code otherwise (``ang``), in
lower case, without script and region. Data sets write ``deu``, ``ger``, ``zh-Hans``, ``pt_BR`` or ``deu_Latn``.

``languages.tsv`` has the codes of the ISO 639 tables. Its columns are the canonical code; the code in the file names of
LASER's Tatoeba test (or else the ISO 639-3 code); other codes of the same language, which are ISO 639-2/B codes (ger),
those of the macrolanguage or of its main member (zho, cmn), and withdrawn codes (iw); and the English name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from xrep.errors import UserError

_CODE = re.compile(r"([a-z]{2,3})([-_][a-z]{4})?([-_]([a-z]{2}|[0-9]{3}))?")  # language, script, region (BCP 47)
_CANONICAL: dict[str, str] = {}
_NAME: dict[str, str] = {}
for _row in (Path(__file__).parent / "languages.tsv").read_text(encoding="utf-8").splitlines()[1:]:
    _code, _tatoeba, _others, _name = _row.split("\t")
    _NAME[_code] = _name
    _CANONICAL |= dict.fromkeys([_code, _tatoeba, *filter(None, _others.split(","))], _code)

# English words that are rare in all other languages. In the translations of one program into 60 languages they were 11%
# of the English words and at most 0.1% of the words of any other language.
_ENGLISH_WORDS = frozenset(
    "the and that this these those with from have has had are were been would could should which what when where there "
    "their they them you your his she its because about if".split()
)


def canonical(code: str) -> str:
    """Return the code that xrep uses for a language: ISO 639-1 if one exists, lower case, without script and region.

    The argument is one language, never a pair (``de-en`` would be German as used in a region EN). An unknown code is
    kept, in lower case.

    >>> [canonical(code) for code in ("deu", "EN", "swh", "cmn", "zh-Hans", "pt_BR", "deu_Latn", "arz", "qqq")]
    ['de', 'en', 'sw', 'zh', 'zh', 'pt', 'de', 'arz', 'qqq']
    """
    code = code.strip().lower()
    match = _CODE.fullmatch(code)
    return _CANONICAL.get(match.group(1), match.group(1)) if match else code


def is_known(code: str) -> bool:
    """Return whether ``languages.tsv`` has a language."""
    return canonical(code) in _NAME


def refuse_pair(name: str, option: str, known: Collection[str] = ()) -> None:
    """Refuse ``de-en``, which would be read as German in a region EN; ``pt-BR`` and ``zh-TW`` are regions."""
    first, _, second = name.replace("_", "-").partition("-")
    if second.islower() and canonical(second) in {"en", *known} and len(first) in (2, 3):
        problem = f"`{option}` {name}: a pair, where each language is named alone"
        raise UserError(problem, cure=f"give {first}, or {first},{second} for both; write a region in capitals")


def check_language(code: str | None, option: str) -> None:
    """Raise a UserError if an option names something that cannot be the code of a language: of two letters there are
    only those in ``languages.tsv``."""
    refuse_pair(code or "", option)
    if code is not None and not (is_known(code) or re.fullmatch(r"[a-z]{3}", canonical(code))):
        raise UserError(f"`{option}` {code[:40]!r} is no language code", cure="give one such as de, deu or zh-Hans")


def name(code: str) -> str:
    """Return the English name of a language for tables and plots, or its canonical code if the name is not known.

    >>> name("zh-Hans"), name("qqq")
    ('Chinese', 'qqq')
    """
    return _NAME.get(canonical(code), canonical(code))


def count_english_words(texts: Iterable[str]) -> tuple[int, int]:
    """Return the number of English function words in texts (in English above 3%, else below 1%), and of all words."""
    words = [word for text in texts for word in re.findall(r"[^\W\d_]+", text.lower())]
    return sum(word in _ENGLISH_WORDS for word in words), len(words)

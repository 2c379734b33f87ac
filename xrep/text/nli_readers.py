"""Readers of published natural language inference data: premise, hypothesis and label, or triplets made of them.

The following files are recognised by their names and contents, each also compressed as
``.gz``, ``.bz2``, ``.xz`` or ``.zst``:

- SNLI and MultiNLI (Bowman et al., 2015; Williams et al., 2018): ``snli_1.0_train.jsonl``, ``.txt``, GLUE's
  ``train.tsv`` and ``dev_matched.tsv``; if a file is there as ``.jsonl`` too, only the ``.jsonl`` is read;
- CNSD, which is SNLI and MultiNLI in Chinese: ``cnsd_snli_v1.0.train.jsonl``;
- XNLI (Conneau et al., 2018): ``xnli.dev.tsv`` and ``.jsonl``, ``multinli.train.de.tsv``, and ``dev-de.tsv`` with three
  columns and no header;
- parallel files ``s1.train``, ``s2.train`` and ``labels.train``;
- SimCSE's triplets (Gao et al., 2021): ``nli_for_simcse.csv`` with the columns sent0, sent1 and hard_neg.

A file is training text unless its name says dev or test. Test files are used for evaluation only.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from xrep.errors import UserError
from xrep.text.labelled_readers import Row, read_rows
from xrep.text.languages import canonical
from xrep.text.lines import is_too_long
from xrep.text.readers import SPLITS, plain_name, read_csv, split_in

LABELS = ("entailment", "neutral", "contradiction")
"""The labels in the order of their class numbers."""
_SPELLINGS = {**{label: number for number, label in enumerate(LABELS)}, "contradictory": 2, "-": None, "": None}
_TRIPLET = ("sent0", "sent1", "hard_neg")
_LANGUAGE = re.compile(r"(.*[._-])([a-z]{2}(?:-[A-Z][a-z]{3})?)")
_WHAT = "SNLI, MNLI, XNLI or CNSD as downloaded, s1.train beside s2.train and labels.train, or nli_for_simcse.csv"


@dataclass(frozen=True)
class NliFile:
    """One file of a data set, or three parallel files."""

    paths: tuple[Path, ...]
    language: str
    """Language of the sentences, used where the rows do not name one."""
    family: str | None = None
    """What the names of files that translate each other have in common; None if the name contains no language."""
    has_triplets: bool = False
    """Whether it has triplets without labels, instead of labelled pairs."""


class Example(NamedTuple):
    """The sentences of a pair or triplet, the language of each sentence, and the class.

    A pair is (premise, hypothesis), a triplet is (anchor, positive, hard negative). The class is None for a triplet
    and for a pair without a gold label.
    """

    sentences: tuple[str, ...]
    languages: tuple[str, ...]
    label: int | None


def discover_nli(path: str | Path, language: str) -> dict[str, list[NliFile]]:
    """Find the files of the splits ``train`` and ``valid`` in a file, a folder or, if it has none, the folders in it.

    Args:
        language: Language of the files whose names do not contain one.

    Raises:
        UserError: If the path does not exist, there is no training text, or a parallel file is missing.
    """
    splits = _discover(Path(path), canonical(language), ("train", "valid"))
    if not splits["train"]:
        raise UserError("no training text for natural language inference", path=path, cure=f"name {_WHAT}")
    return {split: files for split, files in splits.items() if files}


def discover_nli_test(path: str | Path, split: str, language: str) -> list[NliFile]:
    """Find the files of the split ``test`` or ``dev`` as ``discover_nli``; raises UserError if there is none."""
    files = _discover(Path(path), canonical(language), (SPLITS[split],))[SPLITS[split]]
    if not files:
        cure = "name XNLI, SNLI, MNLI or CNSD as downloaded, or another `split`"
        raise UserError(f"no {split} split for natural language inference", path=path, cure=cure)
    return files


def _discover(path: Path, language: str, splits: tuple[str, ...]) -> dict[str, list[NliFile]]:
    if not path.exists():
        raise UserError("no such file or folder", path=path, cure="check the name")
    if not path.is_file() and not path.is_dir():
        raise UserError("neither a file nor a folder", path=path, cure="copy it to a file")
    inside = [path] if path.is_file() else sorted(path.iterdir())
    matches = _files_of(inside, language, splits)
    if not matches:
        for folder in inside:
            if folder.is_dir() and folder.name[0] not in "._":
                matches += _files_of(sorted(folder.iterdir()), language, splits)
    return {split: [file for own, file in matches if own == split] for split in splits}


def _files_of(candidates: list[Path], language: str, splits: tuple[str, ...]) -> list[tuple[str, NliFile]]:
    """Return (split, file) for the recognised files of one folder that belong to the given splits."""
    named = {plain_name(path): path for path in candidates if path.is_file() and not path.name.startswith(".")}
    matches = []
    for name, path in named.items():
        stem, _, suffix = name.rpartition(".")
        split = split_in(name)
        if stem == "s1" and suffix in SPLITS:
            paths = [path, *(named.get(f"{other}.{suffix}") for other in ("s2", "labels"))]
            if None in paths:
                raise UserError(f"no s2.{suffix} and labels.{suffix} beside it", path=path, cure="put them there")
            file = NliFile(tuple(filter(None, paths)), language)
        elif suffix == "csv":
            file = NliFile((path,), _language_of(stem, language)[0], has_triplets=True)
        # A .txt without a split in its name may be a README.txt.
        elif suffix == "jsonl" or (suffix == "tsv" or suffix == "txt" and split) and f"{stem}.jsonl" not in named:
            file = NliFile((path,), *_language_of(stem, language))
        else:
            continue
        matches.append((split or "train", file))
    return [(split, file) for split, file in matches if split in splits]


def _language_of(stem: str, default: str) -> tuple[str, str | None]:
    """Return language and family of a file name without its ending, such as ``dev-de`` or ``multinli.train.de``."""
    match = _LANGUAGE.fullmatch(stem)
    if match:
        return canonical(match[2]), match[1]
    return ("zh" if stem.startswith("cnsd") else default), None


def read_nli(
    files: list[NliFile], *, triplets: bool, cross_lingual: bool = False, counts: Counter[str] | None = None
) -> Iterator[Example]:
    """Yield the labelled pairs of files, or the triplets that can be made of them.

    A triplet is a premise, a hypothesis that it entails and a hypothesis that contradicts it. The k-th entailment and
    the k-th contradiction of each premise of a file make one, as in SimCSE (314 thousand from SNLI and MNLI).

    Args:
        triplets: Yield triplets instead of pairs.
        cross_lingual: Combine each premise with the hypothesis in another language, where each other language is used
            equally often. The files must translate each other line by line (``dev-de.tsv``, ``dev-en.tsv``).
        counts: Counter to which the examples ``read`` and those left out (``no label``, ``empty``, ``too long``) are
            added.

    Raises:
        UserError: If a file is damaged, a label is unknown, a file holds triplets where pairs are needed, or files do
            not translate each other.
    """
    counts = Counter() if counts is None else counts
    for file in files:
        if file.has_triplets and (cross_lingual or not triplets):
            cure = "leave out `cross_lingual`" if triplets else "set `form` triplets"
            raise UserError("holds triplets without labels", path=file.paths[0], cure=cure)
    for source in _crossed(files) if cross_lingual else map(_read_file, files):
        kept = (example for example in source if _is_whole(example, counts))
        yield from _triplets(kept) if triplets else kept


def _is_whole(example: Example, counts: Counter[str]) -> bool:
    counts["read"] += 1
    if not all(example.sentences):
        counts["empty"] += 1
    elif any(map(is_too_long, example.sentences)):
        counts["too long"] += 1
    elif len(example.sentences) == 2 and example.label is None:
        counts["no label"] += 1
    else:
        return True
    return False


def _triplets(examples: Iterator[Example]) -> Iterator[Example]:
    waiting: dict[tuple[str, str], tuple[list[Example], list[Example]]] = {}
    for example in examples:
        if len(example.sentences) == 3:
            yield example
        elif example.label != LABELS.index("neutral"):
            both = waiting.setdefault((example.languages[0], example.sentences[0]), ([], []))
            both[example.label == LABELS.index("contradiction")].append(example)
    for pairs in waiting.values():
        for positive, negative in zip(*pairs, strict=False):
            sentences = (*positive.sentences, negative.sentences[1])
            yield Example(sentences, (*positive.languages, negative.languages[1]), None)


def _crossed(files: list[NliFile]) -> Iterator[Iterator[Example]]:
    families: dict[tuple[Path, str], list[NliFile]] = {}
    for file in files:
        if file.family is None:
            cure = "leave out `cross_lingual`, or name translated files such as train-de.tsv"
            raise UserError("has no language in its name", path=file.paths[0], cure=cure)
        families.setdefault((file.paths[0].parent, file.family), []).append(file)
    for some in families.values():
        if len(some) == 1:
            raise UserError("has no translation beside it", path=some[0].paths[0], cure="leave out `cross_lingual`")
        yield _crossed_family(some)


def _crossed_family(files: list[NliFile]) -> Iterator[Example]:
    for number, rows in enumerate(itertools.zip_longest(*map(_read_file, files))):
        labels = {row.label for row in rows if row is not None}
        if None in rows or len(labels) > 1:
            names = ", ".join(file.paths[0].name for file in files)
            problem, cure = f"example {number + 1} is not the same in {names}", "give files that translate each other"
            raise UserError(problem, path=files[0].paths[0].parent, cure=cure)
        step = 1 + number % (len(rows) - 1)
        for place, row in enumerate(rows):
            other = rows[(place + step) % len(rows)]
            sentences = (row.sentences[0], other.sentences[1])
            yield Example(sentences, (row.languages[0], other.languages[1]), row.label)


def _read_file(file: NliFile) -> Iterator[Example]:
    """Yield every row of a file, including those without a label."""
    path = file.paths[0]
    for line, sentences, label, language in _triplet_rows(path) if file.has_triplets else read_rows(path):
        if len(sentences) < 2:
            problem = "a label and one text, where inference has a premise and a hypothesis"
            raise UserError(problem, path=path, line=line, cure="give labelled pairs")
        clean = tuple(" ".join(sentence.split()) for sentence in sentences)
        code = canonical(language) if language else file.language
        spelled = label.strip()
        if spelled.lower() not in _SPELLINGS:
            cure = f"labels are {', '.join(LABELS)}, and - for none"
            raise UserError(f"unknown label {spelled!r}", path=file.paths[-1], line=line, cure=cure)
        yield Example(clean, (code,) * len(clean), _SPELLINGS[spelled.lower()])


def _triplet_rows(path: Path) -> Iterator[Row]:
    rows = read_csv(path, len(_TRIPLET))
    if (header := tuple(next(rows)[1])) != _TRIPLET:
        raise UserError(f"columns {', '.join(header)}, not {', '.join(_TRIPLET)}", path=path, line=1)
    for number, row in rows:
        yield number, tuple(row), "", None

"""Reader of published natural language inference data: premise, hypothesis and label, or triplets made of them.

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
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from xrep.errors import UserError
from xrep.text.examples import Example, read_rows
from xrep.text.find import TextFile
from xrep.text.lines import is_too_long
from xrep.text.records import ending_of, read_records

LABELS = ("entailment", "neutral", "contradiction")
"""The labels in the order of their class numbers."""
_SPELLINGS = {**{label: number for number, label in enumerate(LABELS)}, "contradictory": 2, "-": None, "": None}
_TRIPLET = ("sent0", "sent1", "hard_neg")


def read_nli(
    files: list[TextFile], *, triplets: bool, cross_lingual: bool = False, counts: Counter[str] | None = None
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
        if _has_triplets(file) and (cross_lingual or not triplets):
            cure = "leave out `cross_lingual`" if triplets else "set `form` triplets"
            raise UserError("holds triplets without labels", path=file.path, cure=cure)
    for source in _crossed(files) if cross_lingual else map(_read_file, files):
        kept = (example for example in source if is_whole(example, counts))
        yield from _triplets(kept) if triplets else kept


def is_whole(example: Example, counts: Counter[str]) -> bool:
    """Return whether no sentence of an example is empty or too long, and a pair has a label; count what it lacks."""
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


def _crossed(files: list[TextFile]) -> Iterator[Iterator[Example]]:
    families: dict[tuple[Path, str], list[TextFile]] = {}
    for file in files:
        if file.family is None:
            cure = "leave out `cross_lingual`, or name translated files such as train-de.tsv"
            raise UserError("has no language in its name", path=file.path, cure=cure)
        families.setdefault((file.path.parent, file.family), []).append(file)
    for some in families.values():
        if len(some) == 1:
            raise UserError("has no translation beside it", path=some[0].path, cure="leave out `cross_lingual`")
        yield _crossed_family(some)


def _crossed_family(files: list[TextFile]) -> Iterator[Example]:
    for number, rows in enumerate(itertools.zip_longest(*map(_read_file, files))):
        labels = {row.label for row in rows if row is not None}
        if None in rows or len(labels) > 1:
            names = ", ".join(file.path.name for file in files)
            problem, cure = f"example {number + 1} is not the same in {names}", "give files that translate each other"
            raise UserError(problem, path=files[0].path.parent, cure=cure)
        step = 1 + number % (len(rows) - 1)
        for place, row in enumerate(rows):
            other = rows[(place + step) % len(rows)]
            sentences = (row.sentences[0], other.sentences[1])
            yield Example(sentences, (row.languages[0], other.languages[1]), row.label)


def _has_triplets(file: TextFile) -> bool:
    return ending_of(file.path) == "csv"


def _read_file(file: TextFile) -> Iterator[Example]:
    """Yield every row of a file, including those without a label."""
    if _has_triplets(file):
        yield from _read_triplets(file)
        return
    for example in read_rows(file):
        if len(example.sentences) < 2:
            problem = "a label and one text, where inference has a premise and a hypothesis"
            raise UserError(problem, path=file.path, line=example.line, cure="give labelled pairs")
        if example.label.lower() not in _SPELLINGS:
            problem = f"unknown label {example.label!r}"
            cure = f"labels are {', '.join(LABELS)}, and - for none"
            raise UserError(problem, path=file.paths[-1], line=example.line, cure=cure)
        yield replace(example, label=_SPELLINGS[example.label.lower()])


def _read_triplets(file: TextFile) -> Iterator[Example]:
    for number, record in read_records(file.path):
        if tuple(record) != _TRIPLET:
            problem, cure = f"columns {', '.join(record)}, not {', '.join(_TRIPLET)}", "fetch the file again"
            raise UserError(problem, path=file.path, line=number, cure=cure)
        sentences = tuple(" ".join(text.split()) for text in record.values())
        yield Example(sentences, (file.language,) * len(sentences), None, file.path, number)

"""Tables of labelled pairs or triplets, in one or several languages: of natural language inference, or with a score.

The directory is built once for the same files and options. Each split has one table, with a column of tokens for each
sentence (premise and hypothesis, or anchor, positive and negative), and with ``hashes`` (uint64 [n, S]), ``languages``
(uint8 [n, S], places in the manifest's ``languages``) and ``labels`` (int64 [n], classes, -1 in triplets; float32 [n],
scores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from xrep.data.build import Builder, build, chunks
from xrep.data.table import ColumnType, DataDirectory, flatten, token_type, vocabulary_size
from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes
from xrep.text.examples import Example
from xrep.text.find import TextFile, discover_nli
from xrep.text.nli import read_nli
from xrep.text.scored_pairs import SCORED, read_scored_pairs
from xrep.text.sides import Tokenizers, tokenizer_of


@dataclass(frozen=True, kw_only=True)
class NliOptions:
    """Options for turning raw text into examples."""

    form: Literal["pairs", "triplets", "scored"]
    """Labelled pairs, triplets, or pairs with a score of their similarity."""
    scale: tuple[float, float] | None = None
    """Lowest and highest score."""
    language: str
    """Language of the files whose names do not contain one."""
    cross_lingual: bool = False
    target_languages: list[str] = field(default_factory=list)
    """Languages that the tokenizer of the target side reads."""
    vocabulary_size: int | None = None
    """Number of subwords of the vocabulary that is trained if no tokenizers are given.
    None: 16,000, or fewer if the text is too small."""
    exclude: list[str] = field(default_factory=list)
    """Files or folders of evaluation sets. Training examples with a sentence that occurs there are dropped."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of sentences."""
        return ("anchor", "positive", "negative") if self.form == "triplets" else ("premise", "hypothesis")

    def side(self, language: str) -> str:
        return "target" if language in self.target_languages else "source"


def prepare_nli(path: str | Path, options: NliOptions, tokenizers: Tokenizers) -> DataDirectory:
    """Read and tokenise inference data or scored pairs (layouts: ``xrep.text.nli``, ``xrep.text.scored_pairs``) unless
    this was done before, and open them.

    Args:
        tokenizers: Tokenizers by side; empty to train one on the training text.

    Raises:
        UserError: As ``discover_nli``, ``read_nli`` and ``read_scored_pairs``, or if no example is left.
    """
    files = discover_nli(path, options.language, *(["scored pairs", SCORED] if options.scale else []))

    def read(split: str, counts: Counter[str] | None = None) -> Iterator[Example]:
        if options.scale:
            return read_scored_pairs(files[split], options.scale, Counter() if counts is None else counts)
        triplets, crossed = options.form == "triplets", options.cross_lingual
        return read_nli(files[split], triplets=triplets, cross_lingual=crossed, counts=counts)

    def fill(builder: Builder) -> None:
        languages = dict[str, int]()
        for split, some in files.items():
            counts = Counter[str]()
            _write(builder, split, read(split, counts), counts, languages, options)
            if split not in builder.splits:
                raise _nothing(split, some, options)
        builder.facts["languages"] = list(languages)

    def sentences() -> Iterator[tuple[str, str]]:
        for example in read("train"):
            yield from zip(example.languages, example.sentences, strict=True)

    return build(
        "nli",
        asdict(options),
        [path for some in files.values() for file in some for path in file.paths],
        fill,
        tokenizers,
        sentences,
        title=str(path),
        vocabulary_size=options.vocabulary_size,
        exclude=options.exclude,
    )


def _write(
    builder: Builder,
    split: str,
    examples: Iterator[Example],
    counts: Counter[str],
    languages: dict[str, int],
    options: NliOptions,
) -> None:
    """Write the table of a split, and print how many examples it has; ``languages`` gets the place of each language."""
    names, tokens = options.columns, token_type(vocabulary_size(builder.tokenizers))
    schema = {
        **dict.fromkeys(names, tokens),
        "hashes": ColumnType("<u8", len(names)),
        "languages": ColumnType("u1", len(names)),
        "labels": ColumnType("<f4" if options.form == "scored" else "<i8"),
    }
    with builder.table(split, "-".join(names), schema) as table:
        for chunk in chunks(examples):
            hashes = [sentence_hashes(column) for column in zip(*(example.sentences for example in chunk), strict=True)]
            allowed = builder.allow(split, np.stack(hashes, 1))
            counts["excluded"] += int(np.count_nonzero(~allowed))
            chunk = [chunk[row] for row in np.flatnonzero(allowed)]
            codes = [[languages.setdefault(code, len(languages)) for code in example.languages] for example in chunk]
            columns = {
                name: flatten(_encode([(e.sentences[place], e.languages[place]) for e in chunk], builder, options))
                for place, name in enumerate(names)
            }
            table.append(
                {
                    **columns,
                    "hashes": np.stack(hashes, 1)[allowed],
                    "languages": np.array(codes, dtype=np.uint8).reshape(-1, len(names)),
                    "labels": np.array([-1 if example.label is None else example.label for example in chunk]),
                }
            )
    unit = "triplets" if options.form == "triplets" else "pairs"
    left_out = "".join(f", {count:,} left out ({why})" for why, count in counts.items() if count and why != "read")
    print(f"{split}: {table.rows:,} {unit} of {counts['read']:,} examples{left_out}")


def _encode(texts: Sequence[tuple[str, str]], builder: Builder, options: NliOptions) -> list[list[int]]:
    """Return the ids of each (sentence, language), from the tokenizer of the side that the language belongs to."""
    ids_of: list[list[int]] = [[]] * len(texts)
    sides = [options.side(language) for _, language in texts]
    for side in set(sides):
        rows = [row for row, its_side in enumerate(sides) if its_side == side]
        encoded = tokenizer_of(builder.tokenizers, side).encode([texts[row][0] for row in rows])
        for row, ids in zip(rows, encoded, strict=True):
            ids_of[row] = ids
    return ids_of


def _nothing(split: str, files: list[TextFile], options: NliOptions) -> UserError:
    triplet = "triplet (an entailment and a contradiction of one premise)"
    what = {"pairs": "labelled pair", "triplets": triplet, "scored": "pair with a score"}[options.form]
    return UserError(f"no {what} for {split}", path=files[0].path, cure="check the files")

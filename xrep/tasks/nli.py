"""Natural language inference: pairs with a class, or triplets of an anchor, its positive and its hard negative.

The text is read and tokenised once for the same files and options. Each split has one table, with a column of tokens
for each sentence (premise and hypothesis, or anchor, positive and negative), and with ``hashes`` (uint64 [n, S]),
``languages`` (uint8 [n, S], places in the manifest's ``languages``) and ``labels`` (int64 [n], classes, -1 in triplets;
float32 [n], scores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.data.batch import Batch, TokenBatch, pad
from xrep.data.build import Builder, build, chunks
from xrep.data.table import ColumnType, DataDirectory, Table, flatten, token_type, vocabulary_size
from xrep.errors import UserError
from xrep.tasks.task import ExampleKind, TableTask, VocabularyOptions, given_tokenizers, ids_of, text_spec
from xrep.text.cleaning import sentence_hashes
from xrep.text.examples import Example
from xrep.text.find import TextFile, discover_nli
from xrep.text.languages import canonical
from xrep.text.nli import LABELS, read_nli
from xrep.text.scored_pairs import SCORED, read_scored_pairs
from xrep.text.sides import SIDES, Tokenizers, tokenizer_of


@dataclass(kw_only=True)
class SentencesOptions(VocabularyOptions):
    """Options of tasks whose examples are several sentences with a label."""

    form: ClassVar[str] = "scored"
    cross_lingual: ClassVar[bool] = False
    data: str
    language: str = "en"
    """Language of files that do not name it (dev-de.tsv does, and CNSD is Chinese)."""
    target_languages: list[str] = field(default_factory=lambda: ["en"])
    """Languages of the target side, if the sides have separate towers or tokenizers; all other languages belong to
    the source side."""
    batch_size: Count = 128
    """Number of examples in a batch."""
    max_length: Annotated[int, "[3, inf)"] = 128
    """Maximum length of a sentence in subwords, special tokens included; longer sentences are cut."""

    @property
    def scale(self) -> tuple[float, float] | None:
        """Lowest and highest score, of pairs with a score."""
        return None

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of sentences."""
        return ("anchor", "positive", "negative") if self.form == "triplets" else ("premise", "hypothesis")

    def side(self, language: str) -> str:
        return "target" if language in map(canonical, self.target_languages) else "source"


class NliTask(TableTask):
    """Natural language inference data of one or several languages, as it is published (``xrep.text.nli``).

    It is tokenised once and kept on disk. The tokenizer is that of the pretrained encoder, or ``tokenizer``, or one
    that is trained on the text.

    Raises:
        UserError: the data is missing or damaged, or two different tokenizers are named.
    """

    default_validation = "nli"

    @dataclass(kw_only=True)
    class Config(SentencesOptions):
        data: str
        """File or directory of inference data: SNLI, MNLI, XNLI or CNSD as downloaded; s1.train with s2.train and
        labels.train; SimCSE's nli_for_simcse.csv; or a directory of such directories."""
        form: Literal["pairs", "triplets"] = "pairs"  # pyright: ignore[reportIncompatibleVariableOverride]
        """Form of the examples. pairs: premise, hypothesis and label (criterion nli). triplets: premise, a sentence it
        entails and a sentence that contradicts it (criterion nli_triplet)."""
        cross_lingual: bool = False  # pyright: ignore[reportIncompatibleVariableOverride]
        """Give each premise a hypothesis in another language. This needs files that are translations of each other line
        by line, such as train-de.tsv and train-fr.tsv."""

    def __init__(self, config: SentencesOptions, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config = config
        kinds = {"triplets": ExampleKind.TRIPLETS, "scored": ExampleKind.SCORED_PAIRS}
        self.gives = kinds.get(config.form, ExampleKind.LABELLED_PAIRS)
        data = prepare_nli(config, given_tokenizers(config.tokenizer, tokenizers or {}))
        self._languages: list[str] = data.manifest["languages"]
        sides = [config.side(language) for language in self._languages]
        self._is_target = np.array([side == "target" for side in sides])
        of_sides = {
            f"{side}_languages": sorted(code for code, own in zip(self._languages, sides, strict=True) if own == side)
            for side in SIDES
        }
        super().__init__(config, seed, data, data.splits, text_spec(data.tokenizers, config.max_length, **of_sides))

    def as_text(self, table: Table, number: int) -> str:
        sides = ["target" if target else "source" for target in self._is_target[table["languages"].values[number]]]
        columns = zip(sides, self.config.columns, strict=True)
        texts = [repr(tokenizer_of(self.tokenizers, side).decode(table[name][number])) for side, name in columns]
        label, form = table["labels"].values[number], self.config.form
        labels = [] if form == "triplets" else [f"{label:.3g}" if form == "scored" else LABELS[label]]
        return f"example {number}: {' ||| '.join([*texts, *labels])}"

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        (table,), rows = tables, examples[:, 1]
        languages = table["languages"].values[rows]
        is_target = self._is_target[languages]
        known = np.array([self.text.languages.index(language) for language in self._languages])
        places = np.empty(is_target.shape, dtype=np.int64)
        sides, first = dict[str, TokenBatch](), 0
        for side, chosen in zip(SIDES, (~is_target, is_target), strict=True):
            most = self.text.max_length - self.text.vocabulary(side).special_count
            columns = enumerate(self.config.columns)
            gathered = [table[name].gather(rows[chosen[:, column]], most) for column, name in columns]
            ids, lengths = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
            # Number the sentences column by column, in the order in which they were gathered.
            places.T[chosen.T] = np.arange(first, first + len(lengths))
            sides[side] = pad(ids, lengths, self.text.vocabulary(side))
            first += len(lengths)
        return Batch.of(
            sides,
            places,
            labels=table["labels"].values[rows],
            ids=ids_of(tables, examples[:, 0], rows),
            indices=rows,
            languages=known[languages],
        )


def prepare_nli(config: SentencesOptions, tokenizers: Tokenizers) -> DataDirectory:
    """Read and tokenise inference data or scored pairs (layouts: ``xrep.text.nli``, ``xrep.text.scored_pairs``) unless
    this was done before, and open them.

    Args:
        tokenizers: Tokenizers by side; empty to train one on the training text.

    Raises:
        UserError: As ``discover_nli``, ``read_nli`` and ``read_scored_pairs``, or if no example is left.
    """
    scale = config.scale
    files = discover_nli(config.data, config.language, *(["scored pairs", SCORED] if scale else []))

    def read(split: str, counts: Counter[str]) -> Iterator[Example]:
        if scale:
            return read_scored_pairs(files[split], scale, counts)
        triplets, crossed = config.form == "triplets", config.cross_lingual
        return read_nli(files[split], triplets=triplets, cross_lingual=crossed, counts=counts)

    def fill(builder: Builder) -> None:
        languages = dict[str, int]()
        for split, some in files.items():
            counts = Counter[str]()
            _write(builder, split, read(split, counts), counts, languages, config)
            if split not in builder.splits:
                raise _nothing(split, some, config)
        builder.facts["languages"] = list(languages)

    def sentences() -> Iterator[tuple[str, str]]:
        for example in read("train", Counter()):
            yield from zip(example.languages, example.sentences, strict=True)

    return build(
        "nli",
        [config.form, scale, config.language, config.cross_lingual, config.target_languages],
        [path for some in files.values() for file in some for path in file.paths],
        fill,
        tokenizers,
        sentences,
        title=config.data,
        vocabulary_size=config.vocab_size,
        exclude=config.exclude,
    )


def _write(
    builder: Builder,
    split: str,
    examples: Iterator[Example],
    counts: Counter[str],
    languages: dict[str, int],
    config: SentencesOptions,
) -> None:
    """Write the table of a split, and print how many examples it has; ``languages`` gets the place of each language."""
    names, tokens = config.columns, token_type(vocabulary_size(builder.tokenizers))
    schema = {
        **dict.fromkeys(names, tokens),
        "hashes": ColumnType("<u8", len(names)),
        "languages": ColumnType("u1", len(names)),
        "labels": ColumnType("<f4" if config.form == "scored" else "<i8"),
    }
    with builder.table(split, "-".join(names), schema) as table:
        for chunk in chunks(examples):
            hashes = [sentence_hashes(column) for column in zip(*(example.sentences for example in chunk), strict=True)]
            allowed = builder.allow(split, np.stack(hashes, 1))
            counts["excluded"] += int(np.count_nonzero(~allowed))
            chunk = [chunk[row] for row in np.flatnonzero(allowed)]
            codes = [[languages.setdefault(code, len(languages)) for code in example.languages] for example in chunk]
            columns = {
                name: flatten(_encode([(e.sentences[place], e.languages[place]) for e in chunk], builder, config))
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
    unit = "triplets" if config.form == "triplets" else "pairs"
    left_out = "".join(f", {count:,} left out ({why})" for why, count in counts.items() if count and why != "read")
    print(f"{split}: {table.rows:,} {unit} of {counts['read']:,} examples{left_out}")


def _encode(texts: Sequence[tuple[str, str]], builder: Builder, config: SentencesOptions) -> list[list[int]]:
    """Return the ids of each (sentence, language), from the tokenizer of the side that the language belongs to."""
    ids_of: list[list[int]] = [[]] * len(texts)
    sides = [config.side(language) for _, language in texts]
    for side in set(sides):
        rows = [row for row, its_side in enumerate(sides) if its_side == side]
        encoded = tokenizer_of(builder.tokenizers, side).encode([texts[row][0] for row in rows])
        for row, ids in zip(rows, encoded, strict=True):
            ids_of[row] = ids
    return ids_of


def _nothing(split: str, files: list[TextFile], config: SentencesOptions) -> UserError:
    triplet = "triplet (an entailment and a contradiction of one premise)"
    what = {"pairs": "labelled pair", "triplets": triplet, "scored": "pair with a score"}[config.form]
    return UserError(f"no {what} for {split}", path=files[0].path, cure="check the files")

"""Tasks of annotated text and their objectives: what classification, tagging and question answering have in common.

A row is the sequence of tokens that a classifier reads: a text or a pair ([CLS] x [SEP] y [SEP]), the words of a
sentence, or a question and a window of its context. An example has several rows where it is longer than a sequence may
be: a long sentence of words is divided between words, and the context of a question into overlapping windows.
"""

from __future__ import annotations

import functools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from xrep.config.fields import Count
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.data.batch import Batch, TokenBatch, Vocabulary
from xrep.data.build import Builder, build, chunks
from xrep.data.table import ColumnType, Table, flatten, token_type
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.task import TableTask, VocabularyOptions, given_tokenizers, text_spec
from xrep.text.cleaning import sentence_hashes
from xrep.text.find import TextFile, discover, of_split
from xrep.text.languages import canonical
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer
from xrep.understanding.classifier import Annotation, Classifier

IGNORED = -100
"""Label of tokens whose label is not predicted."""
_ROWS_VERSION = 3  # version of how rows are made; cached rows of another version are built again


class Row(NamedTuple):
    """A sequence of tokens.

    Attributes:
        ids: Token ids, special tokens included.
        first: Number of tokens of the first of two sentences, with the special tokens around it.
        labels: The label of the text; or for each token its tag (IGNORED where a word does not begin); or the first and
            the last token of the answer (the first token of the row twice, if it has none). In a batch, labels and tags
            are numbers; they are 0 where they are not known.
        example: Number of the example that the row belongs to; of a row in a table, its own number.
        spans: Of the tokens of a context, the characters (start, end) that they stand for; the first of these tokens
            has the place ``first``.
    """

    ids: Sequence[int]
    first: int
    labels: Sequence[Any]
    example: int
    spans: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Reading:
    """How text is read: the tokenizer, how long a row may be, and the options of the task."""

    tokenizer: Tokenizer
    max_length: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary.of(self.tokenizer)


def sequence(first: Sequence[int], second: Sequence[int] | None, reading: Reading) -> tuple[list[int], int]:
    """Return [CLS] x [SEP], or [CLS] x [SEP] y [SEP], and the number of tokens up to y (all, if there is none).

    If it is too long, tokens at the end of the longer sentence are left out one by one. As with the fast tokenizers of
    transformers, an odd token is left to the sentence that was longer, or to the second one.
    """
    vocabulary, x, y = reading.vocabulary, list(first), list(second or ())
    separators = [vocabulary.end] * (1 if second is None else vocabulary.pair_separators)
    room = reading.max_length - vocabulary.leading_count - len(separators) - (second is not None)
    while len(x) + len(y) > max(room, 0):
        (x if (len(x), len(second or ())) >= (len(y), len(first)) else y).pop()
    begin = [] if vocabulary.bos_id is None else [vocabulary.bos_id]
    front, behind = [*begin, *x, *separators], [] if second is None else [*y, vocabulary.end]
    return front + behind, len(front)


def check_labels(examples: Iterable[Any], labels: Callable[[Any], Sequence[str]], known: Sequence[str]) -> None:
    """Raise UserError if an example has a label that is not known. ``labels`` returns the labels of an example."""
    numbers = set(known)
    for example in examples:
        if unknown := [label for label in labels(example) if label not in numbers]:
            problem, cure = f"the label {unknown[0]!r} does not occur in the training text", ", ".join(known[:20])
            raise UserError(problem, path=example.path, line=example.line, cure=f"known: {cure}")


def batch_of_rows(rows: Sequence[Row], vocabulary: Vocabulary) -> Batch:
    """Return rows as a batch whose side is ``shared`` and whose labels are [N, 1] of texts, [N, T] of words, and [N, 2]
    of questions."""
    lengths = np.array([len(row.ids) for row in rows], np.int64)
    tokens = np.full((len(rows), lengths.max(initial=1)), vocabulary.pad_id, np.int64)
    labels = np.full((len(rows), max((len(row.labels) for row in rows), default=1)), IGNORED, np.int64)
    second = np.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, : len(row.ids)], labels[place, : len(row.labels)] = row.ids, row.labels
        second[place, row.first : len(row.ids)] = 1
    types = torch.from_numpy(second) if second.any() else None
    sequences = TokenBatch(torch.from_numpy(tokens), torch.from_numpy(lengths), lengths, types)
    return Batch.of({SHARED: sequences}, labels=labels, indices=np.array([row.example for row in rows], np.int64))


def outcomes(part: Any, whole: Any) -> np.ndarray:
    """Return two numbers of each example, [N, 2]: ``part`` and ``whole``. A figure is the sum of the parts divided by
    that of the wholes."""
    return np.stack(np.broadcast_arrays(np.array(part, float), whole), axis=1)


class AnnotatedTask(TableTask):
    """Base class of tasks whose examples are text with annotations.

    The text is read as it is published, tokenised once and kept on disk. The labels are those of the training text. The
    tokenizer is that of the pretrained encoder, or ``tokenizer``, or one trained on the text.

    Attributes:
        what: What its files are, for messages.
        forms: Endings of the names of its files, for messages.
        accepts: Function that says whether a file of a folder is one that the task reads.
        read: Function that yields the examples of a file. It takes a counter, to which it adds the examples that are
            ``read`` and, by reason, those that are left out.
        labels: Function that returns the labels of an example.
        texts: Function that returns the texts of an example, from which the vocabulary is trained and the overlap with
            tests is found.
        rows: Function that yields the rows of examples.

    Raises:
        UserError: The data is missing or damaged, or a label of the dev split does not occur in the training text.
    """

    default_model = "classifier"
    default_validation = "annotation"
    kind: ClassVar[Literal["label", "tags", "span"]]
    what: ClassVar[str]
    forms: ClassVar[str]
    accepts: ClassVar[Callable[[Path], bool]]
    read: ClassVar[Callable[[TextFile, Counter[str] | None], Iterator[Any]]]
    labels: ClassVar[Callable[[Any], Sequence[str]]]
    texts: ClassVar[Callable[[Any], Sequence[str]]]
    rows: ClassVar[Callable[..., Iterator[Row]]]

    @dataclass(kw_only=True)
    class Config(VocabularyOptions):
        data: str
        """File or folder of annotated text, as it is published. The names of files tell their split (train, dev) and
        language (dev-de.tsv); a file without a split in its name is training text."""
        languages: list[str] = field(default_factory=lambda: ["en"])
        """Languages of the text that is read for training and validation; all: every language that is there."""
        language: str = "en"
        """Language of files that do not name it."""
        dev_share: Annotated[float, "[0, 1)"] = 0.0
        """Share of the training examples that are held out for validation, if there is no dev split (CMLM: 0.1)."""
        batch_size: Count = 32
        """Number of rows in a batch."""
        max_length: Annotated[int, "[8, inf)"] = 128
        """Maximum length of a row in subwords, special tokens included."""

        def problems(self) -> list[str]:
            return [] if self.languages else ["languages must name at least one language, or all"]

    config: Any

    @classmethod
    def discover(cls, path: str | Path, language: str) -> list[TextFile]:
        """Find the files that the task reads; see ``xrep.text.find.discover``."""
        return discover(path, language, cls.accepts, cls.what, cls.forms)

    def __init__(self, config: Any, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config, self.seed = config, seed
        files = self.discover(config.data, config.language)
        self._languages = None if "all" in config.languages else [canonical(each) for each in config.languages]
        self._files = {
            split: [file for file in of_split(files, split) if not file.is_named or self._reads(file.language)]
            for split in ("train", "valid")
        }
        if next(self._read("train"), None) is None:
            every = of_split(files, "train")
            there = sorted({example.language for file in every for example in type(self).read(file, None)})
            cure = f"there is training text in {', '.join(there)}" if there else "name files with train in their names"
            raise UserError("no training text in these `languages`", path=config.data, cure=cure)
        options = {name: value for name, value in asdict(config).items() if name not in ("tokenizer", "batch_size")}
        data = build(
            "annotated rows",
            [_ROWS_VERSION, self.kind, options, seed if config.dev_share else None],
            [path for own in self._files.values() for file in own for path in file.paths],
            self._fill,
            given_tokenizers(config.tokenizer, tokenizers or {}, shared=True),
            self._sentences,
            title=config.data,
            vocabulary_size=config.vocab_size,
            exclude=config.exclude,
        )
        languages, facts = data.manifest["languages"], {name: data.manifest[name] for name in ("labels", "texts")}
        annotation = Annotation(kind=self.kind, **facts)
        text = text_spec(data.tokenizers, config.max_length, target_languages=languages, facts=annotation.facts())
        super().__init__(config, seed, data, data.splits, text)

    def examples_of(self, split: str, counts: Counter[str] | None = None) -> Iterator[Any]:
        """Read the examples of a split (``train`` or ``valid``) from its files. ``counts`` is as for ``read``.

        Without a dev split, some training examples are held out; which ones depends on the seed and their places alone.
        """
        if not self.config.dev_share or next(self._read("valid"), None) is not None:
            yield from self._read(split, counts)
            return
        limit = np.uint64(int(self.config.dev_share * 2**32))
        for chunk in chunks(enumerate(self._read("train", counts if split == "train" else None))):
            places, examples = zip(*chunk, strict=True)
            held_out = scramble(np.array(places, np.uint64), self.seed) >> np.uint64(32) < limit
            yield from compress(examples, held_out == (split == "valid"))

    def _read(self, split: str, counts: Counter[str] | None = None) -> Iterator[Any]:
        """Rows may name another language than the file."""
        examples = chain.from_iterable(type(self).read(file, counts) for file in self._files[split])
        return (example for example in examples if self._reads(example.language))

    def _reads(self, language: str) -> bool:
        return self._languages is None or language in self._languages

    def _sentences(self) -> Iterator[tuple[str, str]]:
        for example in self.examples_of("train"):
            yield from ((example.language, text) for text in type(self).texts(example))

    def _fill(self, builder: Builder) -> None:
        found, languages, texts, count = set[str](), set[str](), set[int](), 0
        for example in self.examples_of("train"):
            count += 1
            found.update(type(self).labels(example))
            languages.add(example.language)
            texts.update([len(type(self).texts(example))] if self.kind == "label" else [])
        sentences = sorted(label for label in found if " " in label) if self.kind == "label" else []
        if 2 * len(sentences) > count >= 20:
            problem = f"{len(found):,} labels of {count:,} texts, such as {sentences[0][:80]!r}"
            cure = "swap the columns: lines are label<TAB>text, or text<TAB>text<TAB>label"
            raise UserError(problem, path=self._files["train"][0].path, cure=cure)
        # Labels that are numbers are sorted by their values.
        known = sorted(found, key=lambda label: (int(label) if re.fullmatch(r"\d{1,9}", label) else 0, label))
        builder.facts |= {"languages": sorted(languages), "labels": known, "texts": sorted(texts)}
        tokenizer, numbers = builder.tokenizers[SHARED], {label: number for number, label in enumerate(known)}
        reading = Reading(tokenizer, self.config.max_length, vars(self.config))
        schema = {
            "ids": token_type(tokenizer.vocabulary_size),
            "labels": ColumnType("<i4", ragged=True),
            "first": ColumnType("<u4"),
        }
        for split in self._files:
            counts = Counter[str]()
            examples = self._allowed(builder, split, counts)
            with builder.table(split, "rows", schema) as table:
                for chunk in chunks(type(self).rows(examples, reading)):
                    lengths = np.array([len(row.labels) for row in chunk])
                    labels = np.fromiter((numbers.get(own, own) for row in chunk for own in row.labels), np.int32)
                    ids, first = flatten([row.ids for row in chunk]), np.array([row.first for row in chunk])
                    table.append({"ids": ids, "labels": (labels, lengths), "first": first})
            if counts:
                left_out = [f"{n:,} ({why})" for why, n in counts.items() if n and why not in ("read", "kept")]
                said = f"; left out: {', '.join(left_out)}" if left_out else ""
                print(f"{split}: {counts['kept']:,} examples, {table.rows:,} sequences{said}")

    def _allowed(self, builder: Builder, split: str, counts: Counter[str]) -> Iterator[Any]:
        """Yield the examples of a split without the training examples that have an excluded sentence."""
        for chunk in chunks(self.examples_of(split, counts)):
            check_labels(chunk, type(self).labels, builder.facts["labels"])
            texts = list(map(type(self).texts, chunk))
            allowed = builder.allow(split, sentence_hashes(chain.from_iterable(texts)), list(map(len, texts)))
            counts.update({"kept": np.count_nonzero(allowed), "excluded": np.count_nonzero(~allowed)})
            yield from compress(chunk, allowed)

    @staticmethod
    @abstractmethod
    def figures(classifier: Any, examples: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the ``outcomes`` of what a classifier of these annotations predicts, for each figure.

        Figures are ``accuracy`` of labels or tags; ``f1``, ``precision`` and ``recall`` of entities; or ``f1`` and
        ``exact_match`` of answers. Of tags and entities there is also ``xtreme_f1``, the F1 of ``lenient_entities``.
        """

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        ids, labels, first = (tables[0][name] for name in ("ids", "labels", "first"))
        rows = [Row(ids[n].tolist(), int(first.values[n]), labels[n].tolist(), n) for n in examples[:, 1].tolist()]
        return batch_of_rows(rows, self.text.vocabulary(SHARED))

    def as_text(self, table: Table, number: int) -> str:
        return f"row {number}: {self.tokenizers[SHARED].decode(table['ids'][number])!r}"


class AnnotationCriterion(Criterion):
    """Mean cross-entropy of the labels of texts or words: the base class of the objectives of these tasks.

    Attributes:
        term: Name of the loss.
    """

    needs = Classifier
    term: ClassVar[str]

    @dataclass(kw_only=True)
    class Config:
        pass

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        return Planned(batch, {self.term: int((batch.labels != IGNORED).sum())})

    def forward(self, model: Classifier, planned: Planned) -> Loss:
        logits, labels = model(planned.batch.tokens).float().flatten(0, -2), planned.batch.labels.flatten()
        # Tokens without a tag stay in the sums, because their number is not known without waiting for a GPU.
        loss, counted = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"), labels != IGNORED
        right = (logits.detach().argmax(dim=1) == labels) & counted
        return Loss({self.term: Term(loss)}, {"accuracy": 100 * right.sum() / counted.sum().clamp(min=1)})

"""Tasks of annotated text: classification, tagging and question answering."""

from __future__ import annotations

import functools
import hashlib
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.data.batch import Annotation, Batch, Vocabulary
from xrep.data.build import Builder, build, chunks
from xrep.data.rows import (
    Reading,
    Row,
    batch_of_rows,
    label_rows,
    question_rows,
    row_columns,
    row_schema,
    tag_rows,
)
from xrep.data.table import DataDirectory, Table
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.task import ExampleKind, TableTask, VocabularyOptions, given_tokenizers, text_spec
from xrep.text.annotated import Question, TaggedSentence, is_questions, is_tagged, read_questions, read_tagged
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.examples import Example, is_labelled, read_labelled
from xrep.text.find import TextFile, discover, of_split
from xrep.text.languages import canonical
from xrep.text.sides import SHARED, Tokenizers

ALL = "all"
Numbering = Callable[[Any], Sequence[int]]
"""Function that returns the numbers of the labels of an example."""


class AnnotatedTask(TableTask):
    """Base class of tasks whose examples are text with annotations.

    The text is read as it is published, tokenised once and kept on disk. The labels are those of the training text. The
    tokenizer is that of the pretrained encoder, or ``tokenizer``, or one trained on the text.

    Raises:
        UserError: The data is missing or damaged, a label of the dev split does not occur in the training text, or two
            labels differ only in upper and lower case.
    """

    default_model = "classifier"
    default_validation = "annotation"
    kind: ClassVar[Literal["label", "tags", "span"]]
    what: ClassVar[str]
    """What its files are, for messages."""
    forms: ClassVar[str]
    """Endings of the names of its files, for messages."""

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
        exclude: list[str] = field(default_factory=list)
        """Files or directories of evaluation sets. Training examples with a sentence that occurs there are dropped."""
        batch_size: Count = 32
        """Number of rows in a batch."""
        max_length: Annotated[int, "[8, inf)"] = 128
        """Maximum length of a row in subwords, special tokens included."""

        def problems(self) -> list[str]:
            return [] if self.languages else ["languages must name at least one language, or all"]

    config: Any

    def __init__(self, config: Any, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config, self.seed = config, seed
        files = self.discover(config.data, config.language)
        chosen = None if ALL in config.languages else [canonical(language) for language in config.languages]
        self._files = {split: of_split(files, split, chosen) for split in ("train", "valid")}
        if not self._files["train"]:
            there = sorted({file.language for file in of_split(files, "train")})
            cure = f"there is training text in {', '.join(there)}" if there else "name files with train in their names"
            raise UserError("no training text in these `languages`", path=config.data, cure=cure)
        data = self._build(given_tokenizers(config.tokenizer, tokenizers or {}, shared=True))
        annotation = Annotation(kind=self.kind, labels=data.manifest["labels"])
        languages = data.manifest["languages"]
        text = text_spec(data.tokenizers, config.max_length, target_languages=languages, annotation=annotation)
        super().__init__(config, seed, data, data.splits, text)

    # -- what the kinds of annotation do differently ------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def accepts(path: Path) -> bool:
        """Return whether a file of a folder is one that the task reads."""

    @staticmethod
    @abstractmethod
    def read(file: TextFile, counts: Counter[str]) -> Iterator[Any]:
        """Yield the examples of a file."""

    @staticmethod
    @abstractmethod
    def labels(example: Any) -> Sequence[str]:
        """Return the labels of an example."""

    @staticmethod
    @abstractmethod
    def texts(example: Any) -> Sequence[str]:
        """Return the texts of an example, from which the vocabulary is trained and the overlap with tests is found."""

    @abstractmethod
    def rows(self, examples: Iterable[Any], reading: Reading, numbers_of: Numbering) -> Iterator[Row]:
        """Yield the rows of examples."""

    # -- reading ------------------------------------------------------------------------------------------------------

    @classmethod
    def discover(cls, path: str, language: str) -> list[TextFile]:
        """Return the files of a folder, or the single file."""
        return discover(path, language, cls.what, cls.forms, cls.accepts)

    def examples_of(self, split: str, counts: Counter[str] | None = None) -> Iterator[Any]:
        """Read the examples of a split (``train`` or ``valid``) from its files.

        Without a dev split, some training examples are held out; which ones depends on the seed and their places alone.

        Args:
            counts: Counter to which are added the examples that are ``read`` and, by reason, those that are left out.
        """
        if not self._holds_out:
            yield from self._read(split, counts)
            return
        start, limit = 0, np.uint64(int(self.config.dev_share * 2**32))
        for chunk in chunks(self._read("train", counts if split == "train" else None)):
            places = np.arange(start, start + len(chunk), dtype=np.uint64)
            held_out = scramble(places, self.seed) >> np.uint64(32) < limit
            yield from compress(chunk, held_out == (split == "valid"))
            start += len(chunk)

    def _read(self, split: str, counts: Counter[str] | None = None) -> Iterator[Any]:
        counts = Counter() if counts is None else counts
        return chain.from_iterable(self.read(file, counts) for file in self._files[split])

    @functools.cached_property
    def _holds_out(self) -> bool:
        """Whether the dev split is a part of the training text."""
        return self.config.dev_share > 0 and next(self._read("valid"), None) is None

    # -- building -----------------------------------------------------------------------------------------------------

    def _build(self, tokenizers: Tokenizers) -> DataDirectory:
        config = self.config
        options = {name: value for name, value in asdict(config).items() if name not in ("tokenizer", "batch_size")}
        files = [path for own in self._files.values() for file in own for path in file.paths]
        return build(
            "annotated",
            [self.kind, options, self.seed if config.dev_share else None],
            files,
            self._fill,
            tokenizers,
            self._sentences,
            title=config.data,
            vocabulary_size=config.vocab_size,
            exclude=config.exclude,
        )

    def _sentences(self) -> Iterator[tuple[str, str]]:
        examples = self.examples_of("train")
        if (first := next(examples, None)) is None:
            raise self._nothing()
        for example in chain([first], examples):
            yield from ((example.language, text) for text in self.texts(example))

    def _fill(self, builder: Builder) -> None:
        labels, languages = set[str](), set[str]()
        for example in self.examples_of("train"):
            labels.update(self.labels(example))
            languages.add(example.language)
        builder.facts |= {"languages": sorted(languages), "labels": labels_of(labels)}
        tokenizer, numbers_of = builder.tokenizers[SHARED], self._numbering(builder.facts["labels"])
        reading = Reading(tokenizer, Vocabulary.of(tokenizer), self.config.max_length)
        schema = row_schema(self.kind, tokenizer.vocabulary_size)
        for split in self._files:
            counts = Counter[str]()
            examples = self._allowed(builder, split, counts)
            with builder.table(split, "rows", schema) as table:
                for columns in row_columns(self.rows(examples, reading, numbers_of), schema):
                    table.append(columns)
            left_out = [f"{n:,} ({why})" for why, n in counts.items() if n and why not in ("read", "kept")]
            if counts:
                said = f"{split}: {counts['kept']:,} examples, {table.rows:,} sequences"
                print(said + (f"; left out: {', '.join(left_out)}" if left_out else ""))
        if "train" not in builder.splits:
            raise self._nothing()

    def _allowed(self, builder: Builder, split: str, counts: Counter[str]) -> Iterator[Any]:
        """Yield the examples of a split without the training examples that have an excluded sentence."""
        for chunk in chunks(self.examples_of(split, counts)):
            if split == "train":
                texts = [self.texts(example) for example in chunk]
                owners = np.repeat(np.arange(len(chunk)), list(map(len, texts)))
                hashes = sentence_hashes(chain.from_iterable(texts))
                excluded = np.bincount(owners, builder.excluded.contains(hashes), len(chunk)) > 0
                builder.training.add(hashes[~excluded[owners] & (hashes != NO_KEY)])
                counts["excluded"] += np.count_nonzero(excluded)
                chunk = list(compress(chunk, ~excluded))
            counts["kept"] += len(chunk)
            yield from chunk

    def _numbering(self, labels: Sequence[str]) -> Numbering:
        """Return a function that gives the numbers of the labels of an example, and raises UserError if the training
        text does not have one of them."""
        numbers = {label: number for number, label in enumerate(labels)}

        def numbers_of(example: Any) -> list[int]:
            own = self.labels(example)
            if unknown := [label for label in own if label not in numbers]:
                problem = f"the label {unknown[0]!r} does not occur in the training text"
                raise UserError(problem, path=example.path, line=example.line, cure=f"known: {', '.join(labels[:20])}")
            return [numbers[label] for label in own]

        return numbers_of

    def _nothing(self) -> UserError:
        path, cure = self._files["train"][0].path, "check the files and `exclude`"
        return UserError("no example in the training text", path=path, cure=cure)

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        return batch_of_rows(tables[0], examples[:, 1], self.text.vocabulary(SHARED))

    def as_text(self, table: Table, number: int) -> str:
        return f"row {number}: {self.tokenizers[SHARED].decode(table['ids'][number])!r}"

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{super().fingerprint()} {self.text.as_dict()}".encode()).hexdigest()


class ClassificationTask(AnnotatedTask):
    """Texts, or pairs of texts that are read as one sequence, with a label: XNLI, PAWS-X, reviews, own files.

    The files are described in ``xrep.text.examples``.
    """

    kind, gives = "label", ExampleKind.LABELLED_TEXTS
    what, forms = "labelled text", ".tsv, .jsonl or .review"
    accepts, read = staticmethod(is_labelled), staticmethod(read_labelled)

    @staticmethod
    def labels(example: Example) -> Sequence[str]:
        return (example.label,)

    @staticmethod
    def texts(example: Example) -> Sequence[str]:
        return example.sentences

    def rows(self, examples: Iterable[Example], reading: Reading, numbers_of: Numbering) -> Iterator[Row]:
        return label_rows(examples, reading, numbers_of)


class TaggingTask(AnnotatedTask):
    """Sentences whose words have tags: parts of speech (CoNLL-U), named entities (PAN-X, IOB2), own files.

    The files are described in ``xrep.text.annotated``.
    """

    kind, gives = "tags", ExampleKind.TAGGED_WORDS
    what, forms = "tagged words", ".conllu or .tsv"
    accepts = staticmethod(is_tagged)

    @staticmethod
    def read(file: TextFile, counts: Counter[str]) -> Iterator[TaggedSentence]:
        return read_tagged(file)

    @staticmethod
    def labels(example: TaggedSentence) -> Sequence[str]:
        return example.tags

    @staticmethod
    def texts(example: TaggedSentence) -> Sequence[str]:
        return (example.text,)

    def rows(self, examples: Iterable[TaggedSentence], reading: Reading, numbers_of: Numbering) -> Iterator[Row]:
        return tag_rows(examples, reading, numbers_of)


class QuestionAnsweringTask(AnnotatedTask):
    """Questions whose answers are parts of a text, in SQuAD's JSON: SQuAD, XQuAD, MLQA, TyDiQA-GoldP.

    A long text is read in windows that overlap; a window without the answer is an example, too. Answers that are not
    where the file says are counted, and nothing is trained on them.
    """

    kind, gives = "span", ExampleKind.QUESTIONS
    what, forms = "questions", ".json"
    accepts, read = staticmethod(is_questions), staticmethod(read_questions)

    @dataclass(kw_only=True)
    class Config(AnnotatedTask.Config):
        max_length: Annotated[int, "[8, inf)"] = 384
        """Maximum length of a question with a window of its text in subwords, special tokens included."""
        stride: Count = 128
        """Number of subwords by which a window begins after the one before it."""
        max_question: Count = 64
        """Number of subwords of a question that are read."""

    @staticmethod
    def labels(example: Question) -> Sequence[str]:
        return ()

    @staticmethod
    def texts(example: Question) -> Sequence[str]:
        return example.texts

    def rows(self, examples: Iterable[Question], reading: Reading, numbers_of: Numbering) -> Iterator[Row]:
        return question_rows(examples, reading, stride=self.config.stride, max_question=self.config.max_question)


def labels_of(labels: Iterable[str]) -> list[str]:
    """Return the different labels, sorted; numbers by their value. Raises UserError if two labels differ only in upper
    and lower case."""
    unique = sorted(set(labels), key=lambda label: (int(label) if re.fullmatch(r"\d{1,9}", label) else 0, label))
    by_lower: dict[str, str] = {}
    for label in unique:
        other = by_lower.setdefault(label.lower(), label)
        if other != label:
            raise UserError(f"the labels {other!r} and {label!r} differ only in case", cure="write them alike")
    return unique

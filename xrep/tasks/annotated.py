"""Tasks of annotated text: classification, tagging and question answering."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np

from xrep.config.fields import Count
from xrep.data.annotated import Row, Rows, label_rows, question_rows, tag_rows
from xrep.data.batch import Annotation, Batch, TextSpec
from xrep.data.build import Builder, build
from xrep.data.table import DataDirectory
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.task import ExampleKind, Task, VocabularyOptions, given_tokenizers, text_spec
from xrep.text import labelled_readers, question_readers, tagged_readers
from xrep.text.annotated import AnnotatedFile, LabelledText, Question, TaggedSentence, discover, of_split
from xrep.text.cleaning import sentence_hashes
from xrep.text.languages import canonical
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer

ALL = "all"


class AnnotatedTask(Task):
    """Base class of tasks whose examples are text with annotations.

    The text is read as it is published and tokenised at the start of a run, and all of it stays in memory. The labels
    are those of the training text. The tokenizer is that of the pretrained encoder, or ``tokenizer``, or one trained on
    the text.

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
        batch_size: Count = 32
        """Number of rows in a batch."""
        max_length: Annotated[int, "[8, inf)"] = 128
        """Maximum length of a row in subwords, special tokens included."""

        def problems(self) -> list[str]:
            return [] if self.languages else ["languages must name at least one language, or all"]

    config: Any

    def __init__(self, config: Any, seed: int, tokenizers: Mapping[str, str] | None = None) -> None:
        self.config, self.seed = config, seed
        self.files = self.discover(config.data, config.language)
        chosen = None if ALL in config.languages else [canonical(language) for language in config.languages]
        train = of_split(self.files, "train", chosen)
        if not train:
            there = sorted({file.language for file in of_split(self.files, "train")})
            cure = f"there is training text in {', '.join(there)}" if there else "name files with train in their names"
            raise UserError("no training text in these `languages`", path=config.data, cure=cure)
        examples = self._read(train)
        held_out = self._held_out(len(examples))
        dev = self._read(of_split(self.files, "valid", chosen))
        if not dev and held_out.any():
            dev = [example for example, out in zip(examples, held_out, strict=True) if out]
            examples = [example for example, out in zip(examples, held_out, strict=True) if not out]
        if not examples:
            raise UserError("no example in the training text", path=train[0].path, cure="check the file")
        languages = sorted({example.language for example in examples})
        annotation = Annotation(kind=self.kind, labels=labels_of(self.labels(examples)))
        data = self._open(tokenizers or {}, [file.path for file in train], examples)
        tokenizer = data.tokenizers[SHARED]
        text = text_spec(data.tokenizers, config.max_length, target_languages=languages, annotation=annotation)
        self.training_examples, self.dev_examples = examples, dev
        read = {"train": examples, "valid": dev}
        tables: Any = {split: [Rows(self.rows(some, text, tokenizer))] for split, some in read.items()}
        super().__init__(config, seed, data, tables, text)

    # -- what the kinds of annotation do differently ------------------------------------------------------------------

    @staticmethod
    @abstractmethod
    def accepts(path: Path) -> bool:
        """Return whether a file of a folder is one that the task reads."""

    @staticmethod
    @abstractmethod
    def read(file: AnnotatedFile, counts: Counter[str]) -> Iterator[Any]:
        """Yield the examples of a file."""

    @staticmethod
    @abstractmethod
    def labels(examples: Iterable[Any]) -> Iterator[str]:
        """Yield the labels of examples; each may occur several times."""

    @staticmethod
    @abstractmethod
    def texts(example: Any) -> Sequence[str]:
        """Return the texts of an example, from which the vocabulary is trained and the overlap with tests is found."""

    @abstractmethod
    def rows(self, examples: Iterable[Any], text: TextSpec, tokenizer: Tokenizer) -> Iterator[Row]:
        """Yield the rows of examples."""

    # -- training -----------------------------------------------------------------------------------------------------

    @classmethod
    def discover(cls, path: str, language: str) -> list[AnnotatedFile]:
        """Return the files of a folder, or the single file."""
        return discover(path, language, cls.what, cls.forms, cls.accepts)

    def _read(self, files: Iterable[AnnotatedFile]) -> list[Any]:
        counts = Counter[str]()
        examples = [example for file in files for example in self.read(file, counts)]
        left_out = [f"{count:,} ({why})" for why, count in counts.items() if why != "read" and count]
        if left_out:
            print(f"{counts['read']:,} examples read; left out: {', '.join(left_out)}")
        return examples

    def _held_out(self, count: int) -> np.ndarray:
        """Return which training examples are held out, bool [count]; it depends on the seed and the places alone."""
        limit = np.uint64(int(self.config.dev_share * 2**32))
        return scramble(np.arange(count, dtype=np.uint64), self.seed) >> np.uint64(32) < limit

    def _open(self, brought: Mapping[str, str], files: list[Path], examples: list[Any]) -> DataDirectory:
        """Return a directory with the tokenizer and the training hashes."""
        config = self.config

        def sentences() -> Iterator[tuple[str, str]]:
            return ((example.language, text) for example in examples for text in self.texts(example))

        def fill(builder: Builder) -> None:
            for example in examples:
                builder.allow("train", sentence_hashes(list(self.texts(example))))

        facts = [self.kind, config.languages, config.language]
        facts += [config.dev_share, self.seed, len(examples)]  # fewer examples if some of them are held out
        given = given_tokenizers(config.tokenizer, brought, shared=True)
        title, size = str(config.data), config.vocab_size
        return build("annotated", facts, files, fill, given, sentences, title=title, vocabulary_size=size)

    def lengths(self, table: Any, numbers: np.ndarray) -> np.ndarray:
        return table.lengths[numbers][:, None]

    def batch_of(self, tables: Sequence[Any], examples: np.ndarray) -> Batch:
        return tables[0].batch(examples[:, 1], self.text.vocabulary(SHARED), self.kind)

    def as_text(self, table: Any, number: int) -> str:
        return f"row {number}: {self.tokenizers[SHARED].decode(table.ids[number].tolist())!r}"

    def fingerprint(self) -> str:
        (rows,) = self.train
        return hashlib.sha256(f"{cast(Any, rows).digest()} {self.text.as_dict()}".encode()).hexdigest()


class ClassificationTask(AnnotatedTask):
    """Texts, or pairs of texts that are read as one sequence, with a label: XNLI, PAWS-X, reviews, own files.

    The files are described in ``xrep.text.labelled_readers``.
    """

    kind, gives = "label", ExampleKind.LABELLED_TEXTS
    what, forms = "labelled text", ".tsv, .jsonl or .review"
    accepts, read = staticmethod(labelled_readers.is_labelled), staticmethod(labelled_readers.read_labelled)

    @staticmethod
    def labels(examples: Iterable[LabelledText]) -> Iterator[str]:
        return (example.label for example in examples)

    @staticmethod
    def texts(example: LabelledText) -> Sequence[str]:
        return example.sentences

    def rows(self, examples: Iterable[LabelledText], text: TextSpec, tokenizer: Tokenizer) -> Iterator[Row]:
        number_of = numbering(text)

        def of_text(example: LabelledText) -> int:
            return number_of(example.label, example)

        return label_rows(examples, tokenizer, text.vocabulary(SHARED), of_text, text.max_length)


class TaggingTask(AnnotatedTask):
    """Sentences whose words have tags: parts of speech (CoNLL-U), named entities (PAN-X, IOB2), own files.

    The files are described in ``xrep.text.tagged_readers``.
    """

    kind, gives = "tags", ExampleKind.TAGGED_WORDS
    what, forms = "tagged words", ".conllu or .tsv"
    accepts = staticmethod(tagged_readers.is_tagged)

    @staticmethod
    def read(file: AnnotatedFile, counts: Counter[str]) -> Iterator[TaggedSentence]:
        return tagged_readers.read_tagged(file)

    @staticmethod
    def labels(examples: Iterable[TaggedSentence]) -> Iterator[str]:
        return (tag for example in examples for tag in example.tags)

    @staticmethod
    def texts(example: TaggedSentence) -> Sequence[str]:
        return [example.text]

    def rows(self, examples: Iterable[TaggedSentence], text: TextSpec, tokenizer: Tokenizer) -> Iterator[Row]:
        number_of = numbering(text)

        def of_sentence(example: TaggedSentence) -> list[int]:
            return [number_of(tag, example) for tag in example.tags]

        return tag_rows(examples, tokenizer, text.vocabulary(SHARED), of_sentence, text.max_length)


class QuestionAnsweringTask(AnnotatedTask):
    """Questions whose answers are parts of a text, in SQuAD's JSON: SQuAD, XQuAD, MLQA, TyDiQA-GoldP.

    A long text is read in windows that overlap; a window without the answer is an example, too. Answers that are not
    where the file says are counted, and nothing is trained on them.
    """

    kind, gives = "span", ExampleKind.QUESTIONS
    what, forms = "questions", ".json"
    accepts, read = staticmethod(question_readers.is_questions), staticmethod(question_readers.read_questions)

    @dataclass(kw_only=True)
    class Config(AnnotatedTask.Config):
        max_length: Annotated[int, "[8, inf)"] = 384
        """Maximum length of a question with a window of its text in subwords, special tokens included."""
        stride: Count = 128
        """Number of subwords by which a window begins after the one before it."""
        max_question: Count = 64
        """Number of subwords of a question that are read."""

    @staticmethod
    def labels(examples: Iterable[Question]) -> Iterator[str]:
        return iter(())

    @staticmethod
    def texts(example: Question) -> Sequence[str]:
        return example.texts

    def rows(self, examples: Iterable[Question], text: TextSpec, tokenizer: Tokenizer) -> Iterator[Row]:
        return question_rows(
            examples,
            tokenizer,
            text.vocabulary(SHARED),
            max_length=text.max_length,
            stride=self.config.stride,
            max_question=self.config.max_question,
        )


def numbering(text: TextSpec) -> Callable[[str, LabelledText | TaggedSentence], int]:
    """Return a function that gives the number of a label of an example, and raises UserError if the training text does
    not have the label."""
    assert text.annotation is not None
    numbers = {label: number for number, label in enumerate(text.annotation.labels)}

    def number_of(label: str, example: LabelledText | TaggedSentence) -> int:
        if label not in numbers:
            problem = f"the label {label!r} does not occur in the training text"
            known = ", ".join(list(numbers)[:20])
            raise UserError(problem, path=example.path, line=example.line, cure=f"known: {known}")
        return numbers[label]

    return number_of


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

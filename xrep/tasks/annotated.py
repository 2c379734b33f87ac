"""Tasks of annotated text: classification, tagging and question answering."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.data.annotated import AnnotatedBatch, Row, Rows, label_rows, question_rows, tag_rows
from xrep.data.batching import Annotation, TextSpec, Vocabulary
from xrep.data.build import build
from xrep.data.order import ExampleOrder
from xrep.data.plan import check_size, plan_batches
from xrep.data.stream import Plan
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.stored import VocabularyOptions, given_tokenizers, rows_by_length
from xrep.tasks.task import Examples, Task
from xrep.text.annotated import Question, TaggedSentence, is_questions, is_tagged, read_questions, read_tagged
from xrep.text.cleaning import HashSet, sentence_hashes
from xrep.text.examples import Example, is_labelled, read_labelled
from xrep.text.find import TextFile, discover, of_split
from xrep.text.languages import canonical
from xrep.text.sides import SHARED, Tokenizers
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
        self.config, self._seed = config, seed
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
        self.tokenizers = self._tokenizers(tokenizers or {}, [file.path for file in train], examples)
        tokenizer = self.tokenizers[SHARED]
        self.text = TextSpec(
            vocabularies={SHARED: Vocabulary.of(tokenizer)},
            max_length=config.max_length,
            target_languages=languages,
            annotation=annotation,
        )
        self.training_examples, self.dev_examples = examples, dev
        self._train = Rows(self.rows(examples, self.text, tokenizer))
        self._dev = Rows(self.rows(dev, self.text, tokenizer))
        self.examples, self.has_validation = len(self._train), len(self._dev) > 0
        self._order = ExampleOrder([self.examples], 1.0, seed, lambda _, rows: self._train.lengths[rows])

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
    def discover(cls, path: str, language: str) -> list[TextFile]:
        """Return the files of a folder, or the single file."""
        return discover(path, language, cls.what, cls.forms, cls.accepts)

    def _read(self, files: Iterable[TextFile]) -> list[Any]:
        counts = Counter[str]()
        examples = [example for file in files for example in self.read(file, counts)]
        left_out = [f"{count:,} ({why})" for why, count in counts.items() if why != "read" and count]
        if left_out:
            print(f"{counts['read']:,} examples read; left out: {', '.join(left_out)}")
        return examples

    def _held_out(self, count: int) -> np.ndarray:
        """Return which training examples are held out, bool [count]; it depends on the seed and the places alone."""
        limit = np.uint64(int(self.config.dev_share * 2**32))
        return scramble(np.arange(count, dtype=np.uint64), self._seed) >> np.uint64(32) < limit

    def _tokenizers(self, brought: Mapping[str, str], files: list[Path], examples: list[Any]) -> Tokenizers:
        config = self.config
        if given := given_tokenizers(config.tokenizer, brought, shared=True):
            return given

        def sentences() -> Iterator[tuple[str, str]]:
            return ((example.language, text) for example in examples for text in self.texts(example))

        facts = [self.kind, config.languages, config.language]
        facts += [config.dev_share, self._seed, len(examples)]  # fewer examples if some of them are held out
        title, size = str(config.data), config.vocab_size
        return build(
            "annotated", facts, files, lambda _: None, {}, sentences, title=title, vocabulary_size=size
        ).tokenizers

    @property
    def examples_per_batch(self) -> int:
        return self.config.batch_size

    def check_size(self, world_size: int) -> None:
        check_size(self._order, self.config.batch_size, "examples", world_size, self.config.data)

    def plan(
        self, cursor: int | None = None, rank: int = 0, world_size: int = 1, stop: int | None = None
    ) -> Iterator[Plan]:
        plans = plan_batches(self._order, self.config.batch_size, cursor, rank, world_size, stop)
        return (replace(plan, what=plan.what[:, 1]) for plan in plans)

    def make(self, what: np.ndarray) -> AnnotatedBatch:
        return self._train.batch(what, self.text.vocabulary(SHARED), self.kind)

    def describe(self, batch: AnnotatedBatch, limit: int = 3) -> str:
        tokenizer, lines = self.tokenizers[SHARED], []
        for place in range(min(limit, len(batch))):
            ids = batch.tokens.tokens[place, : int(batch.tokens.host_lengths[place])].tolist()
            lines.append(f"row {int(batch.indices[place])}: {tokenizer.decode(ids)!r}")
        return "; ".join(lines) or "no examples"

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self._train.digest()} {self.text.as_dict()}".encode()).hexdigest()

    def write_training_hashes(self, path: Path) -> None:
        hashes = HashSet()
        for example in self.training_examples:
            hashes.add(sentence_hashes(list(self.texts(example))))
        with path.open("wb") as file:
            np.save(file, hashes.to_array(), allow_pickle=False)

    def validation_batches(self) -> Iterator[AnnotatedBatch]:
        for rows in rows_by_length(self._dev.lengths):
            yield self._dev.batch(rows, self.text.vocabulary(SHARED), self.kind)


class ClassificationTask(AnnotatedTask):
    """Texts, or pairs of texts that are read as one sequence, with a label: XNLI, PAWS-X, reviews, own files.

    The files are described in ``xrep.text.examples``.
    """

    kind, gives = "label", Examples.LABELLED_TEXTS
    what, forms = "labelled text", ".tsv, .jsonl or .review"
    accepts, read = staticmethod(is_labelled), staticmethod(read_labelled)

    @staticmethod
    def labels(examples: Iterable[Example]) -> Iterator[str]:
        return (example.label for example in examples)

    @staticmethod
    def texts(example: Example) -> Sequence[str]:
        return example.sentences

    def rows(self, examples: Iterable[Example], text: TextSpec, tokenizer: Tokenizer) -> Iterator[Row]:
        number_of = numbering(text)

        def of_text(example: Example) -> int:
            return number_of(example.label, example)

        return label_rows(examples, tokenizer, text.vocabulary(SHARED), of_text, text.max_length)


class TaggingTask(AnnotatedTask):
    """Sentences whose words have tags: parts of speech (CoNLL-U), named entities (PAN-X, IOB2), own files.

    The files are described in ``xrep.text.annotated``.
    """

    kind, gives = "tags", Examples.TAGGED_WORDS
    what, forms = "tagged words", ".conllu or .tsv"
    accepts = staticmethod(is_tagged)

    @staticmethod
    def read(file: TextFile, counts: Counter[str]) -> Iterator[TaggedSentence]:
        return read_tagged(file)

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

    kind, gives = "span", Examples.QUESTIONS
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


def numbering(text: TextSpec) -> Callable[[str, Example | TaggedSentence], int]:
    """Return a function that gives the number of a label of an example, and raises UserError if the training text does
    not have the label."""
    assert text.annotation is not None
    numbers = {label: number for number, label in enumerate(text.annotation.labels)}

    def number_of(label: str, example: Example | TaggedSentence) -> int:
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

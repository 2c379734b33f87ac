"""What tasks of annotated text, and their objectives, have in common: classification, tagging, question answering."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, compress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F

from xrep.config.fields import Count
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.data.batch import Batch
from xrep.data.build import Builder, build, chunks
from xrep.data.table import DataDirectory, Table
from xrep.errors import UserError
from xrep.hashing import scramble
from xrep.tasks.task import TableTask, VocabularyOptions, given_tokenizers, text_spec
from xrep.text.cleaning import NO_KEY, sentence_hashes
from xrep.text.find import TextFile, discover, of_split
from xrep.text.languages import canonical
from xrep.text.sides import SHARED, Tokenizers
from xrep.understanding.model import Classifier
from xrep.understanding.rows import (
    IGNORED,
    Annotation,
    Reading,
    Row,
    batch_of_rows,
    numbering,
    row_columns,
    row_schema,
)

ALL = "all"


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
    read: ClassVar[Callable[[TextFile, Counter[str]], Iterator[Any]]]
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
        annotation, languages = Annotation(kind=self.kind, labels=data.manifest["labels"]), data.manifest["languages"]
        text = text_spec(data.tokenizers, config.max_length, target_languages=languages, facts=annotation.facts())
        super().__init__(config, seed, data, data.splits, text)

    @classmethod
    def discover(cls, path: str, language: str) -> list[TextFile]:
        """Return the files of a folder, or the single file."""
        return discover(path, language, cls.what, cls.forms, cls.accepts)

    def examples_of(self, split: str, counts: Counter[str] | None = None) -> Iterator[Any]:
        """Read the examples of a split (``train`` or ``valid``) from its files. ``counts`` is as for ``read``.

        Without a dev split, some training examples are held out; which ones depends on the seed and their places alone.
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
        return chain.from_iterable(type(self).read(file, counts) for file in self._files[split])

    @functools.cached_property
    def _holds_out(self) -> bool:
        """Whether the dev split is a part of the training text."""
        return self.config.dev_share > 0 and next(self._read("valid"), None) is None

    def _build(self, tokenizers: Tokenizers) -> DataDirectory:
        config, files = self.config, [path for own in self._files.values() for file in own for path in file.paths]
        options = {name: value for name, value in asdict(config).items() if name not in ("tokenizer", "batch_size")}
        return build(
            "annotated text",
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
            yield from ((example.language, text) for text in type(self).texts(example))

    def _fill(self, builder: Builder) -> None:
        labels, languages = set[str](), set[str]()
        for example in self.examples_of("train"):
            labels.update(type(self).labels(example))
            languages.add(example.language)
        builder.facts |= {"languages": sorted(languages), "labels": sorted(labels, key=_order)}
        tokenizer, numbers_of = builder.tokenizers[SHARED], numbering(builder.facts["labels"], type(self).labels)
        reading = Reading.of(tokenizer, self.config.max_length, vars(self.config))
        for split in self._files:
            counts = Counter[str]()
            examples = self._allowed(builder, split, counts)
            with builder.table(split, "rows", row_schema(tokenizer.vocabulary_size)) as table:
                for columns in row_columns(type(self).rows(examples, reading, numbers_of)):
                    table.append(columns)
            if counts:
                left_out = [f"{n:,} ({why})" for why, n in counts.items() if n and why not in ("read", "kept")]
                said = f"; left out: {', '.join(left_out)}" if left_out else ""
                print(f"{split}: {counts['kept']:,} examples, {table.rows:,} sequences{said}")
        if "train" not in builder.splits:
            raise self._nothing()

    def _allowed(self, builder: Builder, split: str, counts: Counter[str]) -> Iterator[Any]:
        """Yield the examples of a split without the training examples that have an excluded sentence."""
        for chunk in chunks(self.examples_of(split, counts)):
            if split == "train":
                texts = list(map(type(self).texts, chunk))
                owners = np.repeat(np.arange(len(chunk)), list(map(len, texts)))
                hashes = sentence_hashes(chain.from_iterable(texts))
                excluded = np.bincount(owners, builder.excluded.contains(hashes), len(chunk)) > 0
                builder.training.add(hashes[~excluded[owners] & (hashes != NO_KEY)])
                counts["excluded"] += np.count_nonzero(excluded)
                chunk = list(compress(chunk, ~excluded))
            counts["kept"] += len(chunk)
            yield from chunk

    def _nothing(self) -> UserError:
        path, cure = self._files["train"][0].path, "check the files and `exclude`"
        return UserError("no example in the training text", path=path, cure=cure)

    def batch_of(self, tables: Sequence[Table], examples: np.ndarray) -> Batch:
        return batch_of_rows(tables[0], examples[:, 1], self.text.vocabulary(SHARED))

    def as_text(self, table: Table, number: int) -> str:
        return f"row {number}: {self.tokenizers[SHARED].decode(table['ids'][number])!r}"

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{super().fingerprint()} {self.text.as_dict()}".encode()).hexdigest()


def _order(label: str) -> tuple[int, str]:
    """Return a key that sorts labels; numbers by their value."""
    return int(label) if re.fullmatch(r"\d{1,9}", label) else 0, label


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

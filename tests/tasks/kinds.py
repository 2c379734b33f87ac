"""The kinds of tasks on small text that is known, and what their batches say."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.support.corpus import sentence_pairs, spanish_pairs
from tests.support.nli_data import Row, nli_rows, write, write_columns, write_jsonl
from xrep.data.batch import TokenBatch
from xrep.tasks.bitext import BitextTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.tasks.nli import NliTask
from xrep.tasks.similarity import SimilarityTask
from xrep.tasks.task import ExampleKind, Task
from xrep.tasks.translation import TranslationTask
from xrep.text.cleaning import sentence_hash
from xrep.text.nli import LABELS
from xrep.text.sides import tokenizer_of
from xrep.understanding.labels import ClassificationTask

PAIRS, VALID_PAIRS = sentence_pairs(600), sentence_pairs(660)[600:]
SPANISH = spanish_pairs()
LABELS_OF_TEXT = [("de", text, "winter" if "Winter" in text else "other") for text, _ in PAIRS[:280]]
SCORED = [(PAIRS[n][0], PAIRS[n + 1][0], n % 11 / 2) for n in range(260)]
NLI, GERMAN_NLI, NLI_VALID = nli_rows(100), nli_rows(100, "de"), nli_rows(20, seed=1)


def documents(sentences: Sequence[str], seed: int) -> list[list[str]]:
    """Return documents of 1 to 6 sentences."""
    chance, found = random.Random(seed), []
    while sentences:
        size = chance.randint(1, 6)
        found.append(list(sentences[:size]))
        sentences = sentences[size:]
    return found


GERMAN = documents([german for german, _ in PAIRS[:400]], 1)
ENGLISH = documents([english for _, english in PAIRS[:90]], 2)
VALID = documents([german for german, _ in PAIRS[400:450]], 3)


def flat(some: list[list[str]]) -> list[str]:
    return [sentence for document in some for sentence in document]


def neighbours(some: list[list[str]]) -> list[tuple[str, str]]:
    return [pair for document in some for pair in itertools.pairwise(document)]


def write_documents(path: Path, some: list[list[str]]) -> Path:
    return write(path, "\n\n".join("\n".join(document) for document in some).split("\n"))


def write_text(folder: Path) -> None:
    """Write monolingual text (German in two files, so that there is a border between them), inference data and labels;
    bitext is in the folder ``data_directory`` of all tests."""
    write_documents(folder / "text" / "news.1.de", GERMAN[:50])
    write_documents(folder / "text" / "news.2.de", GERMAN[50:])
    write_documents(folder / "text" / "en.txt", ENGLISH)
    write_documents(folder / "text" / "valid.de", VALID)
    write_jsonl(folder / "nli" / "snli_1.0_train.jsonl", [*NLI, ("dropped", "pair", "-")])
    write_jsonl(folder / "nli" / "snli_1.0_dev.jsonl", NLI_VALID)
    write_columns(folder / "both" / "train-de.tsv", GERMAN_NLI)
    write_columns(folder / "both" / "train-en.tsv", NLI)
    write(folder / "scored" / "train-de.tsv", [f"{score}\t{one}\t{two}" for one, two, score in SCORED[:230]])
    write(
        folder / "scored" / "dev-de.tsv",
        ["sentence1\tsentence2\tscore", *("\t".join(map(str, r)) for r in SCORED[230:])],
    )
    for split, rows in (("train", LABELS_OF_TEXT[:240]), ("dev", LABELS_OF_TEXT[240:])):
        write(folder / "labels" / f"{split}-de.tsv", [f"{label}\t{text}" for _, text, label in rows])


def translated(direction: str, spanish: list[tuple[str, str]], german: list[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the rows of the translation task."""
    some = [("es", *pair) for pair in spanish] + [("de", *pair) for pair in german]
    forward = [(language, "en", one, other) for language, one, other in some]
    reverse = [("en", language, other, one) for language, one, other in some]
    return {"forward": forward, "reverse": reverse, "both": forward + reverse}[direction]


def inference(rows: list[Row], language: str = "en") -> list[tuple[str, ...]]:
    return [(language, language, *row) for row in rows]


def scored(rows: list[tuple[str, str, float]]) -> list[tuple[str, ...]]:
    return [("de", "de", one, two, f"{score / 5:.3g}") for one, two, score in rows]


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Attributes:
        task: Its class.
        data: Folder of its text; empty for the bitext of all tests.
        train: The rows (``rows_of``) of an epoch, in the order of their indices; None where only their number is known.
        valid: The rows of the dev split.
        options: Options in which the kind differs from others.
        unit: What messages call its examples.
        smaller: Options of smaller batches.
        count: Number of examples.
        names: What ``describe`` calls some examples, by their indices.
    """

    task: type[Task]
    data: str
    train: list[tuple[str, ...]] | None
    valid: list[tuple[str, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    unit: str = "sentences"
    smaller: dict[str, Any] = field(default_factory=lambda: {"batch_size": 23})
    count: int = 0
    names: dict[int, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.count if self.train is None else len(self.train)

    def make(self, folder: Path, bitext: Path, seed: int = 1, brought: dict[str, str] | None = None, **options: Any):
        """Return the task on the text in ``folder`` (``write_text``), with the vocabulary of the bitext."""
        given: dict[str, Any] = {"data": str(folder / self.data if self.data else bitext), "max_length": 64}
        if not issubclass(self.task, BitextTask):
            given["tokenizer"] = str(bitext)
        return self.task(self.task.Config(**{**given, **self.options, **options}), seed, brought)


ONE = {"sampling_alpha": 1.0}
"""Every sentence is read once in an epoch."""
TEXT, TEXT_VALID = ([*(("de", s) for s in flat(GERMAN)), *(("en", s) for s in flat(ENGLISH))],
                    [("de", s) for s in flat(VALID)])  # fmt: skip
ADJACENT = [("de", "de", *pair) for pair in neighbours(GERMAN)] + [("en", "en", *pair) for pair in neighbours(ENGLISH)]
ADJACENT_VALID = [("de", "de", *pair) for pair in neighbours(VALID)]
OF_BITEXT = {29: "es-en pair 29", 30: "de-en pair 0", 629: "de-en pair 599"}
OF_TEXT = {0: "de sentence 0", 399: "de sentence 399", 400: "en sentence 0"}
CROSS = [row for de, en in zip(GERMAN_NLI, NLI, strict=True)
         for row in (("de", "en", de[0], en[1], en[2]), ("en", "de", en[0], de[1], de[2]))]  # fmt: skip


def _translation(direction: str, names: dict[int, str], **options: Any) -> Kind:
    rows = translated(direction, SPANISH[:30], PAIRS), translated(direction, SPANISH[30:], VALID_PAIRS)
    given = {"direction": direction, "max_tokens": 700, **options}
    return Kind(TranslationTask, "", *rows, given, "pairs", {"max_tokens": 300, "batch_size": None}, names=names)


KINDS = {
    "bitext": Kind(BitextTask, "", translated("forward", SPANISH[:30], PAIRS),
                   translated("forward", SPANISH[30:], VALID_PAIRS), unit="pairs", names=OF_BITEXT),
    "translation": _translation("forward", OF_BITEXT),
    "translation, reverse": _translation("reverse", {29: "en-es pair 29", 30: "en-de pair 0"}),
    "translation, both": _translation("both", {**OF_BITEXT, 630: "en-es pair 0", 1259: "en-de pair 599"}),
    "sentences": Kind(MonolingualTask, "text", TEXT, TEXT_VALID, ONE, names=OF_TEXT),
    "sentences by tokens": Kind(MonolingualTask, "text", TEXT, TEXT_VALID, {**ONE, "max_tokens": 400},
                                smaller={"max_tokens": 150}),
    "neighbours": Kind(MonolingualTask, "text", ADJACENT, ADJACENT_VALID,
                       {**ONE, "units": "adjacent", "swap_order": False}, "pairs"),
    "neighbours, swapped": Kind(MonolingualTask, "text", ADJACENT, ADJACENT_VALID, {**ONE, "units": "adjacent"},
                                "pairs"),
    "reordered": Kind(MonolingualTask, "text", TEXT, TEXT_VALID, {**ONE, "units": "reordered"}, names=OF_TEXT),
    "nli": Kind(NliTask, "nli", inference(NLI), inference(NLI_VALID), unit="examples", names={7: "example 7"}),
    "nli, two languages": Kind(NliTask, "both", CROSS, [], {"cross_lingual": True}, "examples"),
    "nli, triplets": Kind(NliTask, "both", None, [], {"form": "triplets", "cross_lingual": True}, "examples",
                          count=200),
    "scored": Kind(SimilarityTask, "scored", scored(SCORED[:230]), scored(SCORED[230:]), unit="examples"),
    "labels": Kind(ClassificationTask, "labels", LABELS_OF_TEXT[:240], LABELS_OF_TEXT[240:], {"languages": ["de"]},
                   "examples"),
}  # fmt: skip
SWAPPED = ("neighbours, swapped",)
"""Kinds whose rows have their sentences in either order."""


def texts_of(task: Any, side: str, tokens: TokenBatch) -> list[str]:
    """Return the sentences of one side of a batch, and assert that they are collated as they should be: each between
    the tokens of its begin and end, without a column of padding alone."""
    vocabulary, texts = task.text.vocabulary(side), []
    assert tokens.lengths.tolist() == tokens.host_lengths.tolist() and tokens.tokens.dtype == torch.int64
    if len(tokens):
        assert tokens.tokens.size(1) == int(tokens.lengths.max()) <= task.text.max_length
    for ids, length in zip(tokens.tokens.tolist(), tokens.lengths.tolist(), strict=True):
        assert ids[0] == vocabulary.bos_id and ids[length - 1] == vocabulary.eos_id
        assert set(ids[length:]) <= {vocabulary.pad_id} and vocabulary.pad_id not in ids[:length]
        texts.append(tokenizer_of(task.tokenizers, side).decode(ids[1 : length - 1]))
    return texts


def rows_of(task: Any, batch: Any) -> list[tuple[str, ...]]:
    """Return the languages, sentences and label of each example, and assert that ids, counts and places agree."""
    languages = batch.facts.get("languages", torch.zeros(len(batch), dtype=torch.int64)).tolist()
    named = [[task.text.languages[place] for place in (row if isinstance(row, list) else [row])] for row in languages]
    of_side = {side: texts_of(task, side, each) for side, each in batch.sides.items()}
    texts: list[Any] = list(zip(*of_side.values(), strict=True)) if batch.places is None else places_of(batch, of_side)
    count = sum(int(each.lengths.sum()) for each in batch.sides.values())
    if batch.negatives is not None:
        count += int(batch.negatives.tokens.lengths.sum())
    if task.gives is ExampleKind.REORDERED:
        assert torch.equal(batch.source.tokens.sort()[0], batch.target.tokens.sort()[0])
        texts, named = [row[:1] for row in texts], [row[:1] for row in named]
    names = task.text.facts.get("annotation", {"labels": LABELS})["labels"]
    numbers = batch.labels.flatten().tolist() if "labels" in batch.facts else [-1] * len(batch)
    labels = [(names[label],) if label >= 0 else () for label in numbers if isinstance(label, int)]
    labels = labels or [(f"{score:.3g}",) for score in numbers]
    for row, own in zip(batch.facts["ids"].tolist(), texts, strict=True) if "ids" in batch.facts else ():
        hashes = [sentence_hash(text) for text in own]
        assert [number % 2**64 for number in row] == (hashes * 2 if len(row) == 2 * len(own) else hashes)
    assert len(batch) == len(texts) == len(batch.indices) and batch.token_count == count
    return [(*languages, *own, *label) for languages, own, label in zip(named, texts, labels, strict=True)]


def places_of(batch: Any, of_side: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Return what belongs to the sentences of each example, given what belongs to those of each side."""
    places, every = batch.places.tolist(), [each for some in of_side.values() for each in some]
    assert sorted(place for row in places for place in row) == list(range(len(every)))
    return [tuple(every[place] for place in row) for row in places]


def first(count: int) -> np.ndarray:
    """Return the first examples of the first table, as plans name them."""
    return np.stack([np.zeros(count, np.int64), np.arange(count), np.arange(count)], axis=1)


def hashes_of(task: Any) -> set[int]:
    """Return the hashes of the training sentences, and assert that each file has them sorted."""
    files = [np.load(file, allow_pickle=False) for file in task.training_hashes]
    assert all(hashes.dtype == np.uint64 and (np.diff(hashes) > 0).all() for hashes in files)
    return {number for hashes in files for number in hashes.tolist()}


def sequences(batch: Any) -> list[tuple[int, list[list[int]]]]:
    """Return the index of each example and the tokens of its sentences, without padding."""
    tokens = {
        name: [ids[:length].tolist() for ids, length in zip(side.tokens, side.lengths, strict=True)]
        for name, side in batch.sides.items()
    }
    own = zip(*tokens.values(), strict=True) if batch.places is None else places_of(batch, tokens)
    return list(zip(batch.indices.tolist(), map(list, own), strict=True))


def contents(value: Any) -> list[Any]:
    """Return everything in a batch, as lists."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), value.tolist()]
    if hasattr(value, "__dataclass_fields__"):
        return [contents(getattr(value, name)) for name in value.__dataclass_fields__]
    if isinstance(value, dict):
        return [[key, contents(each)] for key, each in value.items()]
    return [contents(each) for each in value] if isinstance(value, tuple) else [repr(value)]

"""Labels of texts and of pairs of texts: their files, the sequences that are read, the task, its objective and figure.

The files are described in ``xrep.text.examples``. Rows without a label (``-`` or empty) and rows whose text is ``NS``
(PAWS-X: a sentence without a translation) are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from xrep.data.build import chunks
from xrep.tasks.task import ExampleKind
from xrep.text.examples import Example, read_rows
from xrep.text.find import PARALLEL, TextFile
from xrep.text.lines import is_too_long
from xrep.text.records import ending_of, plain_name
from xrep.understanding.annotated import AnnotatedTask, AnnotationCriterion, Reading, Row, outcomes, sequence

LABELLED_TEXTS = ExampleKind("labelled texts", "`task` to classification")


def is_labelled(path: Path) -> bool:
    """Return whether a file of a folder may be labelled text; README.txt and unlabeled.review are not."""
    name = plain_name(path)
    beside = name.lower().startswith(("readme", "license", "labels.", "s2.", "unlabeled."))
    return PARALLEL.fullmatch(name) is not None or ending_of(path) in ("tsv", "txt", "jsonl", "review") and not beside


def read_labelled(file: TextFile, counts: Counter[str] | None = None) -> Iterator[Example]:
    """Yield the labelled sentences of a file.

    Args:
        counts: Counter to which rows are added: ``read``, and those left out (``no label``, ``no text``, ``too long``).

    Raises:
        UserError: The file is damaged, a row has another number of columns, or the texts are not one or two.
    """
    counts = Counter() if counts is None else counts
    for example in read_rows(file):
        counts["read"] += 1
        if example.label in ("", "-"):
            counts["no label"] += 1
        elif not all(example.sentences) or "NS" in example.sentences:
            counts["no text"] += 1
        elif any(map(is_too_long, example.sentences)):
            counts["too long"] += 1
        else:
            yield example


def label_rows(texts: Iterable[Example], reading: Reading) -> Iterator[Row]:
    """Yield a row for each text or pair, with its label."""
    for chunk in chunks(enumerate(texts)):
        encoded = iter(reading.tokenizer.encode([text for _, example in chunk for text in example.sentences]))
        for number, example in chunk:
            one, other = [*(next(encoded) for _ in example.sentences), None][:2]
            ids, first = sequence(one or [], other, reading)
            yield Row(ids, first, [example.label or 0], number)


class ClassificationTask(AnnotatedTask):
    """Texts, or pairs of texts that are read as one sequence, with a label: XNLI, PAWS-X, reviews, own files.

    The files are described in ``xrep.text.examples``.
    """

    kind, gives = "label", LABELLED_TEXTS
    what, forms = "labelled text", ".tsv, .jsonl or .review"
    accepts, read, rows = staticmethod(is_labelled), staticmethod(read_labelled), staticmethod(label_rows)
    labels, texts = staticmethod(lambda example: (example.label,)), attrgetter("sentences")

    @staticmethod
    def figures(classifier: Any, examples: Sequence[Any]) -> dict[str, np.ndarray]:
        labels, _ = classifier.predict([example.sentences for example in examples])
        return {"accuracy": outcomes([label == own.label for label, own in zip(labels, examples, strict=True)], 1)}


class Classification(AnnotationCriterion):
    """Mean cross-entropy of the labels of texts, or of pairs that are read as one sequence.

    The metric ``accuracy`` is the percentage of texts whose label has the largest logit.

    Use:
        - Needs: texts or pairs with a label (task classification), and a pretrained encoder, which is trained, too.
        - Choose it: for a classifier of texts or pairs that also works in languages without labelled text (XNLI and
            PAWS-X of XTREME, reviews in section 4.5.2 of CMLM).
        - Related: nli trains a classifier above sentence vectors, which stay useful; tagging labels words.

    Example:
        ```sh
        xrep-train xnli/ --task classification --criterion classification --encoder minilm
        ```
    """

    reads, term = (LABELLED_TEXTS,), "classification"

"""xrep-predict: labels of texts, tags of words and answers to questions, by a trained classifier."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from xrep.errors import UserError
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    from xrep.understanding.sentence_classifier import SentenceClassifier


@dataclass(kw_only=True)
class Options(common.Computing, common.Batches):
    """Predict with a classifier that xrep-train trained: line i of the output belongs to line i of the input.

      xrep-predict --path xnli-run/best --input pairs.tsv           premise<TAB>hypothesis -> label<TAB>probability
      echo "A lovely film" | xrep-predict --path review-run/best    text -> label<TAB>probability
      echo "Angela lives in Kiel ." | xrep-predict --path ner-run/best      words -> tags, one for each word
      xrep-predict --path qa-run/best --input asked.tsv             question<TAB>context -> answer<TAB>place in the
                                                                    context
      xrep-predict --path xnli-run/best --input pairs.tsv --jsonl   an object per line, with the probabilities of all
                                                                    labels

    What the lines are is decided by the task that the classifier was trained for. Words are separated by spaces. Lines
    from a pipe are answered as they arrive. An output file is written only if all lines were read."""

    path: Annotated[str, common.Option(metavar="CHECKPOINT")]
    """A classifier: RUN/best."""
    input: common.InputFile = "-"
    """UTF-8 text (also .gz, .bz2, .xz and .zst); - reads standard input."""
    output: common.OutputFile = "-"
    """File to write to; - is standard output."""
    jsonl: bool = False
    """Write an object of JSON per line."""


def run(options: Options) -> None:
    """Write a line for each line of the input; those of a pipe are answered as they arrive."""
    from xrep.text.chunks import read_chunks
    from xrep.understanding.sentence_classifier import SentenceClassifier

    classifier = SentenceClassifier.load(
        options.path, device=options.device, dtype=options.precision, batch_tokens=options.batch_tokens
    )
    predict, widths, form = PREDICTORS[classifier.annotation.kind]
    before, origin = 0, "standard input" if options.input == "-" else options.input
    with common.text_writer(options.output) as write:
        for lines in read_chunks("/dev/stdin" if options.input == "-" else options.input):
            rows = [line.split("\t") for line in lines]
            for number, row in enumerate(rows, before + 1):
                if len(row) not in widths:
                    raise UserError(f"{len(row)} columns, where a line is {form}", path=origin, line=number)
            predicted = predict(classifier, rows)
            shown = (json.dumps(fields, ensure_ascii=False) if options.jsonl else text for text, fields in predicted)
            write("".join(f"{line}\n" for line in shown))
            before += len(lines)
        if not before:
            raise UserError("the file is empty", path=origin, cure="give a file with text")


def _labels(classifier: SentenceClassifier, rows: list[list[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    labels, probabilities = classifier.predict([tuple(row) for row in rows])
    for label, each in zip(labels, probabilities, strict=True):
        named = dict(zip(classifier.annotation.labels, map(float, each), strict=True))
        yield f"{label}\t{named[label]:.4f}", {"label": label, "probabilities": named}


def _tags(classifier: SentenceClassifier, rows: list[list[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    sentences = [" ".join(row).split() for row in rows]
    for words, tags in zip(sentences, classifier.tag(sentences), strict=True):
        yield " ".join(tags), {"words": words, "tags": tags}


def _answers(classifier: SentenceClassifier, rows: list[list[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    from xrep.understanding.questions import Question

    for answer in classifier.answer([Question(question, context) for question, context in rows]):
        yield f"{answer.text}\t{answer.start}", {"answer": answer.text, "start": answer.start, "score": answer.score}


PREDICTORS: dict[str, tuple[Callable[..., Iterator[tuple[str, dict[str, Any]]]], Container[int], str]] = {
    "label": (_labels, (1, 2), "text, or text<TAB>text"),
    "tags": (_tags, range(1, sys.maxsize), "words"),
    "span": (_answers, (2,), "question<TAB>context"),
}
"""How each kind of classifier predicts, the numbers of columns of its lines, and what they are."""
main = Command("xrep-predict", Options, run)

if __name__ == "__main__":
    sys.exit(main())

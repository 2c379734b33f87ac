"""xrep-predict: labels of texts, tags of words and answers to questions, by a trained classifier."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from xrep_cli.common import (
    add_shared_options,
    check_outputs,
    choose_device,
    command_parser,
    command_script,
    say_if_slow,
)

if TYPE_CHECKING:
    from xrep.inference.classifier import SentenceClassifier

DESCRIPTION = """\
Predict with a classifier that xrep-train trained: line i of the output belongs to line i of the input.

  xrep-predict --path xnli-run/best --input pairs.tsv           premise<TAB>hypothesis -> label<TAB>probability
  echo "A lovely film" | xrep-predict --path review-run/best    text -> label<TAB>probability
  echo "Angela lives in Kiel ." | xrep-predict --path ner-run/best      words -> tags, one for each word
  xrep-predict --path qa-run/best --input asked.tsv             question<TAB>context -> answer<TAB>place in the context
  xrep-predict --path xnli-run/best --input pairs.tsv --jsonl   an object per line, with the probabilities of all labels

What the lines are is decided by the task that the classifier was trained for. Words are separated by spaces. An output
file is written only if all lines were read."""
BUFFER_LINES = 4096


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-predict", DESCRIPTION)
    add = parser.add_argument
    add("--path", required=True, metavar="CHECKPOINT", help="a classifier: RUN/best")
    add(
        "--input", default="-", metavar="FILE", help="UTF-8 text (also .gz, .bz2, .xz and .zst); - reads standard input"
    )
    add("--output", default="-", metavar="FILE", help="file to write to; - is standard output")
    add("--jsonl", action="store_true", help="write an object of JSON per line")
    add_shared_options(parser, "--batch-tokens", "--precision", "--device", "--plugin")
    return parser


def run(options: argparse.Namespace) -> None:
    check_outputs({"--output": options.output}, {"--input": options.input})
    from xrep.files import write_aside
    from xrep.inference.classifier import SentenceClassifier
    from xrep.text.readers import read_lines

    device = choose_device(options.device)
    classifier = SentenceClassifier.load(
        options.path, device=device, dtype=options.precision, batch_tokens=options.batch_tokens
    )
    say_if_slow("xrep-predict", options.precision, device)
    predict = {"label": _labels, "tags": _tags, "span": _answers}[classifier.annotation.kind]
    lines = read_lines("/dev/stdin" if options.input == "-" else options.input)
    if options.output == "-":
        _write(lines, classifier, predict, options, sys.stdout)
        return
    with write_aside(options.output) as aside, open(aside, "w", encoding="utf-8") as file:
        _write(lines, classifier, predict, options, file)


def _write(
    lines: Iterator[tuple[int, str]],
    classifier: SentenceClassifier,
    predict: Callable[..., Iterable[tuple[str, dict[str, Any]]]],
    options: argparse.Namespace,
    file: Any,
) -> None:
    while chunk := list(islice(lines, BUFFER_LINES)):
        for text, fields in predict(classifier, chunk, options.input):
            print(json.dumps(fields, ensure_ascii=False) if options.jsonl else text, file=file)


def _labels(
    classifier: SentenceClassifier, lines: Sequence[tuple[int, str]], origin: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    rows = [_columns(line, (1, 2), "text, or text<TAB>text", origin) for line in lines]
    labels, probabilities = classifier.predict([row[0] if len(row) == 1 else (row[0], row[1]) for row in rows])
    for label, each in zip(labels, probabilities, strict=True):
        named = dict(zip(classifier.annotation.labels, map(float, each), strict=True))
        yield f"{label}\t{named[label]:.4f}", {"label": label, "probabilities": named}


def _tags(
    classifier: SentenceClassifier, lines: Sequence[tuple[int, str]], origin: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    sentences = [line.split() for _, line in lines]
    for words, tags in zip(sentences, classifier.tag(sentences), strict=True):
        yield " ".join(tags), {"words": words, "tags": tags}


def _answers(
    classifier: SentenceClassifier, lines: Sequence[tuple[int, str]], origin: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    from xrep.text.annotated import Question

    rows = [_columns(line, (2,), "question<TAB>context", origin) for line in lines]
    questions = [Question(str(number), row[0], row[1], (), "") for (number, _), row in zip(lines, rows, strict=True)]
    for answer in classifier.answer(questions):
        yield f"{answer.text}\t{answer.start}", {"answer": answer.text, "start": answer.start, "score": answer.score}


def _columns(line: tuple[int, str], widths: tuple[int, ...], form: str, origin: str) -> list[str]:
    from xrep.errors import UserError

    columns = line[1].split("\t")
    if len(columns) not in widths:
        problem = f"{len(columns)} columns, where a line is {form}"
        raise UserError(problem, path="standard input" if origin == "-" else origin, line=line[0])
    return columns


main = command_script(build_parser, run)

if __name__ == "__main__":
    sys.exit(main())

"""Evaluations of classifiers: XNLI, PAWS-X, Amazon reviews, parts of speech, named entities, question answering; and
validation by the same figures during training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from xrep.config.fields import Count
from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.evaluation.evaluation import Examples, OverlapOption, PrecisionOption, Result, Score, TableEvaluation, shares
from xrep.evaluation.reading import choose_languages
from xrep.tasks.task import Task
from xrep.text.find import of_split
from xrep.text.languages import name
from xrep.training.validator import OverRanks, Validator
from xrep.understanding.annotated import AnnotatedTask, check_labels
from xrep.understanding.classifier import Annotation, Classifier
from xrep.understanding.labels import ClassificationTask
from xrep.understanding.questions import Normalisation, QuestionAnsweringTask
from xrep.understanding.sentence_classifier import SentenceClassifier
from xrep.understanding.tags import TaggingTask, is_entity_scheme


def percentages(numbers: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the figures of ``AnnotatedTask.figures`` in percent."""
    return {name: 100 * float(own[:, 0].sum() / max(own[:, 1].sum(), 1)) for name, own in numbers.items()}


class AnnotationValidator(Validator):
    """Validate by what a classifier predicts of the dev split.

    Attributes:
        metric: ``accuracy`` of labels or of tags, ``f1`` of entities, ``f1`` of answers.

    Raises:
        UserError: The task has no annotated text, or no dev split.
    """

    needs = Classifier
    maximize = True

    def __init__(self, config: Any, task: Task) -> None:
        if not isinstance(task, AnnotatedTask) or not task.has_validation:
            cure = "give it a file such as dev-en.tsv, set `dev_share`, or choose the `validation` loss"
            raise UserError("there is no dev split of annotated text to validate on", cure=cure)
        self._task, self._examples = task, list(task.examples_of("valid"))
        annotation = Annotation.of(task.text)
        has_f1 = annotation.kind == "span" or is_entity_scheme(annotation.labels)
        self.metric = "f1" if has_f1 else "accuracy"

    def measure(self, model: Classifier, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Return the figures of ``AnnotatedTask.figures``, in percent."""
        classifier = SentenceClassifier(model, self._task.tokenizers, options=vars(self._task.config))
        return percentages(self._task.figures(classifier, self._examples))


class AnnotatedEvaluation(TableEvaluation):
    """Base class of the evaluations of classifiers."""

    task: ClassVar[type[AnnotatedTask]]
    """Task that reads the files, and trains what is measured."""
    config: Any

    @dataclass(kw_only=True)
    class Config(PrecisionOption, OverlapOption):
        data: str
        """File or folder of the test, as published: the files of XTREME's own script have no labels. The names of
        files tell their split and language."""
        langs: str = "all"
        """Languages to measure (de,fr or deu,fra), or all that are there."""
        split: Literal["test", "dev"] = "test"
        """Split to measure on."""
        language: str = "en"
        """Language of files that do not name it."""
        batch_tokens: Count = 4096
        """Number of subwords that go through the encoder at once."""

    def read(self) -> list[Examples]:
        """Return a table for each language, whose ``gold`` are the annotated examples."""
        data, split = self.config.data, "valid" if self.config.split == "dev" else "test"
        files = self.task.discover(data, self.config.language)
        chosen = files if Path(data).is_file() else of_split(files, split)
        self.counts = Counter[str]()
        found = dict[str, list[tuple[Any, Path]]]()
        for file in chosen:
            for example in self.task.read(file, self.counts):
                found.setdefault(example.language, []).append((example, file.path))
        if not found:
            splits = ", ".join(sorted({"dev" if file.split == "valid" else str(file.split) for file in files}))
            cure = f"set `split` to one with labels; there are files of {splits}"
            raise UserError(f"no annotated example of the {self.config.split} split", path=data, cure=cure)
        tables = []
        for language in choose_languages(self.config.langs, sorted(found), "test of", data):
            examples, paths = zip(*found[language], strict=True)
            texts = (self.task.texts(example)[:2] for example in examples)
            columns = tuple(map(list, zip_longest(*texts, fillvalue="")))
            languages, files = (language,) * len(columns), tuple(dict.fromkeys(paths))
            tables.append(Examples(language, languages, columns, np.array(examples, object), files))
        return tables

    def open(self, path: str) -> SentenceClassifier:
        return SentenceClassifier.load(path, dtype=self.config.precision, batch_tokens=self.config.batch_tokens)

    def check(self, model: SentenceClassifier) -> None:
        model.check_kind(self.task.kind)
        for table in self.tables:
            check_labels(table.gold, self.task.labels, model.annotation.labels)

    def numbers(self, model: SentenceClassifier, examples: Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the figures of ``AnnotatedTask.figures``."""
        return self.task.figures(model, examples)

    def score(self, model: SentenceClassifier, examples: Examples) -> Score:
        numbers = self.numbers(model, list(examples.gold))
        # Results are not quoted by these two.
        details = {name: numbers.pop(name) for name in ("precision", "recall") if name in numbers}
        return Score(percentages(numbers), shares(numbers), percentages(details))

    def quoted(self, results: Mapping[str, Result]) -> dict[str, tuple[str, list[str]]]:
        figures = next(iter(results.values())).score.figures
        return {f"{figure.replace('_', ' ')}, mean of {len(results)}": (figure, list(results)) for figure in figures}

    def text(self, results: Mapping[str, Result], averages: Mapping[str, Mapping[str, float]]) -> str:
        read, counts = self.counts["read"], self.counts.items()
        left_out = [f"{count:,} of {read:,} examples: {why}" for why, count in counts if why != "read" and count]
        return "\n".join([super().text(results, averages), *left_out])


class Xnli(AnnotatedEvaluation):
    """Measure natural language inference by a classifier of pairs: XNLI, MultiNLI, SNLI.

    The figure is the accuracy. Premise and hypothesis are read as one sequence, by a run of --task classification; for
    a classifier above two sentence vectors there is xrep-eval nli.

      xrep-eval xnli --path xnli-run/best --data xnli/ --langs de,fr --split dev --json xnli.json

    --data has files such as xnli.test.tsv, test-de.tsv or dev_matched.tsv.
    """

    task = ClassificationTask


class PawsX(AnnotatedEvaluation):
    """Measure the recognition of paraphrases on PAWS-X by a classifier of pairs.

    The figure is the accuracy. Pairs without a translation (NS) are left out.

      xrep-eval pawsx --path pawsx-run/best --data pawsx/ --langs de,fr --split dev

    --data has files such as de/test_2k.tsv or test-de.tsv.
    """

    task = ClassificationTask


class Amazon(AnnotatedEvaluation):
    """Measure the sentiment of Amazon reviews (Prettenhofer and Stein, 2010), or any labelled text, by a classifier.

    Reviews of more than three stars are positive, the others negative (CMLM, section 4.5.2).

      xrep-eval amazon --path amazon-run/best --data cls-acl10-unprocessed/ --langs en,de,fr,ja
      xrep-eval amazon --path topic-run/best --data own-test.tsv --language de

    --data has files such as de/books/test.review, or lines label<TAB>text.
    """

    task = ClassificationTask


class PartsOfSpeech(AnnotatedEvaluation):
    """Measure parts of speech on Universal Dependencies, by a tagger.

    The accuracy is the share of words whose UPOS is predicted, by the first subword of the word. XTREME's scripts give
    the tags to seqeval, which takes neighbours of one tag for one entity: their F1 is printed as "xtreme f1".

      xrep-eval pos --path pos-run/best --data ud_pud/ --langs en,de,fr

    --data has CoNLL-U files such as de_pud-ud-test.conllu.
    """

    task = TaggingTask


class NamedEntities(AnnotatedEvaluation):
    """Measure named entities on PAN-X (WikiAnn), by a tagger.

    The F1 of entities counts as right those whose ends and type agree, as seqeval does for IOB2 in strict mode.
    XTREME's scripts use seqeval's default, for which an entity may also begin with I: printed as "xtreme f1".

      xrep-eval ner --path ner-run/best --data panx/ --langs en,de,zh --split dev

    --data has files such as test-de.tsv with lines word<TAB>tag.
    """

    task = TaggingTask


class Questions(AnnotatedEvaluation):
    """Measure question answering on XQuAD, MLQA, TyDiQA-GoldP or SQuAD.

    F1 and exact match compare the words of the answer with those of the annotators' answers, after normalisation.

      xrep-eval qa --path qa-run/best --data xquad/ --langs en,de,zh
      xrep-eval qa --path qa-run/best --data tydiqa/ --split dev --normalisation squad

    --data has JSON files such as xquad.de.json; a file whose name has no split is a test. Of MLQA's files those are
    read whose questions and contexts have the same language.
    """

    task = QuestionAnsweringTask

    @dataclass(kw_only=True)
    class Config(AnnotatedEvaluation.Config):
        normalisation: Normalisation = "mlqa"
        """How answers are compared. mlqa: without the articles and the punctuation of each language, Chinese by
        characters. squad: as English in every language, which XTREME does for XQuAD and TyDiQA."""

    def check(self, model: SentenceClassifier) -> None:
        super().check(model)
        for table in self.tables:
            answered = [any(answer.text for answer in question.answers) for question in table.gold]
            if not any(answered):
                problem, cure = f"no question in {name(table.name)} has an answer", "take the files of the publisher"
                raise UserError(problem, path=self.config.data, cure=cure)
            if none := answered.count(False):
                problem = f"{none:,} of {len(answered):,} questions in {name(table.name)} have no answer"
                cure = "take SQuAD 1.1, whose questions all have one, or leave these out"
                raise UserError(problem, path=self.config.data, cure=cure)

    def numbers(self, model: SentenceClassifier, examples: Sequence[Any]) -> dict[str, np.ndarray]:
        return QuestionAnsweringTask.figures(model, examples, self.config.normalisation)

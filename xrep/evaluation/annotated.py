"""Evaluations of classifiers: XNLI, PAWS-X, Amazon reviews, parts of speech, named entities, question answering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from xrep.errors import UserError
from xrep.evaluation.evaluation import Evaluation, Figures, OverlapOption, PrecisionOption, progress, table
from xrep.evaluation.overlap import find_overlap, total
from xrep.evaluation.reading import choose_languages
from xrep.inference.classifier import SentenceClassifier
from xrep.inference.scoring import Scores, score
from xrep.metrics.bootstrap import resampled_shares
from xrep.tasks.annotated import AnnotatedTask, ClassificationTask, QuestionAnsweringTask, TaggingTask
from xrep.text.annotated import of_split
from xrep.text.languages import name

SPLITS: dict[str, Literal["valid", "test"]] = {"dev": "valid", "test": "test"}
_UNLABELLED = " (XTREME's script leaves the labels out of its tests: take the files of their publishers)"


class AnnotatedEvaluation(Evaluation):
    """Base class of the evaluations of classifiers.

    Attributes:
        kind: Kind of annotation that the classifier must predict.
        task: Task that reads the files.
    """

    kind: ClassVar[str]
    task: ClassVar[type[AnnotatedTask]]
    config: Any

    @dataclass(kw_only=True)
    class Config(PrecisionOption, OverlapOption):
        data: str
        """File or folder of the test, as it is published. The names of files tell their split and language."""
        langs: str = "all"
        """Languages to measure (de,fr or deu,fra), or all that are there."""
        split: Literal["test", "dev"] = "test"
        """Split to measure on."""
        language: str = "en"
        """Language of files that do not name it."""
        batch_tokens: int = 4096
        """Number of subwords that go through the encoder at once."""

    def read(self) -> None:
        config = self.config
        files = self.task.discover(config.data, config.language)
        chosen = files if Path(config.data).is_file() else of_split(files, SPLITS[config.split])
        if not chosen:
            there = sorted({"dev" if file.split == "valid" else str(file.split) for file in files})
            problem = f"no {config.split} split in it"
            raise UserError(problem, path=config.data, cure=f"set `split`; there are files of {', '.join(there)}")
        self.counts = Counter[str]()
        tests: dict[str, list[Any]] = {}
        languages_in: dict[Path, set[str]] = {}
        for file in chosen:
            for example in self.task.read(file, self.counts):
                tests.setdefault(example.language, []).append(example)
                languages_in.setdefault(file.path, set()).add(example.language)
        if not tests:
            raise UserError("no annotated example in it", path=config.data, cure="measure on a split with labels")
        wanted = choose_languages(config.langs, sorted(tests), "test of", config.data)
        self.tests = {language: tests[language] for language in wanted}
        self.files = [path for path, languages in languages_in.items() if not languages.isdisjoint(wanted)]

    def open(self, path: str) -> SentenceClassifier:
        return SentenceClassifier.load(path, dtype=self.config.precision, batch_tokens=self.config.batch_tokens)

    def measure(self, encoder: SentenceClassifier) -> Figures:
        encoder.check_kind(self.kind)
        self.check_labels(encoder)
        values, overlaps, outcomes = dict[str, dict[str, Any]](), [], []
        for language in progress(list(self.tests), "languages"):
            examples = self.tests[language]
            columns = list(zip(*(self.task.texts(example)[:2] for example in examples), strict=True))
            keep, overlap = find_overlap(
                encoder.training_hashes, *columns, drop=self.config.drop_overlap, name=language
            )
            kept = [example for example, is_kept in zip(examples, keep, strict=True) if is_kept]
            figures, counts = self.score(encoder, kept)
            values[language] = {**figures, "examples": len(kept), "overlap": asdict(overlap)}
            outcomes.append(counts)
            overlaps.append(overlap)
        metric, *others = outcomes[0]
        means = {name: float(np.mean([own[name] for own in values.values()])) for name in (metric, *others)}
        labels = {name: f"{name.replace('_', ' ')}, mean of {len(values)}" for name in means}
        return Figures(
            text="\n".join([_table(values, means), *self._left_out()]),
            values={"mean": means[metric], "metric": metric, "languages": values},
            headline={labels[name]: mean for name, mean in means.items()},
            resamples={label: resampled_shares(own[name] for own in outcomes) for name, label in labels.items()},
            settings={key: value for key, value in vars(self.config).items() if key not in ("data", "batch_tokens")},
            files=self.files,
            overlap=total(overlaps),
        )

    def score(self, classifier: SentenceClassifier, examples: Sequence[Any]) -> Scores:
        """Return the figures of one language, and those by which the test is quoted as they are of each example."""
        return score(classifier, examples)

    def check_labels(self, classifier: SentenceClassifier) -> None:
        """Raise UserError if an example has a label that the classifier does not know."""
        known = set(classifier.annotation.labels)
        given = {label for examples in self.tests.values() for label in self.task.labels(examples)}
        hint = _UNLABELLED if known.isdisjoint(given) else ""
        for example in (example for examples in self.tests.values() for example in examples):
            for label in self.task.labels([example]):
                if label not in known:
                    cure = f"the classifier predicts {', '.join(classifier.annotation.labels[:20])}{hint}"
                    raise UserError(f"unknown label {label!r}", path=example.path, line=example.line, cure=cure)

    def _left_out(self) -> list[str]:
        counts = {why: count for why, count in self.counts.items() if why != "read" and count}
        return [f"{count:,} of {self.counts['read']:,} examples: {why}" for why, count in counts.items()]


class _Labels(AnnotatedEvaluation):
    kind = "label"
    task = ClassificationTask


class Xnli(_Labels):
    """Measure natural language inference by a classifier of pairs: XNLI, MultiNLI, SNLI.

    The accuracy is the share of pairs whose label is predicted. Premise and hypothesis are read as one sequence, by a
    run of --task classification; for a classifier above two sentence vectors there is xrep-eval nli.

      xrep-eval xnli --path xnli-run/best --data xnli/ --langs all --json xnli.json
      xrep-eval xnli --path xnli-run/best --data xnli/ --langs de,fr --split dev

    --data has files such as xnli.test.tsv, test-de.tsv or dev_matched.tsv.
    """


class PawsX(_Labels):
    """Measure the recognition of paraphrases on PAWS-X by a classifier of pairs.

    The accuracy is the share of pairs whose label is predicted. Pairs without a translation (NS) are left out.

      xrep-eval pawsx --path pawsx-run/best --data x-final/
      xrep-eval pawsx --path pawsx-run/best --data pawsx/ --langs de,fr --split dev

    --data has files such as de/test_2k.tsv or test-de.tsv.
    """


class Amazon(_Labels):
    """Measure the sentiment of Amazon reviews (Prettenhofer and Stein, 2010), or any labelled text, by a classifier.

    Reviews of more than three stars are positive, the others negative (CMLM, section 4.5.2).

      xrep-eval amazon --path amazon-run/best --data cls-acl10-unprocessed/ --langs en,de,fr,ja
      xrep-eval amazon --path topic-run/best --data own-test.tsv --language de

    --data has files such as de/books/test.review, or lines label<TAB>text.
    """


class _Tags(AnnotatedEvaluation):
    kind = "tags"
    task = TaggingTask


class PartsOfSpeech(_Tags):
    """Measure parts of speech on Universal Dependencies, by a tagger.

    The accuracy is the share of words whose UPOS is predicted. XTREME's scripts give the tags to seqeval, which takes
    neighbours of one tag for one entity: their F1 is printed as "xtreme f1". The first subword of a word stands for it;
    a subword that is nothing but the space before the word is left out, where XTREME's script would let it stand for
    the word.

      xrep-eval pos --path pos-run/best --data ud_pud/ --langs en,de,fr

    --data has CoNLL-U files such as de_pud-ud-test.conllu.
    """


class NamedEntities(_Tags):
    """Measure named entities on PAN-X (WikiAnn), by a tagger.

    The F1 of entities counts as right those whose ends and type agree, as seqeval does for IOB2 in strict mode.
    XTREME's scripts use seqeval's default, for which an entity may also begin with I: printed as "xtreme f1".

      xrep-eval ner --path ner-run/best --data panx/ --langs en,de,zh --split dev

    --data has files such as test-de.tsv with lines word<TAB>tag.
    """


class Questions(AnnotatedEvaluation):
    """Measure question answering on XQuAD, MLQA, TyDiQA-GoldP or SQuAD.

    F1 and exact match compare the words of the answer with those of the annotators' answers, after normalisation.

      xrep-eval qa --path qa-run/best --data xquad/ --langs en,de,zh
      xrep-eval qa --path qa-run/best --data tydiqa/ --split dev --normalisation squad

    --data has JSON files such as xquad.de.json; a file whose name has no split is a test.
    """

    kind = "span"
    task = QuestionAnsweringTask

    @dataclass(kw_only=True)
    class Config(AnnotatedEvaluation.Config):
        normalisation: Literal["squad", "mlqa"] = "mlqa"
        """How answers are compared. mlqa: without the articles and the punctuation of each language, Chinese by
        characters. squad: as English in every language, which XTREME does for XQuAD and TyDiQA."""

    def score(self, classifier: SentenceClassifier, examples: Sequence[Any]) -> Scores:
        return score(classifier, examples, self.config.normalisation)

    def check_labels(self, classifier: SentenceClassifier) -> None:
        for language, questions in self.tests.items():
            if not any(answer.text for question in questions for answer in question.answers):
                problem = f"no question in {name(language)} has an answer"
                raise UserError(problem, path=self.config.data, cure=f"name a test with answers{_UNLABELLED}")


def _table(values: Mapping[str, Mapping[str, Any]], means: Mapping[str, float]) -> str:
    names = [key for key in next(iter(values.values())) if key not in ("examples", "overlap")]
    rows = [
        [f"{name(language)} ({language})", str(own["examples"]), *(f"{own[key]:.2f}" for key in names)]
        for language, own in values.items()
    ]
    examples = str(sum(own["examples"] for own in values.values()))
    heading = ["language", "examples", *(key.replace("_", " ") for key in names)]
    last = [f"{means[key]:.2f}" if key in means else "" for key in names]
    return table(heading, [*rows, [], [f"mean of {len(rows)}", examples, *last]])

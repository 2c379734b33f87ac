"""Evaluate natural language inference (XNLI and similar sets) with the classifier that was trained in a run.

The languages may differ from those of training (zero-shot transfer: XNLI is measured with a classifier trained on
English).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from xrep.config import still_known
from xrep.criteria.nli import Nli
from xrep.errors import UserError
from xrep.evaluation.encoders import Encoder, Loaded, check_languages, encode_columns
from xrep.evaluation.evaluation import EncoderOptions, Evaluation, Figures, OverlapOption, progress, table
from xrep.evaluation.overlap import Overlap, find_overlap, total
from xrep.evaluation.reading import choose_languages
from xrep.metrics.bootstrap import resampled_shares
from xrep.models.directory import CONFIG, CRITERION, MANIFEST, open_checkpoint
from xrep.registry import CRITERIA
from xrep.text.languages import canonical, check_language, name
from xrep.text.nli_readers import Example, NliFile, discover_nli_test, read_nli

CHUNK = 4096
"""Number of pairs that are classified at a time."""


@dataclass(frozen=True)
class NliTest:
    """Labelled pairs. All premises are in one language, and all hypotheses are in one language."""

    languages: tuple[str, str]
    premises: list[str]
    hypotheses: list[str]
    labels: np.ndarray
    """int64 [N], indices into ``xrep.text.nli_readers.LABELS``."""

    @property
    def name(self) -> str:
        """``de``, or ``en-de`` if the premises are English and the hypotheses German."""
        return "-".join(dict.fromkeys(self.languages))


@dataclass(frozen=True)
class Result:
    """Result of one test; ``accuracy`` is in percent."""

    accuracy: float
    pairs: int
    """Number of pairs that were measured."""
    overlap: Overlap


class NliAccuracy(Evaluation):
    """Measure natural language inference by the classifier of a run: XNLI, SNLI, MNLI, CNSD.

    The accuracy is the share of pairs of premise and hypothesis that the classifier puts into their class (entailment,
    neutral, contradiction). The run was trained with --criterion nli, alone or as one of several parts.

      xrep-eval nli --path run1/best --data xnli/
      xrep-eval nli --path run1/best --data xnli/ --langs de,fr --premise-lang en --json nli.json
      xrep-eval nli --path run1/best --data multinli_1.0_dev_matched.jsonl --split dev

    --data is one data set as it is published: a file of it, a folder, or a folder of folders.
      XNLI              xnli.test.tsv or .jsonl; test-de.tsv and so on, of three columns
      SNLI, MNLI, CNSD  snli_1.0_test.jsonl or .txt, dev_matched.tsv, cnsd_snli_v1.0.test.jsonl
      parallel files    s1.test, s2.test and labels.test

    Languages that the classifier was not trained on are measured zero-shot.
    """

    @dataclass(kw_only=True)
    class Config(EncoderOptions, OverlapOption):
        data: str
        """File or folder of the data set."""
        langs: str = "all"
        """Languages to measure (de,fr or deu,fra), or all."""
        premise_lang: str | None = None
        """Language from which every premise is taken. The examples of all languages must then be translations of each
        other, in the same order, as those of XNLI are. The default is the language of the hypothesis."""
        split: Literal["test", "dev"] = "test"
        """Split to measure on."""
        language: str = "en"
        """Language of the files whose names and rows do not say it."""
        part: str | None = None
        """Of a run with several classifiers, the part whose classifier is measured."""

    config: Config

    def read(self) -> None:
        config = self.config
        if config.list_sentences:
            problem = "vectors of another system have no classifier"
            raise UserError(problem, cure="leave `list_sentences` out and give `path`, or measure by xrep-eval sts")
        check_language(config.language, "language")
        files = discover_nli_test(config.data, config.split, config.language)
        self.tests = read_tests(files, config.langs, config.premise_lang)
        used = {language for test in self.tests for language in test.languages}
        self.files = [path for file in files if file.family is None or file.language in used for path in file.paths]

    def measure(self, encoder: Encoder) -> Figures:
        results, outcomes = accuracies(
            encoder, load_classifier(encoder, self.config.part), self.tests, self.config.drop_overlap
        )
        mean = float(np.mean([result.accuracy for result in results.values()]))
        rows = [[_shown(test), results[test.name].pairs, results[test.name].accuracy] for test in self.tests]
        last = [f"mean of {len(rows)}", sum(result.pairs for result in results.values()), mean]
        return Figures(
            text=table(["language", "pairs", "accuracy"], [*rows, [], last]),
            values={"mean": mean, "languages": {name: asdict(result) for name, result in results.items()}},
            headline={f"mean of {len(results)}": mean},
            resamples={f"mean of {len(results)}": resampled_shares(outcomes)},
            settings={name: getattr(self.config, name) for name in ("split", "langs", "premise_lang", "part")},
            files=self.files,
            overlap=total(result.overlap for result in results.values()),
        )


def read_tests(files: Sequence[NliFile], languages: str, premise_language: str | None = None) -> list[NliTest]:
    """Read one test per language, sorted by language; see ``NliAccuracy.Config`` for the languages."""
    examples: dict[str, list[Example]] = {}
    for example in read_nli(list(files), triplets=False):
        examples.setdefault(example.languages[0], []).append(example)
    folder, known = files[0].paths[0].parent, sorted(examples)
    if not known:
        raise UserError("no labelled pairs", path=folder, cure="measure on a split that is published with its labels")
    wanted, crossed = choose_languages(languages, known, "labelled pairs in", folder), None
    if premise_language is not None:
        (crossed,) = choose_languages(canonical(premise_language), known, "labelled pairs in", folder)
    tests = []
    for language in sorted(wanted):
        hypotheses, premises = examples[language], examples[crossed or language]
        labels = [example.label for example in hypotheses]
        if labels != [example.label for example in premises]:
            problem = f"the examples in {language} do not translate those in {crossed} one by one"
            raise UserError(problem, cure="measure without `premise_lang`")
        sides = [example.sentences[0] for example in premises], [example.sentences[1] for example in hypotheses]
        tests.append(NliTest((crossed or language, language), *sides, np.array(labels, dtype=np.int64)))
    return tests


def load_classifier(encoder: Encoder, part: str | None = None) -> Nli:
    """Load the classifier that was trained with the encoder, from ``criterion.safetensors`` of its checkpoint.

    Args:
        part: Name of the part whose classifier is loaded, if several parts of the run have one.
    """
    cure = "give `path` a checkpoint of a run with the criterion nli, such as run1/best"
    if not isinstance(encoder, Loaded) or not (Path(encoder.path) / MANIFEST).is_file():
        raise UserError("no run of xrep, so no classifier of natural language inference", path=encoder.path, cure=cure)
    checkpoint = open_checkpoint(encoder.path)
    config, tensors = checkpoint.config, checkpoint.tensors(CRITERION)
    parts = {f"parts.{own['name']}.": own["criterion"] for own in config.get("parts", [])}
    criteria = parts or {"": config.get("criterion", {})}
    chosen = [prefix for prefix in criteria if part is None or prefix == f"parts.{part}."]
    classifiers = {prefix: dict(criteria[prefix]) for prefix in chosen if _is_classifier(criteria[prefix].get("name"))}
    if not classifiers or not tensors:
        raise UserError("has no classifier of natural language inference", path=encoder.path, cure=cure)
    if len(classifiers) > 1:
        names = " ".join(prefix.split(".")[1] for prefix in classifiers)
        raise UserError(f"has several classifiers ({names})", path=encoder.path, cure="choose one with `part`")
    ((prefix, values),) = classifiers.items()
    kind = CRITERIA.load(values.pop("name"))
    options = still_known(kind.Config, values, checkpoint.path / CONFIG, f"{prefix}criterion")
    classifier = kind(kind.Config(**options), encoder.encoder.model, checkpoint.text)
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    classifier.load_state_dict(own)
    return classifier.eval()


def _is_classifier(criterion: str | None) -> bool:
    return criterion in CRITERIA.names() and issubclass(CRITERIA.load(criterion), Nli)


def accuracies(
    encoder: Encoder, classifier: Nli, tests: Sequence[NliTest], drop_overlap: bool = False
) -> tuple[dict[str, Result], list[np.ndarray]]:
    """Measure every test, by name, optionally without the pairs that were in the training text. Also return two columns
    for each test, whether a pair is in its class and 1: [N, 2]."""
    firsts = {test.languages[1]: test.hypotheses[0] for test in tests} | {t.languages[0]: t.premises[0] for t in tests}
    check_languages(encoder, firsts)
    results, outcomes = {}, []
    for test in progress(tests, "tests"):
        columns = test.premises, test.hypotheses
        keep, overlap = find_overlap(encoder.training_hashes, *columns, drop=drop_overlap, name=test.name)
        premises, hypotheses = (list(compress(column, keep)) for column in columns)
        kept = replace(test, premises=premises, hypotheses=hypotheses, labels=test.labels[keep])
        right = classify(encoder, classifier, kept) == kept.labels
        results[test.name] = Result(100 * float(right.mean()), len(right), overlap)
        outcomes.append(np.stack((right, np.ones(len(right))), axis=1))
    return results, outcomes


@torch.inference_mode()
def classify(encoder: Encoder, classifier: Nli, test: NliTest) -> np.ndarray:
    """Return the predicted class of each pair, int64 [N]."""
    sides = zip((test.premises, test.hypotheses), test.languages, strict=True)
    premises, hypotheses = (torch.from_numpy(encode_columns(encoder, [side], language)[0]) for side, language in sides)
    chunks = zip(premises.split(CHUNK), hypotheses.split(CHUNK), strict=True)
    return torch.cat([classifier.predict(*chunk) for chunk in chunks]).numpy()


def _shown(test: NliTest) -> str:
    premise, hypothesis = map(name, test.languages)
    return f"{hypothesis} ({test.name})" if premise == hypothesis else f"{premise}, {hypothesis} ({test.name})"

"""Evaluate natural language inference (XNLI and similar sets) with the classifier that was trained in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xrep.config import still_known
from xrep.errors import UserError
from xrep.evaluation.encoders import MeasuredEncoder, encode_columns
from xrep.evaluation.evaluation import EncoderOptions, Examples, OverlapOption, Score, TableEvaluation, shares
from xrep.evaluation.reading import choose_languages
from xrep.registry import CRITERIA
from xrep.text.examples import Example
from xrep.text.find import discover_nli_test
from xrep.text.languages import canonical, check_language, name
from xrep.text.nli import read_nli

if TYPE_CHECKING:  # what imports torch is imported when a model is measured, for which --help does not wait
    from xrep.criteria.nli import Nli


class NliAccuracy(TableEvaluation):
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
    unit = "pairs"

    def read(self) -> list[Examples]:
        """Return a table for each language of hypotheses, with columns of premises and hypotheses and with indices into
        ``xrep.text.nli.LABELS``. Its name is ``de``, or ``en-de`` if the premises are English."""
        config = self.config
        check_language(config.language, "language")
        files = discover_nli_test(config.data, config.split, config.language)
        alone = [file.path.name for file in files if file.family is None]  # they may have all languages
        if alone and len(files) > 1:
            problem = f"{len(files)} test sets: {', '.join(file.path.name for file in files)[:200]}"
            raise UserError(problem, path=config.data, cure="name one file with `data`")
        pairs = dict[str, list[Example]]()
        for example in read_nli(files, triplets=False):
            pairs.setdefault(example.languages[0], []).append(example)
        folder, known, premise = files[0].path.parent, sorted(pairs), config.premise_lang
        if not known:
            raise UserError("no labelled pairs", path=folder, cure="measure on a split with labels")
        if premise is not None:
            (premise,) = choose_languages(canonical(premise), known, "labelled pairs in", folder)
        tables = []
        for language in choose_languages(config.langs, known, "labelled pairs in", folder):
            languages = premise or language, language
            labels, gold = (np.array([example.label for example in pairs[language]]) for language in languages)
            if not np.array_equal(labels, gold):
                problem = f"the examples in {language} do not translate those in {premise} one by one"
                raise UserError(problem, cure="measure without `premise_lang`")
            columns = tuple([example.sentences[side] for example in pairs[code]] for side, code in enumerate(languages))
            used = tuple(path for f in files if f.family is None or f.language in languages for path in f.paths)
            tables.append(Examples("-".join(dict.fromkeys(languages)), languages, columns, gold, used))
        return tables

    def check(self, model: MeasuredEncoder) -> None:
        self.head = nli_head(model, self.config.part)
        super().check(model)

    def score(self, model: MeasuredEncoder, examples: Examples) -> Score:
        import torch

        sides = zip(examples.columns, examples.languages, strict=True)
        vectors = (torch.from_numpy(encode_columns(model, [side], language)[0]) for side, language in sides)
        with torch.inference_mode():
            right = self.head.predict(*vectors).numpy() == examples.gold
        outcomes = {"accuracy": np.stack((right, np.ones(len(right))), axis=1)}
        return Score({"accuracy": 100 * float(right.mean())}, shares(outcomes))

    def shown(self, examples: Examples) -> str:
        return f"{', '.join(dict.fromkeys(map(name, examples.languages)))} ({examples.name})"


def nli_head(encoder: Any, part: str | None = None) -> Nli:
    """Load the classifier that was trained with an encoder from its checkpoint; ``part`` is the name of the part of the
    run that has it, if several parts have one."""
    from xrep.criteria.nli import Nli
    from xrep.models.directory import CONFIG, CRITERION, open_checkpoint

    checkpoint, found = open_checkpoint(encoder.path), []
    config, tensors = checkpoint.config, checkpoint.tensors(CRITERION)
    for each in config.get("parts") or [{"name": None, "criterion": config.get("criterion", {})}]:
        criterion = each["criterion"].get("name")
        if part in (None, each["name"]) and criterion in CRITERIA.names() and issubclass(CRITERIA.load(criterion), Nli):
            found.append(each)
    if len(found) != 1 or not tensors:
        cure = "give `path` a checkpoint of a run with the criterion nli, and `part` if several parts have one"
        raise UserError(f"has {len(found)} classifiers of natural language inference", path=encoder.path, cure=cure)
    prefix, values = f"parts.{found[0]['name']}." if found[0]["name"] else "", dict(found[0]["criterion"])
    kind = CRITERIA.load(values.pop("name"))
    options = still_known(kind.Config, values, checkpoint.path / CONFIG, f"{prefix}criterion")
    classifier = kind(kind.Config(**options), encoder.encoder.model, checkpoint.text)
    classifier.load_state_dict({key[len(prefix) :]: w for key, w in tensors.items() if key.startswith(prefix)})
    return classifier.eval()

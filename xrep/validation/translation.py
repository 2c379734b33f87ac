"""Validation during training by translating the dev split and comparing with the references."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch

from xrep.config.fields import CountOrZero, problems_of
from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.decoding import DecodingOptions
from xrep.metrics.translation import bleu, usual_tokenizer
from xrep.models.model import TranslationModel
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixedBatch, MixtureTask
from xrep.tasks.task import Pool, Task
from xrep.text.sides import SIDES, tokenizer_of
from xrep.training.validator import OverRanks, Validator
from xrep.validation.loss import mean_losses

POOR = 15.0
"""BLEU below which a run says that translations will be poor."""
_SHOWN = 4
"""Number of dev sentences whose translations are shown at each validation."""


class TranslationValidator(Validator):
    """Validate by the criterion's loss on the dev split, and by sacrebleu's BLEU on its first sentences.

    The references are the tokens of the dev split, decoded to text and cut at max_length. To measure BLEU on the
    original files of a test set, use ``xrep-eval translation``.

    Attributes:
        metric: ``bleu`` or ``loss``; it chooses the best checkpoint.

    Raises:
        UserError: There are no translations, or those of a task have no dev split.
    """

    needs = TranslationModel

    @dataclass(kw_only=True)
    class Config:
        metric: Literal["bleu", "loss"] = "bleu"
        """Metric that chooses the best checkpoint: bleu (mean over language pairs) or loss (on the whole dev split)."""
        max_sentences: CountOrZero = 500
        """Number of sentences to translate for each language pair, from the start of the dev split. 0: none, which
        requires metric loss."""
        beam: int = 4
        """Beam size: the number of hypotheses that are kept at each step. 1: greedy search."""
        lenpen: float = 1.0
        """Length penalty: the log-probability of a hypothesis is divided by its length to the power of this value."""
        max_length_a: float = 1.5
        """The value a in the maximum length of a translation, a · x + b subwords for a source of x subwords."""
        max_length_b: int = 10
        """The value b in the maximum length of a translation, a · x + b subwords for a source of x subwords."""

        def problems(self) -> list[str]:
            problems = [problem.replace("length_penalty", "lenpen") for problem in problems_of(self.search_options())]
            if self.metric == "bleu" and self.max_sentences < 1:
                problems.append(f"max_sentences must be at least 1 with metric bleu, not {self.max_sentences}")
            return problems

        def search_options(self) -> DecodingOptions:
            """Return the options of the search."""
            lengths = {"max_length_a": self.max_length_a, "max_length_b": self.max_length_b}
            return DecodingOptions(beam=self.beam, length_penalty=self.lenpen, **lengths)

    def __init__(self, config: Config, task: Task) -> None:
        self.config, self.metric = config, config.metric
        self.maximize = config.metric == "bleu"
        self.several = isinstance(task, MixtureTask)
        self.tasks = {part: each for part, each in task.parts.items() if isinstance(each, BitextTask)}
        if not self.tasks:
            raise UserError("there are no translations to validate on", cure="choose another `validation`")
        self.pools = {
            (f"{part}/" if self.several else "") + f"bleu_{pool.source_language}-{pool.target_language}": (each, pool)
            for part, each in self.tasks.items()
            for pool in each.validation_pools(config.max_sentences)
        }

    def measure(self, model: TranslationModel, criterion: Criterion, over_ranks: OverRanks) -> dict[str, float]:
        """Measure the loss and translate.

        Returns:
            ``bleu``: BLEU from 0 to 100, the mean over language pairs; ``bleu_{xx}-{yy}``: BLEU of each language pair;
            the values of ``mean_losses`` on the whole dev split. With several parts, ``loss`` is the sum of their
            losses with their weights, and the values of a part are named ``PART/NAME``.
        """
        values = mean_losses(model, criterion, self._batches(), over_ranks)
        pools = self.pools if self.config.max_sentences else {}
        self.examples = []
        scores = {name: self._bleu(model, *each, over_ranks) for name, each in pools.items()}
        return values | ({"bleu": float(np.mean(list(scores.values())))} if scores else {}) | scores

    def advice(self, best: float) -> list[str]:
        if self.metric != "bleu" or best >= POOR:
            return []
        problem = f"warning: BLEU {best:.1f} on the dev split: most translations will be poor"
        cure = "longer training (--max-minutes), more pairs and a pretrained --encoder help"
        return [f"{problem}; {cure}, and xrep-generate --no-repeat-ngram-size 3 against repeated words"]

    def _batches(self) -> Iterator[Any]:
        for part, task in self.tasks.items():
            for batch in task.validation_batches():
                yield MixedBatch({part: batch}) if self.several else batch

    def _bleu(self, model: TranslationModel, task: BitextTask, pool: Pool, over_ranks: OverRanks) -> float:
        device, options = next(model.parameters()).device, self.config.search_options()
        source, tokenizer = (tokenizer_of(task.tokenizers, side) for side in SIDES)
        place = model.target_languages.index(pool.target_language)

        def translate(batch: Any) -> list[tuple[str, str, str]]:
            languages = torch.full((len(batch),), place, device=device)
            results = search(model, batch.source.to(device), languages, options)
            hypotheses = [tokenizer.decode(best[0].tokens) for best in results]
            sources = [source.decode(ids) for ids in batch.source.tokens.tolist()]
            return list(zip(hypotheses, task.references(batch), sources, strict=True))

        found = list(chain.from_iterable(over_ranks(pool.batches(), translate)))
        shown = found[len(found) // (2 * _SHOWN) :: max(1, len(found) // _SHOWN)]  # of all lengths
        lines = [f"  {read} -> {written} (reference: {reference})" for written, reference, read in shown]
        self.examples = [*self.examples, *lines][:_SHOWN]
        hypotheses, references, _ = zip(*found, strict=True)
        return bleu(hypotheses, references, usual_tokenizer(pool.target_language))[0].score

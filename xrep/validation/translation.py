"""Validation during training by translating the dev split and comparing with the references."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.inference.generation.beam_search import search
from xrep.inference.generation.options import SearchOptions
from xrep.metrics.translation import bleu
from xrep.models.model import TranslationModel
from xrep.tasks.task import ParallelTask, Pool, Task
from xrep.text.sides import tokenizer_of
from xrep.training.validator import Validator
from xrep.validation.loss import mean_losses, undisturbed


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
        max_sentences: int = 500
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
            problems = [problem.replace("length_penalty", "lenpen") for problem in self.search_options().problems()]
            if self.max_sentences < (1 if self.metric == "bleu" else 0):
                problems.append(f"max_sentences must be at least 1 with metric bleu, not {self.max_sentences}")
            return problems

        def search_options(self) -> SearchOptions:
            """Return the options of the search."""
            return SearchOptions(
                beam=self.beam,
                length_penalty=self.lenpen,
                max_length_a=self.max_length_a,
                max_length_b=self.max_length_b,
            )

    def __init__(self, config: Config, task: Task) -> None:
        self.config, self.metric = config, config.metric
        self.maximize = config.metric == "bleu"
        self.tasks = {part: own for part, own in task.parts.items() if isinstance(own, ParallelTask)}
        if not self.tasks:
            raise UserError("there are no translations to validate on", cure="choose another `validation`")
        self.pools = {part: own.validation_pools(config.max_sentences) for part, own in self.tasks.items()}

    def __call__(self, model: TranslationModel, criterion: Criterion) -> dict[str, float]:
        """Measure model and criterion in their current state; training modes and random state are restored afterwards.

        Returns:
            ``bleu``: BLEU from 0 to 100, the mean over language pairs; ``bleu_{xx}-{yy}``: BLEU of each language pair;
            ``loss`` and the criterion's metrics on the whole dev split; ``perplexity``: the exponential of the mean
            cross-entropy, if the criterion has the metric ``nll``. With several tasks, ``loss`` is the mean over them,
            and the values of each task are under ``PART/NAME``.
        """
        losses: dict[str, dict[str, float]] = {}
        scores: dict[str, float] = {}
        with undisturbed(model, criterion):
            for part, task in self.tasks.items():
                prefix = f"{part}/" if len(self.tasks) > 1 else ""
                losses[prefix] = mean_losses(model, criterion.of_part(part), task.validation_batches())
                if "nll" in losses[prefix]:
                    losses[prefix]["perplexity"] = math.exp(min(losses[prefix]["nll"], 700))
                if self.config.max_sentences:
                    pools = {f"{pool.source_language}-{pool.target_language}": pool for pool in self.pools[part]}
                    scores |= {f"{prefix}bleu_{name}": self._bleu(model, task, pool) for name, pool in pools.items()}
        total = {"bleu": float(np.mean(list(scores.values())))} if scores else {}
        loss = {"loss": float(np.mean([each["loss"] for each in losses.values()]))}
        return loss | {f"{p}{name}": x for p, each in losses.items() for name, x in each.items()} | total | scores

    def _bleu(self, model: TranslationModel, task: ParallelTask, pool: Pool) -> float:
        device, options = next(model.parameters()).device, self.config.search_options()
        tokenizer, place = tokenizer_of(task.tokenizers, "target"), model.target_languages.index(pool.target_language)
        hypotheses, references = list[str](), list[str]()
        for batch in pool.batches():
            languages = torch.full((len(batch),), place, device=device)
            found = search(model, batch.source.to(device), languages, options)
            hypotheses += [tokenizer.decode(several[0].tokens) for several in found]
            references += task.references(batch)
        return bleu(hypotheses, references).value

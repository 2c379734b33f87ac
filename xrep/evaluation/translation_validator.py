"""Translations of the dev split against their references, measured while a model trains."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from xrep.criteria.criterion import Criterion
from xrep.criteria.multitask import Multitask
from xrep.errors import UserError
from xrep.evaluation.loss_validator import mean_losses, undisturbed
from xrep.generation import SearchOptions, search
from xrep.metrics.translation import bleu
from xrep.tasks.bitext import Pool
from xrep.tasks.translation import TranslationTask
from xrep.text.sides import tokenizer_of


class TranslationValidator:
    """The criterion's loss on the dev split, and sacrebleu's BLEU of what the model makes of its first sentences.

    References are the tokens of the dev split as text, cut at max_length: BLEU of a test set is what ``xrep-eval
    translation`` measures, on its files.

    Args:
        task: ``translation``, or several of which some are.

    Attributes:
        metric: ``bleu`` or ``loss``, by which the best checkpoint is chosen.

    Raises:
        UserError: none of the tasks is translation, or one has no dev split.
    """

    needs = "translation model"

    @dataclass(kw_only=True)
    class Config:
        metric: Literal["bleu", "loss"] = "bleu"
        """What chooses the best checkpoint: BLEU, the mean over language pairs, or the loss, which is measured on the
        whole dev split."""
        max_sentences: int = 500
        """Sentences of each language pair that are translated, the first ones; 0: none, with metric loss."""
        beam: int = 4
        """Hypotheses that are kept at each step; 1: the most probable token each time."""
        lenpen: float = 1.0
        """Length penalty: the exponent of the length by which a hypothesis's log-probability is divided."""
        max_length_a: float = 1.5
        """a of the longest translation, a · x + b subwords of a source of x subwords."""
        max_length_b: int = 10
        """b of the same."""

        def problems(self) -> list[str]:
            found = [problem.replace("length_penalty", "lenpen") for problem in self.search_options().problems()]
            if self.max_sentences < (1 if self.metric == "bleu" else 0):
                found.append(f"max_sentences must be at least 1 with metric bleu, not {self.max_sentences}")
            return found

        def search_options(self) -> SearchOptions:
            """How to translate."""
            return SearchOptions(
                beam=self.beam,
                length_penalty=self.lenpen,
                max_length_a=self.max_length_a,
                max_length_b=self.max_length_b,
            )

    def __init__(self, config: Config, task: Any) -> None:
        self.config, self.metric = config, config.metric
        self.maximize = config.metric == "bleu"
        tasks = getattr(task, "tasks", {"": task})
        self.tasks = {part: own for part, own in tasks.items() if isinstance(own, TranslationTask)}
        if not self.tasks:
            raise UserError("there is no task translation to validate on", cure="choose another --validation")
        self.pools = {part: own.validation_pools(config.max_sentences) for part, own in self.tasks.items()}

    def __call__(self, model: Any, criterion: Criterion) -> dict[str, float]:
        """Measure both as they are now; their training modes, and random numbers, are as before afterwards.

        Returns:
            ``bleu``: 0 to 100, mean over language pairs, and ``bleu_{xx}-{yy}`` of each; ``loss`` and the criterion's
            metrics on the whole dev split (``perplexity``: e to the mean cross-entropy). Of several tasks ``loss`` is
            the mean, and each has its own under ``PART/NAME``.
        """
        losses: dict[str, dict[str, float]] = {}
        scores: dict[str, float] = {}
        with undisturbed(model, criterion):
            for part, task in self.tasks.items():
                own = criterion.parts[part] if isinstance(criterion, Multitask) else criterion
                prefix = f"{part}/" if len(self.tasks) > 1 else ""
                losses[prefix] = mean_losses(model, own, task.validation_batches())
                if "nll" in losses[prefix]:
                    losses[prefix]["perplexity"] = math.exp(min(losses[prefix]["nll"], 700))
                if self.config.max_sentences:
                    found = {f"{p.source_language}-{p.target_language}": p for p in self.pools[part]}
                    scores |= {f"{prefix}bleu_{name}": self._bleu(model, task, p) for name, p in found.items()}
        total = {"bleu": float(np.mean(list(scores.values())))} if scores else {}
        loss = {"loss": float(np.mean([each["loss"] for each in losses.values()]))}
        return loss | {f"{p}{name}": x for p, each in losses.items() for name, x in each.items()} | total | scores

    def _bleu(self, model: Any, task: TranslationTask, pool: Pool) -> float:
        device, options = next(model.parameters()).device, self.config.search_options()
        tokenizer, place = tokenizer_of(task.tokenizers, "target"), model.target_languages.index(pool.target_language)
        hypotheses, references = list[str](), list[str]()
        for batch in pool.batches():
            languages = torch.full((len(batch),), place, device=device)
            found = search(model, batch.source.to(device), languages, options)
            hypotheses += [tokenizer.decode(several[0].tokens) for several in found]
            references += task.references(batch)
        return bleu(hypotheses, references).value

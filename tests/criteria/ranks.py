"""Training of criteria by several processes together, and the runs that they train."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from tests.criteria.by_hand import Expected
from tests.criteria.objectives import (
    GUIDED,
    Maker,
    Objective,
    frozen,
    hictl,
    moco,
    nli_batch,
    of,
    rank,
    simcse,
    triplet,
)
from tests.kernels.ranks import Found, Results
from tests.support import guide
from tests.support.planning import loss_of
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term
from xrep.criteria.in_batch import negative_vectors, with_own_negatives
from xrep.criteria.matryoshka import Nested
from xrep.data.batch import Batch, TextSpec
from xrep.kernels.gather import current_group
from xrep.nn.queue import Queue
from xrep.registry import CRITERIA

RATE = 0.2

# Numbers of pairs of each batch on each rank. Some are 0, and in one batch all are 0.
PARTS = {
    1: [(5,), (8,), (0,), (7,)],
    2: [(5, 0), (4, 4), (0, 0), (1, 6)],
    4: [(2, 0, 3, 0), (2, 2, 2, 2), (0, 0, 0, 0), (1, 3, 1, 2)],
}


class Plain(ContrastiveCriterion):
    """All that a plugin may have, and nothing of ranks: a temperature, a queue, hard negatives, a constant of each row,
    and metrics."""

    term, uses_hard_negatives, Config = "plain", True, Nested

    def __init__(self, config: Nested, model: Any, text: TextSpec) -> None:
        super().__init__(config, model, text)
        self.text, self.queue, self.waiting = text, Queue(11, model.output_size), list[tuple[Tensor, Tensor]]()
        self.theta = nn.Parameter(torch.tensor(-1.0))

    def encode(self, model: Any, planned: Planned) -> Encoded:
        return Encoded(super().encode(model, planned).vectors + negative_vectors(model, planned.batch, self.text))

    def constants(self, model: Any, planned: Planned) -> tuple[Tensor, ...]:
        return (planned.batch.source.lengths / 10,)

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        source, target, *negative, weight = vectors
        tau, batch, keys = self.theta.exp(), planned.batch, self.queue.vectors[: self.queue.filled]
        known = torch.cat([batch.ids[:, 1], self.queue.ids[: len(keys), 1]])
        keys = F.normalize(keys[:, : source.size(1)], dim=1)
        logits = source @ torch.cat([target, keys]).T / tau
        positive = logits[:, : len(source)].diagonal()
        logits = logits.masked_fill(known == batch.ids[:, 1:], -torch.inf)
        loss = torch.cat([positive.unsqueeze(1), logits], dim=1).logsumexp(1) - positive
        correct = positive > logits.amax(1)
        loss, correct = with_own_negatives(loss, correct, source, target, negative, batch, tau)
        odd = loss.detach()[batch.indices % 2 == 1]
        metrics = {"accuracy": correct.double().mean(), "odd": odd.sum() / max(len(odd), 1)}
        return Loss({self.term: Term((weight * loss).sum())}, metrics, {"odd": len(odd)})

    def remember(self, vectors: tuple[Tensor, ...], planned: Planned, loss: Loss) -> None:
        self.waiting.append((vectors[1], planned.batch.ids))

    def after_step(self, model: Any) -> None:
        for keys, ids in self.waiting:
            self.queue.enqueue(keys, ids)
        self.waiting.clear()


@dataclass(frozen=True)
class Run:
    """A short training, in which each step has ``accumulate`` batches."""

    own: Objective
    accumulate: int = 1

    def of(self, batch: Batch) -> Any:
        """Return the pairs in the form that the criterion reads."""
        if self.own.batch in ("triplets", "scored"):
            return nli_batch(batch, self.own.batch)
        return batch if self.own.batch == "negatives" else replace(batch, negatives=None)

    def train(self, text: TextSpec, batches: list[Batch], rank: int, world: int) -> Results:
        """Return sums of the loss, gradients of every step, and every tensor at the end, given the batches of all."""
        counts = PARTS[world]
        starts = [sum(sizes[:rank]) for sizes in counts]
        mine = [self.of(batch).rows(start, start + sizes[rank])
                for batch, start, sizes in zip(batches, starts, counts, strict=True)]  # fmt: skip
        model, criterion = Maker(text).build(self.own, layers=1, dropout=0.0, attention_dropout=0.0)
        both = nn.ModuleList([model, criterion])
        trained, sums, gradients = [p for p in both.parameters() if p.requires_grad], [], []
        plugin, metrics = self.own.kind in PLUGINS, defaultdict[str, Any](list)
        for start in range(0, len(mine), self.accumulate):
            both.zero_grad()
            group = slice(start, start + self.accumulate)
            for batch, sizes in zip(mine[group], counts[group], strict=True):
                if plugin and not any(sizes):  # the trainer makes no batch that is empty on all ranks
                    continue
                loss = loss_of(criterion, model, batch)
                (term,) = loss.terms.values()
                (term.sum / max(sum(map(sum, counts[group])), 1)).backward()
                sums.append(term.sum.detach())
                assert all(torch.isfinite(metric) for metric in loss.metrics.values())
                for name, metric in loss.metrics.items() if plugin else ():
                    metrics[f"metric {name}"].append(metric)
            gradients.append(torch.cat([p.grad.flatten() for p in trained]))
            self._step(trained, gradients[-1])
            criterion.after_step(model)
        state = {name: tensor.clone() for name, tensor in both.state_dict().items()}
        found = {"loss": sums, "gradient": gradients, **metrics}
        return {**state, **{name: torch.stack(values) for name, values in found.items()}}

    @staticmethod
    @torch.no_grad()
    def _step(parameters: list[nn.Parameter], gradient: Tensor) -> None:
        """Make steps of gradient descent with the sum of all ranks' gradients."""
        gradient = gradient.clone()
        if current_group() is not None:
            dist.all_reduce(gradient)
        for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
            parameter -= RATE * part.view_as(parameter)


PLUGINS = {**guide.TARGETS, "plain": f"{__name__}:Plain"}


def plugin(kind: str, batch: str = "pairs", **options: Any) -> Objective:
    return Objective(kind, lambda *_: Expected({}, {}), options, batch=batch)


MOCO = {"queue_size": 11, "momentum": 0.7, "temperature": 0.1}
FROZEN = {"queue_size": 11}
HICTL = {"language_model": False, "word_contrast": False, "temperature": 0.2}
MASKED, ALONE = {"mask_equal_sentences": True}, {"cross_rank_negatives": False}
RUNS = {
    "dual_moco": Run(moco(**MOCO)),
    "dual_moco, masked, accumulated": Run(moco(**MOCO, **MASKED, towers="shared"), 2),
    "dual_moco, no queue": Run(moco()),
    "dual_moco, no queue, masked": Run(moco(**MASKED)),
    "dual_moco, negatives": Run(moco("negatives", **MOCO)),
    "dual_moco, guide": Run(moco(**MOCO, **GUIDED)),
    "dual_moco, no queue, guide": Run(moco(**GUIDED)),
    "frozen_source, guide": Run(frozen(**FROZEN, **GUIDED), 2),
    "hictl, guide": Run(hictl(**HICTL, **GUIDED)),
    "nli_triplet, guide": Run(triplet(**GUIDED)),
    "translation_ranking, guide": Run(rank(**GUIDED)),
    "translation_ranking, too near": Run(rank("negatives", mask_margin=0.01), 2),
    "frozen_source": Run(frozen(**FROZEN)),
    "frozen_source, masked, accumulated": Run(frozen(**FROZEN, **MASKED), 2),
    "frozen_source, both sides": Run(frozen(**FROZEN, towers="shared", teacher="t", sides="both", loss="both"), 2),
    "frozen_source, trained": Run(frozen(source="trained")),
    "frozen_source, negatives": Run(frozen("negatives", **FROZEN, source_side="target")),
    "hictl": Run(hictl(**HICTL)),
    "hictl, masked, accumulated": Run(hictl(**HICTL, **MASKED), 2),
    "hictl, negatives": Run(hictl("negatives", **HICTL)),
    "hictl, alone": Run(hictl(**HICTL, **ALONE)),
    "nli_triplet": Run(triplet(**MASKED)),
    "nli_triplet, alone": Run(triplet(**ALONE)),
    "cosent": Run(of("cosent"), 2),
    "angle": Run(of("angle", matryoshka=[6])),
    "simcse": Run(simcse()),
    "simcse, masked": Run(simcse(**MASKED)),
    "translation_ranking": Run(rank()),
    "translation_ranking, margin": Run(rank(margin=0.3, directions="forward")),
    "translation_ranking, masked": Run(rank(**MASKED)),
    "translation_ranking, negatives": Run(rank("negatives", margin=0.1), 2),
    "translation_ranking, alone": Run(rank(**ALONE)),
    "hardest_negative": Run(plugin("hardest_negative", margin=0.5), 2),
    "sigmoid": Run(plugin("sigmoid"), 2),
    "plain": Run(plugin("plain"), 2),
    "plain, negatives": Run(plugin("plain", "negatives"), 2),
    "plain, matryoshka": Run(plugin("plain", matryoshka=[7]), 2),
}


def train(rank: int, world: int, text: TextSpec, batches: list[Batch]) -> dict[str, Results]:
    """Return the results of a rank for each run."""
    with patch.dict(CRITERIA._targets, PLUGINS):
        return {name: own.train(text, batches, rank, world) for name, own in RUNS.items()}


def check(found: Found, name: str, whole: Results) -> list[str]:
    """Return the results that differ from those of one process with whole batches, or between ranks."""
    parts = [everything[name] for everything in found]
    wrong = []
    for key, expected in whole.items():
        if key in ("loss", "gradient"):
            total = torch.stack([found[key] for found in parts]).sum(0)
        else:
            total = parts[0][key]
            if not all(torch.equal(total, other[key]) for other in parts[1:]):
                wrong.append(f"{key} differs between ranks")
        if total.dtype != expected.dtype or not torch.allclose(total.double(), expected.double(), rtol=0, atol=1e-10):
            wrong.append(key)
    return wrong

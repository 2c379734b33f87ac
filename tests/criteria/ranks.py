"""Training of criteria by several processes together, and the runs that they train."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.criteria.cmlm_reference import SteadyCMLM
from tests.kernels.ranks import Found, Results
from tests.support.planning import loss_of
from xrep.criteria.criterion import Criterion
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.frozen_source import FrozenSource
from xrep.criteria.hictl import HiCTL
from xrep.criteria.label_smoothed_cross_entropy import LabelSmoothedCrossEntropy
from xrep.criteria.simcse import SimCSE
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batching import PairBatch, TextSpec
from xrep.kernels.gather import current_group

BATCHES = 4
RATE = 0.2

# Numbers of pairs of each batch on each rank. Some are 0, and in one batch all are 0.
PARTS = {
    1: [(5,), (8,), (0,), (7,)],
    2: [(5, 0), (4, 4), (0, 0), (1, 6)],
    4: [(2, 0, 3, 0), (2, 2, 2, 2), (0, 0, 0, 0), (1, 3, 1, 2)],
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A short training.

    Attributes:
        options: Options of the criterion.
        towers: Towers of the sentence encoder; "translation": the model is a translator.
        accumulate: Number of batches in each step.
        negatives: Whether the batches have hard negatives.
    """

    criterion: type[Criterion]
    options: tuple[tuple[str, Any], ...]
    towers: str = "shared"
    accumulate: int = 1
    negatives: bool = False

    def train(self, model: nn.Module, text: TextSpec, batches: list[PairBatch], sizes: list[int]) -> Results:
        """Return sums of the loss, gradients of every step, and every tensor at the end.

        Args:
            batches: The batches of this rank.
            sizes: The number of pairs of each batch on all ranks.
        """
        model = copy.deepcopy(model)
        batches = batches if self.negatives else [replace(batch, negatives=None) for batch in batches]
        criterion = self.criterion(self.criterion.Config(**dict(self.options)), model, text)
        if "queue_dtype" not in dict(self.options):  # buffers are converted to float64, too
            criterion.double()
        nn.ModuleList([model, criterion]).train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(name.startswith(f"{part}.") for part in criterion.frozen))
        trained = [p for p in nn.ModuleList([model, criterion]).parameters() if p.requires_grad]
        sums, gradients = [], []
        for start in range(0, len(batches), self.accumulate):
            nn.ModuleList([model, criterion]).zero_grad()
            group = slice(start, start + self.accumulate)
            for batch in batches[group]:
                loss = loss_of(criterion, model, batch)
                (term,) = loss.terms.values()
                (term.sum / max(sum(sizes[group]), 1)).backward()
                sums.append(term.sum.detach())
                assert all(torch.isfinite(metric) for metric in loss.metrics.values())
            gradients.append(torch.cat([p.grad.flatten() for p in trained]))
            self._step(trained, gradients[-1])
            criterion.after_step(model)
        kept = {name: tensor.clone() for name, tensor in nn.ModuleList([model, criterion]).state_dict().items()}
        return {"loss": torch.stack(sums), "gradient": torch.stack(gradients), **kept}

    @staticmethod
    @torch.no_grad()
    def _step(parameters: list[nn.Parameter], gradient: Tensor) -> None:
        """Make steps of gradient descent with the sum of all ranks' gradients."""
        gradient = gradient.clone()
        if current_group() is not None:
            dist.all_reduce(gradient)
        for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
            parameter -= RATE * part.view_as(parameter)


MOCO = (("queue_size", 11), ("momentum", 0.7), ("temperature", 0.1))
MASKED = ("mask_equal_sentences", True)
FROZEN = (("queue_size", 11), ("temperature", 0.3))
HICTL = (("language_model", False), ("word_contrast", False), ("temperature", 0.2))
TRAINED = (("source", "trained"), ("temperature", 0.3))
RUNS = {
    "cmlm": Run(criterion=SteadyCMLM, options=(("projections", 3),)),
    "cmlm, accumulated": Run(criterion=SteadyCMLM, options=(("projections", 2), ("skip", True)), accumulate=2),
    "dual_moco": Run(criterion=DualMoco, options=MOCO, towers="separate"),
    "dual_moco, masked, accumulated": Run(criterion=DualMoco, options=(*MOCO, MASKED), accumulate=2),
    "dual_moco, bfloat16 queue": Run(criterion=DualMoco, options=(*MOCO, ("queue_dtype", "bfloat16"))),
    "dual_moco, no queue": Run(criterion=DualMoco, options=(*MOCO[1:], ("queue_size", 0))),
    "dual_moco, no queue, masked": Run(criterion=DualMoco, options=(*MOCO[1:], ("queue_size", 0), MASKED)),
    "frozen_source": Run(criterion=FrozenSource, options=FROZEN, towers="separate"),
    "frozen_source, masked, accumulated": Run(
        criterion=FrozenSource, options=(*FROZEN, MASKED), towers="separate", accumulate=2
    ),
    "frozen_source, mse": Run(criterion=FrozenSource, options=(("loss", "mse"),), towers="separate"),
    "frozen_source, trained": Run(criterion=FrozenSource, options=TRAINED, towers="separate"),
    "hictl": Run(criterion=HiCTL, options=HICTL),
    "hictl, masked, accumulated": Run(criterion=HiCTL, options=(*HICTL, MASKED), accumulate=2),
    "hictl, alone": Run(criterion=HiCTL, options=(*HICTL, ("cross_rank_negatives", False))),
    "label_smoothed_cross_entropy": Run(criterion=LabelSmoothedCrossEntropy, options=(), towers="translation"),
    "label_smoothed_cross_entropy, accumulated": Run(
        criterion=LabelSmoothedCrossEntropy, options=(("label_smoothing", 0.3),), towers="translation", accumulate=2
    ),
    "simcse": Run(criterion=SimCSE, options=(("temperature", 0.3),)),
    "simcse, masked": Run(criterion=SimCSE, options=(MASKED,), towers="separate"),
    "translation_ranking": Run(criterion=TranslationRanking, options=()),
    "translation_ranking, margin": Run(
        criterion=TranslationRanking, options=(("margin", 0.3), ("directions", "forward"))
    ),
    "translation_ranking, masked": Run(criterion=TranslationRanking, options=(MASKED,), towers="separate"),
    "translation_ranking, negatives": Run(
        criterion=TranslationRanking, options=(("margin", 0.1),), towers="separate", accumulate=2, negatives=True
    ),
    "dual_moco, negatives": Run(criterion=DualMoco, options=MOCO, negatives=True),
    "frozen_source, negatives": Run(
        criterion=FrozenSource, options=(*FROZEN, ("source_side", "target")), towers="separate", negatives=True
    ),
    "hictl, negatives": Run(criterion=HiCTL, options=HICTL, negatives=True),
    "translation_ranking, alone": Run(criterion=TranslationRanking, options=(("cross_rank_negatives", False),)),
}


def part(batch: PairBatch, sizes: tuple[int, ...], rank: int) -> PairBatch:
    start = sum(sizes[:rank])
    return batch.rows(start, start + sizes[rank])


def train(
    rank: int, world: int, text: TextSpec, models: dict[str, nn.Module], batches: list[PairBatch]
) -> dict[str, Results]:
    """Return the results of a rank for each run."""
    mine = [part(batch, sizes, rank) for batch, sizes in zip(batches, PARTS[world], strict=True)]
    sizes = [sum(counts) for counts in PARTS[world]]
    return {name: run.train(models[run.towers], text, mine, sizes) for name, run in RUNS.items()}


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

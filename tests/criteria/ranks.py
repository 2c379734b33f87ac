"""Training of criteria by several processes together, and the runs that they train."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.criteria.objectives import nli_batch
from tests.kernels.ranks import Found, Results
from tests.support.planning import loss_of, token_batch
from xrep.criteria.cmlm import CMLM
from xrep.criteria.criterion import Planned
from xrep.data.batching import PairBatch, TextSpec
from xrep.data.masking import Masked
from xrep.kernels.gather import current_group
from xrep.registry import CRITERIA

RATE = 0.2

# Numbers of pairs of each batch on each rank. Some are 0, and in one batch all are 0.
PARTS = {
    1: [(5,), (8,), (0,), (7,)],
    2: [(5, 0), (4, 4), (0, 0), (1, 6)],
    4: [(2, 0, 3, 0), (2, 2, 2, 2), (0, 0, 0, 0), (1, 3, 1, 2)],
}


class SteadyCMLM(CMLM):
    """cmlm with equal weights on all ranks, and with equal masks for a pair in any part of a batch."""

    def __init__(self, config: CMLM.Config, model: nn.Module, text: TextSpec) -> None:
        torch.manual_seed(1)
        super().__init__(config, model, text)

    def plan(self, batch: PairBatch, generator: torch.Generator) -> Planned:
        planned = super().plan(batch, generator)
        tokens, width = batch.target.tokens.clone(), batch.target.tokens.size(1)
        positions, labels = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, dtype=torch.int64)]
        for row, number in enumerate(batch.indices.tolist()):
            own = torch.Generator().manual_seed(number)
            alone = self.language.mask(self._tower, batch.target.rows(row, row + 1), own)
            tokens[row, : alone.batch.tokens.size(1)] = alone.batch.tokens
            positions.append(row * width + alone.positions)
            labels.append(alone.labels)
        hidden = token_batch(tokens, batch.target.lengths)
        masked = Masked(hidden, torch.cat(positions), torch.cat(labels), planned.details.size)
        return dataclasses.replace(planned, details=masked)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A short training.

    Attributes:
        options: Options of the criterion.
        towers: Towers of the sentence encoder; "translation": the model is a translator.
        accumulate: Number of batches in each step.
        batch: "pairs", "negatives", "labelled" or "triplets".
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    towers: str = "shared"
    accumulate: int = 1
    batch: str = "pairs"

    def of(self, batch: PairBatch) -> Any:
        """Return the pairs in the form that the criterion reads."""
        if self.batch in ("labelled", "triplets"):
            return nli_batch(batch, self.batch)
        return batch if self.batch == "negatives" else replace(batch, negatives=None)

    def criterion(self, model: nn.Module, text: TextSpec) -> Any:
        kind = SteadyCMLM if self.kind == "cmlm" else CRITERIA.load(self.kind)
        torch.manual_seed(1)
        return kind(kind.Config(**self.options), model, text)

    def train(self, model: nn.Module, text: TextSpec, batches: list[PairBatch], rank: int, world: int) -> Results:
        """Return sums of the loss, gradients of every step, and every tensor at the end.

        Args:
            batches: The batches of all ranks.
        """
        model = copy.deepcopy(model)
        counts = PARTS[world]
        starts = [sum(sizes[:rank]) for sizes in counts]
        mine = [self.of(batch).rows(start, start + sizes[rank])
                for batch, start, sizes in zip(batches, starts, counts, strict=True)]  # fmt: skip
        criterion = self.criterion(model, text)
        if "queue_dtype" not in self.options:  # buffers are converted to float64, too
            criterion.double()
        nn.ModuleList([model, criterion]).train()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(name.startswith(f"{part}.") for part in criterion.frozen))
        trained = [p for p in nn.ModuleList([model, criterion]).parameters() if p.requires_grad]
        sums, gradients = [], []
        for start in range(0, len(mine), self.accumulate):
            nn.ModuleList([model, criterion]).zero_grad()
            group = slice(start, start + self.accumulate)
            for batch in mine[group]:
                loss = loss_of(criterion, model, batch)
                (term,) = loss.terms.values()
                (term.sum / max(sum(map(sum, counts[group])), 1)).backward()
                sums.append(term.sum.detach())
                assert all(torch.isfinite(metric) for metric in loss.metrics.values())
            gradients.append(torch.cat([p.grad.flatten() for p in trained]))
            self._step(trained, gradients[-1])
            if hasattr(criterion, "after_step"):
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


def run(kind: str, towers: str = "shared", accumulate: int = 1, batch: str = "pairs", **options: Any) -> Run:
    return Run(kind=kind, options=options, towers=towers, accumulate=accumulate, batch=batch)


MOCO = {"queue_size": 11, "momentum": 0.7, "temperature": 0.1}
FROZEN = {"towers": "separate", "queue_size": 11, "temperature": 0.3}
HICTL = {"language_model": False, "word_contrast": False, "temperature": 0.2}
MASKED = {"mask_equal_sentences": True}
ALONE = {"cross_rank_negatives": False}
TRIPLET = {"towers": "separate", "batch": "triplets", "temperature": 0.2}
RUNS = {
    "cmlm": run("cmlm", projections=3),
    "cmlm, accumulated": run("cmlm", accumulate=2, projections=2, skip=True),
    "dual_moco": run("dual_moco", "separate", **MOCO),
    "dual_moco, masked, accumulated": run("dual_moco", accumulate=2, **MOCO, **MASKED),
    "dual_moco, bfloat16 queue": run("dual_moco", **MOCO, queue_dtype="bfloat16"),
    "dual_moco, no queue": run("dual_moco", **{**MOCO, "queue_size": 0}),
    "dual_moco, no queue, masked": run("dual_moco", **{**MOCO, "queue_size": 0}, **MASKED),
    "dual_moco, negatives": run("dual_moco", batch="negatives", **MOCO),
    "frozen_source": run("frozen_source", **FROZEN),
    "frozen_source, masked, accumulated": run("frozen_source", accumulate=2, **FROZEN, **MASKED),
    "frozen_source, mse": run("frozen_source", "separate", loss="mse"),
    "frozen_source, trained": run("frozen_source", "separate", source="trained", temperature=0.3),
    "frozen_source, negatives": run("frozen_source", batch="negatives", **FROZEN, source_side="target"),
    "hictl": run("hictl", **HICTL),
    "hictl, masked, accumulated": run("hictl", accumulate=2, **HICTL, **MASKED),
    "hictl, negatives": run("hictl", batch="negatives", **HICTL),
    "hictl, alone": run("hictl", **HICTL, **ALONE),
    "label_smoothed_cross_entropy": run("label_smoothed_cross_entropy", "translation"),
    "label_smoothed_cross_entropy, accumulated": run(
        "label_smoothed_cross_entropy", "translation", accumulate=2, label_smoothing=0.3
    ),
    "nli": run("nli", "separate", batch="labelled", head="mlp", head_size=12, head_dropout=0.0),
    "nli_triplet": run("nli_triplet", **TRIPLET, **MASKED),
    "nli_triplet, alone": run("nli_triplet", **TRIPLET, **ALONE),
    "simcse": run("simcse", temperature=0.3),
    "simcse, masked": run("simcse", "separate", **MASKED),
    "translation_ranking": run("translation_ranking"),
    "translation_ranking, margin": run("translation_ranking", margin=0.3, directions="forward"),
    "translation_ranking, masked": run("translation_ranking", "separate", **MASKED),
    "translation_ranking, negatives": run("translation_ranking", "separate", 2, "negatives", margin=0.1),
    "translation_ranking, alone": run("translation_ranking", **ALONE),
}


def train(
    rank: int, world: int, text: TextSpec, models: dict[str, nn.Module], batches: list[PairBatch]
) -> dict[str, Results]:
    """Return the results of a rank for each run."""
    return {name: own.train(models[own.towers], text, batches, rank, world) for name, own in RUNS.items()}


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

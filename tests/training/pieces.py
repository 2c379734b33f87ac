"""Steps of criteria that encode batches in pieces."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from tests.support.planning import plan, sizes_of
from xrep.config import Part
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded, encode_in_pieces
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.multitask import Multitask
from xrep.criteria.tlm import TLM
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batch import TextSpec
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.mixture import MixedBatch
from xrep.training.distributed import World, alone
from xrep.training.freezing import Freezing
from xrep.training.numbers import type_on
from xrep.training.results import Numbers
from xrep.training.step import Pair, Step
from xrep.training.update import Update

SMALL = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48, "towers": "shared"}


class Everything(ContrastiveCriterion):
    """A criterion with all features: a head with dropout, a learnable temperature, a loss of single rows."""

    def __init__(self, config: Any, model: nn.Module, text: TextSpec) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(model.output_size, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.fixed = copy.deepcopy(model).requires_grad_(False)
        self.theta = nn.Parameter(torch.tensor(-1.5))

    def plan_rows(self, batch: Any, generator: torch.Generator) -> Planned:
        return Planned(batch, {"pairs": len(batch), "tokens": batch.token_count})

    def encode(self, model: nn.Module, planned: Planned) -> Encoded:
        batch = planned.batch
        vectors = model.encode_pair(batch.source, batch.target)
        lengths = batch.source.lengths + batch.target.lengths
        guess = self.head(vectors[0] * vectors[1]).squeeze(1)
        term = Term((guess - lengths / 10).square().sum(), weight=0.3)
        return Encoded(vectors, Loss({"tokens": term}, {"guess": guess.detach().float().sum() / max(len(batch), 1)}))

    def constants(self, model: nn.Module, planned: Planned) -> tuple[Tensor, ...]:
        return self.fixed.encode_pair(planned.batch.source, planned.batch.target)[:1]

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        source, target, fixed = vectors
        tau = self.theta.exp()
        found = [inbatch_infonce(one, target, tau, group=current_group()) for one in (source, fixed)]
        loss = torch.stack([(each.forward + each.backward).sum() for each in found]).sum()
        return Loss({"pairs": Term(loss)}, {"shown": loss.detach() / max(len(planned), 1)})


MOCO = DualMoco.Config(queue_size=20, temperature=0.1)
PARTS = [
    Part("first", Everything, None, 1.0, 1.0),
    Part("plain", TLM, TLM.Config(), 0.2, 1.0),
    Part("queue", DualMoco, MOCO, 0.5, 1.0),
]
KINDS: dict[str, tuple[type[Criterion], Any]] = {
    "translation_ranking": (TranslationRanking, TranslationRanking.Config(margin=0.1)),
    "dual_moco": (DualMoco, MOCO),
    "everything": (Everything, None),
    "parts": (Multitask, Multitask.Config(parts=PARTS, mixing="weight")),
}


@dataclass
class Setting:
    """The way in which a step is computed.

    Attributes:
        rows: Number of rows of a micro-batch; None: whole batches.
    """

    kind: str
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64
    precision: str = "float32"
    rows: int | None = 3

    def make(self, text: TextSpec) -> Pair:
        torch.manual_seed(0)
        rates = {"dropout": self.dropout, "attention_dropout": self.dropout}
        model = DualEncoder(DualEncoder.Config(**SMALL, **rates), text)
        with torch.no_grad():  # initial weights are small, so that all sentences would be similar
            for parameter in model.parameters():
                parameter.mul_(5 if parameter.dim() > 1 else 1)
        kind, config = KINDS[self.kind]
        criterion = kind(config, model, text)
        for part in criterion.modules():
            if isinstance(part, nn.Dropout) and not self.dropout:
                part.p = 0.0
        if self.rows is not None:
            encode_in_pieces(criterion, self.rows)
        return Pair(model, criterion).to(self.dtype).train()


def batches_of(kind: str, batches: list[Any]) -> list[Any]:
    """Return what a criterion of this kind reads: each batch, or a mixture of it with parts of the others."""
    if kind in ("translation_ranking", "dual_moco"):
        return batches
    batches = [replace(batch, negatives=None) for batch in batches]
    if kind != "parts":
        return batches
    others = batches[1:] + batches[:1]
    return [
        MixedBatch({"first": one, "plain": one.rows(1, 4), "queue": other})
        for one, other in zip(batches, others, strict=True)
    ]


def total_sizes(pair: Pair, batches: list[Any]) -> dict[str, float]:
    """Return the size of each term over batches and ranks."""
    found = [sizes_of(pair.criterion, batch) for batch in batches]
    totals = torch.tensor([sum(sizes[name] for sizes in found) for name in found[0]], dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(totals)
    return dict(zip(found[0], totals.tolist(), strict=True))


@dataclass
class Found:
    """The last of some steps: the gradients of all parameters, and the state after it."""

    gradient: Tensor
    numbers: Numbers
    state: dict[str, Tensor]
    reductions: int


def step(
    setting: Setting, text: TextSpec, batches: list[Any], world: World | None = None, steps: int = 2, moved: float = 0.0
) -> Found:
    """Return the last of some steps.

    Args:
        moved: how far all weights are moved before the last step, in a random direction.
    """
    world, pair = world or alone("cpu"), setting.make(text)
    trained = [p for p in pair.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([{"params": trained, "lr_scale": 1.0}], lr=0.1)
    dtype = type_on(world.device, setting.precision)
    whole = Step(pair, Freezing([], pair), Update(optimizer, world, dtype=dtype))
    whole.prepare(0)
    reductions: list[int] = []
    if world.size > 1:

        def hook(state: Any, bucket: dist.GradBucket) -> Any:
            reductions.append(1)
            return allreduce_hook(dist.group.WORLD, bucket)

        hook.__annotations__.clear()  # torch needs the class, not a string
        whole._parallel.register_comm_hook(None, hook)
    for number in range(steps):
        torch.manual_seed(7 + world.rank + number)
        if moved and number + 1 == steps:
            for p, way in zip(trained, direction(trained), strict=True):
                p.data.add_(way, alpha=moved)
        planned = [plan(pair.criterion, batch) for batch in batches]
        results = whole.gradients(planned, total_sizes(pair, batches), number)
        whole.apply(results, 0.1)
    gradients = [torch.full((p.numel(),), torch.nan) if p.grad is None else p.grad.flatten() for p in trained]
    state = {name: tensor.clone() for name, tensor in pair.state_dict().items()}
    return Found(torch.cat(gradients), results.numbers, state, len(reductions))


def direction(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return random numbers of the shapes of parameters."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.dtype) for p in parameters]


def assert_near(one: Tensor, other: Tensor, tolerance: float) -> None:
    """Check that gradients, NaN where there is none, differ little relative to the largest number."""
    assert torch.equal(one.isnan(), other.isnan()), "parameters without gradient"
    other = other.nan_to_num()
    assert other.abs().max() > 1e-4
    error = (one.nan_to_num() - other).abs().max() / other.abs().max()
    assert error <= tolerance, float(error)

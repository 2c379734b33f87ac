"""Steps that encode batches in pieces, and the same gradient from one graph of all pieces."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from tests.support.planning import plan, sizes_of
from xrep.config import Part
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Criterion, Loss, Planned, Term
from xrep.criteria.dap import DAP
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.multitask import Multitask
from xrep.criteria.simcse import SimCSE
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batching import TextSpec
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.mixture import MixedBatch
from xrep.training.distributed import World
from xrep.training.freezing import Freezing
from xrep.training.outcome import Outcome
from xrep.training.step import Engine, TrainingModule, type_on

SMALL = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
ROWS = 3
"""Rows of a micro-batch."""


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


class Lengths(Criterion):
    """A criterion that does not compare rows, with a head of its own."""

    def __init__(self, config: Any, model: nn.Module, text: TextSpec) -> None:
        super().__init__()
        self.head = nn.Linear(model.output_size, 1)

    def plan(self, batch: Any, generator: torch.Generator) -> Planned:
        return Planned(batch, {"lengths": len(batch)})

    def forward(self, model: nn.Module, planned: Planned) -> Loss:
        batch = planned.batch
        guess = self.head(model.encode_pair(batch.source, batch.target)[0]).squeeze(1)
        loss = (guess - batch.source.lengths / 10).square().sum()
        return Loss({"lengths": Term(loss)}, {"mean": loss.detach().float() / max(len(batch), 1)})


KINDS: dict[str, Callable[[nn.Module, TextSpec], Criterion]] = {
    "translation_ranking": lambda model, text: TranslationRanking(TranslationRanking.Config(margin=0.1), model, text),
    "negatives": lambda model, text: TranslationRanking(TranslationRanking.Config(margin=0.1), model, text),
    "dual_moco, negatives": lambda model, text: DualMoco(DualMoco.Config(queue_size=20, temperature=0.1), model, text),
    "dual_moco": lambda model, text: DualMoco(DualMoco.Config(queue_size=20, temperature=0.1), model, text),
    "simcse": lambda model, text: SimCSE(SimCSE.Config(), model, text),
    "dap": lambda model, text: DAP(DAP.Config(rtl_direction="both"), model, text),
    "everything": lambda model, text: Everything(None, model, text),
    "parts": lambda model, text: Multitask(
        Multitask.Config(
            parts=[
                Part("first", Everything, None, 1.0, 1.0),
                Part("plain", Lengths, None, 0.2, 1.0),
                Part("queue", DualMoco, DualMoco.Config(queue_size=20, temperature=0.1), 0.5, 1.0),
            ],
            mixing="weight",
        ),
        model,
        text,
    ),
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
    rows: int | None = ROWS
    towers: str = "shared"


def make(setting: Setting, text: TextSpec) -> TrainingModule:
    torch.manual_seed(0)
    rates = {"dropout": setting.dropout, "attention_dropout": setting.dropout}
    model = DualEncoder(DualEncoder.Config(**SMALL, **rates, towers=setting.towers), text)
    with torch.no_grad():  # initial weights are small, so that all sentences would be similar
        for parameter in model.parameters():
            parameter.mul_(5 if parameter.dim() > 1 else 1)
    criterion = KINDS[setting.kind](model, text)
    if not setting.dropout:
        for part in criterion.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
    if setting.rows is not None:
        criterion.set_micro_batch(setting.rows)
    return TrainingModule(model, criterion).to(setting.dtype).train()


def batches_of(kind: str, batches: list[Any]) -> list[Any]:
    """Return what a criterion of this kind reads: each batch, or a mixture of it with parts of the others."""
    batches = batches if "negatives" in kind else [replace(batch, negatives=None) for batch in batches]
    if kind != "parts":
        return batches
    others = batches[1:] + batches[:1]
    return [
        MixedBatch({"first": one, "plain": one.rows(1, 4), "queue": other})
        for one, other in zip(batches, others, strict=True)
    ]


def world_of(rank: int = 0, size: int = 1) -> World:
    return World(rank, size, rank, torch.device("cpu"))


def total_sizes(module: TrainingModule, batches: list[Any]) -> dict[str, float]:
    """Return the size of each term over batches and ranks."""
    totals: dict[str, float] = {}
    for batch in batches:
        for name, size in sizes_of(module.criterion, batch).items():
            totals[name] = totals.get(name, 0.0) + size
    values = torch.tensor(list(totals.values()), dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(values)
    return dict(zip(totals, values.tolist(), strict=True))


@dataclass
class Found:
    """The results of a step: the concatenated gradients of all parameters, and the state after it."""

    gradient: Tensor
    outcome: Outcome
    state: dict[str, Tensor]
    random: Tensor
    reductions: int = 0


def step(setting: Setting, text: TextSpec, batches: list[Any], world: World, steps: int = 2) -> Found:
    """Return the last of some steps of the engine."""
    module = make(setting, text)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    engine = Engine(module, optimizer, Freezing([]), world, precision=setting.precision, clip_norm=0)
    engine.prepare(0)
    counted = SimpleNamespace(reductions=0)
    if world.size > 1:

        def hook(state: Any, bucket: dist.GradBucket) -> Any:
            counted.reductions += 1
            return allreduce_hook(dist.group.WORLD, bucket)

        hook.__annotations__.clear()  # torch needs the class, not a string
        engine._parallel.register_comm_hook(None, hook)
    torch.manual_seed(7 + world.rank)
    for _ in range(steps):
        planned = [plan(module.criterion, batch) for batch in batches]
        outcome = engine.run(planned, total_sizes(module, batches), lambda: None).outcome
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return Found(gradient_of(module), outcome, state, torch.get_rng_state(), counted.reductions)


def gradient_of(module: nn.Module) -> Tensor:
    found = [
        p.grad.flatten() if p.grad is not None else torch.full((p.numel(),), torch.nan) for p in module.parameters()
    ]
    return torch.cat(found).clone()


def expected(setting: Setting, text: TextSpec, batches: list[Any], world: World, steps: int = 2) -> Found:
    """Return the same from one graph for each batch with all its pieces, whose dropout is drawn in the same order."""
    module = make(setting, text)
    criterion, model = module.criterion, module.model
    trained = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    torch.manual_seed(7 + world.rank)
    for _ in range(steps):
        sizes = total_sizes(module, batches)
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            terms = [term for found in losses(setting, criterion, model, batch) for term in found.terms.items()]
            objective = sum(term.weight * term.sum / max(sizes[name], 1) for name, term in terms)
            objective.backward()
            loss += objective.detach()
        if world.size > 1:
            dist.all_reduce(loss)
            for parameter in trained:
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
        optimizer.step()
        criterion.after_step(model)
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return Found(gradient_of(module), Outcome(float(loss), 0.0, {}, skipped=False), state, torch.get_rng_state())


def losses(setting: Setting, criterion: Any, model: nn.Module, batch: Any) -> Iterator[Loss]:
    def context() -> AbstractContextManager[Any]:
        return torch.autocast(
            "cpu", torch.bfloat16, enabled=type_on(torch.device("cpu"), setting.precision) == torch.bfloat16
        )

    planned, trained, constants = plan(criterion, batch), [], []
    for piece in planned.pieces or [planned]:
        with context():
            before = torch.get_rng_state()
            encoded = criterion.encode(model, piece)
            yield encoded.loss
            torch.set_rng_state(before)  # the dropout of the next piece does not depend on draws of ``encode`` alone
            criterion.vectors(model, piece)
            trained.append(encoded.vectors)
            with torch.no_grad():
                constants.append(criterion.constants(model, piece))
    vectors = [torch.cat(column) for some in (trained, constants) for column in zip(*some, strict=True)]
    with context():
        yield criterion.contrast(tuple(vectors), planned)


class Held:
    """Measures the largest number of bytes that graphs hold at once."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    @contextmanager
    def watching(self) -> Iterator[Held]:
        held = self

        class Kept:
            def __init__(self, tensor: Tensor) -> None:
                # Detached, because an output that its own graph holds is never freed.
                self.tensor, self.bytes = tensor.detach(), tensor.numel() * tensor.element_size()
                held.now += self.bytes
                held.peak = max(held.peak, held.now)

            def __del__(self) -> None:
                held.now -= self.bytes

        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            yield self

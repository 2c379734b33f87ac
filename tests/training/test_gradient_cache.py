"""A batch that is encoded in pieces has the same gradient as the whole batch."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import plan, with_negatives
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
from xrep.kernels.precision import multiplies_bfloat16
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.mixture import MixedBatch
from xrep.training.distributed import alone
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


@dataclass
class Found:
    """The last of some steps: the gradients of all parameters, and the state after it."""

    gradient: Tensor
    numbers: Numbers
    state: dict[str, Tensor]


def step(setting: Setting, text: TextSpec, batches: list[Any], steps: int = 2, moved: float = 0.0) -> Found:
    """Return the last of some steps.

    Args:
        moved: how far all weights are moved before the last step, in a random direction.
    """
    world, pair = alone("cpu"), setting.make(text)
    trained = [p for p in pair.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([{"params": trained, "lr_scale": 1.0}], lr=0.1)
    dtype = type_on(world.device, setting.precision)
    whole = Step(pair, Freezing([], pair), Update(optimizer, world, dtype=dtype))
    whole.prepare(0)
    for number in range(steps):
        torch.manual_seed(7 + number)
        if moved and number + 1 == steps:
            for p, way in zip(trained, direction(trained), strict=True):
                p.data.add_(way, alpha=moved)
        planned = [plan(pair.criterion, batch) for batch in batches]
        sizes = {name: sum(each.sizes[name] for each in planned) for name in planned[0].sizes}
        results = whole.gradients(planned, sizes, number)
        whole.apply(results, 0.1)
    gradients = [torch.full((p.numel(),), torch.nan) if p.grad is None else p.grad.flatten() for p in trained]
    state = {name: tensor.clone() for name, tensor in pair.state_dict().items()}
    return Found(torch.cat(gradients), results.numbers, state)


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


@pytest.fixture(scope="module")
def batches(make_batch: Any) -> list[Any]:
    """Batches of 8 and of 5 pairs of unequal lengths, with hard negatives of some rows."""
    pairs = [(german * (1 + n % 3), english) for n, (german, english) in enumerate(sentence_pairs(13))]
    rows = [0, 0, 1, 3, 4, 4, 4]
    return [with_negatives(make_batch(some), make_batch(pairs[3:10]).target, rows) for some in (pairs[:8], pairs[8:])]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_does_not_depend_on_the_pieces(text: Any, batches: list[Any], kind: str) -> None:
    """Two steps of two batches in float64: gradients, weights and queues, loss and metrics."""
    given = batches_of(kind, batches)
    whole = step(Setting(kind, rows=None), text, given)
    for rows in (1, 3):
        mine = step(Setting(kind, rows=rows), text, given)
        assert_near(mine.gradient, whole.gradient, 1e-10)
        for name, tensor in whole.state.items():
            torch.testing.assert_close(mine.state[name], tensor, rtol=1e-9, atol=1e-9, msg=name)
        assert mine.numbers.values == pytest.approx(whole.numbers.values, rel=1e-6)
        assert mine.numbers.loss == pytest.approx(whole.numbers.loss, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["everything", "parts"])
def test_dropout_of_both_passes_is_the_same(text: Any, batches: list[Any], kind: str) -> None:
    """The gradient is the slope of the loss for the same random numbers. The queue is empty in the first step."""
    setting, given, away = Setting(kind, dropout=0.2), batches_of(kind, batches), 1e-5
    here, below, above = (step(setting, text, given, moved=moved) for moved in (0.0, -away, away))
    trained = [p for p in setting.make(text).parameters() if p.requires_grad]
    way = torch.cat([part.flatten() for part in direction(trained)])
    slope = (above.numbers.loss - below.numbers.loss) / (2 * away)
    assert float(here.gradient.nan_to_num() @ way) == pytest.approx(slope, rel=1e-5)
    assert step(setting, text, given, steps=1).numbers.loss != pytest.approx(here.numbers.loss, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["everything", "dual_moco"])
def test_pieces_in_bf16(text: Any, batches: list[Any], kind: str) -> None:
    half = Setting(kind, dtype=torch.float32, precision="bf16")
    mine, whole = (step(each, text, batches_of(kind, batches)) for each in (half, replace(half, rows=None)))
    assert_near(mine.gradient, whole.gradient, 0.05)
    full = step(Setting(kind, dtype=torch.float32), text, batches_of(kind, batches))
    if multiplies_bfloat16():  # other processors compute the products in float32
        assert not torch.allclose(mine.gradient.nan_to_num(), full.gradient.nan_to_num(), rtol=1e-5)


def test_random_numbers_go_on_behind_those_of_the_batch(text: Any, batches: list[Any]) -> None:
    """The second pass draws none."""
    setting = Setting("translation_ranking", dropout=0.2)
    step(setting, text, batches, steps=1)
    found, module = torch.get_rng_state(), setting.make(text)
    torch.manual_seed(7)
    for batch in batches:
        module(plan(module.criterion, batch))
    assert torch.equal(found, torch.get_rng_state())


@pytest.mark.slow
def test_activations_of_one_piece_are_held(text: Any, make_batch: Any) -> None:
    now, peaks = 0, list[int]()

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal now
            # Detached, because an output that its own graph holds is never freed.
            self.tensor, self.bytes = tensor.detach(), tensor.numel() * tensor.element_size()
            now += self.bytes
            peaks[-1] = max(peaks[-1], now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.bytes

    batch = make_batch([(german * (1 + n % 3), english) for n, (german, english) in enumerate(sentence_pairs(64))])
    for rows in (None, 8):
        peaks.append(0)
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            step(Setting("dual_moco", dropout=0.1, rows=rows), text, [batch], steps=1)
        assert now == 0
    assert peaks[1] < 0.3 * peaks[0]

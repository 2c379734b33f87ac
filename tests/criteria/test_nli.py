"""The criteria nli and nli_triplet against their formulas in float64, and on several ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.criteria.nli_batches import CRITERIA, EXACT, PARTS, SMALL, make_batches, make_task, train
from tests.criteria.test_batches import NoWaiting
from tests.kernels.ranks import run_ranks
from tests.support.closeness import assert_near
from tests.support.planning import loss_of, plan, sizes_of
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.nli import FEATURES, Nli
from xrep.criteria.nli_triplet import NliTriplet
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.nli import NliBatch, NliTask

FORMS = ["pairs", "triplets"]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, data_directory: Path) -> Callable[[str], NliTask]:
    made = {form: make_task(tmp_path_factory.mktemp(form), data_directory, form) for form in FORMS}
    return made.__getitem__


def make_model(task: NliTask, **options) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(DualEncoder.Config(**{**EXACT, "towers": "separate", **options}), task.text)


def columns(model: DualEncoder, batch: NliBatch) -> list[Tensor]:
    """Return the vectors [B, D] of each column; each sentence is encoded alone by the tower of its side."""
    vectors = []
    for name, side in zip(("source", "target"), batch.sides, strict=True):
        for row in range(len(side)):
            vectors.append(model.encode(name if len(model.encoders) > 1 else "shared", side.rows(row, row + 1))[0][0])
    return [torch.stack([vectors[place] for place in column]) for column in batch.places.T.tolist()]


def check_gradients(model: nn.Module, exact: nn.Module) -> None:
    for (name, mine), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert_near(mine.grad, expected, 5e-5, name)


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize(("features", "scaled"), [(FEATURES, True), (FEATURES, False), (("product", "premise"), False)])
def test_classification(task, towers: str, head: str, features: tuple[str, ...], scaled: bool) -> None:
    model = make_model(task("pairs"), towers=towers, normalize=False)
    batch = task("pairs").make(np.arange(3, 20))
    config = Nli.Config(features=list(features), scale_vectors=scaled, head=head, head_size=12, head_dropout=0.0)
    criterion = Nli(config, model, task("pairs").text)
    exact, weights = copy.deepcopy(model).double(), copy.deepcopy(criterion).double()
    u, v = columns(exact, batch)
    if scaled:
        u, v = (4 * side / side.norm(dim=1, keepdim=True) for side in (u, v))  # 4 = √16
    of = {"premise": u, "hypothesis": v, "difference": (u - v).abs(), "product": u * v}
    x = torch.cat([of[name] for name in features], dim=1)
    if head == "mlp":
        x = (x @ weights.hidden[0].weight.T + weights.hidden[0].bias).clamp(min=0)
    logits = x @ weights.output.weight.T + weights.output.bias
    expected = -sum(
        torch.log(row.exp()[label] / row.exp().sum()) for row, label in zip(logits, batch.labels, strict=True)
    )
    expected.backward()
    loss = loss_of(criterion, model, batch)
    loss.terms["nli"].sum.backward()
    assert sizes_of(criterion, batch) == {"nli": 17}
    assert float(loss.terms["nli"].sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    right = (logits.argmax(1) == batch.labels).double().mean()
    assert float(loss.metrics["accuracy"]) == pytest.approx(100 * float(right))
    check_gradients(nn.ModuleList([model, criterion]), nn.ModuleList([exact, weights]))


@pytest.mark.parametrize("towers", ["shared", "separate"])
@pytest.mark.parametrize("masked", [True, False])
def test_contrast(task, towers: str, masked: bool) -> None:
    model = make_model(task("triplets"), towers=towers)
    batch = task("triplets").make(np.array([3, 30, 5, 3, 17, 44, 9]))  # one sentence is repeated
    tau, alpha = 0.1, 2.0
    config = NliTriplet.Config(temperature=tau, hard_negative_weight=alpha, mask_equal_sentences=masked)
    criterion = NliTriplet(config, model, task("triplets").text)
    exact = copy.deepcopy(model).double()
    anchor, positive, negative = columns(exact, batch)
    ids, expected = batch.ids.tolist(), torch.zeros((), dtype=torch.float64)
    for i in range(7):
        total = torch.zeros((), dtype=torch.float64)
        for j in range(7):
            of_positive, of_negative = (torch.exp(anchor[i] @ side[j] / tau) for side in (positive, negative))
            if i == j:
                total = total + of_positive + alpha * of_negative
                continue
            if not masked or (ids[i][0] != ids[j][0] and ids[i][1] != ids[j][1]):
                total = total + of_positive
            if not masked or ids[j][2] not in ids[i][:2]:
                total = total + of_negative
        expected = expected - torch.log(torch.exp(anchor[i] @ positive[i] / tau) / total)
    expected.backward()
    loss = loss_of(criterion, model, batch)
    loss.terms["nli_triplet"].sum.backward()
    assert sizes_of(criterion, batch) == {"nli_triplet": 7}
    assert float(loss.terms["nli_triplet"].sum.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    check_gradients(model, exact)
    pieces = [criterion.encode(model, plan(criterion, batch.rows(start, start + 3))).vectors for start in (0, 3, 6)]
    vectors = tuple(torch.cat(parts) for parts in zip(*pieces, strict=True))
    again = criterion.contrast(vectors, plan(criterion, batch))
    torch.testing.assert_close(again.terms["nli_triplet"].sum, loss.terms["nli_triplet"].sum, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_ranks_find_what_one_process_finds(task, tmp_path: Path, form: str) -> None:
    model, batches = make_model(task(form)), make_batches(task(form))
    whole = train(0, 1, form, model, batches)["run"]
    found = run_ranks(2, tmp_path, train, form, model, batches)
    assert [len(batch) for batch in batches] == [sum(sizes) for sizes in PARTS[2]]
    torch.testing.assert_close(sum(part["run"]["loss"] for part in found), whole["loss"], rtol=0, atol=1e-10)
    for part in found:
        torch.testing.assert_close(part["run"]["gradient"], whole["gradient"], rtol=0, atol=1e-10)
    assert whole["loss"].tolist()[2] == 0 and float(whole["gradient"][3].abs().max()) > 1e-3


def test_negatives_of_other_ranks_can_be_left_out(task, tmp_path: Path) -> None:
    model, batch = make_model(task("triplets")), task("triplets").make(np.arange(8))
    found = run_ranks(2, tmp_path, of_one_rank, model, batch)
    expected = [of_one_rank(0, 1, model, part)["alone"]["loss"] for part in (batch.rows(0, 5), batch.rows(5, 8))]
    assert torch.allclose(torch.stack([part["alone"]["loss"] for part in found]), torch.stack(expected), atol=1e-5)


def of_one_rank(rank: int, world: int, model: DualEncoder, batch: NliBatch) -> dict[str, dict[str, Tensor]]:
    criterion = NliTriplet(NliTriplet.Config(cross_rank_negatives=False), model, model._text)
    some = batch if world == 1 else batch.rows(5 * rank, 5 if rank == 0 else 8)
    return {"alone": {"loss": loss_of(criterion, model, some).terms["nli_triplet"].sum.detach()}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("half", [False, True])
def test_no_rows_half_precision_and_no_wait_for_the_device(task, form: str, half: bool) -> None:
    model = make_model(task(form), **SMALL, dropout=0.1)
    criterion = CRITERIA[form](model)
    both = nn.ModuleList([model, criterion]).train()
    batch = task(form).make(np.arange(9))
    for some in (batch, batch.rows(0, 0), task(form).make(np.arange(0))):
        planned = plan(criterion, some).to("cpu")
        both.zero_grad()
        with NoWaiting(), torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = criterion(model, planned)
            (term,) = loss.terms.values()
            term.sum.backward()
        assert (
            term.sum.dtype == torch.float32 and torch.isfinite(term.sum) and not loss.metrics["accuracy"].requires_grad
        )
        for parameter in both.parameters():
            assert parameter.grad is not None and torch.isfinite(parameter.grad).all()
            assert len(some) or not parameter.grad.any()
        if not len(some):
            assert float(term.sum.detach()) == float(loss.metrics["accuracy"]) == 0


def test_the_head_is_thrown_away_but_saved(task) -> None:
    model = make_model(task("pairs"))
    linear, mlp = (Nli(Nli.Config(head=head), model, task("pairs").text) for head in ("linear", "mlp"))
    assert {name: list(t.shape) for name, t in linear.state_dict().items()} == {
        "output.weight": [3, 64], "output.bias": [3]
    }  # fmt: skip
    assert {name: list(t.shape) for name, t in mlp.state_dict().items()} == {
        "hidden.0.weight": [256, 64], "hidden.0.bias": [256], "output.weight": [3, 256], "output.bias": [3]
    }  # fmt: skip
    x = torch.randn(500, 64)
    share = (mlp.train().hidden(x) == 0).double().mean() - (mlp.eval().hidden(x) == 0).double().mean()
    assert 0.03 < float(share) < 0.07  # a tenth of the half that passes ReLU


def test_other_tasks_are_refused(task, text) -> None:
    model = make_model(task("pairs"))
    pairs, triplets = Nli(Nli.Config(), model, text), NliTriplet(NliTriplet.Config(), model, text)
    pairs.check_task(task("pairs"))
    triplets.check_task(task("triplets"))
    for criterion, form, reads in ((pairs, "triplets", "labelled pairs"), (triplets, "pairs", "triplets")):
        with pytest.raises(UserError, match=f"the criterion reads {reads}, and the task gives .*; set `task` to nli"):
            criterion.check_task(task(form))
    # Pairs of sentences come from bitext and from either unit of the monolingual task that has pairs.
    with pytest.raises(UserError, match="to bitext, or `task` to .* `units` to adjacent, or .* `units` to reordered$"):
        DualMoco(DualMoco.Config(queue_size=4), model, text).check_task(task("pairs"))


def test_problems() -> None:
    assert tuple(Nli.Config().features) == FEATURES and Nli.Config().problems() == []
    problems = Nli.Config(features=["product", "sum"], head_size=0, head_dropout=1.0).problems()
    assert problems[2].startswith(
        "features must be some of premise, hypothesis, difference, product, each once, not pro"
    )
    assert [problem.split()[0] for problem in problems] == ["head_size", "head_dropout", "features"]
    for features in ([], ["premise", "premise"]):
        assert len(Nli.Config(features=features).problems()) == 1
    problems = NliTriplet.Config(temperature=0, hard_negative_weight=-1.0).problems()
    assert problems == [
        "temperature must lie in [0.0001, 10000], not 0",
        "hard_negative_weight must lie in (0, 1000000], not -1.0",
    ]

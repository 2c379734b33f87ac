"""Two criteria in one, on two batches of real pairs, against each of them alone."""

import copy
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.criteria.objectives import SMALL
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of
from xrep.config import Part
from xrep.criteria.contrastive import encode_in_pieces
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.multitask import Multitask
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batch import Batch
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.mixture import MixedBatch
from xrep.training.distributed import alone
from xrep.training.freezing import Freezing
from xrep.training.step import Pair, Step
from xrep.training.update import Update

MOCO = DualMoco.Config(queue_size=20, temperature=0.1, momentum=0.5)
RANK = TranslationRanking.Config(temperature=0.2)


@pytest.fixture
def model(text) -> DualEncoder:
    torch.manual_seed(0)
    return DualEncoder(DualEncoder.Config(towers="shared", **{**SMALL, "layers": 1}), text).double()


@pytest.fixture
def batches(make_batch) -> tuple[Batch, Batch, Batch]:
    pairs = sentence_pairs(30)
    return make_batch(pairs[:7]), make_batch(pairs[7:16]), make_batch(pairs[16:21])


def multitask(model, text, mixing: Any = "weight") -> Multitask:
    parts = [Part("queue", DualMoco, MOCO, 2.0, 1.0), Part("rank", TranslationRanking, RANK, 0.25, 1.0)]
    return Multitask(Multitask.Config(parts=parts, mixing=mixing), model, text)


def test_it_is_the_weighted_sum_of_its_parts(model, text, batches) -> None:
    first, second, third = batches
    together, other = multitask(model, text), copy.deepcopy(model)
    moco, rank = DualMoco(MOCO, other, text), TranslationRanking(RANK, other, text)
    for queue_batch, rank_batch in ((first, second), (third, first)):  # in the second step the queue has rows
        batch = MixedBatch({"queue": queue_batch, "rank": rank_batch})
        sizes = sizes_of(together, batch)
        assert sizes == {"queue/infonce": len(queue_batch), "rank/translation_ranking": len(rank_batch)}
        loss = loss_of(together, model, batch)
        losses = [loss_of(moco, other, queue_batch), loss_of(rank, other, rank_batch)]
        expected = 2.0 * losses[0].terms["infonce"].sum / len(queue_batch)
        expected = expected + 0.25 * losses[1].terms["translation_ranking"].sum / len(rank_batch)
        mine = sum(term.weight * term.sum / sizes[name] for name, term in loss.terms.items())
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
        assert list(loss.metrics) == ["queue/accuracy", "rank/accuracy"]
        assert [float(m) for m in loss.metrics.values()] == [float(own.metrics["accuracy"]) for own in losses]
        for each in (model, other):
            each.zero_grad()
        mine.backward()
        expected.backward()
        with torch.no_grad():
            for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12, msg=name)
                a.add_(a.grad, alpha=-0.1)
                b.copy_(a)
        for criterion, of in ((together.parts["queue"], model), (moco, other)):
            criterion.after_step(of)
    for name, tensor in moco.state_dict().items():
        torch.testing.assert_close(together.state_dict()[f"parts.queue.{name}"], tensor, rtol=0, atol=0, msg=name)


def test_parts_that_compare_no_rows_are_not_cut_into_pieces(model, text, two_terms) -> None:
    parts = [Part("plain", two_terms, two_terms.Config(), 1.0, 1.0)]
    with pytest.raises(UserError, match=r"micro_batch is for objectives that compare.*`update_freq`"):
        encode_in_pieces(Multitask(Multitask.Config(parts=parts, mixing="weight"), model, text), 8)


def test_a_part_without_a_batch_is_left_alone(model, text, batches) -> None:
    """With proportion mixing, a part without a batch has no term, no momentum update and no keys."""
    first, second, third = batches
    criterion = multitask(model, text, "proportion")
    before = copy.deepcopy(criterion.state_dict())
    with torch.no_grad():
        next(model.parameters()).add_(1.0)  # a momentum update would show
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "lr_scale": 1.0}])
    pair = Pair(model, criterion)
    step = Step(pair, Freezing([], pair), Update(optimizer, alone("cpu")))

    def take(*batches: dict[str, Batch]) -> dict[str, float]:
        planned = [plan(criterion, MixedBatch(batch)) for batch in batches]
        sizes = {name: 1.0 for each in planned for name in each.sizes}
        results = step.gradients(planned, sizes, 0)
        step.apply(results, 0.01)
        return results.numbers.values

    assert list(take({"rank": second})) == ["rank/accuracy"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in criterion.state_dict().items())
    found = take({"rank": second}, {"queue": first}, {"queue": third})
    assert list(found) == ["loss_rank/translation_ranking", "rank/accuracy", "loss_queue/infonce", "queue/accuracy"]
    assert criterion.parts["queue"].source_queue.filled == len(first) + len(third)
    after = copy.deepcopy(criterion.state_dict())
    assert any(not torch.equal(after[name], before[name]) for name in before if "momentum_encoder" in name)
    # Validation batches do not count.
    criterion.eval()
    loss_of(criterion, model, MixedBatch({"queue": first}))
    criterion.train()
    take({"rank": second})
    assert all(torch.equal(tensor, after[name]) for name, tensor in criterion.state_dict().items())


def test_the_loss_of_a_validation_has_the_proportions_of_training(model, text, batches) -> None:
    parts = [Part(name, TranslationRanking, RANK, 2.0, share) for name, share in (("often", 3.0), ("rarely", 1.0))]
    batch = MixedBatch(dict.fromkeys(("often", "rarely"), batches[0]))
    for mixing, expected in (("proportion", [1.5, 0.5]), ("weight", [2.0, 2.0])):
        criterion = Multitask(Multitask.Config(parts=parts, mixing=mixing), model, text)
        assert [term.weight for term in loss_of(criterion, model, batch).terms.values()] == expected


def test_a_part_weighs_by_its_share_of_the_batches_of_a_step(model, text, batches) -> None:
    """The gradient of a step with three batches is the mean of those of three steps, as the parts were drawn."""
    pairs = {"queue": 2.0, "rank": 0.25}
    parts = [Part(name, TranslationRanking, RANK, weight, 1.0) for name, weight in pairs.items()]
    criterion = Multitask(Multitask.Config(parts=parts, mixing="proportion"), model, text)
    optimizer, pair = torch.optim.SGD([{"params": list(model.parameters()), "lr_scale": 1.0}]), Pair(model, criterion)
    step = Step(pair, Freezing([], pair), Update(optimizer, alone("cpu"), clip_norm=None))

    def gradients(*drawn: dict[str, Batch]) -> list[torch.Tensor]:
        planned, sizes = [plan(criterion, MixedBatch(batch)) for batch in drawn], Counter[str]()
        for each in planned:
            sizes.update(each.sizes)
        step.gradients(planned, dict(sizes), 0)
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    first, second = batches[0], batches[1].rows(0, len(batches[0]))  # of one size, as batches of a part are
    drawn = {"rank": first}, {"rank": second}, {"queue": first}
    alone_each = [gradients(batch) for batch in drawn]
    for together, *each in zip(gradients(*drawn), *alone_each, strict=True):
        torch.testing.assert_close(together, sum(each) / 3, rtol=1e-9, atol=1e-12)


def test_warnings_name_the_part(model, text) -> None:
    for count, warned in ((30, ["queue: queue_size 20 exceeds half of the 30 training pairs"]), (1000, [])):
        parts = {"queue": SimpleNamespace(examples=count), "rank": SimpleNamespace(examples=30)}
        lines = multitask(model, text).warnings(SimpleNamespace(parts=parts))
        assert [line.partition(":")[0] + ":" + line.split(":")[1] for line in lines] == warned

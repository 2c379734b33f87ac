"""dual_moco against a simulation of equations 1-3 in float64, in which lists are the queues."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support.closeness import assert_near
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, sizes_of
from xrep.criteria.dual_moco import DualMoco
from xrep.data.batching import PairBatch
from xrep.models.directory import load_matching
from xrep.models.dual_encoder import DualEncoder

SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
TAU, RATE = 0.1, 0.3


def make_model(text, dropout: float = 0.0, **options) -> DualEncoder:
    torch.manual_seed(0)
    config = DualEncoder.Config(**SMALL, dropout=dropout, attention_dropout=dropout, **options)
    return DualEncoder(config, text)


def make_groups(make_batch, accumulate: int) -> list[list[PairBatch]]:
    """Return batches of 4 pairs (3 in the last of a step) in which sentences are repeated with other translations."""
    some = sentence_pairs(20)
    pairs = some[:8] + [(some[0][0], some[8][1]), (some[9][0], some[1][1]), *some[2:4]] + some[10:18] + some[4:12]
    starts = [number * 4 for number in range(7)]
    batches = [make_batch(pairs[start : start + 4 - (i % accumulate)]) for i, start in enumerate(starts)]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def cut(vector: Tensor, width: int | None) -> Tensor:
    """The first numbers of a vector, at length 1."""
    return vector if width is None else vector[:width] / vector[:width].norm()


def simulate(
    model, groups, *, size: int, momentum: float, masked: bool, widths: tuple[int, ...] = ()
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses of the steps and the final weights of base (``base.*``) and momentum encoders (``slow.*``)."""
    base = copy.deepcopy(model).double()
    slow = copy.deepcopy(base)
    queues: dict[str, list[tuple[Tensor, set[int]]]] = {"source": [], "target": []}
    losses = []
    for group in groups:
        objective, new = torch.zeros((), dtype=torch.float64), {"source": [], "target": []}
        for batch in group:
            sides = {"source": (batch.source, "de", 0), "target": (batch.target, "en", 1)}
            query = {s: base.encode(base.tower(language), tokens)[0] for s, (tokens, language, _) in sides.items()}
            key = {s: slow.encode(slow.tower(lang), tokens)[0].detach() for s, (tokens, lang, _) in sides.items()}
            ids = [{("source", a), ("target", b)} for a, b in batch.ids.tolist()]
            for x, y in (("source", "target"), ("target", "source")):
                for i in range(len(batch)):
                    others = queues[y] if size else [(key[y][j], ids[j]) for j in range(len(batch)) if j != i]
                    negatives = [h for h, other in others if not (masked and other & ids[i])]
                    for width in (None, *widths):
                        own = cut(query[x][i], width)
                        positive = torch.exp(own @ cut(key[y][i], width) / TAU)
                        total = positive + sum(torch.exp(own @ cut(h, width) / TAU) for h in negatives)
                        objective = objective - torch.log(positive / total) / sum(len(b) for b in group)
            for side in sides:
                new[side] += zip(key[side], ids, strict=True)
        parameters = list(base.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(objective, parameters), strict=True):
            parameter.data -= RATE * gradient
        for mine, theirs in zip(slow.parameters(), parameters, strict=True):
            mine.data = momentum * mine.data + (1 - momentum) * theirs.data
        for side in queues:
            queues[side] = (queues[side] + new[side])[-size:] if size else []
        losses.append(float(objective.detach()))
    weights = {f"base.{name}": p.detach() for name, p in base.named_parameters()}
    return losses, weights | {f"slow.{name}": p.detach() for name, p in slow.named_parameters()}


def train(model, criterion, groups) -> list[float]:
    """Train as the trainer does: add up the gradients of the micro-batches, then make one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for group in groups:
        size = sum(sizes_of(criterion, batch)["infonce"] for batch in group)
        optimizer.zero_grad()
        total = 0.0
        for batch in group:
            term = loss_of(criterion, model, batch).terms["infonce"]
            assert term.weight == 1
            (term.sum / size).backward()
            total += float(term.sum.detach()) / size
        optimizer.step()
        criterion.after_step(model)
        losses.append(total)
    return losses


@pytest.mark.parametrize(
    "options",
    [
        {"towers": "separate", "size": 10, "momentum": 0.7, "masked": False, "accumulate": 1},
        {"towers": "separate", "size": 10, "momentum": 0.7, "masked": True, "accumulate": 1},
        {"towers": "shared", "size": 9, "momentum": 0.5, "masked": True, "accumulate": 2},
        {"towers": "separate", "size": 50, "momentum": 0.0, "masked": False, "accumulate": 1},
        {"towers": "shared", "size": 2, "momentum": 0.7, "masked": False, "accumulate": 2},
        {"towers": "separate", "size": 0, "momentum": 0.7, "masked": False, "accumulate": 2},
        {"towers": "shared", "size": 0, "momentum": 0.7, "masked": True, "accumulate": 1},
        {"towers": "separate", "size": 10, "momentum": 0.7, "masked": True, "accumulate": 2, "widths": (9, 4)},
        {"towers": "shared", "size": 0, "momentum": 0.7, "masked": False, "accumulate": 1, "widths": (5,)},
    ],
    ids=[
        *("queue wraps", "equal sentences masked", "accumulation", "without momentum", "queue below the batch"),
        *("no queue", "no queue, equal sentences masked", "matryoshka", "matryoshka without a queue"),
    ],
)
def test_steps_equal_the_simulation(text, make_batch, options: dict) -> None:
    model = make_model(text, towers=options["towers"])
    size, momentum, masked = options["size"], options["momentum"], options["masked"]
    groups, widths = make_groups(make_batch, options["accumulate"]), options.get("widths", ())
    expected, weights = simulate(model, groups, size=size, momentum=momentum, masked=masked, widths=widths)
    start = {name: p.detach().double() for name, p in copy.deepcopy(model).named_parameters()}
    config = DualMoco.Config(
        queue_size=size, momentum=momentum, temperature=TAU, mask_equal_sentences=masked, matryoshka=list(widths)
    )
    criterion = DualMoco(config, model, text)

    losses = train(model, criterion, groups)

    assert (expected[0] == losses[0] == 0) == bool(size) and expected[-1] > 0.5
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, parameter in model.named_parameters():
        assert_near(parameter, weights[f"base.{name}"], 2e-5, name)
    for name, parameter in criterion.momentum_encoder.model.named_parameters():
        assert_near(parameter, weights[f"slow.{name}"], 2e-5, name)
        assert parameter.grad is None and not parameter.requires_grad
    assert max(float((weights[f"base.{name}"] - start[name]).abs().max()) for name in start) > 0.01
    assert not any(buffer.requires_grad for buffer in criterion.buffers())


def test_what_enters_the_queues_and_when(text, make_batch) -> None:
    model, batch = make_model(text), make_batch(sentence_pairs(3))
    criterion = DualMoco(DualMoco.Config(queue_size=5, queue_dtype="bfloat16"), model, text)
    criterion.eval()
    loss_of(criterion, model, batch)
    criterion.after_step(model)
    assert criterion.source_queue.filled == criterion.target_queue.filled == 0, "validation adds nothing"
    criterion.train()
    loss_of(criterion, model, batch)
    assert criterion.source_queue.filled == 0
    criterion.after_step(model)
    source, target = criterion.momentum_encoder.model.encode_pair(batch.source, batch.target)
    assert torch.equal(criterion.source_queue.vectors[:3], source.bfloat16())
    assert torch.equal(criterion.target_queue.vectors[:3], target.bfloat16())
    assert all(torch.equal(queue.ids[:3], batch.ids) for queue in (criterion.source_queue, criterion.target_queue))
    criterion.after_step(model)
    assert criterion.source_queue.filled == 3, "keys enter once"
    # The queue holds the sentences of the batch. With masks a query has two negatives, without them also its positive.
    masking = DualMoco(DualMoco.Config(queue_size=5, queue_dtype="bfloat16", mask_equal_sentences=True), model, text)
    masking.load_state_dict(criterion.state_dict())
    with torch.no_grad():
        results = [float(loss_of(one.eval(), model, batch).terms["infonce"].sum) for one in (masking, criterion)]
    assert 0 < results[0] < results[1]


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_of_the_keys(text, make_batch, dropout: bool) -> None:
    model, batch = make_model(text, dropout=0.3), make_batch(sentence_pairs(4))
    criterion = DualMoco(DualMoco.Config(queue_size=8, momentum=1.0, momentum_dropout=dropout), model, text)
    torch.nn.ModuleList([model, criterion]).train()
    for _ in range(2):
        loss_of(criterion, model, batch)
        criterion.after_step(model)
    keys = criterion.target_queue.vectors
    plain = copy.deepcopy(model).eval().encode_pair(batch.source, batch.target)[1]
    assert torch.allclose(keys[:4], keys[4:]) is not dropout and torch.allclose(keys[:4], plain) is not dropout


def test_starting_from_another_run(text, make_batch) -> None:
    model = make_model(text)
    old = DualMoco(DualMoco.Config(queue_size=6), model, text)
    train(model, old, make_groups(make_batch, 1)[:2])
    same, larger = (DualMoco(DualMoco.Config(queue_size=size), make_model(text), text) for size in (6, 40))
    assert load_matching(same, old.state_dict()) == [] and same.target_queue.filled == 6
    assert torch.equal(same.target_queue.vectors, old.target_queue.vectors)
    new = load_matching(larger, old.state_dict())
    assert {"source_queue.vectors", "target_queue.vectors"} < set(new)
    assert larger.source_queue.filled == larger.target_queue.filled == 0
    for mine, theirs in zip(larger.momentum_encoder.parameters(), old.momentum_encoder.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_warning_when_the_queue_exceeds_half_of_the_corpus(text) -> None:
    model = make_model(text)
    plain, masked = (
        DualMoco(DualMoco.Config(queue_size=301, mask_equal_sentences=masked), model, text) for masked in (False, True)
    )
    enough, few = SimpleNamespace(examples=602), SimpleNamespace(examples=601)
    assert plain.warnings(enough) == masked.warnings(enough) == []
    (warning,), (other,) = plain.warnings(few), masked.warnings(few)
    assert "queue_size 301 exceeds half of the 601 training pairs" in warning and "`mask_equal_sentences`" in warning
    assert "queue_size 301 exceeds half of the 601 training pairs" in other and "`mask_equal_sentences`" not in other


def test_problems() -> None:
    config = DualMoco.Config(queue_size=-1, temperature=0.0, momentum=1.5)
    assert [problem.split()[0] for problem in config.problems()] == ["queue_size", "temperature", "momentum"]
    assert DualMoco.Config().problems() == []

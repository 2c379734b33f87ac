"""dual_moco against a simulation of equations 1-3 in float64, in which lists are the queues."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.criteria.equations_vectors import cut
from tests.criteria.objectives import SMALL
from tests.criteria.steps import Groups, make_groups, train
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, with_negatives
from xrep.criteria.dual_moco import DualMoco
from xrep.models.directory import load_matching
from xrep.models.dual_encoder import DualEncoder

TAU, RATE = 0.1, 0.3


def make_model(text, dropout: float = 0.0, **options) -> DualEncoder:
    torch.manual_seed(0)
    own = {**SMALL, "layers": 1, "dropout": dropout, "attention_dropout": dropout, **options}
    return DualEncoder(DualEncoder.Config(**own), text).double()


def make(model: DualEncoder, text, **options) -> DualMoco:
    return DualMoco(DualMoco.Config(**options), model, text).double()


def simulate(
    model, groups: Groups, *, size: int, momentum: float, masked: bool, widths: tuple[int, ...] = ()
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses of the steps and the final weights of base (``base.*``) and momentum encoders (``slow.*``)."""
    base = copy.deepcopy(model)
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


RUNS = {
    "queue wraps": {"size": 10},
    "equal sentences masked": {"size": 10, "masked": True},
    "accumulation": {"towers": "shared", "size": 9, "momentum": 0.5, "masked": True, "accumulate": 2},
    "without momentum": {"size": 50, "momentum": 0.0},
    "queue below the batch": {"towers": "shared", "size": 2, "accumulate": 2},
    "no queue": {"size": 0, "accumulate": 2},
    "matryoshka": {"size": 10, "masked": True, "accumulate": 2, "widths": (9, 4)},
}


@pytest.mark.parametrize("name", RUNS)
def test_steps_equal_the_simulation(text, make_batch, name: str) -> None:
    options = {"towers": "separate", "momentum": 0.7, "masked": False, "accumulate": 1, "widths": (), **RUNS[name]}
    model = make_model(text, towers=options.pop("towers"))
    groups = make_groups(make_batch, options.pop("accumulate"))
    expected, weights = simulate(model, groups, **options)
    start = {f"base.{name}": p.detach() for name, p in copy.deepcopy(model).named_parameters()}
    given = {"queue_size": options["size"], "mask_equal_sentences": options["masked"]}
    criterion = make(
        model, text, momentum=options["momentum"], temperature=TAU, matryoshka=list(options["widths"]), **given
    )

    losses = train(model, criterion, groups, RATE)

    assert (expected[0] == losses[0] == 0) == bool(options["size"]) and expected[-1] > 0.5
    error = 1e-6 if options["widths"] else 1e-9  # queued vectors are cut in float32
    assert losses == pytest.approx(expected, rel=error)
    for part, module in (("base", model), ("slow", criterion.momentum_encoder.model)):
        for parameter_name, parameter in module.named_parameters():
            exact = weights[f"{part}.{parameter_name}"]
            torch.testing.assert_close(parameter.detach(), exact, rtol=0, atol=error, msg=parameter_name)
    assert not any(p.requires_grad or p.grad is not None for p in criterion.momentum_encoder.parameters())
    assert max(float((weights[name] - start[name]).abs().max()) for name in start) > 0.01


def test_what_enters_the_queues_and_when(text, make_batch) -> None:
    """Hard negatives do not, nor do batches of validation."""
    model, pairs = make_model(text), make_batch(sentence_pairs(3))
    batch = with_negatives(pairs, make_batch(sentence_pairs(6)[3:]).target, [0, 0, 2])
    criterion = DualMoco(DualMoco.Config(queue_size=5, queue_dtype="bfloat16"), model, text)
    loss_of(criterion.eval(), model, pairs)
    criterion.after_step(model)
    assert criterion.source_queue.filled == criterion.target_queue.filled == 0, "validation adds nothing"
    first = loss_of(criterion.train(), model, batch).terms["infonce"].sum
    assert first > 0, "the queues are empty, and the negatives are there"
    assert criterion.source_queue.filled == 0
    criterion.after_step(model)
    keys = criterion.momentum_encoder.model.encode_pair(pairs.source, pairs.target)
    for queue, own in zip((criterion.source_queue, criterion.target_queue), keys, strict=True):
        assert torch.equal(queue.vectors[:3], own.bfloat16()) and torch.equal(queue.ids[:3], pairs.ids)
    criterion.after_step(model)
    assert criterion.source_queue.filled == criterion.target_queue.filled == 3, "keys enter once"


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_of_the_keys(text, make_batch, dropout: bool) -> None:
    model, batch = make_model(text, dropout=0.3), make_batch(sentence_pairs(4))
    criterion = make(model, text, queue_size=8, momentum=1.0, momentum_dropout=dropout)
    torch.nn.ModuleList([model, criterion]).train()
    for _ in range(2):
        loss_of(criterion, model, batch)
        criterion.after_step(model)
    keys = criterion.target_queue.vectors
    plain = copy.deepcopy(model).eval().encode_pair(batch.source, batch.target)[1]
    assert torch.allclose(keys[:4], keys[4:]) is not dropout and torch.allclose(keys[:4], plain) is not dropout


def test_starting_from_another_run(text, make_batch) -> None:
    """A queue of another size begins empty, and the momentum encoder is taken over."""
    model = make_model(text)
    old = make(model, text, queue_size=6)
    train(model, old, make_groups(make_batch, 1)[:2], RATE)
    same, larger = (make(make_model(text), text, queue_size=size) for size in (6, 40))
    assert load_matching(same, old.state_dict()) == [] and same.target_queue.filled == 6
    assert torch.equal(same.target_queue.vectors, old.target_queue.vectors)
    assert {"source_queue.vectors", "target_queue.vectors"} < set(load_matching(larger, old.state_dict()))
    assert larger.source_queue.filled == larger.target_queue.filled == 0
    for mine, theirs in zip(larger.momentum_encoder.parameters(), old.momentum_encoder.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_warning_when_the_queue_exceeds_half_of_the_corpus(text) -> None:
    for masked in (False, True):
        criterion = make(make_model(text), text, queue_size=301, mask_equal_sentences=masked)
        assert criterion.warnings(SimpleNamespace(examples=602)) == []
        (warning,) = criterion.warnings(SimpleNamespace(examples=601))
        assert "queue_size 301 exceeds half of the 601 training pairs" in warning
        assert ("`mask_equal_sentences`" in warning) is not masked

"""A batch that is encoded in pieces has the same gradient as the whole batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.kernels.ranks import run_ranks
from tests.support.corpus import sentence_pairs
from tests.support.planning import plan, with_negatives
from tests.support.runs import compose_run, make_trainer
from tests.training.cache_job import KINDS, Held, Setting, batches_of, expected, make, step, total_sizes, world_of
from xrep.config import Part
from xrep.criteria.multitask import Multitask
from xrep.errors import UserError
from xrep.training.gradient_cache import GradientCache
from xrep.training.run import train

TOLERANCE = {torch.float32: 64 * torch.finfo(torch.float32).eps, torch.float64: 1e-10}
"""Largest error of a gradient, relative to its largest number: that of sums in another order over some dozen subwords,
and in float64 of the second step."""


@pytest.fixture(scope="module")
def batches(make_batch) -> list[Any]:
    """Return batches of 8 and of 5 pairs of unequal lengths, with hard negatives of some rows."""
    pairs = [(german * (1 + n % 3), english) for n, (german, english) in enumerate(sentence_pairs(13))]
    rows = [0, 0, 1, 3, 4, 4, 4]
    return [with_negatives(make_batch(some), make_batch(pairs[3:10]).target, rows) for some in (pairs[:8], pairs[8:])]


def assert_near(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> None:
    """Check that errors relative to the largest number are small."""
    assert torch.equal(one.isnan(), other.isnan()), "parameters without gradient"
    other = other.nan_to_num()
    assert other.abs().max() > 1e-4
    error = (one.nan_to_num() - other).abs().max() / other.abs().max()
    assert error <= TOLERANCE[dtype], float(error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.2},
        {"dropout": 0.2, "dtype": torch.float32},
        {"dropout": 0.2, "dtype": torch.float32, "precision": "bf16"},
    ],
    ids=["float64", "dropout", "float32", "bf16"],
)
def test_gradient_of_pieces_equals_that_of_one_graph(text, batches, kind: str, options: dict[str, Any]) -> None:
    """A step has two batches. There are two steps in float64 and with a queue, which is empty in the first; otherwise
    there is one, because rounding changes the weights of the second. Random numbers continue alike."""
    setting = Setting(kind, **options)
    given, steps = batches_of(kind, batches), 2 if setting.dtype == torch.float64 or kind == "dual_moco" else 1
    mine, theirs = (run(setting, text, given, world_of(), steps) for run in (step, expected))
    assert_near(mine.gradient, theirs.gradient, setting.dtype)
    assert mine.outcome.loss == pytest.approx(theirs.outcome.loss, rel=TOLERANCE[setting.dtype])
    assert torch.equal(mine.random, theirs.random)
    if not setting.dropout:  # the result does not depend on the pieces
        for rows in (1, 100, None):
            whole = step(Setting(kind, rows=rows), text, given, world_of())
            assert_near(mine.gradient, whole.gradient, setting.dtype)
            for name, tensor in whole.state.items():
                torch.testing.assert_close(mine.state[name], tensor, rtol=1e-9, atol=1e-9, msg=name)
            assert mine.outcome.values == pytest.approx(whole.outcome.values, rel=1e-6)
            assert mine.outcome.loss == pytest.approx(whole.outcome.loss, rel=1e-9)
    else:
        other = step(replace(setting, rows=None), text, given, world_of(), steps)
        assert not torch.allclose(mine.gradient.nan_to_num(), other.gradient.nan_to_num(), rtol=1e-3), "no dropout"


def test_forward_in_pieces_is_forward(text, batches) -> None:
    for kind in KINDS:
        (batch,) = batches_of(kind, batches)[:1]
        modules = [make(Setting(kind, rows=rows), text) for rows in (None, 3)]
        whole, pieces = (module(plan(module.criterion, batch)) for module in modules)
        assert whole.terms.keys() == pieces.terms.keys() and whole.metrics.keys() == pieces.metrics.keys()
        for name, term in whole.terms.items():
            torch.testing.assert_close(term.sum, pieces.terms[name].sum, rtol=1e-10, atol=1e-10)
            assert term.weight == pieces.terms[name].weight
        for name, metric in whole.metrics.items():
            torch.testing.assert_close(metric.double(), pieces.metrics[name].double(), rtol=1e-6, atol=1e-6)


def ranks_job(rank: int, world: int, text, batches: list[Any]) -> dict[str, Any]:
    """Return gradients of this rank's parts of the batches. One rank has no rows of the second."""
    sizes = ((0, 5), (0, 5)) if rank == 0 else ((5, 8), (5, 5))
    mine = [batch.rows(*rows) for batch, rows in zip(batches, sizes, strict=True)]
    found = {}
    for kind in KINDS:
        setting, parts, own = Setting(kind), batches_of(kind, mine), world_of(rank, world)
        cached, whole = (step(each, text, parts, own) for each in (setting, replace(setting, rows=None)))
        found[kind] = {
            "cached": cached.gradient,
            "whole": whole.gradient,
            "reductions": torch.tensor([cached.reductions, whole.reductions]),
            "state": torch.cat([tensor.double().flatten() for tensor in cached.state.values()]),
        }
        drops = replace(setting, dropout=0.2)
        cached, graph = (run(drops, text, parts[:1], own, steps=1) for run in (step, expected))
        found[kind] |= {
            "dropped": cached.gradient,
            "graph": graph.gradient,
            "losses": torch.tensor([cached.outcome.loss, graph.outcome.loss]),
        }
    return found


@pytest.mark.slow
def test_two_ranks(text, batches, tmp_path: Path) -> None:
    found = run_ranks(2, tmp_path, ranks_job, text, batches)
    for kind in KINDS:
        for mine in (rank[kind] for rank in found):
            assert_near(mine["cached"], mine["whole"], torch.float64)
            cached, whole = mine["reductions"].tolist()
            assert cached == whole > 0, "gradients are averaged once a step, not once a piece"
            assert torch.allclose(*mine["losses"], rtol=1e-9)
            if kind != "dual_moco":  # its queue is empty in the first step
                assert_near(mine["dropped"], mine["graph"], torch.float64)
        assert torch.equal(found[0][kind]["state"], found[1][kind]["state"]), "the ranks went apart"
        if kind != "parts":  # ranks cut the rows of a mixture in another way
            alone = step(Setting(kind), text, batches_of(kind, batches), world_of())
            assert_near(found[0][kind]["cached"], alone.gradient, torch.float64)


@pytest.mark.parametrize("kind", ["translation_ranking", "dual_moco"])
def test_activations_of_one_piece_are_held(text, make_batch, kind: str) -> None:
    pairs = [(german * (1 + n % 3), english) for n, (german, english) in enumerate(sentence_pairs(64))]
    peaks = []
    for rows in (None, 8):
        with Held().watching() as held:
            step(Setting(kind, dropout=0.1, rows=rows), text, [make_batch(pairs)], world_of(), steps=1)
        assert held.now == 0
        peaks.append(held.peak)
    assert peaks[1] < 0.3 * peaks[0]


def test_keys_are_encoded_once_and_in_pieces(text, batches) -> None:
    module = make(Setting("dual_moco"), text)
    rows: dict[str, list[int]] = {"queries": [], "keys": []}
    for name, model in (("queries", module.model), ("keys", module.criterion.momentum_encoder.model)):
        model.encoders["shared"].register_forward_hook(lambda _, given, __, name=name: rows[name].append(len(given[0])))
    planned = plan(module.criterion, replace(batches[0], negatives=None))
    cache = GradientCache(module.criterion, module.model, planned.pieces, torch.device("cpu"), torch.enable_grad)
    loss = cache.contrast(planned)
    cache.differentiate(loss.terms["infonce"].sum)
    for number, piece in enumerate(planned.pieces):
        encoded, own = module(piece, cache.encode(number))
        cache.backward(number, encoded, own, torch.zeros(()))
    assert rows == {"queries": [6, 6, 4] * 2, "keys": [6, 6, 4]}, "both sides, 3, 3 and 2 pairs"


@pytest.mark.slow
def test_a_run(data_directory: Path, tmp_path: Path) -> None:
    """The option works as on the command line, and a run resumes exactly, with dropout."""
    torch.set_default_dtype(torch.float64)
    try:
        options = {"criterion": "translation_ranking", "batch_size": 50, "optimizer": "sgd", "save_every": 2}
        exact = {**options, "dropout": 0, "attention_dropout": 0, "max_steps": 3}
        states = []
        for name, given in (("whole", {}), ("pieces", {"micro_batch": 8})):
            trainer = make_trainer(compose_run(data_directory, tmp_path / name, **exact, **given), tmp_path / name)
            trainer.train()
            states.append(trainer.module.state_dict())
        for name, tensor in states[0].items():
            torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=1e-12)
    finally:
        torch.set_default_dtype(torch.float32)
    steady = {**options, "micro_batch": 8, "lr_scheduler": "constant", "warmup_steps": 0}
    for name, stops in (("at once", [4]), ("in two", [2, 4])):
        for stop in stops:
            train(compose_run(data_directory, tmp_path / name, max_steps=stop, **steady))
    one, two = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("at once", "in two"))
    assert one == two


def test_what_is_not_for_pieces(data_directory: Path, two_terms, text, tmp_path: Path) -> None:
    run = compose_run(data_directory, tmp_path, criterion="two_terms", max_steps=1, micro_batch=8)
    with pytest.raises(UserError, match=r"micro_batch is for objectives that compare.*`update_freq`"):
        make_trainer(run, tmp_path)
    model = make(Setting("simcse"), text).model
    plain = Part("plain", two_terms, two_terms.Config(), 1.0, 1.0)
    with pytest.raises(UserError, match="micro_batch"):
        Multitask(Multitask.Config(parts=[plain], mixing="weight"), model, text).set_micro_batch(8)


def test_what_is_left_after_a_step_is_one_gradient(text, batches) -> None:
    """Parameters of the criterion get the gradients of the comparison and of the single rows."""
    module = make(Setting("everything"), text)
    assert isinstance(module.criterion.theta, nn.Parameter)
    found = step(Setting("everything"), text, batches, world_of(), steps=1)
    assert not found.gradient[: sum(p.numel() for p in module.model.parameters())].isnan().any()
    assert total_sizes(module, batches)["pairs"] == 13

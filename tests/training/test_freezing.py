"""Frozen parameters stay equal to the last bit, their dropout is off, and they thaw at the right step."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of
from tests.training.test_gradient_cache import Everything
from xrep.criteria.criterion import Criterion
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.models.dual_encoder import DualEncoder
from xrep.registry import OPTIMIZERS
from xrep.training.freezing import Freezing
from xrep.training.parameter_groups import parameter_groups

SMALL = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48, "projection_size": 8}


class Whole(nn.Module):
    def __init__(self, text: Any, criterion: type[Criterion], **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = DualEncoder(DualEncoder.Config(**SMALL, towers="separate", dropout=0.5), text)
        config = criterion.Config(**options) if hasattr(criterion, "Config") else None
        self.criterion = criterion(config, self.model, text)

    def step(self, optimizer: torch.optim.Optimizer, batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.criterion, self.model, batch)
        sum(term.sum / len(batch) for term in loss.terms.values()).backward()
        optimizer.step()
        self.criterion.after_step(self.model)


Make = Callable[..., Whole]


@pytest.fixture
def make(text: Any) -> Make:
    return lambda criterion=TranslationRanking, **options: Whole(text, criterion, **options)


def optimizer_of(name: str, trained: list[tuple[str, nn.Parameter]], **options: Any) -> torch.optim.Optimizer:
    part = OPTIMIZERS.load(name)
    config = part.Config(lr=0.01, **options)
    return part.build(config, parameter_groups(config, trained))


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_frozen_parameters_keep_every_bit(make: Make, make_batch: Any, name: str) -> None:
    """The source tower is always frozen, the target tower's embeddings for two steps, with weight decay."""
    module = make()
    freezing = Freezing(["encoders.source", "model.encoders.target.*_embedding@2", "*.token_embedding@1"], module)
    trained = freezing.ever_trained()
    optimizer = optimizer_of(name, trained, weight_decay=0.3)
    everything = {label for label, _ in module.named_parameters()}
    source = {label for label in everything if label.startswith("model.encoders.source.")}
    tables = {f"model.encoders.target.{kind}_embedding.weight" for kind in ("token", "position")}
    assert {label for label, _ in trained} == everything - source and len(source) == 28
    for step in range(4):
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        assert freezing.apply(step) == (step in (0, 2))
        frozen = source | (tables if step < 2 else set())
        assert {n for n, p in module.named_parameters() if not p.requires_grad} == frozen
        module.step(optimizer, make_batch(sentence_pairs(6, seed=step)))
        assert {n for n, p in module.named_parameters() if torch.equal(p, before[n])} == frozen, step


def test_momentum_encoders_never_train(make: Make, make_batch: Any) -> None:
    module = make(DualMoco, queue_size=20, momentum=0.5)
    freezing = Freezing(["encoders.source@1"], module)
    trained = freezing.ever_trained()
    assert all(name.startswith("model.") for name, _ in trained)
    optimizer = optimizer_of("adamw", trained)
    for step in range(3):
        freezing.apply(step)
        assert not any(p.requires_grad for p in module.criterion.parameters())
        assert all(part.training for part in module.criterion.modules())
        module.step(optimizer, make_batch(sentence_pairs(6, seed=step)))
    assert int(module.criterion.source_queue.filled) == 18


def test_what_was_before_the_freeze(make: Make) -> None:
    """A gradient of a frozen parameter is dropped, and a run that goes on after the thaw changes nothing."""
    module = make()
    assert Freezing([], module).ever_trained() == list(module.named_parameters())
    thawed = Freezing(["encoders.source@5"], module)
    assert not thawed.apply(5) and not thawed.apply(6)
    assert all(p.requires_grad for p in module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    Freezing(["encoders.source"], module).apply(0)
    assert all((p.grad is None) == ("source" in name) for name, p in module.model.encoders.named_parameters())


def test_dropout_is_off_where_all_is_frozen(make: Make, make_batch: Any) -> None:
    module = make()
    freezing = Freezing(
        ["encoders.source@3", "projections.source", "encoders.target.layers.0", "*.target.norm"], module
    )
    batch = make_batch(sentence_pairs(6))

    def differing() -> tuple[bool, bool]:
        """Return whether two passes of source and target tower differ."""
        first, second = (module.model.encode_pair(batch.source, batch.target) for _ in range(2))
        return not torch.equal(first[0], second[0]), not torch.equal(first[1], second[1])

    assert differing() == (True, True)
    freezing.apply(0)
    assert differing() == (False, True)
    target = module.model.encoders["target"]
    assert not target.layers[0].dropout.training and not target.layers[0].attention.training
    assert target.layers[1].dropout.training and target.dropout.training and target.training and module.model.training
    module.train()
    assert differing() == (True, True)
    freezing.train_mode()
    assert differing() == (False, True)
    assert freezing.apply(3)
    assert differing() == (True, True) and not target.layers[0].training
    module.eval()
    Freezing(["encoders.source"], module).apply(0)
    assert not any(part.training for part in module.modules())


def test_a_criterion_whose_parameters_are_frozen_still_trains(make: Make) -> None:
    """The head is frozen; a criterion fills its queue only in training mode, and its copy of the model has dropout."""
    module = make(Everything)
    Freezing(["criterion"], module).apply(0)
    assert module.criterion.training and module.training and module.model.training
    assert not any(part.training for part in module.criterion.head.modules())
    assert all(part.training for part in module.criterion.fixed.modules())
    module = make(Everything)
    Freezing(["model"], module).apply(0)
    assert all(part.training for part in module.criterion.modules())
    assert not any(part.training for part in module.model.modules())

"""Any value of any option of a criterion is refused in one line, or gives a loss and gradients that are finite."""

from __future__ import annotations

import dataclasses
import math
import typing
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.criteria.test_plans import OWN, SMALL, batch_for
from tests.support.planning import plan
from xrep.config.fields import convert
from xrep.criteria.criterion import Criterion, check_state
from xrep.data.batching import TextSpec
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.models.translation import Translation
from xrep.nn.queue import Queue
from xrep.registry import CRITERIA

NUMBERS = [0, -1, 1, 2, 7, 10**12, 2**63 - 1, 2**63, 10**30, 0.0, 1e-320, 1e-45, 1e-5, 0.3, 0.5, 1.0, 1.5, 1e4, 1e38,
           1e308, math.inf, -math.inf, math.nan, "1e400", "nan", "", "x", None, True, [], "[", "none"]  # fmt: skip
FILES = ("cache_source", "teacher_vectors", "teacher_text")
"""Options that name files; other rooms read these."""


def options_of(name: str) -> dict[str, Any]:
    """The options of a criterion with their types."""
    config = CRITERIA.load(name).Config
    hints = typing.get_type_hints(config)
    return {field.name: hints[field.name] for field in dataclasses.fields(config)}


def values_for(annotation: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return st.sampled_from([*typing.get_args(annotation), "", "x"])
    if annotation is bool:
        return st.booleans()
    usual = st.floats(0.05, 0.95) if annotation is float else st.integers(1, 3)
    return st.one_of(usual, st.sampled_from(NUMBERS), st.floats(), st.integers())


@st.composite
def chosen(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A criterion and values of up to three of its options."""
    name = draw(st.sampled_from(OWN))
    options = {option: kind for option, kind in options_of(name).items() if option not in FILES}
    some = draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)) if options else []
    return name, {option: draw(values_for(options[option])) for option in some}


def built(name: str, values: dict[str, Any], text: TextSpec) -> tuple[nn.Module, Criterion] | None:
    """A tiny model and the criterion with these options; None if they are refused, each refusal in one line."""
    kind, hints = CRITERIA.load(name), options_of(name)
    try:
        config = kind.Config(**{option: convert(value, hints[option]) for option, value in values.items()})
    except (ValueError, OverflowError, UserError):
        return None
    if problems := config.problems():
        assert all(len(problem.splitlines()) == 1 for problem in problems)
        return None
    torch.manual_seed(0)
    if name == "label_smoothed_cross_entropy":
        model: nn.Module = Translation(Translation.Config(decoder_layers=1, **SMALL), text)
    else:
        towers = "separate" if name == "frozen_source" else "shared"
        model = DualEncoder(DualEncoder.Config(towers=towers, dropout=0.0, **SMALL), text)
    try:
        return model, kind(config, model, text)
    except UserError as error:
        assert len(str(error).splitlines()) == 1
        return None


@pytest.mark.slow
def test_any_option_is_refused_or_trains(text: TextSpec, make_batch) -> None:
    """The first step has nothing in its queues, so there are two."""
    pairs = make_batch([("das Haus ist klein", "the house is small"), ("der Hund", "the dog"), ("ja", "yes")])
    counts = {"trained": 0, "refused": 0}

    def check(choice: tuple[str, dict[str, Any]]) -> None:
        parts = built(*choice, text)
        if parts is None:
            counts["refused"] += 1
            return
        model, criterion = parts
        if (
            getattr(criterion.config, "whole_word", False)
            or getattr(criterion.config, "rtl_vocabulary", "all") != "all"
        ):
            return  # these need a task
        batch, parameters = batch_for(choice[0], pairs), [*model.parameters(), *criterion.parameters()]
        for step in (0, 1):
            losses = criterion(model, plan(criterion, batch, step)).terms.values()
            loss = torch.stack([term.weight * term.sum for term in losses]).sum()
            loss.backward()
            criterion.after_step(model)
            assert loss.isfinite(), choice
        assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in parameters), choice
        counts["trained"] += 1

    quiet = settings(max_examples=400, suppress_health_check=list(HealthCheck))
    quiet(given(chosen())(check))()
    assert min(counts.values()) > 50, counts


@pytest.mark.parametrize("name", [name for name in OWN if options_of(name)])
def test_every_number_has_a_range(name: str) -> None:
    """No number takes infinity, NaN or what no machine integer holds."""
    config = CRITERIA.load(name).Config
    for option, kind in options_of(name).items():
        if kind in (int, float, float | None):
            for value in (math.inf, -math.inf, math.nan, -1, 10**30):
                assert config(**{option: value}).problems(), (option, value)


@pytest.mark.parametrize("size", [10**12, 2**62])
@pytest.mark.parametrize(
    "name, options",
    [
        ("dual_moco", {"queue_dtype": "bfloat16"}),
        ("dual_moco", {}),
        ("frozen_source", {}),
    ],
)
def test_a_queue_that_no_memory_holds_is_refused_before_it_is_made(name, options, size: int, text: TextSpec) -> None:
    kind = CRITERIA.load(name)
    towers = "separate" if name == "frozen_source" else "shared"
    model = DualEncoder(DualEncoder.Config(towers=towers, **SMALL), text)
    with pytest.raises(UserError, match=r"queues? of [0-9,]+ vectors of 16 numbers needs .* lower `queue_size`"):
        kind(kind.Config(queue_size=size, **options), model, text)


def test_a_classifier_that_no_memory_holds_is_refused(text: TextSpec) -> None:
    kind, model = CRITERIA.load("nli"), DualEncoder(DualEncoder.Config(towers="shared", **SMALL), text)
    with pytest.raises(UserError, match="hidden units needs .* lower `head_size`"):
        kind(kind.Config(head="mlp", head_size=10**12), model, text)


STATES = {
    "type": (lambda state: state.update(count=torch.tensor(1.0)), "holds numbers of type torch.float32"),
    "not finite": (lambda state: state.update(vectors=torch.full((4, 4), math.nan)), "not finite"),
    "negative count": (lambda state: state.update(count=torch.tensor(-1)), "it is a count, and negative"),
}


@pytest.mark.parametrize("name", STATES)
def test_damaged_state_is_refused_in_one_line(name: str, tmp_path) -> None:
    damage, message = STATES[name]
    queue = Queue(4, 4)
    state = dict(queue.state_dict())
    check_state(queue, state, tmp_path)
    damage(state)
    with pytest.raises(UserError) as caught:
        check_state(queue, state, tmp_path)
    assert message in str(caught.value) and len(str(caught.value).splitlines()) == 1

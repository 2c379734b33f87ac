"""Public kernels refuse arguments that do not fit, and name them; vectors of zeros have finite losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from xrep import kernels

ROWS, IDS = (3, 4), torch.zeros(3, 2, dtype=torch.int64)


def vectors(*shape: int) -> Tensor:
    return torch.ones(shape)


def usual(name: str) -> dict[str, Any]:
    """Arguments that fit."""
    pair: dict[str, Any] = {"x": vectors(3, 4), "y": vectors(3, 4), "temperature": 0.1, "ids": IDS}
    triple: dict[str, Any] = {side: vectors(3, 4) for side in ("anchor", "positive", "negative")}
    tokens: dict[str, Any] = {"hidden": vectors(3, 4), "weight": vectors(5, 4), "target": torch.tensor([0, 4, 2])}
    keys = {"query": vectors(3, 4), "positive": vectors(3, 4), "queue": vectors(6, 4), "temperature": 0.1}
    words = {"query": vectors(3, 4), "embedding": vectors(9, 4), "words": IDS, "bag": IDS == 0, "temperature": 0.1}
    own = {"loss": vectors(3), "correct": vectors(3) > 0, "query": vectors(3, 4), "positive": vectors(3, 4)}
    return {
        "add_own_negatives": own
        | {"negative": vectors(2, 4), "rows": torch.tensor([0, 1]), "temperature": 0.1, "margin": 0.0},
        "inbatch_infonce": pair | {"margin": 0.0},
        "hard_infonce": pair | {"exponent": 0.5},
        "triplet_infonce": triple | {"temperature": 0.1, "ids": torch.zeros(3, 3, dtype=torch.int64), "weight": 1.0},
        "queue_infonce": keys | {"query_ids": IDS, "queue_ids": torch.zeros(6, 2, dtype=torch.int64), "margin": 0.0},
        "linear_cross_entropy": tokens | {"bias": vectors(5), "label_smoothing": 0.1},
        "word_infonce": words | {"special": torch.tensor([0]), "samples": 2},
    }[name]


NAMES = [name for name in kernels.__all__ if name.islower()]
TENSORS = [(name, argument) for name in NAMES for argument, value in usual(name).items() if isinstance(value, Tensor)]
NUMBERS = [(name, argument) for name in NAMES for argument, value in usual(name).items() if isinstance(value, float)]
WRONG: dict[str, Callable[[Tensor], Any]] = {
    "another type": lambda tensor: tensor.double() if not tensor.is_floating_point() else tensor.long(),
    "complex": lambda tensor: tensor.to(torch.complex64),
    "one dimension more": lambda tensor: tensor.unsqueeze(0),
    "one number": lambda tensor: tensor.flatten()[0],
    "another device": lambda tensor: tensor.to("meta"),
    "a list": lambda tensor: tensor.tolist(),
}


@pytest.mark.parametrize("name", NAMES)
def test_arguments_that_fit(name: str) -> None:
    assert vars(kernels)[name](**usual(name))[0].isfinite().all()


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name, argument", TENSORS, ids=str)
def test_tensors_that_do_not_fit_are_named(name: str, argument: str, wrong: str) -> None:
    arguments = usual(name)
    arguments[argument] = WRONG[wrong](arguments[argument])
    first = argument == next(iter(arguments)) and wrong == "another device"  # then all others are on another device
    with pytest.raises(ValueError, match=rf"^{'' if first else argument}\w* must "):
        vars(kernels)[name](**arguments)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name, argument", NUMBERS, ids=str)
def test_numbers_that_do_not_fit_are_named(name: str, argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{argument} must "):
        vars(kernels)[name](**{**usual(name), argument: value})


@pytest.mark.parametrize(
    "name, change, message",
    [
        ("word_infonce", {"samples": 0}, "samples must be finite and at least 1"),
        ("word_infonce", {"embedding": vectors(0, 4)}, "embedding must have at least one row"),
        ("word_infonce", {"words": IDS + 9}, r"words must lie in \[0, 9\), not 9 to 9"),
        ("word_infonce", {"words": IDS - 1}, r"words must lie in \[0, 9\), not -1 to -1"),
        ("word_infonce", {"special": torch.tensor([0, 2**40])}, r"special must lie in \[0, 9\)"),
        ("linear_cross_entropy", {"target": torch.tensor([0, 5, 0])}, "target 5 is neither"),
        ("linear_cross_entropy", {"bias": vectors(2, 5), "groups": torch.tensor([0, 2, 0])}, "groups must lie in"),
        ("queue_infonce", {"valid": 7}, "valid must lie in"),
        ("inbatch_infonce", {"temperature": 0.0}, "temperature must be finite and above 0"),
    ],
)
def test_values_that_do_not_fit_are_named(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        vars(kernels)[name](**{**usual(name), **change})


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_zeros_have_finite_losses_and_gradients(name: str) -> None:
    arguments = {
        key: torch.zeros_like(value).requires_grad_(key != "queue")
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
        for key, value in usual(name).items()
    }
    loss = vars(kernels)[name](**arguments)[0].sum()
    loss.backward()
    gradients = [each.grad for each in arguments.values() if isinstance(each, Tensor) and each.requires_grad]
    assert loss.isfinite() and all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_vector_that_is_not_finite_shows_in_the_loss(name: str, value: float) -> None:
    """So the trainer, which stops at such a loss, notices it."""
    arguments = usual(name)
    first = next(name for name, argument in arguments.items() if isinstance(argument, Tensor) and argument.dim() == 2)
    arguments[first] = arguments[first].clone()
    arguments[first][1, 2] = value
    assert not vars(kernels)[name](**arguments)[0].sum().isfinite()

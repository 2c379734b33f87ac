"""Optimizers against plain arithmetic, and the rate and decay of each parameter of a real encoder."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from xrep.config import problems_of
from xrep.models.dual_encoder import DualEncoder
from xrep.registry import OPTIMIZERS
from xrep.training.parameter_groups import matching, parameter_groups

Named = list[tuple[str, nn.Parameter]]


def build(name: str, named: Named, **options: Any) -> torch.optim.Optimizer:
    part = OPTIMIZERS.load(name)
    config = part.Config(**options)
    assert problems_of(config) == []
    return part.build(config, parameter_groups(config, named))


def make_parameters(dtype: torch.dtype = torch.float64) -> Named:
    """Parameters: matrices (one is zero, one gets no gradient), a bias and a temperature."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"small": (3, 5), "large": (40, 7), "zero": (4, 4), "idle": (2, 3), "bias": (6,), "temperature": ()}
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    values["zero"].zero_()
    values["large"] *= 30
    return [(f"model.{name}", nn.Parameter(value.to(dtype))) for name, value in values.items()]


def gradient(name: str, step: int, parameter: Tensor) -> Tensor | None:
    """None for ``small`` in its first steps (it is frozen), 0 for ``idle`` and at first for ``zero``."""
    if name == "model.small" and step < 3:
        return None
    generator = torch.Generator().manual_seed(1000 * step + len(name))
    value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
    idle = name == "model.idle" or (name == "model.zero" and step == 0)
    return torch.zeros_like(value) if idle else value


def run(optimizer: torch.optim.Optimizer, named: Named, steps: range) -> None:
    for step in steps:
        for name, parameter in named:
            parameter.grad = gradient(name, step, parameter)
        optimizer.step()


LR, DECAY, EPSILON = 0.05, 0.1, 1e-4
BETAS = (0.9, 0.95)


def adam(x: Tensor, g: Tensor, t: int, state: dict[str, Tensor]) -> Tensor:
    """Return the direction of Adam (Kingma and Ba 2015) at the t-th update."""
    state["m"] = BETAS[0] * state.get("m", 0.0) + (1 - BETAS[0]) * g
    state["v"] = BETAS[1] * state.get("v", 0.0) + (1 - BETAS[1]) * g**2
    m, v = state["m"] / (1 - BETAS[0] ** t), state["v"] / (1 - BETAS[1] ** t)
    return m / (v.sqrt() + EPSILON)


def adamw(x: Tensor, g: Tensor, t: int, state: dict[str, Tensor]) -> Tensor:
    return x * (1 - LR * (DECAY if x.ndim > 1 else 0)) - LR * adam(x, g, t, state)


def lamb(x: Tensor, g: Tensor, t: int, state: dict[str, Tensor], decay: float = DECAY) -> Tensor:
    """Algorithm 2 of You et al. 2020. A step of a matrix has the length of a share of the matrix."""
    r = adam(x, g, t, state)
    if x.ndim < 2:
        return x - LR * r
    r = r + decay * x
    return x - LR * r * (x.norm() / r.norm() if x.norm() > 0 and r.norm() > 0 else 1.0)


def sgd(x: Tensor, g: Tensor, t: int, state: dict[str, Tensor]) -> Tensor:
    state["m"] = 0.9 * state.get("m", 0.0) + g + (DECAY if x.ndim > 1 else 0) * x
    return x - LR * state["m"]


OWN = {"adamw": {"adam_eps": EPSILON, "betas": [*BETAS]}, "lamb": {"lamb_eps": EPSILON, "betas": [*BETAS]}, "sgd": {}}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("name", "options", "by_hand"), [
    ("adamw", {}, adamw),
    ("lamb", {}, lamb),
    ("lamb", {"weight_decay": 0.0}, lambda *given: lamb(*given, decay=0.0)),
    ("sgd", {}, sgd),
])  # fmt: skip
def test_steps_are_those_of_the_formula(name: str, options: dict[str, Any], by_hand: Any, dtype: torch.dtype) -> None:
    named = make_parameters(dtype)
    run(build(name, named, **{"lr": LR, "weight_decay": DECAY, **OWN[name], **options}), named, range(7))
    for (label, found), (_, start) in zip(named, make_parameters(), strict=True):
        x, state = start.detach(), dict[str, Tensor]()
        gradients = [gradient(label, step, x) for step in range(7)]
        for t, g in enumerate((g for g in gradients if g is not None), start=1):
            x = by_hand(x, g, t, state)
        error = (found.double() - x).norm() / x.norm()
        assert error <= (1e-12 if dtype == torch.float64 else 2e-5), label


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def named(text: Any) -> Named:
    """The parameters of an encoder of two layers, and a temperature and a head of the criterion."""
    small = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
    model = DualEncoder(DualEncoder.Config(**small, projection_size=8, towers="shared"), text)
    own = {"temperature": torch.zeros(()), "head.layers.0.weight": torch.zeros(3, 3)}
    found = [(f"model.{name}", p) for name, p in model.named_parameters()]
    return found + [(f"criterion.{name}", nn.Parameter(value)) for name, value in own.items()]


def rates_and_decays(optimizer: torch.optim.Optimizer, named: Named) -> dict[str, tuple[float, float]]:
    labels = {id(parameter): name for name, parameter in named}
    found = [
        (labels[id(parameter)], (group["lr_scale"], group["weight_decay"]))
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    assert sorted(label for label, _ in found) == sorted(labels.values())
    return dict(found)


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_matrices_alone_decay(named: Named, name: str) -> None:
    optimizer = build(name, named, weight_decay=0.5, lr=0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    expected = {label: (1.0, 0.5 if parameter.ndim == 2 else 0.0) for label, parameter in named}
    assert rates_and_decays(optimizer, named) == expected


def test_rates_by_pattern(named: Named) -> None:
    patterns = ["encoders.*=0.5", "encoders.shared.layers.1.*_norm=3", "criterion=10", "*.temperature=0"]
    optimizer = build("adamw", named, lr=0.1, lr_multipliers=patterns)
    found = {name: scale for name, (scale, _) in rates_and_decays(optimizer, named).items()}
    encoder = "model.encoders.shared"
    expected = {
        f"{encoder}.token_embedding.weight": 0.5,
        f"{encoder}.layers.0.attention_norm.weight": 0.5,
        f"{encoder}.layers.1.attention.qkv.weight": 0.5,
        f"{encoder}.layers.1.attention_norm.weight": 3.0,
        "model.projections.shared.weight": 1.0,
        "criterion.head.layers.0.weight": 10.0,
        "criterion.temperature": 0.0,
    }
    assert {name: found[name] for name in expected} == expected
    assert all(group["lr"] == 0.1 * group["lr_scale"] for group in optimizer.param_groups)
    kinds = [(group["lr_scale"], group["weight_decay"]) for group in optimizer.param_groups]
    assert len(set(kinds)) == len(kinds)


def test_what_patterns_match() -> None:
    names = ["model.encoders.source.norm.weight", "model.encoders.source2.norm.weight", "criterion.encoders.x"]
    expected = {
        "encoders.source": names[:1], "model.encoders.source": names[:1], "encoders.source*": names[:2],
        "*.norm": names[:2], "encoders": names[:2], "*encoders*": names, "criterion": names[2:],
    }  # fmt: skip
    assert {pattern: matching(pattern, names, "x") for pattern in expected} == expected

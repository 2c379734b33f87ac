"""Optimizers against plain arithmetic, and the rate and decay of each parameter of a real encoder."""

from __future__ import annotations

import io
import math

import pytest
import torch
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.registry import OPTIMIZERS
from xrep.training.parameter_groups import layer_exponents, matching, parameter_groups


def build(name: str, named: list[tuple[str, nn.Parameter]], **options) -> torch.optim.Optimizer:
    part = OPTIMIZERS.load(name)
    config = part.Config(**options)
    assert config.problems() == []
    return part.build(config, parameter_groups(config, named, [label for label, _ in named]))


def make_parameters(dtype: torch.dtype = torch.float64) -> list[tuple[str, nn.Parameter]]:
    """Parameters: matrices (one is zero, one gets no gradient), a bias and a temperature."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"small": (3, 5), "large": (40, 7), "zero": (4, 4), "idle": (2, 3), "bias": (6,), "temperature": ()}
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    values["zero"].zero_()
    values["large"] *= 30
    return [(f"model.{name}", nn.Parameter(value.to(dtype))) for name, value in values.items()]


def gradient(name: str, step: int, parameter: Tensor) -> Tensor | None:
    """Set gradients: none for ``small`` in its first steps (it is frozen), 0 for ``idle`` and at first for ``zero``."""
    if name == "model.small" and step < 3:
        return None
    generator = torch.Generator().manual_seed(1000 * step + len(name))
    value = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
    idle = name == "model.idle" or (name == "model.zero" and step == 0)
    return torch.zeros_like(value) if idle else value


def run(optimizer: torch.optim.Optimizer, named: list[tuple[str, nn.Parameter]], steps: range) -> None:
    for step in steps:
        for name, parameter in named:
            parameter.grad = gradient(name, step, parameter)
        optimizer.step()


def lamb_by_hand(steps: int, lr: float, decay: float, epsilon: float, correction: bool) -> dict[str, Tensor]:
    """Compute algorithm 2 of You et al. 2020 for one parameter and one step after the other."""
    results = {}
    for name, parameter in make_parameters():
        x = parameter.detach().clone()
        m, v, t = torch.zeros_like(x), torch.zeros_like(x), 0
        for step in range(steps):
            g = gradient(name, step, x)
            if g is None:
                continue
            t += 1
            m = 0.9 * m + 0.1 * g
            v = 0.95 * v + 0.05 * g**2
            m_hat, v_hat = (m / (1 - 0.9**t), v / (1 - 0.95**t)) if correction else (m, v)
            r = m_hat / (v_hat.sqrt() + epsilon)
            if x.ndim < 2:
                x = x - lr * r
                continue
            r = r + decay * x
            norms = x.norm(), r.norm()
            ratio = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
            x = x - lr * ratio * r
        results[name] = x
    return results


@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lamb_is_algorithm_2(correction: bool, decay: float) -> None:
    expected = lamb_by_hand(7, 0.05, decay, 1e-4, correction)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        named = make_parameters(dtype)
        options = {"lr": 0.05, "weight_decay": decay, "betas": [0.9, 0.95], "lamb_eps": 1e-4}
        run(build("lamb", named, bias_correction=correction, **options), named, range(7))
        for name, parameter in named:
            error = (parameter.double() - expected[name]).norm() / expected[name].norm()
            assert error <= tolerance, name
            assert parameter.isfinite().all()


def test_a_step_of_lamb_is_as_long_as_a_share_of_the_matrix() -> None:
    named = [(name, p) for name, p in make_parameters() if name in ("model.small", "model.large")]
    before = [p.detach().clone() for _, p in named]
    run(build("lamb", named, lr=0.02), named, range(5, 6))
    lengths = [float((p.detach() - old).norm() / old.norm()) for (_, p), old in zip(named, before, strict=True)]
    assert lengths == pytest.approx([0.02, 0.02], rel=1e-12)


def test_sgd_with_momentum_by_hand() -> None:
    (name, parameter), *_ = named = make_parameters()[1:2]
    x, buffer = parameter.detach().clone(), torch.zeros_like(parameter)
    run(build("sgd", named, lr=0.1, weight_decay=0.3), named, range(5))
    for step in range(5):
        buffer = 0.9 * buffer + gradient(name, step, x) + 0.3 * x
        x = x - 0.1 * buffer
    assert torch.allclose(parameter, x, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_a_saved_state_goes_on_bit_for_bit(name: str) -> None:
    """The state is saved before ``small`` has one of its own."""
    given = {"lr": 0.01, "weight_decay": 0.1, "lr_multipliers": ["large=0.5"]}
    whole, halves = make_parameters(torch.float32), make_parameters(torch.float32)
    run(build(name, whole, **given), whole, range(8))
    first = build(name, halves, **given)
    run(first, halves, range(3))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    again = build(name, halves, **given)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert [group["lr_scale"] for group in again.param_groups] == [1.0, 0.5, 1.0]
    run(again, halves, range(3, 8))
    for (label, mine), (_, theirs) in zip(halves, whole, strict=True):
        assert torch.equal(mine, theirs), label


# -- groups -----------------------------------------------------------------------------------------------------------


def make_model(text, **options) -> DualEncoder:
    torch.manual_seed(0)
    small = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
    return DualEncoder(DualEncoder.Config(**{**small, "projection_size": 8, **options}), text)


def named_parameters(text) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of an encoder of two layers, and a temperature and a head of the criterion."""
    named = [(f"model.{name}", p) for name, p in make_model(text, towers="shared").named_parameters()]
    own = {"temperature": torch.zeros(()), "head.layers.0.weight": torch.zeros(3, 3)}
    return named + [(f"criterion.{name}", nn.Parameter(value)) for name, value in own.items()]


def rates_and_decays(optimizer: torch.optim.Optimizer, named) -> dict[str, tuple[float, float]]:
    labels = {id(parameter): name for name, parameter in named}
    found = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert labels[id(parameter)] not in found
            found[labels[id(parameter)]] = (group["lr_scale"], group["weight_decay"])
    assert set(found) == set(labels.values())
    return found


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_matrices_alone_decay(text, name: str) -> None:
    named = named_parameters(text)
    optimizer = build(name, named, weight_decay=0.5, no_decay=["*_embedding"], lr=0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]
    found = rates_and_decays(optimizer, named)
    decaying = {label for label, (_, decay) in found.items() if decay == 0.5}
    matrices = {label for label, parameter in named if parameter.ndim == 2}
    tables = {f"model.encoders.shared.{kind}_embedding.weight" for kind in ("token", "position")}
    assert decaying == matrices - tables and tables < matrices
    assert all(found[label] == (1.0, 0.0) for label in found.keys() - decaying)
    for label in ("model.encoders.shared.norm.weight", "model.encoders.shared.layers.1.feedforward_in.bias"):
        assert label not in decaying


def test_rates_by_pattern_and_by_layer(text) -> None:
    named = named_parameters(text)
    patterns = ["encoders.*=0.5", "encoders.shared.layers.1.*_norm=3", "criterion=10", "*.temperature=0"]
    given = {"lr": 0.1, "lr_multipliers": patterns, "layer_decay": 0.5}
    optimizer = build("adamw", named, **given)
    found = {name: scale for name, (scale, _) in rates_and_decays(optimizer, named).items()}
    encoder = "model.encoders.shared"
    assert found[f"{encoder}.token_embedding.weight"] == 0.5 * 0.5**3
    assert found[f"{encoder}.norm.bias"] == 0.5 * 0.5**3
    assert found[f"{encoder}.layers.0.attention.qkv.weight"] == 0.5 * 0.5**2
    assert found[f"{encoder}.layers.1.attention.qkv.weight"] == 0.5 * 0.5
    assert found[f"{encoder}.layers.1.attention_norm.weight"] == 3 * 0.5
    assert found["criterion.head.layers.0.weight"] == 10 and found["criterion.temperature"] == 0
    (projection,) = {found[name] for name in found if name.startswith("model.projections")}
    assert projection == 1.0
    assert all(group["lr"] == 0.1 * group["lr_scale"] for group in optimizer.param_groups)
    order = [(group["lr_scale"], group["weight_decay"]) for group in optimizer.param_groups]
    again = build("adamw", named, **given)
    assert order == [(group["lr_scale"], group["weight_decay"]) for group in again.param_groups]
    assert len(set(order)) == len(order)


def test_towers_of_different_depth() -> None:
    names = [f"model.encoders.{tower}.layers.{k}.x" for tower, depth in (("a", 12), ("b", 3)) for k in range(depth)]
    found = layer_exponents([*names, "model.encoders.b.token_embedding.weight", "model.encoders.bb.x"])
    assert found["model.encoders.a.layers.0.x"] == 12 and found["model.encoders.a.layers.11.x"] == 1
    assert found["model.encoders.b.layers.0.x"] == 3 and found["model.encoders.b.token_embedding.weight"] == 4
    assert "model.encoders.bb.x" not in found


def test_what_patterns_match() -> None:
    names = ["model.encoders.source.norm.weight", "model.encoders.source2.norm.weight", "criterion.encoders.x"]
    assert matching("encoders.source", names, "x") == names[:1]
    assert matching("model.encoders.source", names, "x") == names[:1]
    assert matching("encoders.source*", names, "x") == names[:2]
    assert matching("*.norm", names, "x") == names[:2]
    assert matching("encoders", names, "x") == names[:2]
    assert matching("*encoders*", names, "x") == names
    assert matching("criterion", names, "x") == names[2:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"lr_multipliers": ["encoder.*=2"]},
            "lr_multipliers: 'encoder.*' matches no parameter that trains; did you mean 'encoders'",
        ),
        (
            {"no_decay": ["Criterion"]},
            "no_decay: 'Criterion' matches no parameter that trains; did you mean 'criterion",
        ),
        (
            {"no_decay": ["zzz"]},
            "'zzz' matches no parameter that trains; known: model.encoders.shared, model.projections.shared, "
            "criterion.temperature, criterion.head.layers",
        ),
    ],
)
def test_a_pattern_that_matches_nothing(text, options, message: str) -> None:
    with pytest.raises(UserError) as error:
        build("lamb", named_parameters(text), **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_layers_that_are_frozen_count() -> None:
    """The rate of a layer is the same whether or not the layers above it train."""
    named = [(f"model.encoder.layers.{k}.weight", nn.Parameter(torch.ones(2, 2))) for k in range(4)]
    part = OPTIMIZERS.load("sgd")
    config = part.Config(layer_decay=0.5)
    whole = parameter_groups(config, named, [name for name, _ in named])
    assert [group["lr_scale"] for group in whole] == [0.5**4, 0.5**3, 0.5**2, 0.5]
    lower = parameter_groups(config, named[:2], [name for name, _ in named])
    assert [group["lr_scale"] for group in lower] == [0.5**4, 0.5**3]


def test_layer_decay_without_layers() -> None:
    with pytest.raises(UserError, match="layer_decay: no layer of the model trains; leave it at 1"):
        build("adamw", make_parameters(), layer_decay=0.9)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("adamw", {"lr": math.nan}, "lr must be finite, not nan"),
        ("adamw", {"betas": []}, "betas must be two numbers in [0, 1), not []"),
        ("lamb", {"weight_decay": -1.0}, "weight_decay must be at least 0, not -1.0"),
        ("lamb", {"lamb_eps": -1.0}, "lamb_eps must be at least 0, not -1.0"),
        ("lamb", {"betas": [0.9, 1.0]}, "betas must be two numbers in [0, 1), not [0.9, 1.0]"),
        ("sgd", {"sgd_momentum": 1.0}, "sgd_momentum must lie in [0, 1), not 1.0"),
        ("sgd", {"nesterov": True, "sgd_momentum": 0.0}, "nesterov needs sgd_momentum above 0"),
        ("sgd", {"layer_decay": 0.0}, "layer_decay must lie in (0, 1], not 0.0"),
    ],
)
def test_refused_options(name: str, options, problem: str) -> None:
    assert OPTIMIZERS.load(name).Config(**options).problems() == [problem]


@pytest.mark.parametrize("given", ["encoders", "encoders=x", "=2", "encoders=-1", "encoders=inf"])
def test_refused_multipliers(given: str) -> None:
    problem = f"lr_multipliers must be PATTERN=FACTOR with a factor of at least 0, not {given!r}"
    assert OPTIMIZERS.load("adamw").Config(lr_multipliers=[given]).problems() == [problem]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lr"), [("adamw", 3e-3), ("lamb", 3e-2)])
def test_adaptive_optimizers_learn(text, make_batch, name: str, lr: float) -> None:
    """With translations among 32 in both directions, the loss falls below half of that of guessing. Plain SGD, whose
    arithmetic is checked above, is left out because it hardly trains a post-norm transformer."""
    model = make_model(text, towers="shared", dropout=0.0, attention_dropout=0.0)
    criterion = TranslationRanking(TranslationRanking.Config(), model, text)
    batch = make_batch(sentence_pairs(32))
    named = [(f"model.{label}", p) for label, p in model.named_parameters()]
    optimizer = build(name, named, lr=lr, lr_multipliers=["*_embedding=0.9"])
    losses = []
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        loss = sum(term.sum for term in loss_of(criterion, model, batch).terms.values()) / len(batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * 2 * math.log(32), losses

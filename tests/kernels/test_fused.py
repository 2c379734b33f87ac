"""Where Triton's kernels are used, their check at their first use, and the message about it."""

import functools
import importlib.util
import re
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from xrep.kernels import fused, precision, softmax
from xrep.kernels.fused import describe, steps_for, triton_problem, uses_triton

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_triton_is_for_gpus_alone_and_need_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "triton_problem", lambda device: None)
    assert uses_triton(GPU) and not uses_triton(CPU) and steps_for(CPU) is softmax
    assert describe(GPU) == "triton"
    monkeypatch.setattr(fused, "triton_problem", triton_problem.__wrapped__)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not uses_triton(GPU) and steps_for(GPU) is softmax
    assert describe(GPU) == "plain torch (Triton is not installed)"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernels on this machine, where a GPU runs them or the interpreter, before their first use."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # it is read when the kernels are imported
    module = pytest.importorskip("xrep.kernels.triton_kernels", reason="Triton is not installed")
    triton_problem.cache_clear()
    yield module
    triton_problem.cache_clear()


@pytest.mark.slow
def test_kernels_that_agree_with_plain_torch_are_used(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", broken)
    assert triton_problem(GPU if torch.cuda.is_available() else CPU) is None
    # A run draws the same numbers, whenever it uses a kernel first.
    assert torch.equal(torch.get_rng_state(), before)


def wrong_weights(scores: torch.Tensor, *others: object) -> torch.Tensor:
    return softmax.absorb(scores + scores.square() / 2, *others)


def broken(*arguments: object) -> None:
    raise RuntimeError("no such instruction\nin line 3")


@pytest.mark.slow
@pytest.mark.parametrize("function, reason", [
    (wrong_weights, r"differ from plain torch here \(queue_infonce, torch.float32, by \S+\)"),
    (broken, "fail here: no such instruction"),
])  # fmt: skip
def test_kernels_that_do_not_are_left_with_a_warning(function, reason, kernels, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "absorb", function)
    if not torch.cuda.is_available():  # the check of the GPU that is not here is made on the CPU
        problem = triton_problem.__wrapped__
        monkeypatch.setattr(fused, "triton_problem", functools.cache(lambda device: problem(CPU)))
    with pytest.warns(UserWarning, match=f"Triton's kernels {reason}; plain torch is used"):
        assert not uses_triton(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps_for(GPU) is softmax
        assert re.fullmatch(rf"plain torch \(Triton's kernels {reason}\)", describe(GPU))


@pytest.mark.parametrize("exact", [True, False])
def test_the_float32_product_is_told(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: exact)
    assert describe(CPU) == f"plain torch, {'fast' if exact else 'default'} float32 products"

"""Which implementation runs, and the message about it."""

from __future__ import annotations

import functools
import importlib.util
import re
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from xrep.kernels import chunked_steps, paths, precision
from xrep.kernels.first_use import kernel_problem
from xrep.kernels.paths import describe, path_for, set_path, steps_for, triton_problem, use_path

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    triton_problem.cache_clear()
    yield
    set_path("auto")
    triton_problem.cache_clear()


def machine(monkeypatch: pytest.MonkeyPatch, *, triton: bool, gpu: bool) -> None:
    """Pretend that there are Triton and a GPU, or that there are none."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if triton else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    triton_problem.cache_clear()


@pytest.mark.parametrize("path", ["auto", "reference", "chunked"])
def test_a_path_is_chosen_for_a_while_or_for_good(path: str) -> None:
    expected = "chunked" if path == "auto" else path
    with use_path("reference"):
        with pytest.raises(RuntimeError, match="inside"), use_path(path):
            assert path_for(CPU) == expected
            raise RuntimeError("inside")
        assert path_for(CPU) == describe(CPU) == "reference"
    assert path_for(CPU) == "chunked"
    set_path(path)
    assert path_for(CPU) == expected


@pytest.mark.parametrize(
    "triton, gpu, path, reason",
    [
        (False, True, "triton", "the triton path cannot run here: Triton is not installed"),
        (True, False, "triton", "the triton path cannot run here: there is no CUDA GPU"),
        (False, False, "fast", "no kernel path 'fast'; there are auto, reference, chunked, triton"),
    ],
)
def test_a_path_that_cannot_run_is_refused_and_nothing_changes(
    triton: bool, gpu: bool, path: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, triton=triton, gpu=gpu)
    set_path("reference")
    for choose in (set_path, lambda path: use_path(path).__enter__()):
        with pytest.raises(ValueError, match=reason):
            choose(path)
    assert path_for(CPU) == "reference"
    set_path("auto")
    assert path_for(GPU) == "chunked" and steps_for(GPU) is steps_for(CPU) is chunked_steps
    assert path == "fast" or describe(GPU) == f"chunked ({reason.partition(': ')[2]})"


def test_triton_is_for_gpus_alone_but_for_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, triton=True, gpu=True)
    monkeypatch.setattr(paths, "kernel_check", lambda device: None)
    assert path_for(GPU) == describe(GPU) == "triton" and path_for(CPU) == "chunked"
    with use_path("triton"), pytest.raises(ValueError, match="the triton path needs tensors on a GPU, not on cpu"):
        path_for(CPU)
    with use_path("chunked"):
        assert path_for(GPU) == describe(GPU) == "chunked"
    machine(monkeypatch, triton=True, gpu=False)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with use_path("triton"):
        assert path_for(CPU) == "triton"
    assert path_for(CPU) == "chunked"


@pytest.fixture
def triton_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernels on this machine, where a GPU runs them or the interpreter, before their first use."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # it is read when the kernels are imported
    steps = pytest.importorskip("xrep.kernels.triton_steps", reason="Triton is not installed")
    kernel_problem.cache_clear()
    yield steps
    kernel_problem.cache_clear()


@pytest.mark.slow
def test_kernels_that_agree_with_the_reference_are_used(triton_steps: ModuleType, monkeypatch) -> None:
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", broken)
    assert kernel_problem(GPU if torch.cuda.is_available() else CPU) is None
    # A run draws the same numbers, whenever it uses a kernel first.
    assert torch.equal(torch.get_rng_state(), before)


def wrong_weights(scores: torch.Tensor, *others: object) -> torch.Tensor:
    return chunked_steps.absorb(scores + scores.square() / 2, *others)


def broken(*arguments: object) -> None:
    raise RuntimeError("no such instruction\nin line 3")


@pytest.mark.slow
@pytest.mark.parametrize(
    "function, reason",
    [
        (wrong_weights, r"differ from the reference here \(queue_infonce, torch.float32, by \S+\)"),
        (broken, "fail here: no such instruction"),
    ],
)
def test_kernels_that_do_not_are_left_with_a_warning(function, reason, triton_steps, monkeypatch) -> None:
    monkeypatch.setattr(triton_steps, "absorb", function)
    if not torch.cuda.is_available():  # the check of the GPU that is not here is made on the CPU
        problem = kernel_problem.__wrapped__
        monkeypatch.setattr(paths, "kernel_check", functools.cache(lambda device: problem(CPU)))
    with pytest.warns(UserWarning, match=f"Triton's kernels {reason}; the chunked kernels are used"):
        assert path_for(GPU) == "chunked"
    with warnings.catch_warnings(action="error"):
        assert steps_for(GPU) is chunked_steps
        assert re.fullmatch(rf"chunked \(Triton's kernels {reason}\)", describe(GPU))


@pytest.mark.parametrize("exact", [True, False])
def test_the_float32_product_is_told(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: exact)
    kind = "fast" if exact else "default"
    assert describe(CPU) == f"chunked, {kind} float32 products"
    with precision.exact_products():
        assert describe(CPU) == "chunked, default float32 products"

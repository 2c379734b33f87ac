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

from tests.support.closeness import assert_near
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
        with use_path(path):
            assert path_for(CPU) == expected
        assert path_for(CPU) == "reference"
        with pytest.raises(RuntimeError, match="inside"), use_path(path):
            raise RuntimeError("inside")
        assert path_for(CPU) == "reference"
    assert path_for(CPU) == "chunked"
    set_path(path)
    assert path_for(CPU) == expected


@pytest.mark.parametrize("choose", [set_path, lambda path: use_path(path).__enter__()], ids=["set_path", "use_path"])
def test_an_unknown_path_is_refused_and_nothing_changes(choose) -> None:
    set_path("reference")
    with pytest.raises(ValueError, match="no kernel path 'fast'; there are auto, reference, chunked, triton"):
        choose("fast")
    assert path_for(CPU) == "reference"


@pytest.mark.parametrize(
    "triton, gpu, reason", [(False, True, "Triton is not installed"), (True, False, "there is no CUDA GPU")]
)
def test_triton_is_refused_where_it_cannot_run(triton, gpu, reason, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, triton=triton, gpu=gpu)
    set_path("reference")
    with pytest.raises(ValueError, match=f"the triton path cannot run here: {reason}"):
        set_path("triton")
    assert path_for(CPU) == "reference"
    set_path("auto")
    assert path_for(GPU) == path_for(CPU) == "chunked"
    assert steps_for(GPU) is steps_for(CPU) is chunked_steps
    assert describe(GPU) == f"chunked ({reason})"


def test_triton_is_for_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, triton=True, gpu=True)
    monkeypatch.setattr(paths, "kernel_check", lambda device: None)
    assert path_for(GPU) == describe(GPU) == "triton" and path_for(CPU) == "chunked"
    with use_path("triton"):
        assert path_for(GPU) == "triton"
        with pytest.raises(ValueError, match="the triton path needs tensors on a GPU, not on cpu"):
            path_for(CPU)
    with use_path("chunked"):
        assert path_for(GPU) == describe(GPU) == "chunked"


def test_the_interpreter_runs_triton_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_kernels_that_agree_with_the_reference_are_used(
    triton_steps: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_rng_state()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", broken)
    assert kernel_problem(GPU if torch.cuda.is_available() else CPU) is None
    # A run draws the same numbers, whenever it uses a kernel first.
    assert torch.equal(torch.get_rng_state(), before)


def wrong_weights(scores: torch.Tensor, *others: object) -> torch.Tensor:
    return chunked_steps.absorb(scores + scores.square() / 2, *others)


def broken(*arguments: object) -> None:
    raise RuntimeError("no such instruction\nin line 3")


@pytest.mark.parametrize(
    "function, reason",
    [
        (wrong_weights, r"differ from the reference here \(queue_infonce, torch.float32, by \S+\)"),
        (broken, "fail here: no such instruction"),
    ],
)
def test_kernels_that_do_not_are_left_with_a_warning(
    function, reason, triton_steps: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_steps, "absorb", function)
    if not torch.cuda.is_available():  # the check of the GPU that is not here is made on the CPU
        problem = kernel_problem.__wrapped__
        monkeypatch.setattr(paths, "kernel_check", functools.cache(lambda device: problem(CPU)))
    with pytest.warns(UserWarning, match=f"Triton's kernels {reason}; the chunked kernels are used"):
        assert path_for(GPU) == "chunked"
    with warnings.catch_warnings(action="error"):
        assert steps_for(GPU) is chunked_steps
        assert re.fullmatch(rf"chunked \(Triton's kernels {reason}\)", describe(GPU))


def test_the_reference_path_needs_no_steps() -> None:
    with use_path("reference"):
        assert describe(CPU) == describe(GPU) == "reference"


@pytest.mark.parametrize("exact", [True, False])
def test_the_float32_product_is_told(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: exact)
    assert describe(CPU) == f"chunked, {'fast' if exact else 'default'} float32 products"
    with precision.default_float32_products():
        assert describe(CPU) == "chunked, default float32 products"
    assert describe(CPU) == f"chunked, {'fast' if exact else 'default'} float32 products"


def test_default_float32_products_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: True)
    tensor, usual = torch.ones(1), torch.get_float32_matmul_precision()

    def seen() -> str:
        with precision.fast_products(tensor):
            return torch.get_float32_matmul_precision()

    assert seen() == "medium" and precision.takes_fast_product(tensor)
    with pytest.raises(RuntimeError, match="inside"), precision.default_float32_products():
        assert seen() == usual and not precision.takes_fast_product(tensor)
        with precision.default_float32_products():
            assert seen() == usual
        assert seen() == usual
        raise RuntimeError("inside")
    assert seen() == "medium"


def test_a_product_that_rounds_its_inputs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = precision.fast_float32_is_exact.__wrapped__
    assert probe() == precision.fast_float32_is_exact()
    product = torch.Tensor.__matmul__

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        medium = torch.get_float32_matmul_precision() == "medium"
        return product(a.bfloat16().float(), b) if medium else product(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not probe()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_sums_are_kept_in_float32_at_least(dtype: torch.dtype) -> None:
    single, given = torch.ones(1), torch.ones(1, dtype=dtype)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert precision.accumulation_dtype(given) == precision.operand_dtype(given) == expected
    assert precision.accumulation_dtype(single, given) == precision.accumulation_dtype(given, single) == expected


def test_cpus_read_float32_under_autocast_too() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert precision.operand_dtype(torch.ones(1)) == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_with_and_without_a_place_to_put_them(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in ((9, 30), (30, 5)))
    exact, place = a.double() @ b.double(), torch.full((20, 5), torch.nan, dtype=dtype)
    assert precision.multiply(a, b, out=place[3:12]).data_ptr() == place[3].data_ptr()
    total = place[3:12].clone()
    precision.multiply_add(total, a, b)
    for found, truth in ((precision.multiply(a, b), exact), (place[3:12], exact), (total, 2 * exact)):
        assert found.dtype == dtype
        assert_near(found, truth)
    assert place[:3].isnan().all() and place[12:].isnan().all()

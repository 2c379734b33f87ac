"""The Triton path: interpreted on the CPU where there is no GPU, and compiled, which needs none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from xrep.kernels import chunked_steps
from xrep.kernels.blocks import Pairs, PairStatistics, QueueSoftmax
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.paths import use_path
from xrep.kernels.queue_infonce import queue_infonce

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'test' on x86-64 Linux")
triton_steps = pytest.importorskip("xrep.kernels.triton_steps")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE)


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=GENERATOR).to(DEVICE)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_steps, "QUEUE_ROWS", 48)
    monkeypatch.setattr(triton_steps, "TILE", (5, 40))
    monkeypatch.setattr(triton_steps, "VOCABULARY_LOGITS", 1)


QUEUE, IDS, QUEUE_IDS = normal(101, 9), integers(9, 7, 2), integers(50, 101, 2)
TARGET = torch.where(integers(5, 200) > 0, integers(13, 200), -100)
COLUMN = torch.stack([TARGET, 12 - TARGET.clamp(min=0)], dim=1)[:, 0]
Function = Callable[..., list[Tensor]]


def of_queue(**options) -> Function:
    return lambda q, k, tau: list(queue_infonce(q, k, QUEUE, tau, **options))


def of_vocabulary(smoothing: float, target: Tensor = TARGET) -> Function:
    def function(hidden: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
        return list(linear_cross_entropy(hidden, weight, target, bias=bias, label_smoothing=smoothing))

    return function


CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "queue": (of_queue(), ((7, 9), (7, 9), ())),
    "queue, masked": (of_queue(valid=97, query_ids=IDS, queue_ids=QUEUE_IDS, margin=0.2), ((7, 9), (7, 9), ())),
    "queue, nothing filled": (of_queue(valid=0), ((7, 9), (7, 9), ())),
    "queue, everything masked": (of_queue(query_ids=0 * IDS, queue_ids=0 * QUEUE_IDS), ((7, 9), (7, 9), ())),
    "in-batch": (lambda x, y, t: list(inbatch_infonce(x, y, t, margin=0.1)), ((53, 9), (53, 9), ())),
    "in-batch, ids": (lambda x, y, t: list(inbatch_infonce(x, y, t, ids=IDS)), ((7, 9), (7, 9), ())),
    "in-batch, everything masked": (lambda x, y, t: list(inbatch_infonce(x, y, t, ids=0 * IDS)), ((7, 9), (7, 9), ())),
    "hard": (lambda x, y, t: list(hard_infonce(x, y, t, exponent=0.7)), ((33, 9), (33, 9), ())),
    "hard, ids": (lambda x, y, t: list(hard_infonce(x, y, t, exponent=0.7, ids=IDS)), ((7, 9), (7, 9), ())),
    "exponent 0": (lambda x, y, t: list(hard_infonce(x, y, t, exponent=0.0)), ((7, 9), (7, 9), ())),
    "vocabulary": (of_vocabulary(0.0), ((200, 6), (13, 6), (13,))),
    "vocabulary, a column of targets": (of_vocabulary(0.0, COLUMN), ((200, 6), (13, 6), (13,))),
    "vocabulary, smoothed": (of_vocabulary(0.1), ((200, 6), (13, 6), (13,))),
}


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(name: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_steps, "KEPT_PAIRS", 2**20 if kept else 0)
    function, shapes = CASES[name]
    inputs = [normal(*shape) if shape else torch.tensor(0.3, device=DEVICE) for shape in shapes]
    found = {}
    for path in ("triton", "reference"):
        with use_path(path):
            leaves = [tensor.clone().requires_grad_() for tensor in inputs]
            results = function(*leaves)
            differentiable = [result for result in results if result.requires_grad]
            sum(
                (result * (1 + torch.arange(result.numel(), device=DEVICE))).sum() for result in differentiable
            ).backward()
            found[path] = [*(result.detach().double() for result in results), *(leaf.grad.double() for leaf in leaves)]
    for mine, exact in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(mine, exact, rtol=1e-5, atol=1e-5 * max(1.0, float(exact.abs().max())))


@pytest.mark.parametrize("operand", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_half_precision_weights_of_a_queue_lie_in_the_memory_of_the_scores(operand: torch.dtype) -> None:
    scores, ids = 5 * normal(6, 45), (integers(9, 6, 1), integers(9, 45, 1))
    states = []
    for module in (triton_steps, chunked_steps):
        maximum = torch.linspace(-3, 12, 6, device=DEVICE)
        total, mixture = torch.ones(6, device=DEVICE), torch.ones(6, 1500, device=DEVICE)
        state = QueueSoftmax(None, maximum, total, torch.full_like(maximum, -9.0), mixture, operand)
        block = scores.clone()
        weights = module.absorb(block, state, ids)
        states.append((weights.float(), state.maximum, state.total, state.hardest, state.mixture))
        if module is triton_steps:
            assert weights.dtype == operand and weights.data_ptr() == block.data_ptr()
    tolerance = max(torch.finfo(operand).eps, 1e-6)
    for mine, expected in zip(*states, strict=True):
        torch.testing.assert_close(mine, expected, rtol=2 * tolerance, atol=tolerance)


@pytest.mark.parametrize("operand", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gradients(operand: torch.dtype) -> None:
    logits, target = 3 * normal(9, 5000), integers(5000, 9)
    ignored = target % 3 == 0
    ours = triton_steps.vocabulary_softmax(logits.clone(), target, 0.1, ignored, operand)
    plain = chunked_steps.vocabulary_softmax(logits.clone(), target, 0.1, ignored, operand)
    assert ours[3].dtype == operand and ignored.any() and not ignored.all()
    for mine, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine.float(), expected.float(), rtol=1e-2, atol=1e-5)

    rows, columns = slice(0, 5), slice(40, 77)
    listed = torch.tensor([[3], [41], [76], [50], [90]], device=DEVICE)
    scale = torch.tensor(20.0, device=DEVICE)
    pairs = Pairs(scale, listed, None, None, operand)
    wanted = PairStatistics([normal(5), normal(5)], [normal(90), normal(90)])
    similarities = normal(5, 37) / 10
    mine, expected = torch.empty(5, 37, dtype=operand, device=DEVICE), torch.empty(5, 37, device=DEVICE)
    tiles = pairs.tile(rows, columns), wanted.tile(rows, columns)
    triton_steps.differentiate(similarities, *tiles, mine)
    chunked_steps.differentiate(similarities, *tiles, expected)
    assert int((mine == 0).sum()) == 3
    torch.testing.assert_close(mine.float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("compile_triton.py"))]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.split()[-2:] == ["kernels", "compiled"]

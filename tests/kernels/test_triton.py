"""The Triton path: interpreted on the CPU where there is no GPU, and compiled, which needs none."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.kernels.problems import Draw, check, triton
from tests.kernels.table import KERNELS
from xrep.kernels import softmax
from xrep.kernels.softmax import QueueSoftmax

pytest.importorskip("triton", reason="Triton is not installed: it comes with the extra 'test' on x86-64 Linux")
triton_kernels = pytest.importorskip("xrep.kernels.triton_kernels")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(DEVICE)


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape, generator=GENERATOR).to(DEVICE)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernels, "queue_rows", lambda queries: 48)
    monkeypatch.setattr(triton_kernels, "VOCABULARY_LOGITS", 1)


CASES: dict[str, tuple[str, Draw]] = {
    "queue": ("queue", Draw(batch=7, size=9, many=101)),
    "queue, masked": ("queue", Draw(batch=7, size=9, many=101, columns=2, flag=True)),
    "queue, too near": ("queue", Draw(batch=7, size=9, many=101, judge="relative", columns=1)),
    "queue, too near by a guide": ("queue", Draw(batch=7, size=9, many=101, judge="guide")),
    "queue, nothing filled": ("queue", Draw(batch=3, many=0)),
    "queue, everything masked": ("queue", Draw(batch=3, many=50, columns=1, sentences=1)),
    "vocabulary": ("vocabulary", Draw(batch=2, many=13, share=0.0)),
    "vocabulary, smoothed": ("vocabulary", Draw(batch=7, many=13, flag=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_equals_the_formula(name: str) -> None:
    kernel, draw = CASES[name]
    draw = replace(draw, dtype=torch.float32, device=DEVICE)
    with triton():
        check(KERNELS[kernel](draw), draw)


@pytest.mark.parametrize("operand", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_weights_of_a_queue_in_two_pieces(operand: torch.dtype) -> None:
    scores, ids = 5 * normal(6, 9000), (integers(9, 6, 1), integers(9, 9000, 1))
    states = []
    for module in (triton_kernels, softmax):
        maximum = torch.linspace(-3, 12, 6, device=DEVICE)
        total, mixture = torch.ones(6, device=DEVICE), torch.ones(6, 1500, device=DEVICE)
        state = QueueSoftmax(None, maximum, total, torch.full_like(maximum, -9.0), mixture, operand)
        block = scores.clone()
        weights = module.absorb(block, state, ids)
        states.append((weights.float(), state.maximum, state.total, state.hardest, state.mixture))
        assert weights.dtype == operand
    tolerance = max(torch.finfo(operand).eps, 1e-6)
    for mine, expected in zip(*states, strict=True):
        torch.testing.assert_close(mine, expected, rtol=2 * tolerance, atol=tolerance)


@pytest.mark.parametrize("operand", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gradients(operand: torch.dtype) -> None:
    padded, target = 3 * normal(9, 5000), integers(4990, 9)
    logits, ignored = padded[:, :4990], target % 3 == 0
    *ours, gradient = triton_kernels.vocabulary_softmax(logits, target, 0.1, ignored, operand)
    assert gradient.shape == padded.shape and not gradient[:, 4990:].any()
    ours.append(gradient[:, :4990])
    plain = softmax.vocabulary_softmax(logits.clone(), target, 0.1, ignored, operand)
    assert ours[3].dtype == operand and ignored.any() and not ignored.all()
    for mine, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine.float(), expected.float(), rtol=1e-2, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--each", pytest.param("--all", marks=pytest.mark.nightly)])
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path, option: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, str(Path(__file__).with_name("compile_triton.py")), option]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split()[-3]) >= 5 and result.stdout.split()[-2:] == ["kernels", "compiled"]

"""What only a real GPU can show: kernels at sizes and in types of training against float64, and their memory.

The other tests of this folder use a real GPU, too, where there is one: training steps of every criterion beside those
of the CPU, with the waits for the device that torch warns of (``test_cuda.py``).
"""

import os
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.problems import HALF, Draw, check
from tests.kernels.table import KERNELS
from xrep.kernels.fused import triton_problem
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.queue_infonce import queue_infonce

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/nvidiactl"), reason="there is no GPU")
DRAWS = {
    "one query": Draw(batch=1, size=64, many=100),
    "ragged": Draw(batch=37, size=100, many=1013, columns=2, flag=True),
    "judged": Draw(batch=37, size=100, many=1013, judge="absolute"),
    "as wide as BERT": Draw(batch=64, size=768, many=5000, tau=0.0625),
}
LARGER = 8
"""How much larger than on a CPU the error may be: GPUs add in another order, and their exponentials are less exact."""


@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_equal_their_formula_in_float64(name: str, draw: Draw, dtype: torch.dtype) -> None:
    problem = KERNELS[name](replace(draw, dtype=dtype, device="cuda"))
    problem.slack *= LARGER
    check(problem, replace(draw, dtype=dtype))


def test_the_kernels_of_triton_are_used() -> None:
    assert triton_problem(torch.device("cuda", 0)) is None


def test_similarities_are_never_whole_in_memory() -> None:
    def vectors(rows: int) -> torch.Tensor:
        return F.normalize(torch.randn(rows, 256, device="cuda"), dim=1).bfloat16()

    query, positive, words = (vectors(rows).requires_grad_() for rows in (2048, 2048, 65536))
    keys, tau = vectors(131072), torch.tensor(0.05, device="cuda")
    hidden, targets = vectors(8192).requires_grad_(), torch.randint(65536, (8192,), device="cuda")
    losses = {
        "queue": (lambda: queue_infonce(query, positive, keys, tau).loss.sum(), 2048 * 131072),
        "vocabulary": (lambda: linear_cross_entropy(hidden, words, targets).loss, 8192 * 65536),
    }
    for name, (loss, similarities) in losses.items():
        loss().backward()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss().backward()
        peak = torch.cuda.max_memory_allocated() - before
        assert peak < 4 * similarities / 2, f"{name}: {peak / 1e6:.0f} MB"

"""What the kernels are tested by: drawn inputs, the comparison with a formula, and small blocks."""

import importlib
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.closeness import error
from xrep.kernels import fused, pairs, softmax
from xrep.kernels.judge import Judge

# The package has the functions by the names of these modules.
QUEUE, WORDS = (importlib.import_module(f"xrep.kernels.{name}") for name in ("queue_infonce", "word_infonce"))
HALF = (torch.float16, torch.bfloat16)
Results = dict[str, Tensor]
Found = tuple[Tensor, ...]
"""Losses, correctness (in a formula: the lead over the best negative), and what else there is."""
BLOCKS = {"small": (30, 7, 1, 130), "large": (300, 33, 9000, 700), "whole": (2**22, 4096, 2**25, 2**22)}
"""Sizes of blocks of pairs, of the queue, of the vocabulary and of sampled words, which divide few batches. Those of
"whole" are larger than any batch here."""


@contextmanager
def blocks(name: str) -> Iterator[None]:
    """A context in which the kernels work on blocks of these sizes."""
    of_pairs, rows, of_vocabulary, of_words = BLOCKS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "BLOCK", dict.fromkeys(pairs.BLOCK, of_pairs))
        if name != "whole":
            patch.setattr(pairs, "WHOLE", dict.fromkeys(pairs.WHOLE, 0))
        patch.setattr(softmax, "queue_rows", lambda queries: rows)
        patch.setattr(softmax, "VOCABULARY_LOGITS", of_vocabulary)
        patch.setattr(WORDS, "BLOCK_KEYS", of_words)
        patch.setattr(QUEUE, "WHOLE", QUEUE.WHOLE if name == "whole" else (0, 0))
        yield


@contextmanager
def triton() -> Iterator[None]:
    """A context in which Triton's kernels are used, also without a GPU, where they are interpreted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "uses_triton", lambda device: True)
        yield


@dataclass(frozen=True)
class Draw:
    """What a problem is drawn by.

    Attributes:
        batch, size, many: number of queries, size of vectors, and rows of the queue or words of the vocabulary.
        reach, near: the largest logit, and how near a positive is to its query.
        share: margin, exponent or smoothing, as a share of the largest that makes sense.
        columns, sentences: number of columns of ids (0: none), and of different ids.
        flag: a variant of the kernel.
        judge: who says which negatives are too similar: "absolute" or "relative" (the vectors), "guide"; empty: nobody.
        dtype, other: types of the first input, and of the others if they differ.
    """

    batch: int = 9
    size: int = 6
    many: int = 60
    tau: float = 0.3
    reach: float = 8.0
    share: float = 0.3
    columns: int = 0
    sentences: int = 20
    near: float = 0.6
    flag: bool = False
    judge: str = ""
    dtype: torch.dtype = torch.float64
    other: torch.dtype | None = None
    seed: int = 0
    device: torch.device | str = "cpu"

    def sides(self, *more: int) -> list[Tensor]:
        """Return x and y [B, D], and further vectors [N, D], in float64; no two have a larger logit than ``reach``."""
        generator = torch.Generator().manual_seed(self.seed)
        x, noise, *others = (
            F.normalize(torch.randn(rows, self.size, generator=generator, dtype=torch.float64), dim=1)
            for rows in (self.batch, self.batch, *more)
        )
        y = F.normalize(self.near * x + (1 - self.near) * noise, dim=1)
        return [side.to(self.device) * math.sqrt(self.reach * self.tau) for side in (x, y, *others)]

    def ids(self, rows: int, columns: int = 0) -> Tensor | None:
        generator = torch.Generator().manual_seed(self.seed + rows)
        ids = torch.randint(self.sentences, (rows, columns or self.columns), generator=generator)
        return ids.to(self.device) if self.columns else None

    def guide(self, rows: int, sentences: int = 1) -> Tensor:
        """Return a guide's vectors of sentences, [rows, sentences, 4], one of which it does not know."""
        generator = torch.Generator().manual_seed(self.seed + rows + sentences)
        vectors = F.normalize(torch.randn(rows, sentences, 4, generator=generator), dim=2)
        vectors[3:4, -1] = math.nan
        return vectors.to(self.device)

    @property
    def margin(self) -> float:
        return self.share * self.reach * self.tau / 4


@dataclass
class Problem:
    """Inputs, a kernel and its formula, which get the inputs by name.

    Attributes:
        units: the size of the terms of results, which may nearly cancel.
        slack: factor of the error that rounding may cause.
    """

    inputs: Results
    kernel: Callable[..., Found]
    formula: Callable[..., Found]
    units: dict[str, float] = field(default_factory=dict)
    slack: float = 1.0

    def exact(self) -> Results:
        return differentiate(self.formula, {name: tensor.double() for name, tensor in self.inputs.items()})

    def found(self, frozen: Collection[str] = ()) -> Results:
        return differentiate(self.kernel, self.inputs, frozen)


def differentiate(function: Callable[..., Found], inputs: Results, frozen: Collection[str] = ()) -> Results:
    """Return what a function returns, and the gradients of a weighted sum of its losses for what is not frozen."""
    leaves = {name: tensor.detach().clone().requires_grad_(name not in frozen) for name, tensor in inputs.items()}
    loss, correct, *others = function(**leaves)
    weights = torch.randn(loss.shape, generator=torch.Generator().manual_seed(5)).to(loss)
    (loss * weights).sum().backward()
    assert not any(each.requires_grad for each in (correct, *others))
    assert all(leaves[name].grad is None for name in frozen)
    named = {f"result {number}": each.detach() for number, each in enumerate(others)}
    gradients = {name: leaf.grad for name, leaf in leaves.items() if name not in frozen}
    return {"loss": loss.detach(), "correct": correct, **named, **gradients}


def check(problem: Problem, draw: Draw) -> None:
    """Check results and gradients of the kernel against the formula in float64."""
    exact, found = problem.exact(), problem.found()
    wide = problem.inputs["tau"].dtype if "tau" in exact else torch.promote_types(draw.dtype, torch.float32)
    assert found["loss"].dtype == wide and found.keys() == exact.keys()
    assert all(found[name].dtype == tensor.dtype for name, tensor in problem.inputs.items())
    limit = problem.slack * (40 + 4 * draw.reach) * torch.finfo(wide).eps
    for name, truth in exact.items():
        if name == "correct":  # rounding decides between the nearest
            clear = truth.abs() > 1e-4 * (1 + draw.reach)
            assert torch.equal(found[name][clear], truth[clear] > 0)
            continue
        half = torch.finfo(found[name].dtype).eps if found[name].dtype != wide else 0.0
        wrong = error(found[name], truth, problem.units.get(name, 1.0))
        assert wrong <= limit + half * (1 if problem.slack == 1 else 4), f"{name}: {wrong} > {limit}"


def infonce(positive: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log softmax of the positive logits [R] among themselves and the negative ones [R, C], and their lead."""
    losses = -torch.cat([positive.unsqueeze(1), negatives], 1).log_softmax(1)[:, 0]
    return losses, positive.detach() - F.pad(negatives.detach(), (0, 1), value=-math.inf).amax(1)


def equal(a: Tensor | None, b: Tensor | None, shape: tuple[int, int]) -> Tensor:
    """Return which rows of a [R, I] and b [C, I] are equal in any column, bool [R, C]."""
    return torch.zeros(shape, dtype=torch.bool) if a is None or b is None else (a[:, None] == b[None]).any(2)


def of_rows(judge: Judge | None, rows: Any) -> Judge | None:
    """Return the judge of some rows of a batch."""
    return judge if judge is None or judge.guide is None else replace(judge, guide=judge.guide[rows])


def same_pairs(draw: Draw, ids: Tensor | None) -> Tensor:
    own = torch.eye(draw.batch, dtype=torch.bool, device=draw.device)
    return own if ids is None else own | equal(ids, ids, own.shape)


def judged(draw: Draw, similar: Tensor, positive: Tensor, guide: Tensor | None = None) -> tuple[Any, Tensor]:
    """Return a judge, whose margin no similarity is near to, and the similarities [R, C] that it finds too large.

    Args:
        positive: [R], those of the positives.
    """
    own = positive.unsqueeze(1)
    unit = own.abs() if draw.judge == "relative" else torch.ones_like(own)
    excess = ((similar - own) / unit).flatten()
    excess = excess[excess.isfinite()].sort().values
    some = excess[len(excess) // 4 : 1 + 3 * len(excess) // 4]
    if not draw.judge or len(some) < 2:
        return None, torch.zeros_like(similar, dtype=torch.bool)
    widest = int(some.diff().argmax())
    margin = float(some[widest : widest + 2].mean())
    return Judge(margin, draw.judge == "relative", guide), similar > own + margin * unit


def typed(draw: Draw, **inputs: Tensor) -> Results:
    """Return the inputs in their types; the temperature has the one in which sums are kept."""
    other = draw.other or draw.dtype
    wide = torch.promote_types(torch.promote_types(draw.dtype, other), torch.float32)
    first = next(iter(inputs))
    kinds = {name: draw.dtype if name == first else wide if name == "tau" else other for name in inputs}
    return {name: tensor.to(draw.device, kinds[name]) for name, tensor in inputs.items()}


def units_of(draw: Draw, inputs: Results, losses: int) -> dict[str, float]:
    """Return the sizes of terms: the gradient of a loss is a sum of vectors over the temperature."""
    return dict.fromkeys(inputs, 2 * math.sqrt(draw.reach / draw.tau)) | {"tau": 2 * losses * draw.reach / draw.tau}

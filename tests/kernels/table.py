"""The table of the kernels: each with its formula, as in the paper, in plain torch with everything materialised."""

import importlib
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.closeness import error
from xrep.kernels import fused, pairs, softmax
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.pairs import add_own_negatives
from xrep.kernels.queue_infonce import against_both, queue_infonce
from xrep.kernels.triplet_infonce import triplet_infonce
from xrep.kernels.word_infonce import word_infonce

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
        patch.setattr(pairs, "BLOCK", of_pairs)
        patch.setattr(pairs, "WHOLE", pairs.WHOLE if name == "whole" else 0)
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


def same_pairs(draw: Draw, ids: Tensor | None) -> Tensor:
    own = torch.eye(draw.batch, dtype=torch.bool, device=draw.device)
    return own if ids is None else own | equal(ids, ids, own.shape)


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


def queue(draw: Draw, both: bool = False) -> Problem:
    """Dual momentum contrast, equation 2. ``flag``: the count of filled rows is a tensor; the rest is not a number."""
    query, positive, keys = draw.sides(draw.many)
    ids = draw.ids(draw.batch), draw.ids(draw.many)
    given = {} if ids[0] is None else {"query_ids": ids[0], "queue_ids": ids[1]}
    filled = draw.many - draw.many // 3 if draw.flag else draw.many
    keys = keys.to(draw.other or torch.float32)
    exact = keys[:filled].double()
    keys[filled:] = torch.nan

    def kernel(query: Tensor, positive: Tensor, tau: Tensor) -> Found:
        valid = torch.tensor(filled, dtype=torch.int32) if draw.flag else filled
        return queue_infonce(query, positive, keys, tau, valid=valid, margin=draw.margin, **given)

    def in_two(query: Tensor, positive: Tensor, tau: Tensor) -> Found:
        parts = [queue_infonce(query, positive, part, tau, margin=draw.margin) for part in keys[:filled].split(23)]
        return against_both(parts[0], parts[1]) if len(parts) > 1 else parts[0]

    def formula(query: Tensor, positive: Tensor, tau: Tensor) -> Found:
        own = exact[:46] if both else exact
        known = (None, None) if both or ids[1] is None else (ids[0], ids[1][:filled])
        same = equal(*known, (draw.batch, len(own))).to(own.device)
        negatives = (query @ own.T / tau).masked_fill(same, -math.inf)
        return infonce(((query * positive).sum(1) - draw.margin) / tau, negatives)

    inputs = typed(replace(draw, other=None), query=query, positive=positive, tau=torch.tensor(draw.tau))
    return Problem(inputs, in_two if both else kernel, formula, units_of(draw, inputs, draw.batch))


def inbatch(draw: Draw) -> Problem:
    """Translation ranking with an additive margin, in both directions."""
    x, y = draw.sides()
    ids = draw.ids(draw.batch)

    def kernel(x: Tensor, y: Tensor, tau: Tensor, rows: Any = slice(None), **group: Any) -> Found:
        own = None if ids is None else ids[rows]
        found = inbatch_infonce(x, y, tau, margin=draw.margin, ids=own, **group)
        return torch.stack(found[:2]), torch.stack(found[2:])

    def formula(x: Tensor, y: Tensor, tau: Tensor) -> Found:
        logits = (x @ y.T / tau).masked_fill(same_pairs(draw, ids), -math.inf)
        positive = ((x * y).sum(1) - draw.margin) / tau
        return tuple(map(torch.stack, zip(infonce(positive, logits), infonce(positive, logits.T), strict=True)))

    inputs = typed(draw, x=x, y=y, tau=torch.tensor(draw.tau))
    return Problem(inputs, kernel, formula, units_of(draw, inputs, 2 * draw.batch))


def hard(draw: Draw) -> Problem:
    """HiCTL's equations 2, 3, 5 and 6, with every harder negative built."""
    generator = torch.Generator().manual_seed(draw.seed)
    x, y = draw.sides()
    lengths = 10 ** (torch.rand(2, draw.batch, 1, generator=generator).to(x) - 0.5)
    x, y = (F.normalize(side, dim=1) * length for side, length in zip((x, y), lengths, strict=True))
    ids, exponent = draw.ids(draw.batch), min(1.0, 3 * draw.share)

    def kernel(x: Tensor, y: Tensor, tau: Tensor, rows: Any = slice(None), **group: Any) -> Found:
        own = None if ids is None else ids[rows]
        found = hard_infonce(x, y, tau, exponent=exponent, ids=own, **group)
        return torch.stack(found[:2]), torch.stack(found[2:4]), torch.stack(found[4:])

    def formula(x: Tensor, y: Tensor, tau: Tensor) -> Found:
        keys, partners = torch.cat([x, y]), torch.cat([y, x])
        near, far = (partners - keys).norm(dim=1).detach()[:, None], (keys[:, None] - keys).detach().norm(dim=2)
        mixing = torch.where(far > near, (near / far) ** exponent, 1.0)
        harder = keys[:, None] + mixing[..., None] * (keys - keys[:, None])
        same = same_pairs(draw, ids).repeat(2, 2)
        cosine = partial(F.cosine_similarity, dim=-1)
        positive, logits = cosine(keys, partners) / tau, cosine(keys[:, None], harder) / tau
        plain = (cosine(keys[:, None], keys[None]) / tau).masked_fill(same, -math.inf)
        losses, _ = infonce(positive, logits.masked_fill(same, -math.inf))
        mean = torch.where(same.all(1), 1.0, mixing.masked_fill(same, 0).sum(1) / (~same).sum(1))
        return tuple(each.view(2, -1) for each in (losses, infonce(positive, plain)[1], mean))

    inputs = typed(draw, x=x, y=y, tau=torch.tensor(draw.tau))
    units = units_of(draw, inputs, 2 * draw.batch) | dict.fromkeys("xy", 8 / draw.tau)
    return Problem(inputs, kernel, formula, units, slack=20.0)


def triplet(draw: Draw) -> Problem:
    """Supervised SimCSE, with the weight of the own hard negative. ``flag``: this weight is not 1."""
    anchor, positive, negative = draw.sides(draw.batch)
    ids, weight = draw.ids(draw.batch, 3), 3.0 * draw.share + 0.2 if draw.flag else 1.0

    def kernel(anchor, positive, negative, tau, rows: Any = slice(None), **group: Any) -> Found:
        own = None if ids is None else ids[rows]
        return triplet_infonce(anchor, positive, negative, tau, weight=weight, ids=own, **group)

    def formula(anchor: Tensor, positive: Tensor, negative: Tensor, tau: Tensor) -> Found:
        own = same_pairs(draw, None)
        same, hard_same = own, torch.zeros_like(own)
        if ids is not None:
            same = own | (ids[:, None, :2] == ids[None, :, :2]).any(2)
            hard_same = (ids[:, None, :2] == ids[None, :, 2:]).any(2) & ~own
        hard = anchor @ negative.T / tau
        others = (anchor @ positive.T / tau).masked_fill(same, -math.inf), hard.masked_fill(hard_same, -math.inf)
        right = (anchor * positive).sum(1) / tau
        weighed = torch.cat([others[0], others[1] + math.log(weight) * own.double()], 1)
        return infonce(right, weighed)[0], infonce(right, torch.cat(others, 1))[1]

    inputs = typed(draw, anchor=anchor, positive=positive, negative=negative, tau=torch.tensor(draw.tau))
    return Problem(inputs, kernel, formula, units_of(draw, inputs, draw.batch))


def own_negatives(draw: Draw) -> Problem:
    """Negatives that belong to single queries, beside those of the batch."""
    generator = torch.Generator().manual_seed(draw.seed)
    x, y, negative = draw.sides(draw.many)
    rows = torch.randint(max(1, draw.batch), (draw.many if draw.batch else 0,), generator=generator)
    negative, rows = negative[: len(rows)], rows.to(draw.device)

    def kernel(x: Tensor, y: Tensor, negative: Tensor, tau: Tensor) -> Found:
        found = inbatch_infonce(x, y, tau, margin=draw.margin)
        given = found.forward, found.forward_correct, x, y, negative, rows
        return add_own_negatives(*given, tau, margin=draw.margin)

    def formula(x: Tensor, y: Tensor, negative: Tensor, tau: Tensor) -> Found:
        batch = (x @ y.T / tau).masked_fill(same_pairs(draw, None), -math.inf)
        foreign = rows != torch.arange(draw.batch, device=draw.device).unsqueeze(1)
        own = (x @ negative.T / tau).masked_fill(foreign, -math.inf)
        return infonce(((x * y).sum(1) - draw.margin) / tau, torch.cat([batch, own], 1))

    inputs = typed(draw, x=x, y=y, negative=negative, tau=torch.tensor(draw.tau))
    return Problem(inputs, kernel, formula, units_of(draw, inputs, draw.batch))


def words(draw: Draw) -> Problem:
    """HiCTL's equation 7, with the words that the kernel sampled."""
    generator = torch.Generator().manual_seed(draw.seed)
    query, _, embedding = draw.sides(draw.many)
    embedding = embedding * 10 ** torch.rand(draw.many, 1, generator=generator, dtype=torch.float64).to(draw.device)
    special = torch.tensor([0, draw.many - 1])
    embedding[0] = 0
    texts = [torch.randperm(draw.many, generator=generator)[:6] for _ in range(draw.batch)]
    texts = (
        torch.stack([torch.cat([text, text[:2], special]) for text in texts]) if texts else torch.zeros(0, 10).long()
    )
    # A word that is named twice counts once, special ones do not count, and one query has no word to find.
    bag = (torch.tensor(6 * [True] + 4 * [False]) & ~torch.isin(texts, special)).clone()
    bag[-1:] = False
    texts, bag, special = (tensor.to(draw.device) for tensor in (texts, bag, special))
    samples, sampled = 1 + round(draw.share * draw.many), list[Tensor]()

    def kernel(query: Tensor, embedding: Tensor) -> Found:
        torch.manual_seed(draw.seed)
        found = word_infonce(query, embedding, texts, bag, draw.tau, special=special, samples=samples)
        sampled[:] = [found.sampled]
        return found.loss, found.correct

    def formula(query: Tensor, embedding: Tensor) -> Found:
        if not sampled:
            kernel(*(tensor.to(draw.dtype) for tensor in (query, embedding)))
        scores = F.normalize(query, dim=1) @ F.normalize(embedding, dim=1).T / draw.tau
        drawn = sampled[0]
        negatives = scores.gather(1, drawn.clamp(min=0)).masked_fill(drawn < 0, -math.inf)
        positive = scores.gather(1, texts)
        losses, leads = infonce(positive.flatten(), negatives.repeat_interleave(10, 0))
        losses = losses.view(bag.shape).masked_fill(~bag, 0).sum(1) / bag.sum(1).clamp(min=1)
        return losses, leads.view(bag.shape).masked_fill(~bag, -math.inf)

    inputs = typed(draw, query=query, embedding=embedding)
    return Problem(inputs, kernel, formula, dict.fromkeys(inputs, 4 / draw.tau / math.sqrt(draw.reach * draw.tau)))


def vocabulary(draw: Draw) -> Problem:
    """Cross-entropy of a linear layer with smoothed labels. ``flag``: biases of groups, and weights of tokens."""
    generator = torch.Generator().manual_seed(draw.seed)
    tokens = 20 * draw.batch
    hidden, weight = (
        F.normalize(torch.randn(n, draw.size, generator=generator).double(), dim=1) * math.sqrt(draw.reach)
        for n in (tokens, draw.many)
    )
    bias = torch.randn((3, draw.many) if draw.flag else (draw.many,), generator=generator)
    groups = torch.randint(3, (tokens,), generator=generator) if draw.flag else None
    weights = torch.rand(tokens, generator=generator) if draw.flag else None
    ignore = 0 if draw.columns == 1 else -100
    target = torch.randint(draw.many, (tokens,), generator=generator)
    target[torch.rand(tokens, generator=generator) < 0.2] = ignore
    target = torch.stack([target, target], 1)[:, 0].to(draw.device)  # not contiguous
    ignored = target == ignore
    groups, weights = (None if each is None else each.to(draw.device) for each in (groups, weights))

    def kernel(hidden: Tensor, weight: Tensor, bias: Tensor) -> Found:
        given = {"bias": bias, "groups": groups, "weights": weights}
        found = linear_cross_entropy(hidden, weight, target, **given, label_smoothing=draw.share, ignore_index=ignore)
        return found.loss, found.correct, found.nll

    def formula(hidden: Tensor, weight: Tensor, bias: Tensor) -> Found:
        logits = hidden @ weight.T + (bias if groups is None else bias[groups])
        given = {"reduction": "none", "ignore_index": ignore}
        losses = F.cross_entropy(logits, target, label_smoothing=draw.share, **given)
        index = target.masked_fill(ignored, 0).unsqueeze(1)
        others = logits.detach().scatter(1, index, -math.inf).amax(1)
        lead = (logits.detach().gather(1, index)[:, 0] - others).masked_fill(ignored, -math.inf)
        total = losses.sum() if weights is None else losses @ weights.to(losses.dtype)
        return total, lead, F.cross_entropy(logits, target, **given).detach()

    inputs = typed(draw, hidden=hidden, weight=weight, bias=bias)
    pull = math.sqrt(draw.reach)
    units = {"loss": tokens + 1.0, "hidden": pull, "weight": 5 * pull, "bias": 5.0}
    return Problem(inputs, kernel, formula, units)


KERNELS: dict[str, Callable[[Draw], Problem]] = {
    "queue": queue, "two queues": partial(queue, both=True), "in-batch": inbatch, "hard": hard, "triplets": triplet,
    "own negatives": own_negatives, "words": words, "vocabulary": vocabulary,
}  # fmt: skip

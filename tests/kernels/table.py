"""The table of the kernels: each with its formula, as in the paper, in plain torch with everything materialised."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.problems import Draw, Found, Problem, equal, infonce, judged, of_rows, same_pairs, typed, units_of
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.pairs import add_own_negatives
from xrep.kernels.queue_infonce import against_both, queue_infonce
from xrep.kernels.triplet_infonce import triplet_infonce
from xrep.kernels.word_infonce import word_infonce


def queue(draw: Draw, both: bool = False) -> Problem:
    """Dual momentum contrast, equation 2. ``flag``: the count of filled rows is a tensor; the rest is not a number."""
    query, positive, keys = draw.sides(draw.many)
    ids = draw.ids(draw.batch), draw.ids(draw.many)
    given = {} if ids[0] is None else {"query_ids": ids[0], "queue_ids": ids[1]}
    filled = draw.many - draw.many // 3 if draw.flag else draw.many
    keys = keys.to(draw.other or torch.float32)
    exact = keys[:filled].double()
    keys[filled:] = torch.nan
    inputs = typed(replace(draw, other=None), query=query, positive=positive, tau=torch.tensor(draw.tau))
    one, other, theirs, guide, of_keys = inputs["query"].double(), inputs["positive"].double(), exact, None, None
    if draw.judge == "guide":
        guide, of_keys = draw.guide(draw.batch, 2), draw.guide(draw.many)[:, 0]
        (one, other), theirs = guide.double().unbind(1), of_keys[:filled].double()
    judge, above = judged(draw, one @ theirs.T, (one * other).sum(1), guide)
    of_keys = None if judge is None else of_keys

    def kernel(query: Tensor, positive: Tensor, tau: Tensor) -> Found:
        valid = torch.tensor(filled, dtype=torch.int32) if draw.flag else filled
        masks = {"judge": judge, "queue_guide": of_keys, **given}
        return queue_infonce(query, positive, keys, tau, valid=valid, **masks)

    def in_two(query: Tensor, positive: Tensor, tau: Tensor) -> Found:
        guides = [None] * 9 if of_keys is None else of_keys[:filled].split(23)
        parts = [
            queue_infonce(query, positive, part, tau, judge=judge, queue_guide=own)
            for part, own in zip(keys[:filled].split(23), guides, strict=False)
        ]
        return against_both(parts[0], parts[1]) if len(parts) > 1 else parts[0]

    def formula(query: Tensor, positive: Tensor, tau: Tensor) -> Found:
        own = exact[:46] if both else exact
        known = (None, None) if both or ids[1] is None else (ids[0], ids[1][:filled])
        same = equal(*known, (draw.batch, len(own))).to(own.device) | above[:, : len(own)]
        negatives = (query @ own.T / tau).masked_fill(same, -math.inf)
        return infonce((query * positive).sum(1) / tau, negatives)

    return Problem(inputs, in_two if both else kernel, formula, units_of(draw, inputs, draw.batch))


def inbatch(draw: Draw) -> Problem:
    """Translation ranking with an additive margin, in both directions."""
    x, y = draw.sides()
    ids = draw.ids(draw.batch)
    inputs = typed(draw, x=x, y=y, tau=torch.tensor(draw.tau))
    guide = draw.guide(draw.batch, 2) if draw.judge == "guide" else None
    one, other = (inputs["x"].double(), inputs["y"].double()) if guide is None else guide.double().unbind(1)
    similar = one @ other.T
    judge, above = judged(draw, torch.cat([similar, similar.T]), similar.diagonal().repeat(2), guide)

    def kernel(x: Tensor, y: Tensor, tau: Tensor, rows: Any = slice(None), **group: Any) -> Found:
        own, given = None if ids is None else ids[rows], of_rows(judge, rows)
        found = inbatch_infonce(x, y, tau, margin=draw.margin, ids=own, judge=given, **group)
        return torch.stack(found[:2]), torch.stack(found[2:])

    def formula(x: Tensor, y: Tensor, tau: Tensor) -> Found:
        logits = (x @ y.T / tau).masked_fill(same_pairs(draw, ids), -math.inf)
        positive = ((x * y).sum(1) - draw.margin) / tau
        masked = (
            each.masked_fill(own, -math.inf) for each, own in zip((logits, logits.T), above.chunk(2), strict=True)
        )
        return tuple(map(torch.stack, zip(*(infonce(positive, each) for each in masked), strict=True)))

    return Problem(inputs, kernel, formula, units_of(draw, inputs, 2 * draw.batch))


def hard(draw: Draw) -> Problem:
    """HiCTL's equations 2, 3, 5 and 6, with every harder negative built."""
    generator = torch.Generator().manual_seed(draw.seed)
    x, y = draw.sides()
    lengths = 10 ** (torch.rand(2, draw.batch, 1, generator=generator).to(x) - 0.5)
    x, y = (F.normalize(side, dim=1) * length for side, length in zip((x, y), lengths, strict=True))
    ids, exponent = draw.ids(draw.batch), min(1.0, 3 * draw.share)
    inputs = typed(draw, x=x, y=y, tau=torch.tensor(draw.tau))
    guide = draw.guide(draw.batch, 2) if draw.judge == "guide" else None
    halves = [F.normalize(inputs[side].double(), dim=1) for side in "xy"] if guide is None else guide.double().unbind(1)
    one, other = torch.cat(list(halves)), torch.cat(list(halves)[::-1])
    judge, above = judged(draw, one @ one.T, (one * other).sum(1), guide)

    def kernel(x: Tensor, y: Tensor, tau: Tensor, rows: Any = slice(None), **group: Any) -> Found:
        own, given = None if ids is None else ids[rows], of_rows(judge, rows)
        found = hard_infonce(x, y, tau, exponent=exponent, ids=own, judge=given, **group)
        return torch.stack(found[:2]), torch.stack(found[2:4]), torch.stack(found[4:])

    def formula(x: Tensor, y: Tensor, tau: Tensor) -> Found:
        keys, partners = torch.cat([x, y]), torch.cat([y, x])
        near, far = (partners - keys).norm(dim=1).detach()[:, None], (keys[:, None] - keys).detach().norm(dim=2)
        mixing = torch.where(far > near, (near / far) ** exponent, 1.0)
        harder = keys[:, None] + mixing[..., None] * (keys - keys[:, None])
        same = same_pairs(draw, ids).repeat(2, 2) | above
        cosine = partial(F.cosine_similarity, dim=-1)
        positive, logits = cosine(keys, partners) / tau, cosine(keys[:, None], harder) / tau
        plain = (cosine(keys[:, None], keys[None]) / tau).masked_fill(same, -math.inf)
        losses, _ = infonce(positive, logits.masked_fill(same, -math.inf))
        mean = torch.where(same.all(1), 1.0, mixing.masked_fill(same, 0).sum(1) / (~same).sum(1))
        return tuple(each.view(2, -1) for each in (losses, infonce(positive, plain)[1], mean))

    units = units_of(draw, inputs, 2 * draw.batch) | dict.fromkeys("xy", 8 / draw.tau)
    return Problem(inputs, kernel, formula, units, slack=20.0)


def triplet(draw: Draw) -> Problem:
    """Supervised SimCSE."""
    anchor, positive, negative = draw.sides(draw.batch)
    ids = draw.ids(draw.batch, 3)
    inputs = typed(draw, anchor=anchor, positive=positive, negative=negative, tau=torch.tensor(draw.tau))
    guide = draw.guide(draw.batch, 3) if draw.judge == "guide" else None
    sides = [side.double() for side in inputs.values() if side.dim()] if guide is None else guide.double().unbind(1)
    judge, above = judged(draw, sides[0] @ torch.cat(list(sides[1:])).T, (sides[0] * sides[1]).sum(1), guide)

    def kernel(anchor, positive, negative, tau, rows: Any = slice(None), **group: Any) -> Found:
        own, given = None if ids is None else ids[rows], of_rows(judge, rows)
        return triplet_infonce(anchor, positive, negative, tau, ids=own, judge=given, **group)

    def formula(anchor: Tensor, positive: Tensor, negative: Tensor, tau: Tensor) -> Found:
        same, hard_same = same_pairs(draw, None) | above[:, : draw.batch], above[:, draw.batch :]
        if ids is not None:
            same = same | (ids[:, None, :2] == ids[None, :, :2]).any(2)
            hard_same = hard_same | (ids[:, None, :2] == ids[None, :, 2:]).any(2)
        hard = anchor @ negative.T / tau
        others = (anchor @ positive.T / tau).masked_fill(same, -math.inf), hard.masked_fill(hard_same, -math.inf)
        return infonce((anchor * positive).sum(1) / tau, torch.cat(others, 1))

    return Problem(inputs, kernel, formula, units_of(draw, inputs, draw.batch))


def own_negatives(draw: Draw) -> Problem:
    """Negatives that belong to single queries, beside those of the batch."""
    generator = torch.Generator().manual_seed(draw.seed)
    x, y, negative = draw.sides(draw.many)
    rows = torch.randint(max(1, draw.batch), (draw.many if draw.batch else 0,), generator=generator)
    negative, rows = negative[: len(rows)], rows.to(draw.device)
    inputs = typed(draw, x=x, y=y, negative=negative, tau=torch.tensor(draw.tau))
    one, other, third = (inputs[name].double() for name in ("x", "y", "negative"))
    given = one @ torch.cat([other, third]).T, (one * other).sum(1)
    judge, above = judged(replace(draw, judge="") if draw.judge == "guide" else draw, *given)

    def kernel(x: Tensor, y: Tensor, negative: Tensor, tau: Tensor) -> Found:
        found = inbatch_infonce(x, y, tau, margin=draw.margin, judge=judge)
        given = found.forward, found.forward_correct, x, y, negative, rows
        return add_own_negatives(*given, tau, margin=draw.margin, judge=judge)

    def formula(x: Tensor, y: Tensor, negative: Tensor, tau: Tensor) -> Found:
        batch = (x @ y.T / tau).masked_fill(same_pairs(draw, None) | above[:, : draw.batch], -math.inf)
        foreign = (rows != torch.arange(draw.batch, device=draw.device).unsqueeze(1)) | above[:, draw.batch :]
        own = (x @ negative.T / tau).masked_fill(foreign, -math.inf)
        return infonce(((x * y).sum(1) - draw.margin) / tau, torch.cat([batch, own], 1))

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

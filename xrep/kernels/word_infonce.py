"""HiCTL's word-level contrast: the words of a sentence pair against sampled words of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.pairwise import beaten
from xrep.kernels.precision import accumulation_dtype, multiply

CHUNK_LOGITS = 1 << 22
"""Similarities of queries and words that are held at a time."""
CACHED_KEYS = 1 << 19
"""Of these, so many on CPUs from which words are drawn at a time: of whole rows."""
GROUPS = 4
"""Columns of which only the largest is looked at first."""
FEW_THREADS = 4
"""CPU threads up to which NumPy finds the largest of each row sooner than torch: it has vector instructions for that,
but one thread."""
SHORTEST = 1e-12
"""Word vectors are taken to be at least this long, as in ``torch.nn.functional.normalize``."""


class WordInfoNCE(NamedTuple):
    """``loss`` [N] (nats). Without gradient: ``correct`` bool [N, W], whether a word of the bag beat all the sampled
    ones; ``sampled`` int64 [N, m], the sampled words, and -1 where there were too few."""

    loss: Tensor
    correct: Tensor
    sampled: Tensor


def word_infonce(
    query: Tensor,
    embedding: Tensor,
    words: Tensor,
    bag: Tensor,
    temperature: float,
    *,
    special: Tensor,
    samples: int,
) -> WordInfoNCE:
    """The mean over a bag of words of -log softmax of each word's cosine among itself and sampled words (eq. 7).

    The sampled words are drawn without replacement from those outside the bag, with probabilities proportional to
    exp(cosine / temperature): the ``samples`` largest of these logits plus Gumbel noise, found in chunks of the
    vocabulary and without gradient. The noise of a query is independent for each word, and that of a word for each
    query, but row i reads it i places further on than row 0: so it is drawn V + N times instead of V · N.

    Args:
        query: [N, D], of any length.
        embedding: [V, D], the vectors of the words, of any length.
        words: int64 [N, W], the subwords of each pair; none of them is sampled.
        bag: bool [N, W], which of them are counted: each word once.
        temperature: divides all cosines, in the loss and in the sampling. The paper has none, that is 1.
        special: int64 [K], words that are never sampled.
        samples: m, how many words are sampled for each query; fewer where the vocabulary has no more.
    """
    accumulate = accumulation_dtype(query, embedding)
    with torch.autocast(query.device.type, enabled=False):
        unit = F.normalize(query.to(accumulate), dim=1)
        barred = torch.cat([words, special.expand(len(words), -1)], dim=1)
        positive, negative, sampled = _Cosines.apply(unit, embedding, words, barred, temperature, samples)
        logits = (negative / temperature).masked_fill(sampled < 0, torch.finfo(accumulate).min)
        positive = positive / temperature
        # The threshold of softplus, above which it is the identity, keeps float64 losses exact.
        losses = F.softplus(logits.logsumexp(1, keepdim=True) - positive, threshold=40).masked_fill(~bag, 0.0)
        best = F.pad(logits.detach(), (0, 1), value=torch.finfo(accumulate).min).amax(1, keepdim=True)
        correct = beaten(best - positive.detach(), positive.detach()) & bag
    return WordInfoNCE(losses.sum(1) / bag.sum(1).clamp(min=1), correct, sampled)


class _Cosines(torch.autograd.Function):
    """Cosines of unit vectors with their words [N, W] and with sampled words [N, m], and which these are."""

    @staticmethod
    def forward(ctx, query, embedding, words, barred, temperature, samples):
        lengths = embedding.norm(dim=1, dtype=query.dtype).clamp(min=SHORTEST)
        positive = query.new_zeros(words.shape)
        best = None
        for start, vectors in _chunks(embedding, query):
            count = len(vectors)
            products = multiply(query, vectors.t())
            inside, places = _places(words, start, count)
            positive = torch.where(inside, products.gather(1, places.clamp(max=count - 1)), positive)
            barred_places = _places(barred, start, count)[1]
            keys, places = _drawn(products, lengths[start : start + count], barred_places, temperature, samples)
            found = keys, products.gather(1, places), places + start
            best = found if best is None else _merged(best, found, samples)
        assert best is not None
        keys, negative, sampled = best
        positive, negative = positive / lengths.take(words), negative / lengths.take(sampled)
        sampled = sampled.masked_fill(keys == -torch.inf, -1)
        ctx.save_for_backward(query, embedding, lengths, words, sampled, positive, negative)
        ctx.mark_non_differentiable(sampled)
        return positive, negative, sampled

    @staticmethod
    # In the annotations of torch once_differentiable loses the names of the parameters.
    @once_differentiable
    def backward(ctx, of_positive, of_negative, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, embedding, lengths, words, sampled, positive, negative = ctx.saved_tensors
        words = torch.cat([words, sampled.clamp(min=0)], dim=1)
        of_words, cosines = torch.cat([of_positive, of_negative], dim=1), torch.cat([positive, negative], dim=1)
        # A cosine does not change with the length of a vector: what goes along the vector is taken off.
        along = torch.zeros_like(lengths).index_add_(0, words.flatten(), (of_words * cosines).flatten())
        along /= -lengths.square()
        of_words = of_words / lengths.take(words)
        # Of V words each query has m and a few: sums over these are much less than products with all.
        vectors = embedding.to(query.dtype)
        for_query = F.embedding_bag(words, vectors, per_sample_weights=of_words, mode="sum")
        for_embedding = _by_word(words, of_words, query, len(embedding)).addcmul_(vectors, along.unsqueeze(1))
        return for_query, for_embedding.to(embedding.dtype), None, None, None, None


def _by_word(words: Tensor, weights: Tensor, query: Tensor, count: int) -> Tensor:
    """The sum over all places where a word is named of weight and query: [V, D] from words and weights [N, W]."""
    rows = torch.arange(len(query), device=words.device).unsqueeze(1)
    # Padding weighs nothing, and as a word that is named by far the most often it would take GPUs the longest.
    words = torch.where(weights == 0, rows % count, words).flatten()
    places = words.int().argsort()
    named = torch.zeros(count, dtype=torch.int64, device=words.device).scatter_add_(0, words, torch.ones_like(words))
    rows = rows.expand_as(weights).flatten().take(places)
    weights = weights.flatten().take(places)
    return F.embedding_bag(rows, query, named.cumsum(0) - named, per_sample_weights=weights, mode="sum")


def _chunks(embedding: Tensor, query: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Parts of the vocabulary: the first word, and vectors in the type of the query."""
    count = max(1, CHUNK_LOGITS // max(1, len(query)))
    for start in range(0, len(embedding), count):
        yield start, embedding[start : start + count].to(query.dtype)


def _places(words: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Which words are among ``count`` from ``start`` on, and the place of each there; ``count`` if it is not."""
    inside = (words >= start) & (words < start + count)
    return inside, torch.where(inside, words - start, count)


def _drawn(
    products: Tensor, lengths: Tensor, barred: Tensor, temperature: float, samples: int
) -> tuple[Tensor, Tensor]:
    """The largest sums of cosine / temperature and Gumbel noise of each row, at most ``samples``, and their places.

    Args:
        products: [N, C], cosines times ``lengths`` [C].
        barred: int64 [N, K], places that are not drawn, or C.
    """
    rows, count = products.shape
    noise = products.new_empty(rows + count).exponential_().log_().neg_().as_strided((rows, count), (1, 1))
    block = max(1, CACHED_KEYS // count) if products.device.type == "cpu" else max(1, rows)
    room = products.new_empty(min(block, rows), (count // GROUPS + 1) * GROUPS)
    found = []
    for start in range(0, max(rows, 1), block):
        part = slice(start, start + block)
        keys = room[: len(barred[part])]
        torch.addcdiv(noise[part], products[part], lengths, value=1 / temperature, out=keys[:, :count])
        keys.scatter_(1, barred[part], -torch.inf)[:, count:] = -torch.inf
        found.append(_largest(keys, samples))
    keys, places = (torch.cat(parts) for parts in zip(*found, strict=True))
    return keys, places.clamp(max=count - 1)


def _largest(keys: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The largest of each row, at most ``samples``, in any order, and their places.

    The m largest lie in the m groups with the largest maxima, so most columns need not be looked at one by one.
    """
    count = keys.size(1)
    if count % GROUPS or count < 2 * GROUPS * samples:
        places = _top(keys, min(samples, count))
        return keys.gather(1, places), places
    grouped = keys.unflatten(1, (GROUPS, -1))  # [N, 4, C / 4]; a group is a column
    groups = _top(grouped.amax(1), samples)
    candidates = grouped.gather(2, groups.unsqueeze(1).expand(-1, GROUPS, -1)).flatten(1)
    found = _top(candidates, samples)
    first = torch.arange(0, count, count // GROUPS, device=keys.device).unsqueeze(1)
    return candidates.gather(1, found), (groups.unsqueeze(1) + first).flatten(1).gather(1, found)


def _top(keys: Tensor, count: int) -> Tensor:
    """Places of the ``count`` largest of each row, in any order."""
    if keys.device.type != "cpu" or torch.get_num_threads() > FEW_THREADS:
        return keys.topk(count, dim=1, sorted=False).indices
    return torch.from_numpy(np.argpartition(keys.numpy(), keys.size(1) - count, axis=1)[:, -count:])


def _merged(
    one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor], samples: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of what two chunks have."""
    keys, products, words = (torch.cat(both, dim=1) for both in zip(one, other, strict=True))
    top, places = _largest(keys, samples)
    return top, products.gather(1, places), words.gather(1, places)

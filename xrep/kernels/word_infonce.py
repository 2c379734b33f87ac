"""HiCTL's word-level contrast: the words of a sentence pair against sampled words of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.pairwise import beaten
from xrep.kernels.precision import accumulation_dtype, multiply, multiply_add

CHUNK_LOGITS = 1 << 22
"""Similarities of queries and words that are held at a time."""
GROUPS = 8
"""Columns of which only the largest is looked at first."""
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
            keys = _keys(products, lengths[start : start + count], temperature)
            keys.scatter_(1, _places(barred, start, count)[1], -torch.inf)[:, count:] = -torch.inf
            top, places = _largest(keys, samples)
            places = places.clamp(max=count - 1)
            found = top, products.gather(1, places), places + start
            best = found if best is None else _merged(best, found, samples)
        keys, negative, sampled = best
        positive, negative = positive / lengths.take(words), negative / lengths.take(sampled)
        sampled = sampled.masked_fill(keys == -torch.inf, -1)
        ctx.save_for_backward(query, embedding, lengths, words, sampled, positive, negative)
        ctx.mark_non_differentiable(sampled)
        return positive, negative, sampled

    @staticmethod
    @once_differentiable
    def backward(ctx, of_positive, of_negative, _):
        query, embedding, lengths, words, sampled, positive, negative = ctx.saved_tensors
        words = torch.cat([words, sampled.clamp(min=0)], dim=1)
        of_words, cosines = torch.cat([of_positive, of_negative], dim=1), torch.cat([positive, negative], dim=1)
        # A cosine does not change with the length of a vector: what goes along the vector is taken off.
        along = torch.zeros_like(lengths).index_add_(0, words.flatten(), (of_words * cosines).flatten())
        along /= -lengths.square()
        of_words = of_words / lengths.take(words)
        for_query = torch.zeros_like(query)
        for_embedding = torch.empty_like(embedding, dtype=query.dtype)
        for start, vectors in _chunks(embedding, query):
            count = len(vectors)
            weights = query.new_zeros(len(query), count + 1)  # the last column takes what is not in this chunk
            weights = weights.scatter_add_(1, _places(words, start, count)[1], of_words)[:, :count]
            multiply_add(for_query, weights, vectors)
            towards = multiply(weights.t(), query, out=for_embedding[start : start + count])
            towards.addcmul_(vectors, along[start : start + count].unsqueeze(1))
        return for_query, for_embedding.to(embedding.dtype), None, None, None, None


def _chunks(embedding: Tensor, query: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Parts of the vocabulary: the first word, and vectors in the type of the query."""
    count = max(1, CHUNK_LOGITS // max(1, len(query)))
    for start in range(0, len(embedding), count):
        yield start, embedding[start : start + count].to(query.dtype)


def _places(words: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Which words are among ``count`` from ``start`` on, and the place of each there; ``count`` if it is not."""
    inside = (words >= start) & (words < start + count)
    return inside, torch.where(inside, words - start, count)


def _keys(products: Tensor, lengths: Tensor, temperature: float) -> Tensor:
    """Cosines / temperature and Gumbel noise [N, C], and further columns, at least one and up to a multiple of 8."""
    rows, count = products.shape
    noise = products.new_empty(rows + count).exponential_().log_().neg_().as_strided((rows, count), (1, 1))
    keys = products.new_empty(rows, (count // GROUPS + 1) * GROUPS)
    torch.addcdiv(noise, products, lengths, value=1 / temperature, out=keys[:, :count])
    return keys


def _largest(keys: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The largest of each row, at most ``samples``, in any order, and their places.

    The m largest lie in the m groups with the largest maxima, so most columns need not be looked at one by one.
    """
    count = keys.size(1)
    if count % GROUPS or count < 2 * GROUPS * samples:
        return keys.topk(min(samples, count), dim=1, sorted=False)
    grouped = keys.unflatten(1, (GROUPS, -1))  # [N, 8, C / 8]; a group is a column
    groups = grouped.amax(1).topk(samples, dim=1, sorted=False).indices
    candidates = grouped.gather(2, groups.unsqueeze(1).expand(-1, GROUPS, -1)).flatten(1)
    top, found = candidates.topk(samples, dim=1, sorted=False)
    return top, groups.gather(1, found % samples) + found // samples * (count // GROUPS)


def _merged(
    one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor], samples: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of what two chunks have."""
    keys, products, words = (torch.cat(both, dim=1) for both in zip(one, other, strict=True))
    top, places = _largest(keys, samples)
    return top, products.gather(1, places), words.gather(1, places)

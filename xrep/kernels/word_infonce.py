"""HiCTL's word-level contrast between the words of a sentence pair and sampled words of the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.arguments import check_number, check_tensors
from xrep.kernels.pairs import beaten
from xrep.kernels.precision import accumulation_dtype, multiply, operand_dtype

CHUNK_LOGITS = 1 << 22
"""Number of similarities of queries and words that are held at a time."""
CACHED_KEYS = 1 << 19
"""Number of these similarities from which words are drawn at a time on CPUs, always in whole rows."""
GROUPS = 4
"""Number of columns in a group. At first, only the largest value of each group is looked at."""
FEW_THREADS = 4
"""Up to this many CPU threads, NumPy finds the largest values of each row faster than torch: it has vector instructions
for that, but uses one thread."""
SHORTEST = 1e-12
"""Smallest length of a word vector: shorter ones are treated as this long, as in ``torch.nn.functional.normalize``."""


class WordInfoNCE(NamedTuple):
    """The loss of each pair and the words that were sampled for it. Gradients flow through ``loss`` only.

    Attributes:
        loss: [N] (nats).
        correct: bool [N, W], whether a word of the bag beat all sampled words.
        sampled: int64 [N, m], the sampled words; -1 if there were too few.
    """

    loss: Tensor
    correct: Tensor
    sampled: Tensor


def word_infonce(
    query: Tensor, embedding: Tensor, words: Tensor, bag: Tensor, temperature: float, *, special: Tensor, samples: int
) -> WordInfoNCE:
    """Compute the mean over a bag of words of -log softmax of each cosine among itself and sampled words (eq. 7).

    The sampled words are drawn without replacement from those outside the bag, with probabilities proportional to
    exp(cosine / temperature). They are the words with the ``samples`` largest sums of this logit and Gumbel noise,
    found in chunks of the vocabulary and without gradient. The noise of one query is independent for each word, and the
    noise of one word for each query. But row i reads the noise of row 0 shifted by i places, so that only V + N values
    are drawn instead of V · N.

    Args:
        query: [N, D], vectors of any length.
        embedding: [V, D], the vectors of the words, of any length.
        words: int64 [N, W] in [0, V), the subwords of each pair; none of them is sampled.
        bag: bool [N, W], which of ``words`` are counted; each word is counted once.
        temperature: divides all cosines, in the loss and in the sampling. The paper has no temperature, that is 1.
        special: int64 [K], words that are never sampled.
        samples: m, number of words that are sampled for each query; fewer if the vocabulary has no more.

    Raises:
        ValueError: an argument has a wrong type, shape or device, or a number is out of range.
    """
    check_tensors(
        query=(query, "float N D"),
        embedding=(embedding, "float V D"),
        words=(words, "int64 N W"),
        bag=(bag, "bool N W"),
        special=(special, "int64 K"),
    )
    check_number("temperature", temperature)
    check_number("samples", samples, 1)
    if not len(embedding):
        raise ValueError("embedding must have at least one row")
    for name, ids in (("words", words), ("special", special)):
        if ids.device.type != "cpu" or not ids.numel():
            continue  # on a GPU, the values would have to be waited for
        values = ids.numpy()
        if not 0 <= values.min() <= values.max() < len(embedding):
            raise ValueError(f"{name} must lie in [0, {len(embedding)}), not {values.min()} to {values.max()}")
    accumulate = accumulation_dtype(query, embedding)
    operand = accumulate if accumulate == torch.float64 else operand_dtype(embedding)
    with torch.autocast(query.device.type, enabled=False):
        unit = F.normalize(query.to(accumulate), dim=1)
        barred = torch.cat([words, special.expand(len(words), -1)], dim=1)
        positive, negative, sampled = _Cosines.apply(unit, embedding, words, barred, temperature, samples, operand)
        logits = (negative / temperature).masked_fill(sampled < 0, torch.finfo(accumulate).min)
        positive = positive / temperature
        # The threshold of softplus, above which it is the identity, keeps float64 losses exact.
        losses = F.softplus(logits.logsumexp(1, keepdim=True) - positive, threshold=40).masked_fill(~bag, 0.0)
        best = F.pad(logits.detach(), (0, 1), value=torch.finfo(accumulate).min).amax(1, keepdim=True)
        correct = beaten(best - positive.detach(), positive.detach()) & bag
    return WordInfoNCE(losses.sum(1) / bag.sum(1).clamp(min=1), correct, sampled)


class _Cosines(torch.autograd.Function):
    """Cosines of unit vectors with their words [N, W] and with sampled words [N, m], and the sampled words."""

    @staticmethod
    def forward(ctx, query, embedding, words, barred, temperature, samples, operand):
        lengths = embedding.norm(dim=1, dtype=query.dtype).clamp(min=SHORTEST)
        positive = query.new_zeros(words.shape)
        best, rows = None, query.to(operand)
        for start, vectors in _chunks(embedding, rows):
            count = len(vectors)
            products = multiply(rows, vectors.t())
            inside, places = _places(words, start, count)
            positive = torch.where(inside, products.gather(1, places.clamp(max=count - 1)), positive)
            barred_places = _places(barred, start, count)[1]
            keys, places = _drawn(products, lengths[start : start + count], barred_places, temperature, samples)
            drawn = keys, products.gather(1, places), places + start
            best = drawn if best is None else _merged(best, drawn, samples)
        assert best is not None
        keys, negative, sampled = best
        positive, negative = positive / lengths.take(words), negative / lengths.take(sampled)
        sampled = sampled.masked_fill(keys == -torch.inf, -1)
        ctx.save_for_backward(query, embedding, lengths, words, sampled, positive, negative)
        ctx.mark_non_differentiable(sampled)
        return positive, negative, sampled

    @staticmethod
    # In torch's annotations, once_differentiable loses the names of the parameters.
    @once_differentiable
    def backward(ctx, of_positive, of_negative, _):  # pyright: ignore[reportIncompatibleMethodOverride]
        query, embedding, lengths, words, sampled, positive, negative = ctx.saved_tensors
        words = torch.cat([words, sampled.clamp(min=0)], dim=1)
        of_words, cosines = torch.cat([of_positive, of_negative], dim=1), torch.cat([positive, negative], dim=1)
        # A cosine does not depend on the length of a vector, so the part of the gradient along the vector is removed.
        along = torch.zeros_like(lengths).index_add_(0, words.flatten(), (of_words * cosines).flatten())
        along /= -lengths.square()
        of_words = of_words / lengths.take(words)
        # Each query uses only few of the V words, so sums over these cost much less than products with all words.
        vectors = embedding.to(query.dtype)
        for_query = F.embedding_bag(words, vectors, per_sample_weights=of_words, mode="sum")
        for_embedding = _by_word(words, of_words, query, len(embedding)).addcmul_(vectors, along.unsqueeze(1))
        return for_query, for_embedding.to(embedding.dtype), None, None, None, None, None


def _by_word(words: Tensor, weights: Tensor, query: Tensor, count: int) -> Tensor:
    """Return for each word the sum of weight · query over its occurrences: [V, D] from words and weights [N, W]."""
    rows = torch.arange(len(query), device=words.device).unsqueeze(1)
    # Padding has weight 0. It is spread over many words, because one word that occurs far more often is slow on GPUs.
    words = torch.where(weights == 0, rows % count, words).flatten()
    places = words.int().argsort()
    named = torch.zeros(count, dtype=torch.int64, device=words.device).scatter_add_(0, words, torch.ones_like(words))
    rows = rows.expand_as(weights).flatten().take(places)
    weights = weights.flatten().take(places)
    return F.embedding_bag(rows, query, named.cumsum(0) - named, per_sample_weights=weights, mode="sum")


def _chunks(embedding: Tensor, query: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield parts of the vocabulary: the index of the first word, and the vectors in the type of the query."""
    count = max(1, CHUNK_LOGITS // max(1, len(query)))
    for start in range(0, len(embedding), count):
        yield start, embedding[start : start + count].to(query.dtype)


def _places(words: Tensor, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Return which words are among the ``count`` words from ``start`` on, and their places there (else ``count``)."""
    inside = (words >= start) & (words < start + count)
    return inside, torch.where(inside, words - start, count)


def _drawn(
    products: Tensor, lengths: Tensor, barred: Tensor, temperature: float, samples: int
) -> tuple[Tensor, Tensor]:
    """Return the largest sums of cosine / temperature and Gumbel noise of each row, at most ``samples``, and places.

    Args:
        products: [N, C], cosines times ``lengths`` [C].
        barred: int64 [N, K], places that must not be drawn, or C for no place.
    """
    rows, count = products.shape
    noise = products.new_empty(rows + count).exponential_().log_().neg_().as_strided((rows, count), (1, 1))
    block = max(1, CACHED_KEYS // count) if products.device.type == "cpu" else max(1, rows)
    room = products.new_empty(min(block, rows), (count // GROUPS + 1) * GROUPS)
    drawn = []
    for start in range(0, max(rows, 1), block):
        part = slice(start, start + block)
        keys = room[: len(barred[part])]
        torch.addcdiv(noise[part], products[part], lengths, value=1 / temperature, out=keys[:, :count])
        keys.scatter_(1, barred[part], -torch.inf)[:, count:] = -torch.inf
        drawn.append(_largest(keys, samples))
    keys, places = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    return keys, places.clamp(max=count - 1)


def _largest(keys: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """Return the largest values of each row, at most ``samples``, in any order, and their places.

    The m largest values lie in the m groups with the largest maxima, so most columns need not be compared one by one.
    """
    count = keys.size(1)
    if count % GROUPS or count < 2 * GROUPS * samples:
        places = _top(keys, min(samples, count))
        return keys.gather(1, places), places
    grouped = keys.unflatten(1, (GROUPS, -1))  # [N, 4, C / 4]; a group is a column
    groups = _top(grouped.amax(1), samples)
    candidates = grouped.gather(2, groups.unsqueeze(1).expand(-1, GROUPS, -1)).flatten(1)
    places = _top(candidates, samples)
    first = torch.arange(0, count, count // GROUPS, device=keys.device).unsqueeze(1)
    return candidates.gather(1, places), (groups.unsqueeze(1) + first).flatten(1).gather(1, places)


def _top(keys: Tensor, count: int) -> Tensor:
    """Return the places of the ``count`` largest values of each row, in any order."""
    if keys.device.type != "cpu" or torch.get_num_threads() > FEW_THREADS:
        return keys.topk(count, dim=1, sorted=False).indices
    return torch.from_numpy(np.argpartition(keys.numpy(), keys.size(1) - count, axis=1)[:, -count:])


def _merged(
    one: tuple[Tensor, Tensor, Tensor], other: tuple[Tensor, Tensor, Tensor], samples: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest keys of two chunks, with their products and words."""
    keys, products, words = (torch.cat(both, dim=1) for both in zip(one, other, strict=True))
    top, places = _largest(keys, samples)
    return top, products.gather(1, places), words.gather(1, places)

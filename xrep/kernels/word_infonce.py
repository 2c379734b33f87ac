"""HiCTL's word-level contrast between the words of a sentence pair and sampled words of the vocabulary."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from xrep.kernels.arguments import check_number, check_tensors
from xrep.kernels.linear import linear
from xrep.kernels.pairs import beaten
from xrep.kernels.precision import accumulation_dtype

BLOCK_KEYS = 1 << 19
"""Number of similarities from which words are drawn at a time on a CPU, whose caches hold them; always whole rows."""
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
    exp(cosine / temperature). They are the words with the ``samples`` largest sums of this logit and Gumbel noise. The
    noise of one query is independent for each word, and the noise of one word for each query. But row i reads the noise
    of row 0 shifted by i places, so that only V + N values are drawn instead of V · N.

    The products of all queries and words [N, V] are stored for the sampling: 128 MB for 128 queries and 250,000 words.
    Gradients are sums over the words that are read. No size depends on what is sampled, so a GPU is not waited for.

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
    accumulate = accumulation_dtype(query, embedding)
    lowest = torch.finfo(accumulate).min
    with torch.autocast(query.device.type, enabled=False):
        vectors, unit = embedding.to(accumulate), F.normalize(query.to(accumulate), dim=1)
        lengths = vectors.detach().norm(dim=1).clamp(min=SHORTEST)
        products = linear(unit.detach(), vectors.detach())
        barred = torch.cat([words, special.expand(len(words), -1)], dim=1)
        sampled = _sampled(products, lengths * temperature, barred, min(samples, len(embedding)))
        read = torch.cat([words, sampled.clamp(min=0)], dim=1)
        logits = _Cosines.apply(unit, vectors, lengths, products, read) / temperature
        positive, negative = logits.split([words.size(1), sampled.size(1)], dim=1)
        negative = negative.masked_fill(sampled < 0, lowest)
        # The threshold of softplus, above which it is the identity, keeps float64 losses exact.
        losses = F.softplus(negative.logsumexp(1, keepdim=True) - positive, threshold=40).masked_fill(~bag, 0.0)
        best = F.pad(negative.detach(), (0, 1), value=lowest).amax(1, keepdim=True)
        correct = beaten(best - positive.detach(), positive.detach()) & bag
    return WordInfoNCE(losses.sum(1) / bag.sum(1).clamp(min=1), correct, sampled)


class _Cosines(torch.autograd.Function):
    """Cosines [N, K] of unit vectors [N, D] and some of the words [V, D], whose products [N, V] are known.

    Each query reads few of the V words, so sums over these cost much less than products with all words.
    """

    @staticmethod
    def forward(ctx, unit, vectors, lengths, products, words):
        cosines = products.gather(1, words) / lengths[words]
        ctx.save_for_backward(unit, vectors, lengths, words, cosines)
        return cosines

    @staticmethod
    # In torch's annotations, once_differentiable loses the names of the parameters.
    @once_differentiable
    def backward(ctx, of_cosines):  # pyright: ignore[reportIncompatibleMethodOverride]
        unit, vectors, lengths, words, cosines = ctx.saved_tensors
        # A cosine does not depend on the length of a vector, so the part of the gradient along the vector is removed.
        along = torch.zeros_like(lengths).index_add_(0, words.flatten(), (of_cosines * cosines).flatten())
        weights = of_cosines / lengths[words]
        for_query = F.embedding_bag(words, vectors, per_sample_weights=weights, mode="sum")
        for_words = _by_word(words, weights, unit, len(vectors))
        return for_query, for_words.addcmul_(vectors, (along / -lengths.square()).unsqueeze(1)), None, None, None


def _by_word(words: Tensor, weights: Tensor, unit: Tensor, count: int) -> Tensor:
    """Return for each word the sum of weight times vector over the queries that read it: [V, D] of [N, K] and [N, D].

    Padding has weight 0. It is spread over many words, because one word that is read far more often is slow on GPUs.
    """
    rows = torch.arange(len(unit), device=words.device).unsqueeze(1)
    words = torch.where(weights == 0, rows % count, words).flatten()
    places = words.int().argsort()
    times = torch.zeros(count, dtype=torch.int64, device=words.device).scatter_add_(0, words, torch.ones_like(words))
    rows, weights = (each.expand(weights.shape).flatten()[places] for each in (rows, weights))
    return F.embedding_bag(rows, unit, times.cumsum(0) - times, per_sample_weights=weights, mode="sum")


def _sampled(products: Tensor, scales: Tensor, barred: Tensor, samples: int) -> Tensor:
    """Return the words with the largest sums of logit and Gumbel noise of each row, in any order; -1 if none is left.

    Args:
        products: [N, V], the logits times ``scales`` [V].
        barred: int64 [N, K], words that must not be drawn.
    """
    rows, count = products.shape
    noise = products.new_empty(rows + count).exponential_().log_().neg_().as_strided((rows, count), (1, 1))
    block, drawn = max(1, BLOCK_KEYS // count if products.device.type == "cpu" else rows), []
    for start in range(0, max(rows, 1), block):
        part = slice(start, start + block)
        keys = torch.addcdiv(noise[part], products[part], scales).scatter_(1, barred[part], -torch.inf)
        values, places = keys.topk(samples, dim=1, sorted=False)
        drawn.append(places.masked_fill_(values == -torch.inf, -1))
    return torch.cat(drawn)

"""Selection of the next words, best or sampled, with their log-probabilities but without the [R, V] array of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from xrep.kernels.arguments import check_number, check_tensors

BLOCK = 128
"""Neighbouring words in a block. The largest logit of each block is found first: the best words lie in the blocks with
the largest maxima."""
CACHED = 1 << 17
"""Log-probabilities that one thread computes at a time (512 KB in float32), before the wanted ones are picked out."""
NUCLEUS = 256
"""Number of best words searched first for a nucleus. It is multiplied by four while their mass is too small."""


class NextTokens(NamedTuple):
    """The chosen next words of each row.

    Attributes:
        log_probabilities: [R, N].
        tokens: int64 [R, N].
        never: [R, S], log-probabilities of the words ``never``, which were left out of the choice.
    """

    log_probabilities: Tensor
    tokens: Tensor
    never: Tensor


def best_next(
    logits: Tensor, count: int, *, never: Sequence[int] = (), banned: tuple[Tensor, Tensor] | None = None
) -> NextTokens:
    """Return the ``count`` words with the largest logits of each row, best first (N = count, but at most V).

    The largest logits are found exactly, in two steps: maxima of blocks, then the words of the best blocks. Ties are
    broken arbitrarily, but always in the same way. If a row has fewer words to choose from, the log-probabilities of
    the last ones are -inf.

    Args:
        logits: [R, V], float32 or float64; -inf for words that the model rules out.
        never: words that are not chosen, although they keep their share of the probability.
        banned: the same for some rows only: int64 [M] rows and int64 [M] words.

    Raises:
        ValueError: ``logits`` is no matrix of floats, or ``count`` is below 1.
    """
    check_tensors(logits=(logits, "float R V"))
    check_number("count", count, 1)
    logits = logits.detach()
    searched = logits if banned is None else logits.index_put(banned, logits.new_full((), -torch.inf))
    values, tokens = _largest(searched, min(count, logits.size(1)), never)
    best = _with_probabilities(logits, tokens, never)
    return best._replace(log_probabilities=best.log_probabilities.masked_fill(values == -torch.inf, -torch.inf))


def sample_next(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    never: Sequence[int] = (),
    banned: tuple[Tensor, Tensor] | None = None,
) -> NextTokens:
    """Sample one word for each row (N = 1): the one at which the cumulative distribution passes a given number.

    The probability of a word is proportional to exp(logit / temperature), among the ``top_k`` best words (0: all) and,
    of these, among the fewest best ones whose mass reaches ``top_p`` (nucleus sampling, Holtzman et al. 2020,
    arXiv:1904.09751). The returned log-probability is the model's: at temperature 1 and over all words.

    Args:
        logits, never, banned: as for ``best_next``.
        uniforms: float64 [R], in [0, 1); equal numbers draw equal words.

    Raises:
        ValueError: an argument has a wrong type, shape or range.
    """
    check_tensors(logits=(logits, "float R V"), uniforms=(uniforms, "float R"))
    check_number("temperature", temperature)
    check_number("top_k", top_k, 0)
    check_number("top_p", top_p)
    allowed = logits.detach().clone()
    allowed[:, list(never)] = -torch.inf
    if banned is not None:
        allowed.index_put_(banned, allowed.new_full((), -torch.inf))
    if top_k or top_p < 1:
        scaled, tokens = _truncated(allowed, temperature, top_k, top_p)
    else:
        scaled, tokens = allowed / temperature, None
    weights = scaled.softmax(1, dtype=torch.float64).cumsum(1)
    place = torch.searchsorted(weights, (uniforms * weights[:, -1]).unsqueeze(1), right=True)
    place = place.clamp_(max=weights.size(1) - 1)  # it is past the last column if the weights are NaN
    token = place if tokens is None else tokens.gather(1, place)
    return _with_probabilities(logits.detach(), token, never)


def _with_probabilities(logits: Tensor, tokens: Tensor, never: Sequence[int]) -> NextTokens:
    aside = torch.tensor(never, dtype=torch.int64, device=logits.device).expand(len(logits), -1)
    values = log_softmax_at(logits, torch.cat([tokens, aside], 1))
    return NextTokens(values[:, : tokens.size(1)], tokens, values[:, tokens.size(1) :])


def _truncated(allowed: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Return scaled logits [R, N] and the ``top_k`` best words, best first; words outside the nucleus have -inf."""
    words = allowed.size(1)
    count = min(top_k or NUCLEUS, words)
    whole = None if top_k else (allowed / temperature).logsumexp(1, keepdim=True)
    while True:
        values, tokens = _largest(allowed, count, ())
        scaled = values / temperature
        shares = (scaled - (scaled.logsumexp(1, keepdim=True) if whole is None else whole)).exp().cumsum(1)
        if top_k or count == words or bool((shares[:, -1] >= top_p).all()):
            break
        count = min(4 * count, words)
    if top_p < 1:
        scaled[:, 1:].masked_fill_(shares[:, :-1] >= top_p, -torch.inf)
    return scaled, tokens


def _largest(logits: Tensor, count: int, never: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the ``count`` largest logits of each row, except columns ``never``, and their columns.

    If a row has fewer, the last ones are -inf.
    """
    rows, words = logits.shape
    blocks = words // BLOCK
    wanted = count + len({word // BLOCK for word in never})
    if blocks < 2 * wanted:
        values, tokens = logits.topk(min(count + len(never), words), dim=1)
    else:
        body = logits[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
        best = body.amax(2).topk(wanted, dim=1, sorted=False).indices
        candidates = body.gather(1, best.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)
        values, places = torch.cat([candidates, logits[:, blocks * BLOCK :]], 1).topk(count + len(never), dim=1)
        block = best.gather(1, (places // BLOCK).clamp_(max=wanted - 1))
        after = places + (blocks - wanted) * BLOCK
        tokens = torch.where(places < wanted * BLOCK, block * BLOCK + places % BLOCK, after)
    if not never:
        return values, tokens
    for word in never:
        values = values.masked_fill(tokens == word, -torch.inf)
    values, places = values.topk(min(count, values.size(1)), dim=1)
    return values, tokens.gather(1, places)


def log_softmax_at(logits: Tensor, columns: Tensor) -> Tensor:
    """Return the log-softmax of each row at its ``columns`` [R, N]."""
    if not logits.is_cpu:
        return logits.gather(1, columns) - logits.logsumexp(1, keepdim=True)
    # One pass that writes into the cache takes half as long as torch's logsumexp: two passes and an [R, V] array.
    threads = torch.get_num_threads()
    step = threads * max(1, CACHED // max(1, logits.size(1)))
    buffer = logits.new_empty(min(step, len(logits)), logits.size(1))
    result = logits.new_empty(columns.shape)
    for start in range(0, len(logits), step):
        some = slice(start, start + step)
        space = buffer[: len(logits[some])]
        torch.log_softmax(logits[some], 1, out=space)
        torch.gather(space, 1, columns[some], out=result[some])
    return result

"""The best next words, or drawn ones, and their log-probabilities, without the [R, V] array of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 128
"""Neighbouring words whose largest logit is found first: the best words lie in the blocks of the best maxima."""
CACHED = 1 << 17
"""Log-probabilities that one thread holds at a time (512 KB in float32), before those that count are picked out."""
NUCLEUS = 256
"""Words looked at first for a nucleus; four times as many where their mass is too small."""


class NextTokens(NamedTuple):
    """Words that may follow: of each row ``log_probabilities`` [R, N] and ``tokens`` int64 [R, N]; ``apart`` [R, S] are
    the log-probabilities of those that were left out of the choice."""

    log_probabilities: Tensor
    tokens: Tensor
    apart: Tensor


def best_next(
    logits: Tensor, count: int, *, apart: Sequence[int] = (), banned: tuple[Tensor, Tensor] | None = None
) -> NextTokens:
    """The log-softmax of each row at its ``count`` largest logits, best first (N = count, but at most V).

    The largest are found exactly, in two steps: maxima of blocks, then the words of the best blocks. Ties fall either
    way, always the same. Where a row has fewer words to choose from, the last ones have log-probability -inf.

    Args:
        logits: [R, V], float32 or float64; -inf for words that the model rules out.
        apart: words that are not chosen, though they have their share of the probability.
        banned: the same for some rows alone: int64 [M] rows and [M] words.

    Raises:
        ValueError: logits are no matrix, or a count below 1.
    """
    if logits.dim() != 2 or count < 1:
        raise ValueError(f"logits must be [R, V] and count at least 1, not {list(logits.shape)} and {count}")
    logits = logits.detach()
    searched = logits if banned is None else logits.index_put(banned, logits.new_full((), -torch.inf))
    values, tokens = _largest(searched, min(count, logits.size(1)), apart)
    aside = torch.tensor(apart, dtype=torch.int64, device=logits.device).expand(len(logits), -1)
    found = _log_softmax_at(logits, torch.cat([tokens, aside], 1))
    chosen = found[:, : tokens.size(1)].masked_fill(values == -torch.inf, -torch.inf)
    return NextTokens(chosen, tokens, found[:, tokens.size(1) :])


def sample_next(
    logits: Tensor,
    uniforms: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    apart: Sequence[int] = (),
    banned: tuple[Tensor, Tensor] | None = None,
) -> NextTokens:
    """One word for each row (N = 1), drawn where the distribution function passes a given number.

    Words are drawn in proportion to exp(logit / temperature): among the ``top_k`` best (0: all), and of these among the
    fewest best whose mass reaches ``top_p`` (nucleus sampling, Holtzman et al. 2020, arXiv:1904.09751). The
    log-probability of the word is the model's, at temperature 1 and of all words.

    Args:
        logits, apart, banned: as for ``best_next``.
        uniforms: float64 [R], in [0, 1): equal ones draw equal words.
    """
    if top_k or top_p < 1:
        scaled, tokens = _truncated(logits, temperature, top_k, top_p, apart, banned)
    else:
        scaled, tokens = _allowed(logits, apart, banned) / temperature, None
    weights = scaled.softmax(1, dtype=torch.float64).cumsum(1)
    place = torch.searchsorted(weights, (uniforms * weights[:, -1]).unsqueeze(1), right=True)
    place = place.clamp_(max=weights.size(1) - 1)  # it is behind the last where weights are not numbers
    token = place if tokens is None else tokens.gather(1, place)
    aside = torch.tensor(apart, dtype=torch.int64, device=logits.device).expand(len(logits), -1)
    found = _log_softmax_at(logits.detach(), torch.cat([token, aside], 1))
    return NextTokens(found[:, :1], token, found[:, 1:])


def _truncated(
    logits: Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    apart: Sequence[int],
    banned: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Scaled logits [R, N] and words of the ``top_k`` best, best first; those behind their nucleus have -inf."""
    words = logits.size(1)
    allowed = _allowed(logits, apart, banned)
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


def _allowed(logits: Tensor, apart: Sequence[int], banned: tuple[Tensor, Tensor] | None) -> Tensor:
    """A copy of the logits in which what may not be drawn has -inf."""
    allowed = logits.detach().clone()
    allowed[:, list(apart)] = -torch.inf
    return allowed if banned is None else allowed.index_put_(banned, allowed.new_full((), -torch.inf))


def _largest(logits: Tensor, count: int, apart: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The ``count`` largest of each row but for columns ``apart``, and their columns; -inf for what there is not."""
    rows, words = logits.shape
    blocks = words // BLOCK
    wanted = count + len({word // BLOCK for word in apart})
    if blocks < 2 * wanted:
        values, tokens = logits.topk(min(count + len(apart), words), dim=1)
        return _without(values, tokens, count, apart)
    body = logits[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    best = body.amax(2).topk(wanted, dim=1, sorted=False).indices
    found = body.gather(1, best.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)
    values, places = torch.cat([found, logits[:, blocks * BLOCK :]], 1).topk(count + len(apart), dim=1)
    in_body = places < wanted * BLOCK
    block = best.gather(1, (places // BLOCK).clamp_(max=wanted - 1))
    tokens = torch.where(in_body, block * BLOCK + places % BLOCK, places + (blocks - wanted) * BLOCK)
    return _without(values, tokens, count, apart)


def _without(values: Tensor, tokens: Tensor, count: int, apart: Sequence[int]) -> tuple[Tensor, Tensor]:
    if not apart:
        return values, tokens
    for word in apart:
        values = values.masked_fill(tokens == word, -torch.inf)
    values, places = values.topk(min(count, values.size(1)), dim=1)
    return values, tokens.gather(1, places)


def _log_softmax_at(logits: Tensor, columns: Tensor) -> Tensor:
    """The log-softmax of each row at its ``columns`` [R, N]."""
    if not logits.is_cpu:
        return logits.gather(1, columns) - logits.logsumexp(1, keepdim=True)
    # One pass that writes into the cache is half as long as torch's logsumexp, which makes two and an [R, V] array.
    threads = torch.get_num_threads()
    step = threads * max(1, CACHED // max(1, logits.size(1)))
    buffer = logits.new_empty(min(step, len(logits)), logits.size(1))
    found = logits.new_empty(columns.shape)
    for start in range(0, len(logits), step):
        some = slice(start, start + step)
        space = buffer[: len(logits[some])]
        torch.log_softmax(logits[some], 1, out=space)
        torch.gather(space, 1, columns[some], out=found[some])
    return found

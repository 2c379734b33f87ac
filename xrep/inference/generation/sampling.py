"""Sampling of translations token by token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from xrep.hashing import scramble
from xrep.inference.generation.hypotheses import Step
from xrep.inference.generation.options import SearchOptions
from xrep.kernels.next_tokens import log_softmax_at, sample_next


def sample_step(
    logits: Tensor,
    scores: Tensor,
    last: Tensor,
    length: int,
    apart: list[int],
    banned: tuple[Tensor, Tensor] | None,
    options: SearchOptions,
    numbers: Tensor,
) -> Step:
    """Draw the next token of each sample. Samples that have ended go on with the score -inf, and end only once.

    Args:
        numbers: int64 [B], numbers of the sentences.
        others: as in ``beam_step``.
    """
    count, (eos, *special) = options.nbest, apart
    logits = logits.expand(-1, count, -1).flatten(0, 1)
    uniform = torch.from_numpy(uniforms(options.seed, numbers.numpy(), count, length)).flatten().to(logits.device)
    limits = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    left_out = apart if length <= options.min_length else special
    drawn = sample_next(logits, uniform, **limits, apart=left_out, banned=banned)
    tokens, chosen = drawn.tokens.view(-1, count), drawn.log_probabilities.view(-1, count)
    last = last.unsqueeze(1)
    if last.any():
        of_eos = log_softmax_at(logits, torch.full_like(drawn.tokens, eos)).view_as(chosen)
        tokens, chosen = torch.where(last, eos, tokens), torch.where(last, of_eos, chosen)
    ends = (scores > -torch.inf) & (tokens == eos)
    scores = scores + chosen
    slots = torch.arange(count, device=logits.device).expand_as(tokens)
    parents = slots if length > 1 else torch.zeros_like(slots)
    return Step(scores.masked_fill(ends, -torch.inf), parents, tokens, chosen, ends, slots, scores, chosen)


def uniforms(seed: int, numbers: np.ndarray, count: int, step: int) -> np.ndarray:
    """Return float64 numbers [B, count] in [0, 1), each a function of only seed, sentence number, place and step.

    The generator is counter-based: it applies rounds of splitmix64 and uses the upper 32 bits.

    Args:
        numbers: Numbers of the sentences, int64 [B].
    """
    mixed = scramble(np.full((1, 1), seed, dtype=np.uint64), 0)
    for number in (numbers.astype(np.uint64)[:, None], np.arange(count, dtype=np.uint64), np.uint64(step)):
        mixed = scramble(mixed + number, 0)
    return (mixed >> np.uint64(32)) / 2.0**32

"""Translation by sampling token by token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from xrep.data.batching import TokenBatch
from xrep.hashing import scramble
from xrep.inference.generation.hypotheses import (
    Hypotheses,
    Hypothesis,
    Repeats,
    Translates,
    greatest_lengths,
    leavers,
    left_out,
)
from xrep.inference.generation.options import SearchOptions
from xrep.kernels.next_tokens import log_softmax_at, sample_next


def sample(
    model: Translates, source: TokenBatch, languages: Tensor, options: SearchOptions, numbers: Tensor
) -> list[list[Hypothesis]]:
    """Sample ``options.nbest`` independent translations of each sentence, likeliest first; two may be the same.

    Args:
        numbers: int64 [B], numbers of the sentences; together with the seed they determine what is drawn.
    """
    eos, *special = left_out(model.target_vocabulary)
    device, count = source.tokens.device, options.nbest
    decoding = model.begin(source, languages)
    greatest = greatest_lengths(source, options, model.max_target_length)
    limits, places = torch.tensor(greatest, device=device), numbers.numpy(force=True)
    hypotheses, repeats = Hypotheses(len(source), count, device), Repeats(options.no_repeat_ngram_size)
    scores = torch.zeros(len(source), count, device=device)
    running = torch.ones(scores.shape, dtype=torch.bool, device=device)
    kept = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    tokens = parents = None
    for length in range(1, max(greatest) + 1):
        logits = decoding.next(tokens, parents)
        logits = logits.expand(-1, count, -1).flatten(0, 1)
        apart = [eos, *special] if length <= options.min_length else special
        given = torch.from_numpy(uniforms(options.seed, places, count, length)).flatten().to(device)
        drawn = sample_next(logits, given, **kept, apart=apart, banned=repeats.banned())
        tokens, chosen = drawn.tokens.view_as(scores), drawn.log_probabilities.view_as(scores)
        last = (limits == length).unsqueeze(1)
        if last.any():
            ends_here = log_softmax_at(logits, torch.full_like(drawn.tokens, eos)).view_as(scores)
            tokens, chosen = torch.where(last, eos, tokens), torch.where(last, ends_here, chosen)
        scores = scores + chosen
        slots = torch.arange(count, device=device).expand_as(tokens)
        ends = running & (tokens == eos)
        parents = slots if length > 1 else torch.zeros_like(slots)
        hypotheses.extend(parents, tokens, chosen)
        repeats.extend(parents, tokens)
        if not ends.any():
            continue
        hypotheses.finish(ends, slots, scores / options.penalty(length), chosen, length)
        running = running & ~ends
        stay = leavers(~running.any(1))
        if stay is None:
            continue
        if not len(stay):
            break
        for part in (decoding, hypotheses, repeats):
            part.keep(stay)
        limits, scores, running = limits[stay], scores[stay], running[stay]
        parents, tokens, places = parents[stay], tokens[stay], places[stay.numpy(force=True)]
    return hypotheses.best(count)


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

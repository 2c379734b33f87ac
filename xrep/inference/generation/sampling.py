"""Translation by sampling token by token."""

from __future__ import annotations

import torch
from torch import Tensor

from xrep.data.batching import TokenBatch
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
from xrep.kernels.next_tokens import best_next, sample_next


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
    limits, numbers = torch.tensor(greatest, device=device), numbers.to(device)
    found, repeats = Hypotheses(len(source), count, device), Repeats(options.no_repeat_ngram_size)
    scores = torch.zeros(len(source), count, device=device)
    running = torch.ones(scores.shape, dtype=torch.bool, device=device)
    kept = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    tokens = parents = None
    for length in range(1, max(greatest) + 1):
        logits = decoding.next(tokens, parents)
        logits = logits.expand(-1, count, -1).flatten(0, 1)
        apart = [eos, *special] if length <= options.min_length else special
        given = uniforms(options.seed, numbers, count, length).flatten()
        drawn = sample_next(logits, given, **kept, apart=apart, banned=repeats.banned())
        tokens, chosen = drawn.tokens.view_as(scores), drawn.log_probabilities.view_as(scores)
        last = (limits == length).unsqueeze(1)
        if last.any():
            of_eos = best_next(logits, 1, apart=[eos]).apart.view_as(scores)
            tokens, chosen = torch.where(last, eos, tokens), torch.where(last, of_eos, chosen)
        scores = scores + chosen
        slots = torch.arange(count, device=device).expand_as(tokens)
        ends = running & (tokens == eos)
        parents = slots if length > 1 else torch.zeros_like(slots)
        found.extend(parents, tokens, chosen)
        repeats.extend(parents, tokens)
        if not ends.any():
            continue
        found.finish(ends, slots, scores / options.penalty(length), chosen, length)
        running = running & ~ends
        stay = leavers(~running.any(1))
        if stay is None:
            continue
        if not len(stay):
            break
        for part in (decoding, found, repeats):
            part.keep(stay)
        limits, numbers, scores, running = limits[stay], numbers[stay], scores[stay], running[stay]
        parents, tokens = parents[stay], tokens[stay]
    return found.best(count)


def uniforms(seed: int, numbers: Tensor, count: int, step: int) -> Tensor:
    """Return float64 numbers [B, count] in [0, 1), each a function of only seed, sentence number, place and step.

    The generator is counter-based: it applies rounds of SplitMix64's mixing function (Steele et al. 2014, "Fast
    splittable pseudorandom number generators") and uses the upper 32 bits.
    """
    places = torch.arange(count, device=numbers.device)
    mixed = _mix(torch.full((), seed, dtype=torch.int64, device=numbers.device))
    for number in (numbers.unsqueeze(1), places, step):
        mixed = _mix(mixed + number)
    return _shifted(mixed, 32).double() / 2.0**32


def _mix(x: Tensor) -> Tensor:
    """Map 64 bits to 64 bits, one to one; int64 overflows as unsigned numbers do."""
    x = x - 0x61C8864680B583EB  # SplitMix64's step, the golden ratio, modulo 2**64
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros, because int64 itself would fill with its sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)

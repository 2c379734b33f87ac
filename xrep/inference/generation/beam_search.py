"""Beam search over a batch of sentences."""

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
from xrep.inference.generation.sampling import sample
from xrep.kernels.next_tokens import NextTokens, best_next


@torch.inference_mode()
def search(
    model: Translates,
    source: TokenBatch,
    languages: Tensor,
    options: SearchOptions,
    numbers: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Return ``options.nbest`` translations of each sentence, best first, by beam search or by sampling.

    Args:
        model: a model in evaluation mode.
        languages: int64 [B], indices in the model's ``target_languages``.
        numbers: int64 [B], numbers of the sentences in their text, on which samples depend; None: count from 0.

    Raises:
        UserError: the model gives probabilities that are not finite.
    """
    if not len(source):
        return []
    if not options.sampling:
        return beam_search(model, source, languages, options)
    numbers = torch.arange(len(source)) if numbers is None else numbers
    return sample(model, source, languages, options, numbers)


def beam_search(
    model: Translates, source: TokenBatch, languages: Tensor, options: SearchOptions
) -> list[list[Hypothesis]]:
    """Return the best hypotheses that beam search finds.

    The rule is that of fairseq. Candidates extend each of the ``beam`` hypotheses by one token. Candidates that end in
    eos finish if they are among the ``beam`` best ones; the ``beam`` best of the others go on. A sentence is done when
    ``beam`` hypotheses are finished, or at its greatest length, where eos is forced.
    """
    apart = left_out(model.target_vocabulary)
    device, beam = source.tokens.device, options.beam
    decoding = model.begin(source, languages)
    greatest = greatest_lengths(source, options, model.max_target_length)
    limits, longest = torch.tensor(greatest, device=device), max(greatest)
    hypotheses, repeats = Hypotheses(len(source), beam, device), Repeats(options.no_repeat_ngram_size)
    scores = torch.zeros(len(source), 1, device=device)
    tokens = parents = None
    for length in range(1, longest + 1):
        logits = decoding.next(tokens, parents)
        best = best_next(logits.flatten(0, 1), beam, apart=apart, banned=repeats.banned())
        last = limits == length
        ended, scores, parents, tokens, chosen = _step(scores, best, last, beam)
        if length <= options.min_length:
            ended = ended.masked_fill(~last.unsqueeze(1), -torch.inf)
        values, slots, ends = _ending(scores, ended, beam)
        hypotheses.extend(parents, tokens, chosen)
        repeats.extend(parents, tokens)
        if not ends.any():
            continue
        of_eos = best.apart[:, 0].view_as(ended).gather(1, slots)
        hypotheses.finish(ends, slots, values / options.penalty(length), of_eos, length)
        stay = leavers((hypotheses.count == beam) | (limits <= length))
        if stay is None:
            continue
        if not len(stay):
            break
        for part in (decoding, hypotheses, repeats):
            part.keep(stay)
        limits, scores, parents, tokens = limits[stay], scores[stay], parents[stay], tokens[stay]
    return hypotheses.best(options.nbest)


def _step(scores: Tensor, best: NextTokens, last: Tensor, beam: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the candidates of a step.

    Returns:
        Scores [B, K] of the hypotheses if they end. Then, for those that go on, [B, K'] each: their scores, which of
        the K they extend, by which token, and its log-probability.
    """
    sentences, before = scores.shape
    log_probabilities = best.log_probabilities.view(sentences, before, -1)
    ended = scores + best.apart[:, 0].view_as(scores)
    totals = (scores.unsqueeze(2) + log_probabilities).flatten(1).masked_fill_(last.unsqueeze(1), -torch.inf)
    scores, places = totals.topk(min(beam, totals.size(1)), dim=1)
    parents = places // log_probabilities.size(2)
    tokens = best.tokens.view(sentences, -1).gather(1, places)
    return ended, scores, parents, tokens, log_probabilities.flatten(1).gather(1, places)


def _ending(scores: Tensor, ended: Tensor, beam: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the ``beam`` best candidates among those that go on [B, K'] and those that end [B, K].

    Returns:
        Their scores, best first; for those that end, which of the K each is; and whether each one ends.
    """
    going = scores.size(1)
    candidates = torch.cat([scores, ended], dim=1)
    values, places = candidates.topk(min(beam, candidates.size(1)), dim=1)
    return values, (places - going).clamp_(min=0), (places >= going) & (values > -torch.inf)

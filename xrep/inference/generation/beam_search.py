"""The search for translations of a batch of sentences, and the steps of beam search and of sampling."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from xrep.data.batch import TokenBatch
from xrep.hashing import scramble
from xrep.inference.generation.decoding import SAMPLING, DecodingOptions
from xrep.inference.generation.hypotheses import Banned, Hypotheses, Hypothesis, SearchStep
from xrep.kernels.next_tokens import best_next, log_softmax_at, sample_next
from xrep.models.model import TranslationModel

MIN_FINISHED_SHARE_TO_COMPACT = 1 / 8
"""Share of the sentences that must be done before they leave the batch, because the remaining ones are copied then."""


@torch.inference_mode()
def search(
    model: TranslationModel,
    source: TokenBatch,
    languages: Tensor,
    options: DecodingOptions,
    numbers: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Return ``options.nbest`` translations of each sentence, best first, by beam search or by sampling.

    Beam search follows fairseq's rule. Candidates extend each of the ``beam`` hypotheses by one token. Candidates that
    end in eos finish if they are among the ``beam`` best ones; the ``beam`` best of the others go on. A sentence is
    done when ``beam`` hypotheses are finished, or at its greatest length, where eos is forced. Sampling draws ``nbest``
    independent translations; two may be the same.

    Args:
        model: a model in evaluation mode.
        languages: int64 [B], indices in the model's ``target_languages``.
        numbers: int64 [B] in host memory, numbers of the sentences in their text, which determine together with the
            seed what is drawn; None: count from 0.

    Raises:
        UserError: the model gives probabilities that are not finite.
    """
    numbers = torch.arange(len(source)) if numbers is None else numbers
    device, words = source.tokens.device, model.target_vocabulary
    # eos, which a step handles itself, and the special tokens that no translation has
    never = [words.end, *words.unwritten]
    sizes, most = source.host_lengths - model.source_vocabulary.special_count, model.max_target_length - 1
    greatest = [int(min(options.max_length_a * size + options.max_length_b, most)) + 1 for size in sizes.tolist()]
    limits, decoding = torch.tensor(greatest, device=device), model.begin(source, languages)
    hypotheses = Hypotheses(len(source), options.width, options.no_repeat_ngram_size, device)
    scores = torch.zeros(len(source), 1, device=device)
    tokens = parents = None
    for length in range(1, max(greatest) + 1):
        logits, last, banned = decoding.next(tokens, parents), limits == length, hypotheses.banned()
        inputs = logits, scores, last, length, never, banned, options
        step = sample_step(*inputs, numbers) if options.sampling else beam_step(*inputs)
        scores, parents, tokens = step.scores, step.parents, step.tokens
        if not hypotheses.add(step, length, options.penalty(length)):
            continue
        done = (hypotheses.count == options.width) | (limits <= length)
        if int(done.sum()) < max(1, MIN_FINISHED_SHARE_TO_COMPACT * len(done)):
            continue
        stay = (~done).nonzero().squeeze(1)
        if not len(stay):
            break
        decoding.keep(stay)
        hypotheses.keep(stay)
        limits, scores, parents, tokens = (tensor[stay] for tensor in (limits, scores, parents, tokens))
        numbers = numbers[stay.cpu()]
    return hypotheses.best(options.nbest)


def beam_step(
    logits: Tensor,
    scores: Tensor,
    last: Tensor,
    length: int,
    never: list[int],
    banned: Banned,
    options: DecodingOptions,
) -> SearchStep:
    """Find the best candidates that go on, and those among the ``beam`` best ones that end.

    ``logits`` [B, K, V] are those of the next token, ``scores`` [B, K] those of the hypotheses so far, ``last`` [B]
    says which sentences are at their greatest length, ``length`` is the number of tokens after this step, and ``never``
    are eos and the tokens that no translation has.
    """
    sentences, before = scores.shape
    best = best_next(logits.flatten(0, 1), options.beam, never=never, banned=banned)
    log_probabilities = best.log_probabilities.view(sentences, before, -1)
    ended = scores + best.never[:, 0].view_as(scores)
    totals = (scores.unsqueeze(2) + log_probabilities).flatten(1).masked_fill_(last.unsqueeze(1), -torch.inf)
    scores, indices = totals.topk(min(options.beam, totals.size(1)), dim=1)
    tokens = best.tokens.view(sentences, -1).gather(1, indices)
    chosen = log_probabilities.flatten(1).gather(1, indices)
    if length <= options.min_length:
        ended = ended.masked_fill(~last.unsqueeze(1), -torch.inf)
    candidates = torch.cat([scores, ended], dim=1)
    values, order = candidates.topk(min(options.beam, candidates.size(1)), dim=1)
    ends, slots = (order >= scores.size(1)) & (values > -torch.inf), (order - scores.size(1)).clamp_(min=0)
    end_log_probabilities = best.never[:, 0].view_as(ended).gather(1, slots)
    parents = indices // log_probabilities.size(2)
    return SearchStep(scores, parents, tokens, chosen, ends, slots, values, end_log_probabilities)


def sample_step(
    logits: Tensor, scores: Tensor, last: Tensor, length: int, never: list[int], banned: Banned,
    options: DecodingOptions, numbers: Tensor,
) -> SearchStep:  # fmt: skip
    """Draw the next token of each sample of the sentences with these ``numbers`` [B]; the rest is as for ``beam_step``.
    Samples that have ended go on with the score -inf, and end only once."""
    count, (eos, *special) = options.nbest, never
    logits = logits.expand(-1, count, -1).flatten(0, 1)
    uniform = torch.from_numpy(uniforms(options.seed, numbers.numpy(), count, length)).flatten().to(logits.device)
    limits = {name: vars(options)[name] for name in SAMPLING}
    left_out = never if length <= options.min_length else special
    drawn = sample_next(logits, uniform, **limits, never=left_out, banned=banned)
    tokens, chosen = drawn.tokens.view(-1, count), drawn.log_probabilities.view(-1, count)
    last = last.unsqueeze(1)
    if last.any():
        of_eos = log_softmax_at(logits, torch.full_like(drawn.tokens, eos)).view_as(chosen)
        tokens, chosen = torch.where(last, eos, tokens), torch.where(last, of_eos, chosen)
    ends = (scores > -torch.inf) & (tokens == eos)
    scores = scores + chosen
    slots = torch.arange(count, device=logits.device).expand_as(tokens)
    parents = slots if length > 1 else torch.zeros_like(slots)
    return SearchStep(scores.masked_fill(ends, -torch.inf), parents, tokens, chosen, ends, slots, scores, chosen)


def uniforms(seed: int, numbers: np.ndarray, count: int, step: int) -> np.ndarray:
    """Return float64 numbers [B, count] in [0, 1) for the sentences of these ``numbers``, int64 [B]. Each is a function
    of only seed, number, slot and step: the upper 32 bits of rounds of splitmix64."""
    mixed = scramble(np.full((1, 1), seed, dtype=np.uint64), 0)
    for number in (numbers.astype(np.uint64)[:, None], np.arange(count, dtype=np.uint64), np.uint64(step)):
        mixed = scramble(mixed + number, 0)
    return (mixed >> np.uint64(32)) / 2.0**32

"""The equations of objectives that predict words: mlm, tlm, cmlm and translation."""

import torch
from torch import Generator, Tensor, nn

from tests.criteria.by_hand import SEED, Expected, embedded, language_model, masked_words, read, rows, through
from tests.support.planning import token_batch
from xrep.criteria.criterion import Criterion, Planned
from xrep.data.batch import Batch, TokenBatch
from xrep.data.masking import Masked, mask_tokens


def masks(criterion: Criterion, tower: str, read: TokenBatch, rate: float, generator: Generator) -> Masked:
    return mask_tokens(read, criterion.masked_lm.vocabularies[tower], rate, generator)


def mlm(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    batch, generator, found = planned.batch, Generator().manual_seed(SEED), []
    sides = batch.sides
    if len(model.encoders) == 1 and len(sides) == 2:
        sides = {"shared": batch.source.followed_by(batch.target, criterion.masked_lm.vocabularies["shared"].pad_id)}
    for tower, side in sides.items():
        masked = masks(criterion, tower, side, criterion.config.mask_rate, generator)
        encoder, head = model.encoders[tower], criterion.masked_lm.heads[tower]
        found += masked_words(encoder, head, masked, lambda row, tokens, encoder=encoder: read(encoder, tokens))
    return language_model("mlm", found)


def put_together(batch: Batch, pad_id: int) -> TokenBatch:
    """[CLS] x [SEP] y [SEP]."""
    pairs = [torch.cat([x, y[1:]]) for x, y in zip(rows(batch.source), rows(batch.target), strict=True)]
    tokens = nn.utils.rnn.pad_sequence(pairs, batch_first=True, padding_value=pad_id)
    return token_batch(tokens, torch.tensor([len(pair) for pair in pairs]))


def tlm(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    batch, encoder, config = planned.batch, model.encoders["shared"], criterion.config
    together = put_together(batch, criterion.masked_lm.vocabularies["shared"].pad_id)
    masked = masks(criterion, "shared", together, config.mask_rate, Generator().manual_seed(SEED))
    if config.next_sentence:  # other sentences stand behind some of the first ones
        masked = planned.details[0]

    def states(row: int, tokens: Tensor) -> Tensor:
        return read(encoder, tokens)

    expected = language_model("tlm", masked_words(encoder, criterion.masked_lm.heads["shared"], masked, states))
    if config.next_sentence:
        follows, right = planned.details[1].tolist(), 0
        for row, tokens in enumerate(rows(masked.batch)):
            hidden = torch.tanh(criterion.first.weight @ states(row, tokens)[0] + criterion.first.bias)
            scores = criterion.neighbour.weight @ hidden + criterion.neighbour.bias
            expected.add("next_sentence", scores.exp().sum().log() - scores[follows[row]])
            right += int(scores.argmax()) == follows[row]
        expected.metrics["next_sentence_accuracy"] = 100 * right / len(follows)
    return expected


def sentence_vector(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return v of CMLM, [H], which is not normalised."""
    encoder, depth = model.encoders["shared"], model.config.pooled_layer
    x = embedded(encoder, encoder.token_embedding.weight[tokens], torch.arange(len(tokens)))
    x = through(encoder, x, depth)
    v = {"mean": x.mean(0), "max": x.max(0).values, "cls": x[0]}[model.pooling["shared"]]
    projection = model.projections["shared"] if len(model.projections) else None
    return projection.weight @ v + projection.bias if isinstance(projection, nn.Linear) else v


def projected(model: nn.Module, criterion: Criterion, v: Tensor) -> Tensor:
    """Return P(v), [N, H] (appendix C)."""
    own = criterion.spaces if criterion.spaces is not None else model.projections["shared"].spaces
    found = [v]
    for first, _, second, _, third in own.perceptrons:
        x = (first.weight @ v + first.bias).clamp(min=0)
        x = (second.weight @ x + second.bias).clamp(min=0)
        found.append(third.weight @ x + third.bias)
    return torch.stack(found)


def cmlm(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    encoder, kind = model.encoders["shared"], criterion.config.vector_embedding
    first = rows(planned.batch.source)
    generator = Generator().manual_seed(SEED)
    masked = masks(criterion, "shared", planned.batch.target, criterion.config.mask_rate, generator)

    def states(row: int, tokens: Tensor) -> Tensor:
        views = projected(model, criterion, sentence_vector(model, first[row]))
        front = views if kind == "raw" else embedded(encoder, views, None)
        own = embedded(encoder, encoder.token_embedding.weight[tokens], torch.arange(len(tokens)))
        x = through(encoder, torch.cat([front, own]))[len(views) :]
        return x if criterion.skip is None else x + criterion.skip.weight @ views.flatten()

    return language_model("cmlm", masked_words(encoder, criterion.masked_lm.heads["shared"], masked, states))


def translation(model: nn.Module, criterion: Criterion, planned: Planned, places: list[int] | None = None) -> Expected:
    """The cross-entropy with (1 - e) of the probability at the token and e spread over all words.

    Args:
        places: The target language of each row; None: the first.
    """
    batch, smoothing = planned.batch, criterion.config.label_smoothing
    total, nll, right, tokens = torch.zeros((), dtype=torch.float64), 0.0, 0, 0
    for row in range(len(batch)):
        one = batch.rows(row, row + 1)
        found = model.predict(one.source, one.target, torch.tensor([places[row] if places else 0]))
        expected = one.target.tokens[0, 1 : int(one.target.lengths[0])].tolist()
        for vector, token in zip(found.vectors, expected, strict=True):
            logits = found.matrix @ vector + (0 if found.bias is None else found.bias[0])
            log_p = logits - logits.exp().sum().log()
            wanted = torch.full_like(log_p, smoothing / len(log_p))
            wanted[token] += 1 - smoothing
            total = total - (wanted * log_p).sum()
            nll, right, tokens = nll - float(log_p[token].detach()), right + (int(logits.argmax()) == token), tokens + 1
    metrics = {"nll": nll / tokens, "accuracy": 100 * right / tokens}
    return Expected({"translation": total}, {"translation": tokens}, metrics)

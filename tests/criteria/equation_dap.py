"""Dual-alignment pre-training by its equations: one pair at a time, in plain torch, without padding."""

import torch
from torch import Tensor, nn

from tests.criteria.by_hand import Expected, layer, layer_norm
from tests.criteria.equations_vectors import alone, infonce, own_negatives, percentages, rows_alone
from xrep.criteria.criterion import Criterion, Planned

DE, EN, ES = range(3)


def dap(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """L_TR and the directions of L_RTL, given the tokens that the plan chose to predict."""
    batch, config, encoder = planned.batch, criterion.config, model.encoders["shared"]
    sides, expected = (batch.source, batch.target), Expected()
    vectors = [alone(model, "shared", side) for side in sides]
    name, ids = "translation_ranking", batch.ids.tolist()
    infonce(expected, name, config, ids, *vectors, own_negatives(model, batch))
    if config.directions == "both":
        infonce(expected, name, config, ids, *vectors[::-1])
    expected = rows_alone(percentages(expected, name), name, len(batch))
    right, predicted = 0, 0
    for i in range(len(batch)):
        languages = batch.languages[i].tolist()
        away = config.rtl_direction == "from_pivot" or (config.rtl_direction == "both" and int(batch.indices[i]) % 2)
        of_y = next(side for side in (1, 0) if (languages[side] == EN) != bool(away))
        name = ("rtl_from_pivot" if away else "rtl_to_pivot") if config.rtl_direction == "both" else "rtl"
        states = [model.encode("shared", side.rows(i, i + 1))[1][0] for side in sides]
        length, language = [int(side.lengths[i]) for side in sides], criterion.head.language_embedding
        read, places = list(states[1 - of_y][1 : length[1 - of_y]]), {}
        read = [row if language is None else row + language.weight[languages[1 - of_y]] for row in read]
        for position in range(1, length[of_y]):
            vector = states[of_y][position]
            if planned.details.masked[i, position]:
                places[position] = len(read)
                vector = _mask(encoder, criterion, position)
            read.append(vector if language is None else vector + language.weight[languages[of_y]])
        x = torch.stack(read)
        for own in criterion.head.layers:
            x = layer(x, own)
        if criterion.head.norm is not None:
            x = layer_norm(x, criterion.head.norm)
        words = list(range(len(criterion.head.bias)))
        if config.rtl_vocabulary == "target-language":
            words = criterion.get_buffer(f"subwords_{languages[of_y]}").tolist()
        losses = []
        for position, place in places.items():
            token = int(sides[of_y].tokens[i, position])
            if token in words:  # others are masked, but no term has them
                logits = encoder.token_embedding.weight[words] @ x[place] + criterion.head.bias[words]
                losses.append(logits.exp().sum().log() - logits[words.index(token)])
                right, predicted = right + (int(logits.argmax()) == words.index(token)), predicted + 1
        if config.rtl_average == "sentences" and losses:
            expected.add(name, sum(losses) / len(losses))  # equation 6
        elif losses:
            expected.add(name, sum(losses), len(losses))
    expected.metrics["rtl_accuracy"] = 100 * right / predicted
    return expected


def _mask(encoder: nn.Module, criterion: Criterion, position: int) -> Tensor:
    x = encoder.token_embedding.weight[criterion._vocabulary.mask_id]
    if criterion.config.mask_positions == "target":
        x = x + encoder.position_embedding.weight[position]
    return x if encoder.norm_first else layer_norm(x, encoder.norm)

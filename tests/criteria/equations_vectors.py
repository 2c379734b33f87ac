"""The equations of objectives that compare vectors, computed in plain loops, one sentence at a time."""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from tests.criteria.by_hand import SEED, Expected, layer, layer_norm, masked_words, read
from tests.criteria.equations_words import masks, put_together
from tests.support.planning import token_batch
from xrep.criteria.criterion import Criterion, Planned
from xrep.data.batch import Batch, TokenBatch

Vectors = list[Tensor]
DE, EN, ES = range(3)


def zero() -> Tensor:
    return torch.zeros((), dtype=torch.float64)


def alone(model: Any, tower: str, side: TokenBatch) -> Vectors:
    """Encode each sentence by itself."""
    return [model.encode(tower, side.rows(row, row + 1))[0][0] for row in range(len(side))]


def cut(vector: Tensor, width: int | None) -> Tensor:
    """The first numbers of a vector, at length 1."""
    return vector if width is None else vector[:width] / vector[:width].norm()


def own_negatives(model: Any, batch: Batch) -> list[Vectors]:
    """Return the vectors of the hard negatives of each row."""
    found: list[Vectors] = [[] for _ in range(len(batch))]
    if batch.negatives is not None:
        vectors = alone(model, model.tower("en"), batch.negatives.tokens)
        for row, vector in zip(batch.negatives.rows.tolist(), vectors, strict=True):
            found[row].append(vector)
    return found


def counts(config: Any, similarity: Tensor, positive: Tensor) -> bool:
    """Whether a negative counts by the similarities of a query to it and to the positive, which may not be known."""
    m = config.mask_margin
    return m is None or not similarity > positive + m * (positive.abs() if config.mask_margin_relative else 1)


def guides(planned: Planned, *columns: int) -> list[Tensor] | None:
    """Return the guide's vectors of columns of the sentences, float64 [B, G] each."""
    guide = planned.batch.facts.get("guide")
    return None if guide is None else [guide.double()[:, column] for column in columns]


def infonce(
    expected: Expected, name: str, config: Any, ids: list[list[int]], queries: Vectors, keys: Vectors,
    own: list[Vectors] | None = None, tau: Any = None, margin: float = 0.0, guide: list[Tensor] | None = None,
) -> None:  # fmt: skip
    """Add the losses of finding each key from its query, among the keys of the other rows and the own negatives."""
    tau = config.temperature if tau is None else tau
    for width in (None, *config.matryoshka):
        q, k, more = ([cut(v, width) for v in some] for some in (queries, keys, sum(own or [], [])))
        numbers, right, metric = [len(some) for some in own or [[]] * len(q)], 0, f"accuracy_{width}"
        for i, query in enumerate(q):
            mine, more = more[: numbers[i]], more[numbers[i] :]
            masked = [config.mask_equal_sentences and any(a == b for a, b in zip(ids[i], other, strict=True))
                      for other in ids]  # fmt: skip
            one, other = ([query] * len(q), k) if guide is None else ([guide[0][i]] * len(q), guide[1])
            masked = [own or not counts(config, a @ b, one[i] @ other[i])
                      for own, a, b in zip(masked, one, other, strict=True)]  # fmt: skip
            mine = [each for each in mine if guide is not None or counts(config, query @ each, query @ k[i])]
            rest = [k[j] for j in range(len(k)) if j != i and not masked[j]] + mine
            score = (query @ k[i] - margin) / tau
            others = [query @ other / tau for other in rest]
            expected.add(name, torch.log(score.exp() + sum(other.exp() for other in others)) - score, width is None)
            right += all(score > other for other in others)
        metric = "accuracy" if width is None else metric
        expected.metrics[metric] = expected.metrics.get(metric, 0.0) + right


def percentages(expected: Expected, name: str) -> Expected:
    counts = {metric: 100 * right / expected.sizes[name] for metric, right in expected.metrics.items()}
    return Expected(expected.terms, expected.sizes, counts)


def rows_alone(expected: Expected, name: str, count: int) -> Expected:
    """Of two directions, the term counts the pairs, and the metrics the queries."""
    return Expected(expected.terms, {**expected.sizes, name: count}, expected.metrics)


def translation_ranking(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    batch, config, expected, name = planned.batch, criterion.config, Expected(), "translation_ranking"
    x, y = alone(model, model.tower("de"), batch.source), alone(model, model.tower("en"), batch.target)
    ids = batch.ids.tolist()
    margin = config.margin
    infonce(expected, name, config, ids, x, y, own_negatives(model, batch), margin=margin, guide=guides(planned, 0, 1))
    if config.directions == "both":
        infonce(expected, name, config, ids, y, x, margin=margin, guide=guides(planned, 1, 0))
    return rows_alone(percentages(expected, name), name, len(batch))


def simcse(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """Equation 4 of the paper for the sentences of each side; both encodings are drawn in one pass."""
    batch, config, expected = planned.batch, criterion.config, Expected()
    torch.manual_seed(SEED)
    twice = [token_batch(torch.cat([side.tokens] * 2), torch.cat([side.lengths] * 2))
             for side in (batch.source, batch.target)]  # fmt: skip
    columns = [0, 1] if config.side == "both" else [("source", "target").index(config.side)]
    if config.side == "both":
        encoded = model.encode_pair(*twice)
    else:
        encoded = [model.encode(model.tower(("de", "en")[columns[0]]), twice[columns[0]])[0]]
    for column, both in zip(columns, encoded, strict=True):
        one, other = both.split(len(batch))
        given = batch.ids[:, column : column + 1].tolist(), list(one), list(other)
        infonce(expected, "simcse", config, *given, guide=guides(planned, column, column))
    return percentages(expected, "simcse")


def dual_moco(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """Without queues; keys are those of the momentum encoder and have no gradient."""
    batch, config, expected, slow = planned.batch, criterion.config, Expected(), criterion.momentum_encoder.model
    (x, y), (of_x, of_y) = ([alone(own, own.tower(language), side) for language, side in
                             (("de", batch.source), ("en", batch.target))] for own in (model, slow))  # fmt: skip
    of_x, of_y = ([key.detach() for key in keys] for keys in (of_x, of_y))
    own, ids = [[key.detach() for key in keys] for keys in own_negatives(slow, batch)], batch.ids.tolist()
    infonce(expected, "infonce", config, ids, x, of_y, own, guide=guides(planned, 0, 1))
    infonce(expected, "infonce", config, ids, y, of_x, guide=guides(planned, 1, 0))
    return rows_alone(percentages(expected, "infonce"), "infonce", len(batch))


def frozen_source(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """Without a queue. The source is frozen, or both are trained."""
    batch, config, expected = planned.batch, criterion.config, Expected()
    sides = {"source": alone(model, model.tower("de"), batch.source),
             "target": alone(model, model.tower("en"), batch.target)}  # fmt: skip
    keys, queries = sides.pop(config.source_side), next(iter(sides.values()))
    guide = guides(planned, *((1, 0) if config.source_side == "source" else (0, 1)))
    if config.loss == "mse":
        for query, key in zip(queries, keys, strict=True):
            expected.add("frozen_source", ((query - key) ** 2).sum())
        return expected
    tau = config.temperature if criterion.theta is None else criterion.theta.exp()
    given = batch.ids.tolist(), queries, keys, own_negatives(model, batch), tau
    infonce(expected, "frozen_source", config, *given, guide=guide)
    return percentages(expected, "frozen_source")


def columns(model: nn.Module, planned: Planned) -> list[Vectors]:
    """Return the vectors of each column of examples of inference."""
    towers = ("source", "target") if len(model.encoders) > 1 else ("shared", "shared")
    vectors = [vector for tower, side in zip(towers, planned.batch.sides.values(), strict=True)
               for vector in alone(model, tower, side)]  # fmt: skip
    return [[vectors[place] for place in column] for column in planned.batch.places.T.tolist()]


def nli(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    expected, config, right = Expected(), criterion.config, 0
    labels = planned.batch.labels.tolist()
    for u, v, label in zip(*columns(model, planned), labels, strict=True):
        if config.scale_vectors:
            u, v = (len(side) ** 0.5 * side / side.norm() for side in (u, v))
        of = {"premise": u, "hypothesis": v, "difference": (u - v).abs(), "product": u * v}
        x = torch.cat([of[name] for name in config.features])
        if config.head == "mlp":
            x = (criterion.hidden[0].weight @ x + criterion.hidden[0].bias).clamp(min=0)
        logits = criterion.output.weight @ x + criterion.output.bias
        expected.add("nli", logits.exp().sum().log() - logits[label])
        right += int(logits.argmax()) == label
    expected.metrics["accuracy"] = 100 * right / len(labels)
    return expected


def nli_triplet(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """Equation 5 of the paper."""
    expected, config, ids = Expected(), criterion.config, planned.batch.ids.tolist()
    tau, masked = config.temperature, config.mask_equal_sentences
    for width in (None, *config.matryoshka):
        anchor, positive, negative = ([cut(v, width) for v in side] for side in columns(model, planned))
        a, p, n = guides(planned, 0, 1, 2) or (anchor, positive, negative)
        for i in range(len(ids)):
            total = zero()
            for j in range(len(ids)):
                of_positive, of_negative = (
                    torch.exp(anchor[i] @ side[j] / tau)
                    * (counts(config, a[i] @ judged[j], a[i] @ p[i]) or side[j] is own)
                    for side, judged, own in ((positive, p, positive[i]), (negative, n, None))
                )
                if i == j or not masked or (ids[i][0] != ids[j][0] and ids[i][1] != ids[j][1]):
                    total = total + of_positive
                if not masked or ids[j][2] not in ids[i][:2]:
                    total = total + of_negative
            expected.add("nli_triplet", torch.log(total) - anchor[i] @ positive[i] / tau, width is None)
    return expected


def scored(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """CoSENT, or AnglE by complex division. A batch counts once for each of its pairs."""
    expected, config, name = Expected(), criterion.config, criterion.term
    labels, sides = planned.batch.labels.tolist(), columns(model, planned)
    for width in (None, *config.matryoshka):
        similar = []
        for x, y in zip(*([cut(vector, width) for vector in side] for side in sides), strict=True):
            if name == "cosent":
                similar.append(score(x, y))
                continue
            z, w = (torch.complex(*torch.cat([v, v.new_zeros(len(v) % 2)]).chunk(2)) for v in (x, y))
            quotient = z * w.conj() / (x.norm() * y.norm())
            similar.append((quotient.real.sum() + quotient.imag.sum()).abs())
        pairs = [(i, j) for i, one in enumerate(labels) for j, other in enumerate(labels) if one > other]
        total = sum(((similar[j] - similar[i]) / config.temperature).exp() for i, j in pairs)
        right = sum(bool(similar[i] > similar[j]) for i, j in pairs)
        expected.metrics["accuracy" if width is None else f"accuracy_{width}"] = 100 * right / len(pairs)
        expected.add(name, len(labels) * torch.log(1 + total), len(labels) if width is None else 0)
    return expected


def score(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / (a.norm() * b.norm())


def hictl(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """Equations 2-9. All words are sampled."""
    batch, config, encoder, expected = planned.batch, criterion.config, model.encoders["shared"], Expected()
    vocabulary, masked = criterion._vocabulary, None
    together = put_together(batch, vocabulary.pad_id)
    if config.language_model:
        rate = config.mask_rate or (0.15 if config.monolingual else 0.25)
        own = batch.source if config.monolingual else together
        masked = masks(criterion, "shared", own, rate, Generator().manual_seed(SEED))
        found = masked_words(encoder, criterion.masked_lm.heads["shared"], masked, lambda _, ids: read(encoder, ids))
        expected.add("mlm" if config.monolingual else "tlm", sum(loss for loss, _ in found), len(found))
        expected.metrics["masked_accuracy"] = 100 * sum(right for _, right in found) / len(found)
    if config.sentence_contrast:
        _contrast_sentences(expected, model, criterion, planned)
    if config.word_contrast:
        by_tlm = masked is not None and not config.monolingual and config.word_query == "masked"
        seen, embedding = masked.batch if by_tlm else together, encoder.token_embedding.weight
        specials = {vocabulary.pad_id, vocabulary.unk_id, vocabulary.bos_id, vocabulary.eos_id, vocabulary.mask_id}
        for row, text in enumerate(together.tokens.tolist()):
            query, bag = read(encoder, seen.tokens[row, : int(seen.lengths[row])])[0], {*text} - specials
            cosines = embedding @ query / (embedding.norm(dim=1) * query.norm())
            scores = (cosines / config.word_temperature).exp().unbind()
            negative = sum(scores[word] for word in {*range(len(embedding))} - specials - bag)
            expected.add("word", -sum((scores[w] / (scores[w] + negative)).log() for w in bag) / len(bag))
    return expected


def _contrast_sentences(expected: Expected, model: nn.Module, criterion: Criterion, planned: Planned) -> None:
    """Equations 2-6: a negative that is farther from the query than its translation is moved towards it."""
    batch, config, hardness, guide = planned.batch, criterion.config, criterion.hardness, guides(planned, 0, 1)
    exponent = 0.0 if hardness is None else 0.9 * float(hardness.history[:3].mean())
    sides, ids = [alone(model, "shared", side) for side in (batch.source, batch.target)], batch.ids.tolist()
    own, mixing, cases = own_negatives(model, batch), [], [0, 0]
    for width in (None, *config.matryoshka):
        x, y = ([cut(v, width) for v in side] for side in sides)
        for forward, (queries, keys) in ((True, (x, y)), (False, (y, x))):
            for i, (q, positive) in enumerate(zip(queries, keys, strict=True)):
                nearness, scores, mixes = (positive - q).norm().detach(), [], []
                shared = [config.mask_equal_sentences and any(a == b for a, b in zip(ids[i], other, strict=True))
                          for other in ids]  # fmt: skip
                one, others = (queries, (x, y)) if guide is None else (guide[not forward], guide)
                bar = (others[forward][i], one[i]) if guide is not None else (q / q.norm(), positive / positive.norm())
                near = [[not counts(config, score(one[i], other), bar[0] @ bar[1]) for other in side]
                        for side in others]  # fmt: skip
                for k in [side[j] for side, above in zip((x, y), near, strict=True) for j in range(len(x))
                          if j != i and not shared[j] and not above[j]]:  # fmt: skip
                    distance = (k - q).norm().detach()
                    mixes.append(float((nearness / distance) ** exponent) if distance > nearness else 1.0)
                    cases[distance <= nearness] += 1
                    scores.append(score(q, q + mixes[-1] * (k - q)))
                more = [score(q, cut(k, width)) for k in own[i]] if forward else []
                scores += [each for each in more if guide is not None or counts(config, each, score(q, positive))]
                found = (score(q, positive) / config.temperature).exp()
                total = found + sum((each / config.temperature).exp() for each in scores)
                expected.add("sentence", torch.log(total / found), width is None)
                if width is None:
                    mixing.append(sum(mixes) / len(mixes) if mixes else 1.0)
    if hardness is not None:
        expected.metrics["lambda"] = sum(mixing) / len(mixing)
        assert min(cases) > 20 and expected.metrics["lambda"] < 0.99, "both cases of equation 5 occur"


def dap(model: nn.Module, criterion: Criterion, planned: Planned) -> Expected:
    """L_TR and the directions of L_RTL, one pair at a time, given the tokens that the plan chose to predict."""
    batch, config, encoder = planned.batch, criterion.config, model.encoders["shared"]
    sides, expected = (batch.source, batch.target), Expected()
    vectors = [alone(model, "shared", side) for side in sides]
    name, ids = "translation_ranking", batch.ids.tolist()
    infonce(expected, name, config, ids, *vectors, own_negatives(model, batch), guide=guides(planned, 0, 1))
    if config.directions == "both":
        infonce(expected, name, config, ids, *vectors[::-1], guide=guides(planned, 1, 0))
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
    x = encoder.token_embedding.weight[criterion._vocabulary.mask_id] + encoder.position_embedding.weight[position]
    return x if encoder.norm_first else layer_norm(x, encoder.norm)

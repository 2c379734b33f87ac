"""Distillation of an encoder into a static one, as in model2vec (https://github.com/MinishLab/model2vec)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from xrep.data.batch import collate
from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.sentence_modules import Prompts
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.static import StaticEncoder, StaticShape, around
from xrep.text.sides import SHARED

SIF = 1e-4
"""The constant a of smooth inverse frequency (Arora et al., 2017, section 3), as in model2vec."""
USUAL_SIZE = 256
_AT_A_TIME = 1024


def distil(
    encoder: SentenceEncoder, size: int | None = None, counts: Mapping[str, Any] | None = None
) -> SentenceEncoder:
    """Return a static encoder with a vector for each subword of an encoder.

    It begins as the encoder's vector, not normalised, of the subword alone between the special tokens. All of these are
    centred and projected to their first principal components, those of both towers together. The vector of a subword
    with the probability p is then multiplied by a / (a + p), where a is ``SIF``. Those of special tokens are 0.

    Args:
        size: Number of components; None: 256, or all if there are fewer.
        counts: How often a text has each subword, int64 [V], by the side whose tokenizer it is; None: subword n, from
            1, has a probability in proportion to 1 / n (Zipf's law), because vocabularies begin with what is frequent.

    Raises:
        UserError: It is static already, its towers have vectors of different widths (without their projections), or
            these have fewer numbers than ``size``.
    """
    model, text = encoder.model, encoder.text
    if any(isinstance(own, StaticEncoder) for own in model.encoders.values()):
        raise UserError("it is a static encoder", path=encoder.path, cure="name the encoder that it was made of")
    widths = [model.width(tower) for tower in model.encoders]
    if len({*widths}) > 1:
        problem = f"its towers have vectors of {' and '.join(map(str, widths))} numbers"
        raise UserError(problem, path=encoder.path, cure="export it with its projections")
    size = size or min(USUAL_SIZE, encoder.output_size)
    if size > encoder.output_size:
        problem = f"static vectors of {size} numbers, of an encoder that gives {encoder.output_size}"
        raise UserError(problem, path=encoder.path, cure=f"set `static_size` to at most {encoder.output_size}")
    vectors, towers, state = dict[str, Tensor](), dict[str, Any](), dict[str, Tensor]()
    counted = {tower: text.vocabulary(tower) for tower in model.encoders}
    real = {name: torch.ones(own.size, dtype=torch.bool) for name, own in counted.items()}
    for tower, vocabulary in counted.items():
        real[tower][[i for i in vocabulary.special_ids if i != vocabulary.unk_id]] = False
        vectors[tower] = _alone(encoder, tower).double()
    fitted = torch.cat([vectors[tower][real[tower]] for tower in vectors])
    mean = fitted.mean(0)
    axes = torch.linalg.eigh((fitted - mean).T @ (fitted - mean)).eigenvectors.flip(1)[:, :size]
    for tower, own in vectors.items():
        ranks = real[tower].cumsum(0).clamp(min=1).double()
        weights = (
            1 / ranks if counts is None else torch.from_numpy(counts[tower if tower in counts else SHARED]).double()
        )
        weights = weights * real[tower]
        table = (own - mean) @ axes * (real[tower] * SIF / (SIF + weights / weights.sum())).unsqueeze(1)
        shape = StaticShape(vocabulary_size=len(own), hidden_size=size, **around(counted[tower]))
        towers[tower] = shape.as_dict()
        state[f"encoders.{tower}.token_embedding.weight"] = table.float()
    architecture = {"towers": towers, "pooling": dict.fromkeys(towers, "mean"), "projections": {}}
    config = DualEncoder.Config(towers=model.config.towers)
    static = DualEncoder(config, text, architecture)
    static.load_state_dict(state)
    how: dict[str, Any] = {"path": encoder.path, "prompts": Prompts()}  # they are nothing to vectors of single subwords
    distilled = SentenceEncoder(static, encoder.tokenizers, text, encoder.training_hashes, **how)
    distilled.languages = encoder.languages
    return distilled


def _alone(encoder: SentenceEncoder, tower: str) -> Tensor:
    """Return the vector of each subword that a tower reads, [V, D]."""
    model, vocabulary = encoder.model, encoder.text.vocabulary(tower)
    found = list[Tensor]()
    with torch.inference_mode():
        for start in range(0, vocabulary.size, _AT_A_TIME):
            ids = np.arange(start, min(start + _AT_A_TIME, vocabulary.size)).reshape(-1, 1)
            batch = collate(list(ids), vocabulary, encoder.text.max_length)
            pooled = model.before_projection(tower, batch)[0]
            found.append(model.projections[tower](pooled) if tower in model.projections else pooled)
    return torch.cat(found)

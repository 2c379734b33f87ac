"""Conditional masked language modelling (CMLM): predict masked tokens given the vector of a neighbouring sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.criteria.criterion import Criterion, Loss, Planned, of_words, only_tower
from xrep.criteria.masked_language import MaskedLanguage
from xrep.data.batch import Batch, TextSpec, TokenBatch
from xrep.data.masking import Masked
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import CrossEntropy
from xrep.models.dual_encoder import DualEncoder
from xrep.models.projection import MeanOfSpaces, ProjectionSpaces
from xrep.nn.encoder import require_transformer
from xrep.nn.layers import Linear
from xrep.tasks.task import ExampleKind, Task


class CMLM(Criterion):
    """Predict masked tokens of a sentence, given the vector of a neighbouring sentence (CMLM, Yang et al. 2021).

    The loss is L_CMLM of *Universal Sentence Representation Learning with Conditional Masked Language Model*: the
    source s1 and the target s2 are two neighbouring sentences. s1 is pooled into a vector v. P (appendix C,
    ``ProjectionSpaces``) makes N vectors of v, including v itself, which are put in front of the token embeddings of
    the masked s2; the same encoder reads both. The loss is the mean cross-entropy of the masked tokens of s2 (section
    2), which depend on s1 only through the N vectors.

    Use:
        - Needs: running text (task monolingual, units adjacent), no pairs, and one tower. It takes two passes of the
            encoder. Watch ``gap`` in validation by the loss: how much larger the loss is if each s2 gets the vector of
            another sentence. While it is near 0 the vector carries nothing that predicts the words of a neighbour.
        - Choose it: to train sentence vectors of languages without translations or labels, before or beside another
            objective.
        - Related: mlm has no sentence vector; simcse also needs only text; translation_ranking, as another part of the
            run, is the paper's bitext retrieval.
        - Left open: v is taken after its projection, but before it is normalised to length 1. ``vector_embedding`` says
            how the N vectors enter the encoder. Logits come from BERT's head. The paper's sequences all have 256
            tokens; here sentences keep their length, and a share of each is masked. With the model's ``projection:
            spaces``, P belongs to the model, which at inference returns the mean of the N vectors (``proj`` in table
            7).

    Example:
        ```sh
        xrep-train mono/ --task monolingual --units adjacent --criterion cmlm --towers shared
        ```

    Raises:
        UserError: the languages do not share one encoder; the vocabulary has no [MASK]; v is not as wide as the token
            vectors; the model has a different number of projection spaces.
    """

    reads = (ExampleKind.TRANSLATIONS, ExampleKind.NEIGHBOURS)
    needs = DualEncoder

    @dataclass(kw_only=True)
    class Config:
        projections: Annotated[int, "[1, 1000]"] = 15
        """N: number of vectors that s1 becomes, which are the sentence vector and the outputs of N - 1 perceptrons
        (section 5.1 and table 7: 15, out of 1, 5, 10, 15 and 20)."""
        mask_rate: Annotated[float, "(0, 1]"] = 0.3125
        """Share of the tokens of s2 that is masked: 80 of 256 (section 3); table 10 compares 40, 60, 80 and 100."""
        vector_embedding: Literal["normalized", "raw"] = "normalized"
        """How the N vectors become input of the first layer. normalized: like token embeddings (layer normalisation of
        a post-norm encoder, dropout), but without a position; s2 begins at position 0, as at inference. raw: unchanged.
        The paper says that they are concatenated with the token embeddings."""
        skip: bool = False
        """Predict a token from the N vectors as well as from its own vector of the last layer ('skip' in table 7, which
        is worse than without)."""

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config)
        self._tower = only_tower("cmlm", model, text.languages)
        self.masked_lm = MaskedLanguage(model, text, rate=config.mask_rate)
        hidden_size = require_transformer(model.encoders[self._tower], "cmlm").shape.hidden_size
        _check(config, model, self._tower)
        own = not isinstance(_projection(model, self._tower), MeanOfSpaces)
        self.spaces = ProjectionSpaces(hidden_size, config.projections) if own else None
        self.skip = Linear(config.projections * hidden_size, hidden_size, bias=False) if config.skip else None

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        masked = self.masked_lm.mask(self._tower, batch.target, generator)
        return Planned(batch, {"cmlm": len(masked.labels)}, masked)

    def forward(self, model: DualEncoder, planned: Planned) -> Loss:
        masked: Masked = planned.details
        vectors = self.vectors(model, planned.batch.source)
        result = self._predict(model, vectors, masked)
        loss = of_words("cmlm", [result])
        if not self.training:
            shift = len(vectors) // 2  # the next rows may be of the same document
            gap = self._predict(model, vectors.roll(shift, dims=0), masked).nll - result.nll
            loss.metrics["gap"], loss.rows["gap"] = gap.sum() / max(len(gap), 1), len(gap) if shift else 0
        return loss

    def _predict(self, model: DualEncoder, vectors: Tensor, masked: Masked) -> CrossEntropy:
        """Return the cross-entropy of the masked tokens of s2, given the vectors [B, N, H] of s1."""
        encoder = require_transformer(model.encoders[self._tower], "cmlm")
        front = vectors if self.config.vector_embedding == "raw" else encoder.embed(vectors, None)
        tokens, count = masked.batch.tokens, self.config.projections
        own = encoder.embed(encoder.token_embedding(tokens), torch.arange(tokens.size(1), device=tokens.device))
        longer = TokenBatch(F.pad(tokens, (count, 0)), masked.batch.lengths + count, masked.batch.host_lengths + count)
        hidden = masked.at_positions(encoder(longer, vectors=torch.cat([front, own], dim=1))[:, count:])
        if self.skip is not None:
            # A linear layer on the concatenation of both, whose part on ``hidden`` is the head's own first layer.
            rows = masked.positions // masked.batch.tokens.size(1)
            hidden = hidden + self.skip(vectors.flatten(1)).index_select(0, rows)
        return self.masked_lm(self._tower, encoder, hidden, masked.labels)

    def warnings(self, task: Task) -> list[str]:
        return self.masked_lm.notes

    def vectors(self, model: DualEncoder, sentences: TokenBatch) -> Tensor:
        """Return P(v) of sentences, [B, N, H]."""
        v, _ = model.before_projection(self._tower, sentences)
        projection = _projection(model, self._tower)
        if isinstance(projection, MeanOfSpaces):
            return projection.spaces(v)
        assert self.spaces is not None
        return self.spaces(v if projection is None else projection(v))


def _projection(model: DualEncoder, tower: str) -> nn.Module | None:
    return model.projections[tower] if tower in model.projections else None


def _check(config: CMLM.Config, model: DualEncoder, tower: str) -> None:
    projection, shape = _projection(model, tower), model.encoders[tower].shape
    if isinstance(projection, MeanOfSpaces) and len(projection.spaces) != config.projections:
        problem = f"cmlm: {config.projections} projections, but the model has {len(projection.spaces)} spaces"
        raise UserError(problem, cure="give `projections` and `projection_spaces` the same number")
    if model.width(tower) != shape.hidden_size:
        problem = f"cmlm: sentence vectors have the width {model.width(tower)}, token vectors {shape.hidden_size}"
        raise UserError(problem, cure="leave out `projection_size`")

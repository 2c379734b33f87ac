"""Dual-alignment pre-training (DAP): translation ranking of sentences, representation translation of tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from xrep.config.fields import Count
from xrep.criteria.contrastive import Encoded
from xrep.criteria.criterion import Loss, Planned, Term, only_tower, percentage
from xrep.criteria.in_batch import negative_vectors
from xrep.criteria.reconstruction import Direction, Planner, Predicted, Reconstruction
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batch import Batch, TextSpec
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.encoder import TransformerEncoder, require_transformer
from xrep.nn.half import Stack, in_half
from xrep.nn.layers import Packing
from xrep.tasks.bitext import BitextTask
from xrep.tasks.task import ExampleKind, Task


class RTLHead(Stack):
    """K transformer layers over token vectors of x and [MASK] vectors in place of y (DAP, equation 4).

    The layers are copies of the last K layers of an encoder (and of the normalisation after them, if it has one). The
    output matrix is the encoder's own embedding matrix, so it is not stored here: logits are ``head(...) @ embedding.T
    + head.bias``.

    Args:
        depth: number of encoder layers in use, counted from the first; the copies are the last of these.
        languages: number of rows of the table of language vectors, which are added to the input; 0: no table.
    """

    def __init__(self, encoder: TransformerEncoder, layers: int, depth: int, languages: int) -> None:
        super().__init__()
        shape = encoder.shape
        self.layers = copy.deepcopy(encoder.layers[depth - layers : depth])
        self.norm = copy.deepcopy(encoder.norm) if encoder.norm_first else None
        self.language_embedding = nn.Embedding(languages, shape.hidden_size) if languages else None
        if self.language_embedding is not None:
            nn.init.normal_(self.language_embedding.weight, std=0.02)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary_size))

    def forward(self, x: Tensor, y: Tensor, plan: Reconstruction) -> Tensor:
        """Return the vectors of the last layer at the real tokens of x and y, [N, H].

        Args:
            x, y: [B, T, H] each, the vectors that the first layer reads: those of [MASK]s in place of predicted tokens.
        """
        if self.language_embedding is not None:
            of_x, of_y = self.language_embedding(plan.side_languages).unsqueeze(2)
            x, y = x + of_x, y + of_y
        layout = Packing(plan.real, plan.mask)
        tokens = layout.pack(torch.cat([x, y], dim=1))
        with in_half(self.layers, tokens, self.casts) as (layers, tokens):
            for layer in layers:
                tokens = layer(tokens, layout)
        return tokens if self.norm is None else self.norm(tokens)


class DAP(TranslationRanking):
    """Dual-alignment pre-training: translation ranking and representation translation learning (Li et al., 2023).

    The loss is L_TR + ``rtl_weight`` * L_RTL of *Dual-Alignment Pre-training for Cross-lingual Sentence Embedding*,
    equation 7. L_TR (equation 5) is ``translation_ranking`` from source to target. L_RTL (equation 6) is the mean
    cross-entropy of the tokens of y (see ``rtl_average``). A small head (equation 4) predicts them from the token
    vectors of x and one [MASK] for each token of y.

    Use:
        - Needs: pairs with one side in the pivot language (task bitext), and one tower, best a pretrained one
            (``encoder: bert-base-multilingual-cased``).
        - Choose it: to align words as well as sentences. In the paper it is ahead of translation ranking, alone and
            with tlm.
        - Related: translation_ranking is its first half; hictl contrasts words instead of predicting them.
        - Left open: "all but [CLS]" includes [SEP], in x and in y, which a released run of the authors predicts too.
            Each [MASK] is embedded by the encoder at its position in y. Logits have their own bias in addition to the
            encoder's embedding matrix. Token vectors come from the layer that the sentence vector is
            pooled from, which the head treats as the last one.

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion dap --towers shared --pooling cls --rtl-vocabulary target-language
        ```

    Raises:
        UserError: the languages have separate towers, there is no [MASK], the pivot language is unknown, or the head is
            deeper than the encoder.
    """

    reads = (ExampleKind.TRANSLATIONS,)
    needs = DualEncoder

    @dataclass(kw_only=True)
    class Config(TranslationRanking.Config):
        directions: Literal["both", "forward"] = "forward"
        """Directions of translation ranking. forward: sources find their targets (equation 5). both: targets also find
        their sources."""
        rtl_layers: Count = 2
        """K: number of transformer layers of the head, which are copies of the last K layers of the encoder. With none
        no [MASK] would see x."""
        rtl_direction: Direction = "to_pivot"
        """Which side is reconstructed from the other. to_pivot: the side in the pivot language. from_pivot: the other
        side. both: one direction in half of the pairs and the other in the rest, and their means are averaged (table
        5). With from_pivot and both the head adds learnt language vectors to its input."""
        pivot_language: str = "en"
        """Language that one side of every pair must be in."""
        rtl_weight: Annotated[float, "(0, 1000000]"] = 1.0
        """Weight of L_RTL beside L_TR (equation 7: 1; the authors' released scripts: 0.1)."""
        rtl_vocabulary: Literal["all", "target-language"] = "all"
        """Subwords that the softmax covers: all, or those that occur in the training text of y's language (the authors'
        released scripts have a list of the English ones). Other subwords, of a dev split, are not predicted."""
        reconstruction_ratio: Annotated[float, "(0, 1]"] = 1.0
        """rho: probability with which each token of y is reconstructed. In place of the other tokens the head reads the
        vectors that the encoder computed for them, with their gradient (section 5.2 and figure 3)."""
        rtl_average: Literal["tokens", "sentences"] = "tokens"
        """What L_RTL is averaged over. sentences: the mean over the tokens of each sentence (equation 6), and over the
        sentences of the batch. tokens: the mean over all tokens of the batch, so that long sentences count more."""

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model, text)
        self._tower = only_tower("dap", model, text.languages)
        self._vocabulary = text.vocabulary(self._tower)
        if (mask := self._vocabulary.mask_id) is None:
            raise UserError("dap: the tokenizer has no [MASK]", cure="use one that has, such as of xrep-preprocess")
        if config.pivot_language not in text.languages:
            known = ", ".join(text.languages)
            raise UserError(
                f"pivot_language {config.pivot_language!r} is none of the text's", cure=f"choose one of: {known}"
            )
        self._mask, self._languages = mask, text.languages
        direction: Direction = config.rtl_direction
        self._planner = Planner(
            pivot=text.languages.index(config.pivot_language),
            direction=direction,
            ratio=config.reconstruction_ratio,
            vocabulary=self._vocabulary,
        )
        encoder = require_transformer(model.encoders[self._tower], "dap")
        depth = len(encoder.layers) if model.config.pooled_layer is None else model.config.pooled_layer
        if config.rtl_layers > depth:
            raise UserError(f"dap: the encoder has {depth} layers", cure=f"lower `rtl_layers` from {config.rtl_layers}")
        languages = 0 if direction == "to_pivot" else len(text.languages)
        self.head = RTLHead(encoder, config.rtl_layers, depth, languages)

    def prepare(self, task: Task) -> None:
        super().prepare(task)
        assert isinstance(task, BitextTask)
        strange = [pair.name for pair in task.train if self.config.pivot_language not in pair.languages]
        if strange:
            raise UserError(
                f"{', '.join(strange[:3])}: no side is in the pivot language {self.config.pivot_language!r}",
                cure="choose another `pivot_language`, or train on pairs that have it",
            )
        if self.config.rtl_vocabulary == "target-language":
            pivot, toward = self.config.pivot_language, self.config.rtl_direction == "to_pivot"
            for place in [self._languages.index(pivot)] if toward else range(len(self._languages)):
                ids = torch.as_tensor(task.subwords(self._languages[place])).long()
                known = torch.cat([ids, torch.tensor([self._vocabulary.end])]).unique()
                self.register_buffer(f"subwords_{place}", known, persistent=False)
                labels = torch.full((self._vocabulary.size,), -1)
                self._planner.labels[place] = labels.index_copy(0, known, torch.arange(len(known)))

    def plan_rows(self, batch: Batch, generator: torch.Generator) -> Planned:
        planned = super().plan_rows(batch, generator)
        planned.details = self._planner.plan(batch, generator)
        sizes = planned.details.sizes(sentences=self.config.rtl_average == "sentences")
        planned.sizes |= {self._term(away): size for away, size in sizes.items()}
        return planned

    def vectors(self, model: DualEncoder, planned: Planned) -> tuple[Tensor, ...]:
        return self._read(model, planned)[0]

    def encode(self, model: DualEncoder, planned: Planned) -> Encoded:
        vectors, states = self._read(model, planned)
        encoder = require_transformer(model.encoders[self._tower], "dap")
        return Encoded(vectors, self._reconstruct(encoder, planned.details, states))

    def _read(self, model: DualEncoder, planned: Planned) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return sentence vectors of both sides (and of hard negatives), and token vectors [2 B, T, H], sources before
        targets."""
        batch, plan = planned.batch, planned.details
        sentences, states = model.encode(self._tower, plan.both)
        negative = negative_vectors(model, batch, self._text)
        return (sentences[: len(batch)], sentences[len(batch) :], *negative), states

    def _reconstruct(self, encoder: TransformerEncoder, plan: Reconstruction, states: Tensor) -> Loss:
        """Return L_RTL of the pairs, as sums over the predicted tokens, or over the sentences, of each direction."""
        x, y = (states.index_select(0, rows) for rows in plan.sides)
        tokens = torch.full_like(plan.masked, self._mask, dtype=torch.int64)
        masks = encoder.embed(encoder.token_embedding(tokens), torch.arange(y.size(1), device=y.device))
        hidden = self.head(x, torch.where(plan.masked.unsqueeze(-1), masks, y), plan)
        weight = self.config.rtl_weight * (0.5 if self.config.rtl_direction == "both" else 1.0)
        sums: dict[str, list[Tensor]] = {}
        right = []
        for some in plan.predicted:
            loss, _, correct = self._predict(some, hidden.index_select(0, some.places), encoder.token_embedding.weight)
            sums.setdefault(self._term(some.from_pivot), []).append(loss)
            right.append(correct)
        terms = {name: Term(torch.stack(losses).sum(), weight) for name, losses in sums.items()}
        correct = torch.cat(right)
        return Loss(terms, {"rtl_accuracy": percentage(correct)}, {"rtl_accuracy": len(correct)})

    def _term(self, from_pivot: bool) -> str:
        if self.config.rtl_direction != "both":
            return "rtl"
        return "rtl_from_pivot" if from_pivot else "rtl_to_pivot"

    def _predict(self, some: Predicted, hidden: Tensor, embedding: Tensor) -> CrossEntropy:
        """Return the cross-entropy of some tokens, given their vectors [M, H]."""
        bias, shares = self.head.bias, some.shares if self.config.rtl_average == "sentences" else None
        if self.config.rtl_vocabulary == "target-language":
            known = self.get_buffer(f"subwords_{some.language}")
            embedding, bias = embedding.index_select(0, known), bias.index_select(0, known)
        return linear_cross_entropy(hidden, embedding, some.labels, bias=bias, weights=shares)

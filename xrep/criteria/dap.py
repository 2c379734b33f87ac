"""Dual-alignment pre-training (DAP): translation ranking of sentences, representation translation of tokens."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor, nn

from xrep.config.fields import Count
from xrep.criteria.contrastive import Encoded
from xrep.criteria.criterion import Loss, Planned, Term, only_tower, percentage
from xrep.criteria.in_batch import negative_vectors
from xrep.criteria.reconstruction import (
    LANGUAGE,
    PLACE,
    POSITION,
    SLOT,
    Direction,
    Planner,
    Reconstruction,
    Run,
    language_embedding,
)
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batch import Batch, TextSpec, TokenBatch
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
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
        self.language_embedding = language_embedding(languages, shape.hidden_size)
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary_size))

    def forward(
        self, states: Tensor, masks: Tensor, languages: Tensor, slots: Tensor, lengths: Tensor, width: int
    ) -> Tensor:
        """Return the vectors of the last layer at the [MASK]s, [M, H].

        Args:
            states: [N, H], token vectors.
            masks: [M, H], embedded [MASK]s.
            languages: int64 [N + M], languages of ``states``, then of ``masks``; used only if there are language
                vectors.
            slots: int64 [N + M], index of each of these in [B * width]: row i is filled from its beginning.
            lengths: int64 [B], number of tokens in each row.
        """
        x = torch.cat([states, masks])
        if self.language_embedding is not None:
            x = x + self.language_embedding(languages)
        layout = Packing(slots, torch.arange(width, device=lengths.device) < lengths.unsqueeze(1))
        x = torch.cat([x, x[:1].expand(len(layout.packed_rows) - len(x), -1)])
        with in_half(self.layers, x, self.casts) as (layers, x):
            for layer in layers:
                x = layer(x, layout)
        x = x[len(states) : len(states) + len(masks)]
        return x if self.norm is None else self.norm(x)


class DAP(TranslationRanking):
    """Dual-alignment pre-training: translation ranking and representation translation learning (Li et al., 2023).

    The loss is L_TR + L_RTL of *Dual-Alignment Pre-training for Cross-lingual Sentence Embedding*, equation 7.

    L_TR (equation 5) is ``translation_ranking`` from source to target. L_RTL (equation 6) is the mean cross-entropy of
    the tokens of y (see ``rtl_average``). A small head (equation 4) predicts them from the token vectors of x and one
    [MASK] for each token of y.

    Choices that the paper does not specify: "all but [CLS]" includes [SEP], in x and in y, which a released run of the
    authors predicts too. Each [MASK] is embedded by the encoder's embedding layer at its position in y
    (``mask_positions``), so that the head knows where in the sentence it is. Logits have their own bias in addition to
    the encoder's embedding matrix. Token vectors come from the layer that the sentence vector is pooled from: with the
    model's ``pooled_layer``, the head treats that layer as the last one, too.

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
        rtl_vocabulary: Literal["all", "target-language"] = "all"
        """Subwords that the softmax covers: all, or those that occur in the training text of y's language (the authors'
        released scripts have a list of the English ones). Other subwords, of a dev split, are not predicted."""
        reconstruction_ratio: Annotated[float, "(0, 1]"] = 1.0
        """rho: probability with which each token of y is reconstructed. In place of the other tokens the head reads the
        vectors that the encoder computed for them, with their gradient (section 5.2 and figure 3)."""
        rtl_average: Literal["tokens", "sentences"] = "tokens"
        """What L_RTL is averaged over. sentences: the mean over the tokens of each sentence (equation 6), and over the
        sentences of the batch. tokens: the mean over all tokens of the batch, so that long sentences count more."""
        mask_positions: Literal["target", "none"] = "target"
        """What a [MASK] knows about its place. target: its position in y. none: nothing, so that all in a sentence
        predict the same."""

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model, text)
        self._tower = only_tower("dap", model, text.languages)
        self._vocabulary = text.vocabulary(self._tower)
        if self._vocabulary.mask_id is None:
            raise UserError("dap: the tokenizer has no [MASK]", cure="use one that has, such as of xrep-preprocess")
        if config.pivot_language not in text.languages:
            known = ", ".join(text.languages)
            raise UserError(
                f"pivot_language {config.pivot_language!r} is none of the text's", cure=f"choose one of: {known}"
            )
        self._languages = text.languages
        direction: Direction = config.rtl_direction
        self._planner = Planner(
            pivot=text.languages.index(config.pivot_language),
            direction=direction,
            ratio=config.reconstruction_ratio,
            leading=self._vocabulary.leading_count,
        )
        encoder = require_transformer(model.encoders[self._tower], "dap")
        depth = len(encoder.layers) if model.config.pooled_layer is None else model.config.pooled_layer
        if config.rtl_layers > depth:
            raise UserError(f"dap: the encoder has {depth} layers", cure=f"lower `rtl_layers` from {config.rtl_layers}")
        languages = 0 if direction == "to_pivot" else len(text.languages)
        self.head = RTLHead(encoder, config.rtl_layers, depth, languages)

    def prepare(self, task: Task) -> None:
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
                ids = np.union1d(task.subwords(self._languages[place]), [self._vocabulary.eos_id])
                self.register_buffer(f"subwords_{place}", torch.from_numpy(ids.astype(np.int64)), persistent=False)
                self._planner.labels[place] = np.isin(np.arange(self._vocabulary.size), ids)

    def plan_rows(self, batch: Batch, generator: torch.Generator) -> Planned:
        planned = super().plan_rows(batch, generator)
        planned.details = self._planner.plan(batch, generator)
        sizes = planned.details.sizes(sentences=self.config.rtl_average == "sentences")
        planned.sizes |= {self._term(away): size for away, size in sizes.items()}
        return planned

    def vectors(self, model: DualEncoder, planned: Planned) -> tuple[Tensor, ...]:
        return self._read(model, planned.batch)[0]

    def encode(self, model: DualEncoder, planned: Planned) -> Encoded:
        vectors, states, tokens = self._read(model, planned.batch)
        encoder = require_transformer(model.encoders[self._tower], "dap")
        return Encoded(vectors, self._reconstruct(encoder, planned.details, states, tokens))

    def _read(self, model: DualEncoder, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor, TokenBatch]:
        """Return sentence vectors of both sides (and of hard negatives), and token vectors [2 B, T, H] and tokens of
        both sides, sources before targets."""
        both = batch.source.followed_by(batch.target, self._vocabulary.pad_id)
        sentences, states = model.encode(self._tower, both)
        negative = negative_vectors(model, batch, self._text)
        return (sentences[: len(batch)], sentences[len(batch) :], *negative), states, both

    def _reconstruct(
        self, encoder: TransformerEncoder, plan: Reconstruction, states: Tensor, tokens: TokenBatch
    ) -> Loss:
        """Return L_RTL of the pairs, as sums over the predicted tokens, or over the sentences, of each direction."""
        given, predicted = plan.given, plan.predicted
        assert self._vocabulary.mask_id is not None
        mask = torch.full_like(predicted[PLACE], self._vocabulary.mask_id)
        hidden = self.head(
            states.flatten(0, 1).index_select(0, given[PLACE]),
            encoder.embed(mask, predicted[POSITION] if self.config.mask_positions == "target" else None),
            torch.cat([given[LANGUAGE], predicted[LANGUAGE]]),
            torch.cat([given[SLOT], predicted[SLOT]]),
            plan.lengths,
            plan.width,
        )
        targets = tokens.tokens.flatten().index_select(0, predicted[PLACE])
        terms: dict[str, Term] = {}
        correct = []
        for run in plan.runs:
            some = slice(run.start, run.stop)
            shares = plan.shares[some] if self.config.rtl_average == "sentences" else None
            loss, right = self._predict(run, hidden[some], targets[some], shares, encoder.token_embedding.weight)
            name = self._term(run.from_pivot)
            before = terms.get(name)
            weight = 0.5 if self.config.rtl_direction == "both" else 1.0
            terms[name] = Term(loss if before is None else before.sum + loss, weight)
            correct.append(right)
        every = torch.cat(correct)
        return Loss(terms, {"rtl_accuracy": percentage(every)}, {"rtl_accuracy": len(every)})

    def _term(self, from_pivot: bool) -> str:
        if self.config.rtl_direction != "both":
            return "rtl"
        return "rtl_from_pivot" if from_pivot else "rtl_to_pivot"

    def _predict(
        self, run: Run, hidden: Tensor, targets: Tensor, shares: Tensor | None, embedding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss of tokens of one language, and whether each prediction is correct."""
        bias = self.head.bias
        if self.config.rtl_vocabulary == "target-language":
            known = self.get_buffer(f"subwords_{run.language}")
            targets = torch.searchsorted(known, targets)
            embedding, bias = embedding.index_select(0, known), bias.index_select(0, known)
        loss, _, correct = linear_cross_entropy(hidden, embedding, targets, bias=bias, weights=shares)
        return loss, correct

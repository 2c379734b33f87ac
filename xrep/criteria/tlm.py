"""Translation language modelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from xrep.criteria.criterion import Loss, Planned, Term, only_tower, percentage
from xrep.criteria.mlm import MLM
from xrep.criteria.reconstruction import language_embedding
from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary, on_device
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.encoder import require_transformer
from xrep.nn.layers import Linear
from xrep.tasks.task import ExampleKind
from xrep.text.sides import SHARED


class TLM(MLM):
    """Predict masked tokens of a sentence and its translation, read together (XLM, Lample and Conneau 2019).

    Both are read as ``[CLS] x [SEP] y [SEP]`` (HiCTL, 3.1). XLM restarts the positions at y and adds a language
    embedding to each token; both are off by default, as in models without language embeddings (XLM-R). The language
    embeddings of the criterion are used in this pass only: sentences are encoded without them.

    With ``next_sentence`` and neighbouring sentences it is BERT's pre-training (Devlin et al. 2019; the baseline of
    CMLM's appendix E): the other sentence is replaced by that of another pair of the batch in half of the pairs, and
    the first vector, through a layer with tanh, tells which they are. BERT also marks the two sentences by types.

    Raises:
        UserError: the languages have separate towers, or anything that ``MLM`` raises.
    """

    reads = (ExampleKind.TRANSLATIONS, ExampleKind.NEIGHBOURS)

    @dataclass(kw_only=True)
    class Config(MLM.Config):
        mask_rate: Annotated[float, "(0, 1)"] = 0.25
        """Share of the tokens of each pair that is masked: 80% of these become [MASK], 10% become a random subword, 10%
        stay. HiCTL (table 9, bilingual) uses 0.25, XLM 0.15."""
        position_reset: bool = False
        """Give the tokens of the second sentence the positions that they have when it is read alone (XLM). Off:
        positions continue from the first sentence, and a pair longer than the position table is cut; neither sentence
        is cut below half of the table."""
        language_embeddings: bool = False
        """Add a learnt vector of its language to every token (XLM)."""
        next_sentence: bool = False
        """For neighbouring sentences (task monolingual, units adjacent, without swap_order): replace the second one by
        another in half of the pairs, and predict which they are, too (BERT, with mask_rate 0.15)."""

    config: Config

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model, text)
        only_tower("tlm", model)
        shape = require_transformer(model.encoders[SHARED], "tlm").shape
        self._limit = None if config.position_reset else shape.max_positions
        languages = len(text.languages) if config.language_embeddings else 0
        self.language_embedding = language_embedding(languages, shape.hidden_size)
        self.first, self.neighbour = None, None
        if config.next_sentence:
            self.first, self.neighbour = Linear(shape.hidden_size, shape.hidden_size), Linear(shape.hidden_size, 2)

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        count, target = len(batch), batch.target
        follows, sizes = torch.ones(count, dtype=torch.int64), dict[str, float]()
        if self.config.next_sentence:
            sizes["next_sentence"] = count
            if count > 1:
                follows = torch.randint(2, (count,), generator=generator)
                others = torch.randint(1, count, (count,), generator=generator) * (1 - follows)
                target = target.select(((torch.arange(count) + others) % count).numpy())
        together, second, positions = read_together(batch.source, target, self._text.vocabulary(SHARED), self._limit)
        masked = self.language.mask(SHARED, together, generator)
        return Planned(batch, {"tlm": len(masked.labels), **sizes}, (masked, second, positions, follows))

    def forward(self, model: DualEncoder, planned: Planned) -> Loss:
        masked, second, positions, follows = planned.details
        encoder = require_transformer(model.encoders[SHARED], "tlm")
        states = encoder(masked.batch, positions=positions, added=self._languages(planned.batch, second))
        result = self.language(SHARED, encoder, masked.at_positions(states), masked.labels)
        loss = self.language.loss("tlm", [result])
        if self.first is not None and self.neighbour is not None:
            hidden = torch.tanh(self.first(states[:, 0]))
            told = linear_cross_entropy(hidden, self.neighbour.weight, follows, bias=self.neighbour.bias)
            loss.terms["next_sentence"] = Term(told.loss)
            loss.metrics["next_sentence_accuracy"] = percentage(told.correct)
            loss.rows["next_sentence_accuracy"] = len(follows)
        return loss

    def _languages(self, batch: Batch, second: Tensor) -> Tensor | None:
        if self.language_embedding is None:
            return None
        vectors = self.language_embedding(on_device(batch.languages.numpy(), second.device))
        return torch.where(second.unsqueeze(-1), vectors[:, 1:], vectors[:, :1])


class Together(NamedTuple):
    """Pairs of sentences as one sequence each, [CLS] x [SEP] y [SEP]; which tokens are of y; positions, both [B, T].

    Positions continue from x to y if a limit was given; otherwise each sentence has its own.
    """

    batch: TokenBatch
    second: Tensor
    positions: Tensor


def read_together(first: TokenBatch, second: TokenBatch, vocabulary: Vocabulary, limit: int | None) -> Together:
    """Append the rows of ``second``, without the [CLS] that they may have, to those of ``first``, in host memory.

    Args:
        limit: maximum length of both together. Of two long sentences each keeps half of it; of a long and a short one,
            the long one keeps what the short one leaves. A sentence that is cut keeps its [SEP]. None: nothing is cut,
            and positions restart in the second sentence.
    """
    leading = vocabulary.leading_count
    of_x, of_y = (kept.unsqueeze(1) for kept in _kept(first.lengths, second.lengths - leading, limit))
    lengths = (of_x + of_y).squeeze(1)
    place = torch.arange(int(lengths.max()) if len(lengths) else 2)
    in_y, total = place >= of_x, of_x + of_y
    # A sentence that is cut still ends with its own last token.
    at_x = torch.where(place < of_x - 1, place, first.lengths.unsqueeze(1) - 1)
    at_y = torch.where(place < total - 1, place - of_x + leading, second.lengths.unsqueeze(1) - 1).clamp(min=0)
    tokens = torch.where(in_y, second.tokens.gather(1, at_y), first.tokens.gather(1, at_x))
    absent = place >= total
    batch = TokenBatch(tokens.masked_fill(absent, vocabulary.pad_id), lengths, lengths.numpy())
    positions = torch.where(in_y, place - of_x + leading, place) if limit is None else place.expand_as(absent)
    return Together(batch, in_y & ~absent, positions.masked_fill(absent, 0))


def _kept(of_x: Tensor, of_y: Tensor, limit: int | None) -> tuple[Tensor, Tensor]:
    """Return how many tokens of x, and of y without its [CLS], are kept: int64 [B] each."""
    if limit is None:
        return of_x, of_y
    x = torch.minimum(of_x, (limit - of_y).clamp(min=limit - limit // 2))
    return x, torch.minimum(of_y, limit - x)

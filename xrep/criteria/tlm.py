"""Translation language modelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F

from xrep.criteria.criterion import Loss, Planned, Term, of_words, only_tower, percentage
from xrep.criteria.mlm import MLM
from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.layers import Linear
from xrep.tasks.task import ExampleKind
from xrep.text.sides import SHARED


class TLM(MLM):
    """Predict masked tokens of a sentence and its translation, read together (XLM, Lample and Conneau 2019).

    Both are read as ``[CLS] x [SEP] y [SEP]`` (HiCTL, 3.1), with positions that go on from x to y and without language
    embeddings, as in XLM-R; XLM restarts the positions and has language embeddings.

    With ``next_sentence`` and neighbouring sentences it is BERT's pre-training (Devlin et al. 2019; the baseline of
    CMLM's appendix E): the other sentence is replaced by that of another pair of the batch in half of the pairs, and
    the first vector, through a layer with tanh, tells which they are. BERT also marks the two sentences by types.

    Use:
        - Needs: pairs (task bitext), or neighbouring sentences, and one tower.
        - Choose it: to align the words of languages in pretraining, best with mlm as another part of the run, as in
            XLM.
        - Related: mlm reads one sentence; hictl and dap join such an objective with contrast of sentences.

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion tlm --towers shared --validation loss
        ```

    Raises:
        UserError: the languages have separate towers, or anything that ``MLM`` raises.
    """

    reads = (ExampleKind.TRANSLATIONS, ExampleKind.NEIGHBOURS)

    @dataclass(kw_only=True)
    class Config(MLM.Config):
        mask_rate: Annotated[float, "(0, 1)"] = 0.25
        """Share of the tokens of each pair that is masked: 80% of these become [MASK], 10% become a random subword, 10%
        stay. HiCTL (table 9, bilingual) uses 0.25, XLM 0.15."""
        next_sentence: bool = False
        """For neighbouring sentences (task monolingual, units adjacent, without swap_order): replace the second one by
        another in half of the pairs, and predict which they are, too (BERT, with mask_rate 0.15)."""

    config: Config

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model, text)
        only_tower("tlm", model)
        shape = model.encoders[SHARED].shape
        self._limit = shape.max_positions
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
        together = read_together(batch.source, target, self._text.vocabulary(SHARED), self._limit)
        masked = self.masked_lm.mask(SHARED, together, generator)
        return Planned(batch, {"tlm": len(masked.labels), **sizes}, (masked, follows))

    def forward(self, model: DualEncoder, planned: Planned) -> Loss:
        masked, follows = planned.details
        encoder = model.encoders[SHARED]
        states = encoder(masked.batch)
        result = self.masked_lm(SHARED, encoder, masked.at_positions(states), masked.labels)
        loss = of_words("tlm", [result])
        if self.first is not None and self.neighbour is not None:
            scores = self.neighbour(torch.tanh(self.first(states[:, 0])))
            loss.terms["next_sentence"] = Term(F.cross_entropy(scores, follows, reduction="sum"))
            loss.metrics["next_sentence_accuracy"] = percentage(scores.argmax(1) == follows)
            loss.rows["next_sentence_accuracy"] = len(follows)
        return loss


def read_together(first: TokenBatch, second: TokenBatch, vocabulary: Vocabulary, limit: int) -> TokenBatch:
    """Append the rows of ``second``, without the [CLS] that they may have, to those of ``first``, in host memory.

    Args:
        limit: maximum length of both together. Of two long sentences each keeps half of it; of a long and a short one,
            the long one keeps what the short one leaves. A sentence that is cut keeps its [SEP].
    """
    of_x, of_y = first.lengths, second.lengths - vocabulary.leading_count
    of_x = torch.minimum(of_x, (limit - of_y).clamp(min=limit - limit // 2)).unsqueeze(1)
    total = of_x + torch.minimum(of_y.unsqueeze(1), limit - of_x)
    place = torch.arange(int(total.max()) if len(total) else 2)
    # A sentence that is cut still ends with its own last token.
    at_x = torch.where(place < of_x - 1, place, first.lengths.unsqueeze(1) - 1)
    at_y = torch.where(place < total - 1, place - of_x + vocabulary.leading_count, second.lengths.unsqueeze(1) - 1)
    tokens = torch.where(place < of_x, first.tokens.gather(1, at_x), second.tokens.gather(1, at_y.clamp(min=0)))
    lengths = total.squeeze(1)
    return TokenBatch(tokens.masked_fill(place >= total, vocabulary.pad_id), lengths, lengths.numpy())

"""Prediction of masked tokens, by a head for each tower that is discarded after training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from xrep.data.batch import TextSpec, TokenBatch
from xrep.data.masking import Masked, mask_tokens
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.encoder import Encoder, require_words
from xrep.nn.heads import MaskedLanguageHead
from xrep.nn.weights import fitting


class MaskedLanguage(nn.Module):
    """Masks the tokens that a tower reads, and predicts them from the token vectors of its last layer.

    Logits are ``head(vector) @ token_embedding.T + bias``, only at masked positions; the matrix is the tower's own.

    Args:
        rate: share of the tokens of each row that are chosen.

    Attributes:
        heads: the head of each tower: that of its pretrained encoder, which is the one in its directory or, if the
            encoder is a tower of an earlier run, that of the run's criterion; a new one if there is none. The bias of
            a subword is a new one if the encoder gets another vocabulary.
        notes: what a user should know about the heads.

    Raises:
        UserError: a tower's vocabulary has no [MASK], or a pretrained head cannot be used.
    """

    def __init__(self, model: DualEncoder, text: TextSpec, *, rate: float) -> None:
        super().__init__()
        self.rate, self.notes = rate, list[str]()
        self.vocabularies = {tower: text.vocabulary(tower) for tower in model.encoders}
        for tower, vocabulary in self.vocabularies.items():
            if vocabulary.mask_id is None:
                problem = f"the tokenizer of the tower {tower} has no [MASK]"
                raise UserError(problem, cure="use one that has, such as of xrep-preprocess")
        self.heads: Any = nn.ModuleDict({tower: self._head(tower, model) for tower in model.encoders})

    def _head(self, tower: str, model: DualEncoder) -> MaskedLanguageHead:
        encoder, start = model.encoders[tower], model.config.starts.get(tower)
        require_words(encoder, "the prediction of masked words")
        head = MaskedLanguageHead(encoder.shape)
        if start is not None and (state := start.head()) is not None:
            if model.config.vocabulary == "text":  # its bias is that of other subwords
                state = {**state, "bias": head.bias.detach()}
            with fitting(start.path):
                head.load_state_dict(state)
        elif start is not None:
            self.notes.append(f"{start.path} has no masked language head; tower {tower} gets a new one")
        return head

    def share(self, other: MaskedLanguage) -> None:
        """Use the heads of ``other``, which remains their owner: their tensors have one name and are saved once."""
        del self.heads
        object.__setattr__(self, "heads", other.heads)  # an assignment would register them as a submodule
        self.notes.clear()

    def mask(self, tower: str, batch: TokenBatch, generator: torch.Generator) -> Masked:
        """Mask tokens of sentences in host memory."""
        return mask_tokens(batch, self.vocabularies[tower], self.rate, generator)

    def forward(self, tower: str, encoder: Encoder, vectors: Tensor, labels: Tensor) -> CrossEntropy:
        """Return the cross-entropy of predicting ``labels``, int64 [M], from vectors of the masked tokens, [M, H]."""
        head = self.heads[tower]
        return linear_cross_entropy(head(vectors), encoder.token_embedding.weight, labels, bias=head.bias)

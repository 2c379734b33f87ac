"""What finds masked tokens: a head for each tower, thrown away after training."""

from __future__ import annotations

import re
from typing import Any, Literal

import torch
from torch import Tensor, nn

from xrep.criteria.criterion import Loss, Term, percentage
from xrep.data.batching import TextSpec, TokenBatch
from xrep.data.masking import Masked, mask_counts, mask_tokens
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.models.start import find_start
from xrep.nn.heads import MaskedLanguageHead
from xrep.nn.pretrained import CONFIG, masked_language_head, read_pretrained
from xrep.nn.weights import Weights
from xrep.text.sides import tokenizer_of

HEAD_TENSORS = re.compile(r"(^|\.)(cls\.predictions|lm_head)\.")


class MaskedLanguage(nn.Module):
    """Masks the tokens that a tower reads, and finds them again from the token vectors of its last layer.

    Logits are ``head(vector) @ token_embedding.T + bias``, at masked positions alone; the matrix is the tower's own.

    Args:
        rate: share of the tokens of each row that are chosen.
        whole_word: choose whole words (``prepare`` must be called).
        head: auto takes that of the directory of the tower's pretrained encoder, if there is one in it.

    Attributes:
        heads: by tower.
        notes: what a user should know of them.

    Raises:
        UserError: a tower's vocabulary has no [MASK]; a pretrained head that cannot be used.
    """

    def __init__(
        self, model: nn.Module, text: TextSpec, *, rate: float, whole_word: bool, head: Literal["auto", "new"]
    ) -> None:
        super().__init__()
        self.rate, self.whole_word, self.notes = rate, whole_word, list[str]()
        self.vocabularies = {tower: text.vocabulary(tower) for tower in model.encoders}
        for tower, vocabulary in self.vocabularies.items():
            if vocabulary.mask_id is None:
                problem = f"the tokenizer of the tower {tower} has no [MASK]"
                raise UserError(problem, cure="use one that has, such as of xrep-preprocess")
        pretrained = model.config.pretrained() if head == "auto" else {}
        self.heads = nn.ModuleDict({t: self._head(t, model.encoders[t], pretrained.get(t)) for t in model.encoders})

    def _head(self, tower: str, encoder: nn.Module, directory: str | None) -> MaskedLanguageHead:
        path = None if directory is None else find_start(directory).path
        if path is not None and (path / CONFIG).is_file() and any(map(HEAD_TENSORS.search, Weights(path))):
            return masked_language_head(read_pretrained(path))
        if path is not None:
            self.notes.append(f"{path} has no masked language head; tower {tower} gets a new one")
        shape = encoder.shape
        return MaskedLanguageHead(shape.hidden_size, shape.vocabulary_size, norm_epsilon=shape.norm_epsilon)

    def prepare(self, task: Any) -> None:
        """Learn of the task's tokenizers which subwords begin a word, if whole words are masked."""
        for tower, vocabulary in self.vocabularies.items() if self.whole_word else ():
            begins = torch.tensor(tokenizer_of(task.tokenizers, tower).begins_word())
            size = vocabulary.size
            self.register_buffer(f"begins_{tower}", begins[:size], persistent=False)

    def count(self, tower: str, batch: TokenBatch) -> int:
        """How many tokens are chosen; at most, where whole words are. Best asked of a batch that is not on a GPU."""
        return int(mask_counts(batch, self.vocabularies[tower], self.rate).sum())

    def mask(self, tower: str, batch: TokenBatch) -> Masked:
        """Hide tokens. On a GPU this waits for what it has to do before: nothing else of a step should come first."""
        begins = self.get_buffer(f"begins_{tower}") if self.whole_word else None
        return mask_tokens(batch, self.vocabularies[tower], self.rate, begins)

    def forward(self, tower: str, encoder: nn.Module, vectors: Tensor, labels: Tensor) -> CrossEntropy:
        """Cross-entropy of finding ``labels`` (int64 [M]) by the encoder's vectors of the masked tokens, [M, H]."""
        head = self.heads[tower]
        return linear_cross_entropy(head(vectors), encoder.token_embedding.weight, labels, bias=head.bias)

    def loss(self, name: str, found: list[CrossEntropy], batches: list[tuple[str, TokenBatch]]) -> Loss:
        """The term of what was found in the batches (before masking), of so many tokens as ``count`` told of each.

        Metrics are ``accuracy`` (percent of masked tokens) and ``perplexity`` (e to the mean of their losses).
        """
        sums = torch.stack([each.loss for each in found]).sum()
        correct, nll = torch.cat([each.correct for each in found]), torch.cat([each.nll for each in found])
        masked = len(nll)
        if self.whole_word:  # there may be fewer than the sum is divided by
            told = [mask_counts(batch, self.vocabularies[tower], self.rate).sum() for tower, batch in batches]
            sums = sums * torch.stack(told).sum() / max(masked, 1)
        perplexity = (nll.sum() / max(masked, 1)).exp() * (masked > 0)
        metrics = {"accuracy": percentage(correct), "perplexity": perplexity}
        return Loss({name: Term(sums)}, metrics, dict.fromkeys(metrics, masked))

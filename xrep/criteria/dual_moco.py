"""Dual momentum contrast (MoCo-BERT): two momentum encoders and two queues, one for each side of the pairs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xrep.config.fields import CountOrZero, Share
from xrep.criteria.contrastive import ContrastiveCriterion
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.criteria.in_batch import Temperature, negative_vectors, with_own_negatives
from xrep.criteria.keys import MEET_THEMSELVES, Queued, among_batch, in_queue, long_queue, new_queue
from xrep.data.batch import TextSpec
from xrep.kernels.gather import current_group, gathered
from xrep.kernels.queue_infonce import InfoNCE
from xrep.models.model import SentenceModel
from xrep.nn.momentum import MomentumEncoder
from xrep.nn.queue import Queue
from xrep.tasks.task import PAIRS, Task


class DualMoco(ContrastiveCriterion):
    """L(x, y) + L(y, x), dual momentum contrast of translations (equations 1-3 of the paper).

    The positive of a query is the momentum encoder's vector (key) of its translation; the negatives are only those in
    the queue of the other side. The momentum update of step t and the enqueueing of its keys follow the optimizer step.
    This is the same as updating the momentum encoders before the keys of step t + 1 are computed; at the start they
    equal the base encoders. Queues fill step by step, and unfilled rows never count, so the very first step has a loss
    of 0. Every rank enqueues the keys of all ranks, in the order in which one process with the whole batch would.
    Without queues (the smallest size in figure 2) the negatives are the other keys of the batch.

    Use:
        - Needs: pairs (task bitext), and more of them than twice the queue's size. Momentum encoders take the time and
            memory of another forward pass.
        - Choose it: to have many negatives with small batches.
        - Related: translation_ranking needs no momentum encoders, and large batches; frozen_source has one queue.
        - Left open: dropout of momentum encoders (``momentum_dropout``). Hard negatives (option ``negatives`` of the
            task) are keys, too, each for its own source alone; they do not join the queue.

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion dual_moco --queue-size 65536 --temperature 0.04 --momentum 0.999
        ```
    """

    reads = PAIRS
    uses_hard_negatives = True
    exchanges = True
    term = "infonce"

    @dataclass(kw_only=True)
    class Config(Queued):
        queue_size: CountOrZero = 409600
        """K: vectors kept of each side, which are the negatives. It need not be a multiple of the batch size. 0: no
        queue; the negatives are the keys of the batch, from all ranks."""
        temperature: Temperature = 0.04
        """tau: similarities are divided by this value."""
        momentum: Share = 0.999
        """m: share of their weights that momentum encoders keep per step. 0 is the paper's 'without momentum'."""
        mask_equal_sentences: bool = False
        """Do not use a queued sentence as a negative if it equals the query's positive or is a translation of the
        query's own sentence. Off in the paper; turn it on if sentences repeat."""
        momentum_dropout: bool = True
        """Keep dropout in the momentum encoders during training, as MoCo does (the paper does not say)."""

    def __init__(self, config: Config, model: SentenceModel, text: TextSpec) -> None:
        super().__init__(config, model)
        self._text = text
        self.momentum_encoder = MomentumEncoder(model, config.momentum, config.momentum_dropout)
        self.source_queue = new_queue(config, model.output_size, self._guide, count=2)
        self.target_queue = new_queue(config, model.output_size, self._guide, count=2)
        self._keys: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Keys of each batch since the last step, those of all ranks, both sides concatenated [B, 2 D]; their ids, and
        their vectors of the guide [B, 2, G]."""

    def constants(self, model: SentenceModel, planned: Planned) -> tuple[Tensor, ...]:
        encoder, batch = self.momentum_encoder.model, planned.batch
        return encoder.encode_pair(batch.source, batch.target) + negative_vectors(encoder, batch, self._text)

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        source_query, target_query, source_key, target_key, *negative = vectors
        to_target = self._infonce(source_query, target_key, self.target_queue, planned, back=False)
        to_source = self._infonce(target_query, source_key, self.source_queue, planned, back=True)
        given = (to_target.loss, to_target.correct, source_query, target_key, negative, planned.batch)
        forward, found = with_own_negatives(*given, self.config.temperature, judge=self.config.judge(planned))
        loss = (forward + to_source.loss).sum()
        correct = torch.cat([found, to_source.correct])
        return Loss({self.term: Term(loss)}, {"accuracy": percentage(correct)})

    def _infonce(self, query: Tensor, key: Tensor, queue: Queue | None, planned: Planned, back: bool) -> InfoNCE:
        config, given = self.config, (query, key, planned.batch.ids)
        masks = {"mask_equal": config.mask_equal_sentences, "judge": config.judge(planned, reverse=back)}
        if queue is None:
            return among_batch(*given, config.temperature, **masks, sizes=planned.rank_rows)[0]
        return in_queue(*given, queue, config.temperature, **masks)

    def remember(self, vectors: tuple[Tensor, ...], planned: Planned, loss: Loss) -> None:
        if self.source_queue is not None:
            keys = torch.cat(vectors[2:4], dim=1).to(self.source_queue.vectors.dtype)
            given = keys, planned.batch.ids, planned.batch.guide if self._guide else None
            (keys, ids, guide), _ = gathered(given, current_group(), planned.rank_rows)
            self._keys.append((keys, ids, guide))

    def after_step(self, model: SentenceModel) -> None:
        self.momentum_encoder.update(model)
        for keys, ids, guide in self._keys:
            for side, queue in enumerate((self.source_queue, self.target_queue)):
                assert queue is not None
                queue.enqueue(keys.chunk(2, dim=1)[side], ids, None if guide is None else guide[:, side])
        self._keys.clear()

    def warnings(self, task: Task) -> list[str]:
        old = "queued vectors are up to an epoch old; lower `queue_size`"
        consequence = old if self.config.mask_equal_sentences else MEET_THEMSELVES
        return long_queue(self.config.queue_size, task, consequence)

"""A frozen encoder of one language teaches an encoder of another language (frozen_source, section 3.2)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from xrep.criteria.batch_keys import among_batch
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, percentage
from xrep.criteria.temperature import LARGEST, SMALLEST, LearnableTemperature
from xrep.data.batching import PairBatch, TextSpec, TokenBatch
from xrep.data.teacher_vectors import TeacherVectors
from xrep.data.vector_cache import VectorCache, token_keys
from xrep.errors import UserError
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.queue_infonce import InfoNCE, against_both, queue_infonce
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.queue import Queue
from xrep.tasks.task import Examples, ParallelTask, Task

TERM = "frozen_source"
SIDES = ("source", "target")


class FrozenSource(ContrastiveCriterion):
    """Each target vector finds the source vector of its translation among those of the batch and of a queue.

    As in the paper, the source is the language of the encoder that teaches, and the target that of the student,
    whichever side of the pairs they are on (``source_side``).

    The criterion itself keeps the source tower unchanged: it lists the tower in ``frozen``, so that the trainer gives
    it neither gradient nor dropout. Only the target vectors are queries, as with the paper's queue. The negatives are
    the other source vectors of the batch, from all ranks, and those of earlier steps in the queue. Since the encoder is
    frozen, these equal newly computed ones; the positive counts once. Vectors join the queue after the optimizer step,
    and rows not yet filled never count.

    ``source: trained`` gives the models that the paper compares with (table 5, queue 0): with ``towers: separate`` the
    dual encoder, with ``towers: shared`` the multilingual one.

    Raises:
        UserError: the frozen tower is also the target's, files of ``teacher_vectors`` cannot be used, or the student
            has another width.
    """

    reads = (Examples.TRANSLATIONS,)
    needs = DualEncoder

    @dataclass(kw_only=True)
    class Config:
        source: Literal["frozen", "trained"] = "frozen"
        """frozen: the source tower stays unchanged. trained: it is trained as well, which is what the paper compares
        with (table 5)."""
        source_side: Literal["source", "target"] = "source"
        """Side of the training pairs whose encoder teaches. English is the target side of all text that xrep reads."""
        loss: Literal["contrastive", "mse"] = "contrastive"
        """contrastive: InfoNCE. mse: the squared distance between target and source vector, which is the distillation
        of Reimers and Gurevych (2020), here for the target language only."""
        queue_size: int = 0
        """Number of source vectors of earlier steps that are used as further negatives: 10000 for base, 200000 for
        large encoders (table 6). 0: only the batch. It need not be a multiple of the batch size."""
        temperature: float = 1.0
        """tau: similarities are divided by this value, which is the initial one if it is learnable. It must be above
        0, and in [0.01, 1] if it is learnable."""
        learnable_temperature: bool = True
        """Train tau = exp(theta), which stays within [0.01, 1] (the paper's 'parameter 1', table 1)."""
        mask_equal_sentences: bool = False
        """Do not use a pair as a negative if it shares a sentence with the query's pair. Off in the paper; turn it on
        if sentences repeat."""
        cache_source: str | None = None
        """Directory in which the frozen tower's vectors are stored, in float32, so that each distinct sentence is
        encoded once, in this run or in another one with the same tower. All ranks may use the same directory."""
        teacher_vectors: str | None = None
        """Vectors of any other system, used in place of those of a source tower: a .npy file of floats [N, D] with one
        row for each line of teacher_text. The model is then only the student: set towers shared and projection_size D.
        It learns only the target language, so choose the best checkpoint with validation sts, not retrieval."""
        teacher_text: str | None = None
        """The source sentences of teacher_vectors, one per line. Every source sentence of the training text must be
        there, in any order; case and punctuation do not count."""

        def problems(self) -> list[str]:
            problems = []
            if self.queue_size < 0:
                problems.append(f"queue_size must be at least 0, not {self.queue_size}")
            if self.learnable_temperature and not SMALLEST <= self.temperature <= LARGEST:
                bounds = f"[{SMALLEST}, {LARGEST:g}]"
                problems.append(f"temperature must lie in {bounds} where it is learnable, not be {self.temperature}")
            elif not self.temperature > 0:
                problems.append(f"temperature must be above 0, not {self.temperature}")
            if self.queue_size > 0 and self.loss == "mse":
                problems.append("queue_size is for loss: contrastive; mse has no negatives")
            if bool(self.teacher_vectors) != bool(self.teacher_text):
                problems.append("teacher_vectors and teacher_text belong together; give both")
            if self.cache_source and self.teacher_vectors:
                problems.append(
                    "cache_source is for a source tower, and teacher_vectors take its place; give one of them"
                )
            return problems + (self._needs_frozen() if self.source == "trained" else [])

        def _needs_frozen(self) -> list[str]:
            needs = {
                "queue_size": (self.queue_size > 0, "queued vectors would be of an encoder that has changed"),
                "loss mse": (self.loss == "mse", "both towers would give one vector for all sentences"),
                "cache_source": (bool(self.cache_source), "cached vectors would be of an encoder that has changed"),
                "teacher_vectors": (bool(self.teacher_vectors), "vectors of a file cannot be trained"),
            }
            return [f"{name} needs source: frozen; {why}" for name, (is_given, why) in needs.items() if is_given]

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__()
        self.config = config
        towers = {"source": model.tower(text.source_languages[0]), "target": model.tower(text.target_languages[0])}
        self._source_side, self._target_side = SIDES if config.source_side == "source" else SIDES[::-1]
        self._source, self._target = towers[self._source_side], towers[self._target_side]
        self._teacher = _teacher(config, model, self._source == self._target)
        self._cache: VectorCache | None = None
        if config.source == "frozen" and self._teacher is None:
            self.frozen = self._parts_of_source(model)
        self._projects_at_random = bool(self.frozen) and self._source in model.new_projections
        contrastive = config.loss == "contrastive"
        self.temperature = (
            LearnableTemperature(config.temperature) if contrastive and config.learnable_temperature else None
        )
        self.queue = Queue(config.queue_size, model.output_size) if config.queue_size else None
        self._keys: list[tuple[Tensor, Tensor]] = []
        """Source vectors and ids of each batch since the last step, from all ranks."""

    def _parts_of_source(self, model: DualEncoder) -> list[str]:
        """Return patterns for the source tower's parameters."""
        if self._source == self._target:
            raise UserError(
                "a frozen source needs a tower of its own, and this model has one for both sides",
                cure="set `towers` to separate, or `source` to trained",
            )
        names = [name.split(".") for name, _ in model.named_parameters()]
        return list(dict.fromkeys(".".join(name[:2]) for name in names if name[1] == self._source))

    def prepare(self, task: Task) -> None:
        if self._teacher is not None:
            assert isinstance(task, ParallelTask)
            for hashes in task.hashes():
                self._teacher.rows(hashes[:, SIDES.index(self._source_side)].view(np.int64))

    def plan_rows(self, batch: PairBatch, generator: torch.Generator) -> Planned:
        return Planned(batch, {TERM: len(batch)})

    def encode(self, model: DualEncoder, planned: Planned) -> Encoded:
        batch = planned.batch
        if self.config.source == "trained":
            vectors: dict[str, Tensor] = dict(zip(SIDES, model.encode_pair(batch.source, batch.target), strict=True))
            return Encoded((vectors[self._target_side], vectors[self._source_side]))
        return Encoded((model.encode(self._target, getattr(batch, self._target_side))[0],))

    def constants(self, model: DualEncoder, planned: Planned) -> tuple[Tensor, ...]:
        batch = planned.batch
        return () if self.config.source == "trained" else (self._taught(model, batch),)

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        batch = planned.batch
        target, source = vectors
        if self.config.loss == "mse":
            return Loss({TERM: Term((target - source).square().sum())})
        tau = self.config.temperature if self.temperature is None else self.temperature()
        if self.config.source == "trained":
            ids = batch.ids if self.config.mask_equal_sentences else None
            found = inbatch_infonce(target, source, tau, ids=ids, group=current_group())
            loss, correct = found.forward, found.forward_correct
        else:
            loss, correct = self._against_frozen(source, target, batch.ids, tau)
        metrics = {"accuracy": percentage(correct)}
        if isinstance(tau, Tensor):
            metrics["temperature"] = tau.detach()
        return Loss({TERM: Term(loss.sum())}, metrics)

    def _against_frozen(self, source: Tensor, target: Tensor, ids: Tensor, tau: float | Tensor) -> InfoNCE:
        """Compare with the source vectors of the batch, from all ranks, and of the queue."""
        masked = self.config.mask_equal_sentences
        found, keys, key_ids = among_batch(target, source, ids, tau, mask_equal=masked)
        if self.queue is None:
            return found
        if self.training:
            self._keys.append((keys, key_ids))
        old = queue_infonce(
            target,
            source,
            self.queue.vectors,
            tau,
            valid=self.queue.filled,
            query_ids=ids if masked else None,
            queue_ids=self.queue.ids if masked else None,
        )
        return against_both(found, old)

    def after_step(self, model: DualEncoder) -> None:
        if self.temperature is not None:
            self.temperature.clamp()
        if self.queue is not None:
            for keys, ids in self._keys:
                self.queue.enqueue(keys, ids)
            self._keys.clear()

    # -- the source vectors -------------------------------------------------------------------------------------------

    def _taught(self, model: DualEncoder, batch: PairBatch) -> Tensor:
        """Return the source vectors [B, D], which have no gradient."""
        tokens = getattr(batch, self._source_side)
        if self._teacher is not None:
            hashes = batch.ids[:, SIDES.index(self._source_side)].numpy(force=True)
            found = torch.from_numpy(self._teacher.read(hashes)).to(batch.ids.device)
            return F.normalize(found, dim=1) if model.config.normalize else found
        return (
            model.encode(self._source, tokens)[0] if self.config.cache_source is None else self._cached(model, tokens)
        )

    def _cached(self, model: DualEncoder, batch: TokenBatch) -> Tensor:
        if self._cache is None:  # not in __init__: a resumed run loads the model's weights later
            assert self.config.cache_source is not None
            fingerprint = _fingerprint(model, self._source, self.frozen)
            self._cache = VectorCache(self.config.cache_source, model.output_size, fingerprint)
        device, keys = batch.tokens.device, token_keys(batch).numpy(force=True)
        places = self._cache.find(keys)
        missing = np.flatnonzero(places < 0)
        if len(missing):
            rows = missing[np.unique(keys[missing], return_index=True)[1]]
            some = batch.select(rows)
            with torch.autocast(device.type, enabled=False):  # vectors have the same precision in all runs
                self._cache.add(keys[rows], model.encode(self._source, some)[0].float().numpy(force=True))
            places = self._cache.find(keys)
        return torch.from_numpy(self._cache.read(places)).to(device)

    def warnings(self, task: Task) -> list[str]:
        warnings = []
        if self._projects_at_random:
            warnings.append(
                f"the frozen {self._source_side} tower has a new projection, of random weights unless `init` has them; "
                f"set `projected_side` to {self._target_side}"
            )
        if 2 * self.config.queue_size <= task.examples or self.config.mask_equal_sentences:
            return warnings
        return [
            *warnings,
            f"queue_size {self.config.queue_size} exceeds half of the {task.examples} training pairs: sentences meet "
            "themselves as negatives; lower `queue_size`, or set `mask_equal_sentences`",
        ]


def _teacher(config: FrozenSource.Config, model: DualEncoder, is_shared: bool) -> TeacherVectors | None:
    if config.teacher_vectors is None or config.teacher_text is None:
        return None
    if not is_shared:
        problem = "teacher_vectors take the place of a source tower, and this model has one"
        raise UserError(problem, cure="set `towers` to shared")
    teacher = TeacherVectors(config.teacher_vectors, config.teacher_text)
    if teacher.width != model.output_size:
        problem = f"vectors of {teacher.width} numbers, the model's have {model.output_size}"
        raise UserError(problem, path=teacher.path, cure=f"set `projection_size` to {teacher.width}")
    return teacher


def _fingerprint(model: DualEncoder, tower: str, frozen: Sequence[str]) -> str:
    """Return a hash of the weights and settings by which the frozen tower makes a vector of token ids. (The tokenizer
    is left out, as it only makes the ids.)"""
    config, architecture = model.config, model.architecture()
    of_tower = {section: values.get(tower) for section, values in architecture.items()}
    digest = hashlib.sha256(json.dumps([of_tower, config.pooled_layer, config.normalize], sort_keys=True).encode())
    for name, tensor in model.state_dict().items():
        if any(name.startswith(f"{part}.") for part in frozen):
            digest.update(f"{name} {list(tensor.shape)}".encode())
            digest.update(tensor.detach().float().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""A frozen encoder of one language teaches an encoder of another language (frozen_source, section 3.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.config.fields import CountOrZero
from xrep.criteria.contrastive import ContrastiveCriterion, Encoded
from xrep.criteria.criterion import Loss, Planned, Term, merged, percentage
from xrep.criteria.in_batch import Temperature, with_own_negatives
from xrep.criteria.keys import MEET_THEMSELVES, Queued, among_batch, in_queue, long_queue, new_queue
from xrep.data.batch import Batch, TextSpec
from xrep.data.teacher_vectors import TeacherVectors, check_width
from xrep.errors import UserError
from xrep.kernels.gather import current_group
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.queue_infonce import against_both
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask, blocks
from xrep.tasks.task import ExampleKind, Task
from xrep.text.sides import SIDES

SMALLEST, LARGEST = 0.01, 1.0
"""Range of a learnable temperature."""


class FrozenSource(ContrastiveCriterion):
    """Each target vector finds the source vector of its translation among those of the batch and of a queue.

    This is InfoNCE with the target as query (frozen_source, section 3.2). The source is the language of the encoder
    that teaches, and the target that of the student, whichever side of the pairs they are on (``source_side``). The
    tower that teaches is kept unchanged, without gradient and dropout (``frozen``). Negatives are the other source
    vectors of the batch, from all ranks, and those of earlier steps in the queue, which equal newly computed ones; the
    positive counts once. Vectors join the queue after the optimizer step, and rows not yet filled never count.

    Use:
        - Needs: pairs (task bitext) and a good encoder of one language, as a tower of its own or by its vectors
            (``teacher_vectors``), which save the teacher's part of each step.
        - Choose it: to teach a language to a new encoder, with the similarity that the teacher has learnt.
        - Related: with ``loss: mse`` and ``sides: both`` it is the distillation of Reimers and Gurevych (2020); the
            recipe ``multilingual_student`` is of this kind. ``source: trained`` gives the models that the paper
            compares with (table 5, queue 0): the dual encoder (``towers: separate``) and the multilingual one
            (``shared``).
        - Left open: whether the temperature is bounded (here by [0.01, 1]). Hard negatives (option ``negatives`` of the
            task) are of the target side of the pairs, so they need ``source_side: target``.

    Example:
        ```sh
        xrep-train text/ --task bitext --criterion frozen_source --source-side target --target-encoder minilm/
        ```

    Raises:
        UserError: the frozen tower is also the target's or starts from an encoder of other languages, the ``teacher``
            or files of ``teacher_vectors`` cannot be used, or the student has another width.
    """

    reads = (ExampleKind.TRANSLATIONS,)
    needs = DualEncoder
    exchanges = True
    term = "frozen_source"

    @dataclass(kw_only=True)
    class Config(Queued):
        source: Literal["frozen", "trained"] = "frozen"
        """frozen: the source tower stays unchanged. trained: it is trained as well, which is what the paper compares
        with (table 5)."""
        source_side: Literal["source", "target"] = "source"
        """Side of the training pairs whose encoder teaches. English is the target side of all text that xrep reads."""
        sides: Literal["target", "both"] = "target"
        """What learns the teacher's vector of the source sentence: the vector of its translation (target), or also that
        of the source sentence itself (both), so that one student (towers: shared) reads all languages."""
        loss: Literal["contrastive", "mse", "both"] = "contrastive"
        """contrastive: InfoNCE. mse: the squared distance between the student's and the teacher's vector, as in the
        distillation of Reimers and Gurevych (2020). both: their sum."""
        queue_size: CountOrZero = 0
        """Number of source vectors of earlier steps that are used as further negatives: 10000 for base, 200000 for
        large encoders (table 6). 0: only the batch. It need not be a multiple of the batch size."""
        temperature: Temperature = 1.0
        """tau: similarities are divided by this value, which is the initial one if it is learnable, in [0.01, 1]."""
        learnable_temperature: bool = True
        """Train tau = exp(theta), which stays within [0.01, 1] (the paper's 'parameter 1', table 1; as in CLIP)."""
        mask_equal_sentences: bool = False
        """Do not use a pair as a negative if it shares a sentence with the query's pair. Off in the paper; turn it on
        if sentences repeat."""
        teacher: str | None = None
        """Encoder that teaches: a directory of sentence-transformers, or what else xrep-encode opens. It encodes each
        different source sentence of the text once before training (as the vocabulary writes it), and the vectors are
        kept below XREP_HOME. As with teacher_vectors, the model is the student alone if towers are shared; it then
        starts from its teacher unless another `encoder` is named."""
        teacher_vectors: str | None = None
        """Vectors of the source sentences, computed once before training: a .npy file of floats [N, D], such as that of
        xrep-encode, with one row for each line of teacher_text. With a source tower (towers separate) the vectors
        must be those of this tower, which then encodes only hard negatives and sentences that the file lacks, such as
        those of validation. With towers shared the model is only the student, of any other system: set projection_size
        D, and choose the best checkpoint with validation sts, not retrieval."""
        teacher_text: str | None = None
        """The source sentences of teacher_vectors, one per line. Every source sentence of the training text must be
        there, in any order; case and punctuation do not count."""

        def problems(self) -> list[str]:
            problems = super().problems()
            if self.learnable_temperature and not SMALLEST <= self.temperature <= LARGEST:
                rule = f"lie in [{SMALLEST}, {LARGEST:g}] if it is learnable"
                problems.append(f"temperature must {rule}, not {self.temperature}")
            for name, is_set in (("queue_size", self.queue_size > 0), ("mask_margin", self.mask_margin is not None)):
                if is_set and self.loss == "mse":
                    problems.append(f"{name} is for loss: contrastive; mse has no negatives")
            if self.teacher and self.teacher_vectors:
                problems.append("teacher computes what teacher_vectors has; give one of them")
            if bool(self.teacher_vectors) != bool(self.teacher_text):
                problems.append("teacher_vectors and teacher_text belong together; give both")
            if self.source == "trained":
                changed = "vectors would be of an encoder that has changed"
                needs = {
                    "queue_size": (self.queue_size > 0, f"queued {changed}"),
                    f"loss {self.loss}": (self.loss != "contrastive", "all sentences would get one vector"),
                    "sides both": (self.sides == "both", "the source learns with the target anyway"),
                    "teacher": (bool(self.teacher), "vectors that are computed before cannot be trained"),
                    "teacher_vectors": (bool(self.teacher_vectors), "vectors of a file cannot be trained"),
                }
                problems += [f"{name} needs source: frozen; {why}" for name, (is_set, why) in needs.items() if is_set]
            return problems

    def __init__(self, config: Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model)
        towers = {"source": model.tower(text.source_languages[0]), "target": model.tower(text.target_languages[0])}
        self._source_side, self._target_side = SIDES if config.source_side == "source" else SIDES[::-1]
        self._source, self._target = towers[self._source_side], towers[self._target_side]
        self._width = model.output_size
        self._teacher, self._warnings = _open_teacher(config, model), list[str]()
        self._student_alone = config.source == "frozen" and self._source == self._target
        is_compared = config.loss != "mse" and not self._student_alone
        self.uses_hard_negatives = is_compared and self._source_side == "target"
        if self._student_alone and self._teacher is None and config.teacher is None:
            problem = "a frozen source needs a tower of its own, and this model has one for both sides"
            raise UserError(problem, cure="name a `teacher`, or set `towers` to separate or `source` to trained")
        if config.sides == "both" and not self._student_alone:
            problem = "`sides` both is for one student of all languages, and this model has two towers"
            raise UserError(problem, cure="set `towers` to shared")
        if config.source == "frozen" and not self._student_alone:
            self._warnings = self._check_languages(model, text)
            names = [name.split(".") for name, _ in model.named_parameters()]
            self.frozen = list(dict.fromkeys(".".join(name[:2]) for name in names if name[1] == self._source))
        self._projects_at_random = bool(self.frozen) and self._source in model.new_projections
        learnable = config.loss != "mse" and config.learnable_temperature
        # A scalar, to which weight decay never applies.
        self.theta = nn.Parameter(torch.tensor(math.log(config.temperature))) if learnable else None
        self.queue = new_queue(config, model.output_size, self._guide)
        self._keys: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Source vectors, ids and vectors of the guide of each batch since the last step, from all ranks."""

    def _check_languages(self, model: DualEncoder, text: TextSpec) -> list[str]:
        """Raise UserError if the frozen tower starts from an encoder of other languages than it will read; return a
        warning if that is not known, or if it starts from none."""
        languages = {"source": text.source_languages, "target": text.target_languages}
        side, other = self._source_side, self._target_side
        origin = model.origins.get(f"encoders.{self._source}")
        if origin is None:
            cure = f"name its encoder by `{side}_encoder`, or a checkpoint by `init`"
            return [f"the frozen {side} tower, which teaches, has random weights; {cure}"]
        if not origin.languages:
            read = f"{', '.join(languages[side])}, which the frozen {side} tower reads"
            return [f"{origin.path} names no languages; make sure that it is an encoder for {read}"]
        if {*origin.languages} & {*languages[side]}:
            return []
        cure = f"name an encoder for {', '.join(languages[side])} by `{side}_encoder`"
        if {*origin.languages} & {*languages[other]}:
            cure = f"set `source_side` to {other}"
            cure += "" if f"encoders.{self._target}" in model.origins else f", and name it by `{other}_encoder`"
        problem = f"an encoder for {', '.join(origin.languages)} would be the frozen {side} tower, whose text is in "
        raise UserError(problem + ", ".join(languages[side]), path=origin.path, cure=cure)

    def prepare(self, task: Task) -> None:
        super().prepare(task)
        if self.config.teacher is not None:
            from xrep.criteria.teacher import vectors_of_teacher  # which needs what encodes files

            assert isinstance(task, BitextTask)
            self._teacher = vectors_of_teacher(self.config.teacher, task, self._source_side, self._width)
        if self._teacher is not None:
            assert isinstance(task, BitextTask)
            side = SIDES.index(self._source_side)
            self._teacher.check(hashes[:, side] for pairs in task.train for hashes in blocks(pairs.hashes))

    def plan_rows(self, batch: Batch, generator: torch.Generator) -> Planned:
        planned = super().plan_rows(batch, generator)
        if self._teacher is not None:
            hashes = batch.ids[:, SIDES.index(self._source_side)].numpy().view(np.uint64)
            known = self._teacher.has(hashes)
            if known.all():
                planned.details = torch.from_numpy(self._teacher.read(hashes))
            elif self._student_alone:  # ``prepare`` has found those of the training text
                problem = f"lacks {len(known) - known.sum()} sentences of the dev split, which validation by loss needs"
                cure = "add them, and their vectors, or set `validation` to retrieval or sts"
                raise UserError(problem, path=self._teacher.text, cure=cure)
        return planned

    def encode(self, model: DualEncoder, planned: Planned) -> Encoded:
        batch = planned.batch
        if self.config.source == "trained" or self.config.sides == "both":
            vectors = model.encode_pair(batch.source, batch.target)
            negative = () if batch.negatives is None else (model.encode(self._source, batch.negatives.tokens)[0],)
            return Encoded((vectors[::-1] if self._target_side == "target" else vectors) + negative)
        return Encoded((model.encode(self._target, batch.sides[self._target_side])[0],))

    def constants(self, model: DualEncoder, planned: Planned) -> tuple[Tensor, ...]:
        if self.config.source == "trained":
            return ()
        batch, vectors = planned.batch, planned.details
        if vectors is None:
            vectors = model.encode(self._source, batch.sides[self._source_side])[0]
        elif model.config.normalize:
            vectors = F.normalize(vectors, dim=1)
        if batch.negatives is None:
            return (vectors,)
        return (vectors, model.encode(self._source, batch.negatives.tokens)[0])

    def contrast(self, vectors: tuple[Tensor, ...], planned: Planned) -> Loss:
        if self.config.sides == "target":
            return self._of_student(vectors, planned)
        *students, source = vectors
        place = SIDES.index(self._source_side)
        columns = (slice(None), slice(place, place + 1))  # the sentences that are compared
        losses = [self._of_student((s, source), planned, own) for s, own in zip(students, columns, strict=True)]
        whole = merged(losses, [len(planned)] * len(losses))
        whole.found = losses[0].found
        return whole

    def _of_student(self, vectors: tuple[Tensor, ...], planned: Planned, columns: slice = slice(None)) -> Loss:
        ids, (target, source, *negative) = planned.batch.ids, vectors
        squared = 0.0 if self.config.loss == "contrastive" else (target - source).square().sum()
        if self.config.loss == "mse":
            return Loss({self.term: Term(torch.as_tensor(squared))})
        tau = self.config.temperature if self.theta is None else self.theta.exp()
        mask_equal, sizes, keys = self.config.mask_equal_sentences, planned.rank_rows, None
        judge = self.config.judge(planned, columns, reverse=self._target_side == "target")
        if self.config.source == "trained":
            masked = ids if mask_equal else None
            given = {"ids": masked, "judge": judge, "group": current_group(), "sizes": sizes}
            loss, _, correct, _ = inbatch_infonce(target, source, tau, **given)
        else:
            masks = {"mask_equal": mask_equal, "judge": judge}
            result, *keys = among_batch(target, source, ids, tau, **masks, sizes=sizes)
            if self.queue is not None:
                queued = in_queue(target, source, ids, self.queue, tau, **masks)
                result = against_both(result, queued)
            loss, correct = result
        loss, correct = with_own_negatives(loss, correct, target, source, negative, planned.batch, tau, judge=judge)
        metrics = {"accuracy": percentage(correct)}
        if isinstance(tau, Tensor):
            metrics["temperature"] = tau.detach()
        return Loss({self.term: Term(loss.sum() + squared)}, metrics, found=keys)

    def remember(self, vectors: tuple[Tensor, ...], planned: Planned, loss: Loss) -> None:
        if self.queue is not None:
            self._keys.append(loss.found)

    def after_step(self, model: DualEncoder) -> None:
        if self.theta is not None:  # to clamp tau itself would leave theta without a gradient outside of its range
            self.theta.data.clamp_(math.log(SMALLEST), math.log(LARGEST))
        if self.queue is not None:
            for found in self._keys:
                self.queue.enqueue(*found)
            self._keys.clear()

    def warnings(self, task: Task) -> list[str]:
        warnings = list(self._warnings)
        if self._projects_at_random:
            warnings.append(
                f"the frozen {self._source_side} tower has a new projection, of random weights unless `init` has them; "
                f"set `projected_side` to {self._target_side}"
            )
        if not self.config.mask_equal_sentences:
            warnings += long_queue(self.config.queue_size, task, MEET_THEMSELVES)
        return warnings


def _open_teacher(config: FrozenSource.Config, model: DualEncoder) -> TeacherVectors | None:
    if config.teacher_vectors is None or config.teacher_text is None:
        return None
    teacher = TeacherVectors(config.teacher_vectors, config.teacher_text)
    check_width(teacher.width, model.output_size, teacher.path)
    return teacher

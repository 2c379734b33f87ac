"""The training loop. It is the same for all papers: the objective is whatever the criterion returns."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from functools import partial
from itertools import islice
from typing import Any

from xrep.config import RunConfig
from xrep.criteria.contrastive import encode_in_pieces
from xrep.criteria.criterion import Criterion
from xrep.data.stream import stream
from xrep.errors import TrainingError
from xrep.interrupts import NOTICE, StopRequest
from xrep.models.device import moved
from xrep.models.directory import Checkpoint
from xrep.models.model import Model
from xrep.nn.encoder import set_activation_checkpointing
from xrep.tasks.task import Task
from xrep.training.batches import Group, groups_of, planned_batch, steps_ahead
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import World, check_in_step
from xrep.training.faults import explain_memory, not_finite
from xrep.training.log import Log, Quiet
from xrep.training.options import TrainerOptions
from xrep.training.reports import Reports
from xrep.training.results import Results
from xrep.training.schedule import Budget
from xrep.training.state import TrainingState, collect, restore
from xrep.training.step import Pair, Step
from xrep.training.trained import what_trains
from xrep.training.validator import Validator
from xrep.workers import ahead


class Trainer:
    """Accumulates, clips, steps, logs, validates, saves and resumes, in one process or as one rank of several.

    Args:
        checkpoints: checkpoints of the run's directory; only rank 0 writes.
        validate: measures the model between steps; None: no validation.
    """

    Config = TrainerOptions

    def __init__(
        self,
        run: RunConfig,
        task: Task,
        model: Model,
        criterion: Criterion,
        checkpoints: Checkpoints,
        progress: Log | Quiet,
        validate: Validator | None,
        world: World,
    ) -> None:
        self.config: TrainerOptions = run.configs["trainer"]
        self.run, self.task, self.world = run, task, world
        self.checkpoints, self.progress, self.validate = checkpoints, progress, validate
        if self.config.micro_batch is not None:
            encode_in_pieces(criterion, self.config.micro_batch)
        cure = "choose a smaller model, lower `queue_size`, or set `device` to cpu"
        self.pair = moved(Pair(model, criterion), world.device, cure)
        set_activation_checkpointing(self.pair, self.config.activation_checkpointing)
        if self.config.compile:
            from xrep.nn.compile import compile_layers  # the compiler is slow to import

            compile_layers(self.pair)
        freezing, update = what_trains(self.pair, run, world)
        self.step = Step(self.pair, freezing, update, run.configs["distributed"].gradient_compression)
        schedule = run.classes["lr_scheduler"](run.configs["lr_scheduler"])
        # Batches of one group can be much smaller than others, so that the first one alone says little.
        first = list(islice(task.plan(None, world.rank, world.size), 32))
        examples = self.config.update_freq * first[-1].examples / len(first)
        self.budget = Budget(self.config, task.examples, examples, schedule)
        self.state = TrainingState()
        self._clock = time.process_time if self.config.clock == "cpu" else time.monotonic
        self.stop = StopRequest(signal.SIGTERM, signal.SIGUSR1, notice=NOTICE if world.is_main else "")
        self.reports = Reports(progress, self.pair, self.budget.spent, task.examples)
        self._late: tuple[Results, Group, float, dict[str, float]] | None = None
        """Results of the last step, with its batches, its rate, and its pairs, tokens and seconds."""

    def train(self) -> TrainingState:
        """Train to the end of the budget, or until the run is asked to stop; return the final state.

        Raises:
            TrainingError: a loss or gradient is not finite, memory ran out, a worker died, or the ranks drifted apart.
        """
        self._started, save_every = self._clock() - self.state.seconds, self.checkpoints.config.save_every
        self.step.train_mode()
        with closing(self.read()) as read, self.stop.watching():
            groups = steps_ahead(read, self.world, self.status)
            while not self.finished:
                began = time.monotonic()
                group = next(groups)
                self.state.seconds = group.seconds
                if group.stop:  # every rank ends by the same signal, whichever of them got it
                    self.stop.signal = next(name for name in self.world.gather(self.stop.signal) if name)
                    self._save(best=False, final=True)
                    break
                self.run_step(group, began)
                best = self._validate() if self.finished or self._due(self.config.validate_every) else False
                # A step saves at most once, after its validation: a checkpoint on disk never depends on a second save.
                if self.finished or best or self._due(save_every):
                    self._save(best, final=self.finished)
            groups.close()  # not after an error, because a rank that has failed tells the others nothing
        return self.state

    @property
    def finished(self) -> bool:
        """Whether the budget is spent, or the last ``patience`` validations were all worse than the best one."""
        if self.config.patience is not None and self.state.worse >= self.config.patience:
            return True
        return self.budget.spent(self.state) >= 1.0

    def read(self) -> Generator[Group, None, None]:
        """Yield this rank's batches of each step that is left."""
        world, pinned = self.world, self.world.device.type == "cuda"
        stop = None if (epochs := self.budget.max_epochs) is None else math.ceil(epochs * self.task.examples)
        plans = self.task.plan(self.state.cursor, world.rank, world.size, stop)
        if world.size > 1:  # a step of many ranks uses up much of the order, which takes time to compute
            plans = ahead(plans)
        make = partial(planned_batch, self.task, self.pair.criterion, self.run.seed, world.rank)
        batches = stream(plans, make, workers=self.config.data_workers, pin_memory=pinned)
        return groups_of(batches, self.config.update_freq)

    def status(self) -> tuple[float, bool]:
        """Return the seconds of training, 0 on all but rank 0, and whether this rank was told to stop."""
        return self._clock() - self._started if self.world.is_main else 0.0, self.stop.signal is not None

    def run_step(self, group: Group, began: float) -> None:
        """Make a step and report it; ``began`` is the time at which its batches were asked for."""
        plan, state = group.plan, self.state
        rate = self.run.configs["optimizer"].lr * self.budget.rate(state, plan.examples)
        is_long = len(group.batches) > 1 or self.config.micro_batch is not None
        counting = self.reports.counting(state, "step in progress") if is_long else nullcontext()
        with counting, explain_memory(self.world, group.batches, partial(self._failed, state.step + 1)):
            results = self.step.gradients(group.batches, group.sizes, state.step)
            self._read_late()  # those of the step before, while a GPU computes this one
            self.step.apply(results, rate)
        counts = {"pairs": plan.examples - state.examples, "tokens": group.tokens, "waited": group.waited}
        self._late = results, group, rate, {**counts, "busy": time.monotonic() - began}
        state.step, state.examples, state.cursor = state.step + 1, plan.examples, plan.cursor
        if not self.step.update.late:
            self._read_late()
        if self._due(self.run.configs["distributed"].check_every):
            self._read_late()
            check_in_step(self.world, self.pair)
        if self.world.size == 1 or self.config.max_minutes is not None:  # the clock of rank 0 counts for all ranks
            state.seconds = self.world.sums([self.status()[0]])[0]
        self.reports.line(state)
        if self.finished or self._due(self.run.configs["logging"].log_every):
            self._record()

    def _read_late(self) -> None:
        """Read the results of the last step, if they have not been read.

        Raises:
            TrainingError: a number is not finite. The weights are those before that step.
        """
        if self._late is None:
            return
        (results, group, rate, counts), self._late = self._late, None
        numbers = results.numbers
        if not numbers.finite:  # the run ends on every rank, and names the module and the batch that went wrong
            where = not_finite(self.step, numbers, group.batches, self.task.describe)
            cure = "; lower `lr` or `clip_norm`, or look at these examples"
            self.world.raise_on_all_ranks(self._failed(self.state.step, where, cure), 1)
        self.reports.add(numbers, rate, counts)

    def _record(self) -> None:
        self._read_late()
        self.reports.record(self.state, self.checkpoints.stalled_seconds)

    def _failed(self, step: int, problem: str, cure: str = "") -> TrainingError:
        return TrainingError(f"step {step}: {problem}; last good checkpoint: {self.checkpoints.last_good()}{cure}")

    def _due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _validate(self) -> bool:
        """Validate; return whether this is the best state so far."""
        self._read_late()
        if self.validate is None:
            return True
        metrics: dict[str, float] = {}
        with self.world.together(), self.step.autocast(), self.reports.counting(self.state, "validating"):
            metrics = self.validate(self.pair.model, self.pair.criterion, self.world)
        self.step.train_mode()
        metrics = self.world.from_main(metrics)
        better = self.state.improved(metrics[self.validate.metric], self.validate.maximize)
        self.reports.validated(self.state, metrics, self.validate.metric, better)
        for line in self.validate.examples:
            self.progress.say(line)
        return better

    def _save(self, best: bool, final: bool = False) -> None:
        if final:  # perhaps it is out of patience only since its validation
            self._record()
        self._read_late()
        facts: dict[str, Any] = {"step": self.state.step, "config_yaml": self.run.to_yaml()}
        facts |= {"model": self.pair.model, "criterion": self.pair.criterion}
        facts |= {"text": self.task.text, "save_tokenizers": self.task.save_tokenizers}
        facts["training_state"] = collect(self.state, self.task, self.step.update)
        with self.world.together():  # the others wait here while rank 0 waits for its disk
            if self.world.is_main:
                self.checkpoints.save(best, final, **facts)

    def resume(self, checkpoint: Checkpoint, saved: dict[str, Any]) -> None:
        """Resume exactly where ``checkpoint`` was written; ``saved`` is its training state.

        With another number of ranks, the order of data still goes on, but dropout draws other random numbers.

        Raises:
            UserError: tensors or state are not those of this run.
        """
        self.state = restore(checkpoint, saved, self.pair, self.step.update, self.run.seed)

"""The training loop. It is the same for all papers: the objective is whatever the criterion returns."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch

from xrep.config import RunConfig
from xrep.config.fields import Count, CountOrZero, NotNegative, Positive
from xrep.criteria.criterion import Criterion
from xrep.errors import TrainingError
from xrep.interrupts import NOTICE, StopRequest
from xrep.kernels.paths import triton_problem
from xrep.models.device import moved
from xrep.models.directory import CRITERION, MODEL, STATE, Checkpoint
from xrep.models.model import Model
from xrep.nn.encoder import set_activation_checkpointing
from xrep.nn.weights import load_weights
from xrep.precision import TrainingPrecision
from xrep.tasks.task import Task
from xrep.training.batches import Group, PlannedBatches, groups_of, steps_ahead
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import World, check_in_step, pick_device
from xrep.training.faults import is_out_of_memory, not_finite, out_of_memory
from xrep.training.freezing import Freezing, pattern_problems
from xrep.training.log import Log, Quiet
from xrep.training.lora import LowRank
from xrep.training.parameter_groups import parameter_groups
from xrep.training.reports import Reports
from xrep.training.results import Results
from xrep.training.schedule import Budget
from xrep.training.sharding import sharded_optimizer, whole_state
from xrep.training.state import TrainingState, restore
from xrep.training.step import Pair, Step, random_state, restore_random_state, type_on
from xrep.training.update import Update
from xrep.training.validator import Validator


class Trainer:
    """Accumulates, clips, steps, logs, validates, saves and resumes, in one process or as one rank of several.

    Args:
        checkpoints: checkpoints of the run's directory; only rank 0 writes.
        validate: measures the model between steps; None: no validation.
    """

    @dataclass(kw_only=True)
    class Config:
        max_steps: Count | None = None
        """Number of optimizer steps after which training ends. Whichever of max_steps, max_epochs and max_minutes is
        reached first ends the run; if none is set, training ends after 15 epochs (see also size)."""
        max_epochs: Annotated[float, "(0, 1e9]"] | None = None
        """Number of passes over the training examples after which training ends."""
        max_minutes: Positive | None = None
        """Minutes of training and validation after which training ends; the learning rate decays towards that time."""
        update_freq: Count = 1
        """Number of batches whose gradients are accumulated for one step."""
        micro_batch: Count | None = None
        """Number of sentence pairs that are encoded at a time, if a batch's activations do not fit into memory. Losses
        and gradients stay those of the whole batch, with all its pairs as negatives, for a third more work (gradient
        caching, Gao et al. 2021). For objectives that compare the sentences of a batch. none: all at once."""
        clip_norm: NotNegative = 10.0
        """Largest norm of the gradient, to which larger gradients are scaled down. 0: no clipping."""
        freeze: list[str] = field(default_factory=list)
        """Parts that are not trained, as patterns of parameter names such as 'encoders.source' or
        'encoders.*.token_embedding*'; 'PATTERN@N' trains them from step N on. Dropout of a frozen part is off."""
        lora_rank: Annotated[int, "[0, 2147483647]"] = 0
        """Rank of low-rank adaptation (LoRA), such as 8, for pretrained encoders: their linear layers change by the
        products of two matrices of this rank. Of the encoders, these alone are trained. The saved model has the changed
        weights. Learning rates are some ten times those of training all weights. 0: train all weights."""
        lora_alpha: Annotated[float, "(0, 1e9]"] = 16.0
        """Factor of the changes of LoRA, which are multiplied by lora_alpha / lora_rank."""
        precision: TrainingPrecision = "auto"
        """Type that matrix products read; weights stay float32. auto: bf16 on GPUs that have it, else float32, which is
        TF32 (10 bits of fraction) on GPUs. CPUs without bf16 use float32. fp16: for older GPUs; the loss is scaled."""
        compile: bool = False
        """Compile the encoder's layers with torch.compile. For GPUs; CPUs get slower. The first steps take long."""
        activation_checkpointing: bool = False
        """Compute each encoder layer again in the backward pass instead of keeping its activations. This needs less
        memory and a third more work."""
        data_workers: Annotated[int, "[0, 1024]"] = 0
        """Number of processes per rank that make batches ahead of the training loop. 0: the loop makes
        them itself."""
        patience: Count | None = None
        """Number of validations in a row that may be worse than the best one before training ends; none: training goes
        on to the end of its budget."""
        validate_every: CountOrZero = 1000
        """Number of steps between validations. 0: validate only at the end."""
        device: Literal["auto", "cpu", "cuda"] = "auto"
        """Device on which to train. auto: a GPU if there is one, else the CPU."""
        kernels: Literal["auto", "reference", "chunked", "triton"] = "auto"
        """Implementation of the losses. triton: fused kernels for GPUs; chunked: blockwise in torch; auto: triton on a
        GPU, else chunked; reference: plain formulas in float64, to check the others. HiCTL's word-level contrast and
        the hard negatives of bitext have a single implementation, which this option does not change."""

        def problems(self) -> list[str]:
            problems = pattern_problems(self.freeze)
            if self.patience is not None and not self.validate_every:
                problems.append("patience needs validations; set `validate_every`")
            if self.device == "cuda" and not torch.cuda.is_available():
                problems.append("device is cuda, but there is no GPU here")
            elif self.precision in ("fp16", "float16") and pick_device(self.device) == "cpu":
                problems.append("precision fp16 is for GPUs; set `precision` to bf16 on a CPU")
            if self.kernels == "triton" and (triton_problem() or self.device == "cpu"):
                problems.append(f"kernels is triton, but {triton_problem() or 'device is cpu'}")
            return problems

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
        self.config: Trainer.Config = run.configs["trainer"]
        self.run, self.task, self.world = run, task, world
        self.checkpoints, self.progress, self.validate = checkpoints, progress, validate
        if self.config.micro_batch is not None:
            criterion.set_micro_batch(self.config.micro_batch)
        cure = "choose a smaller model, lower `queue_size`, or set `device` to cpu"
        self.pair = moved(Pair(model, criterion), world.device, cure)
        set_activation_checkpointing(self.pair, self.config.activation_checkpointing)
        if self.config.compile:
            from xrep.nn.compile import compile_layers  # the compiler is slow to import

            compile_layers(self.pair)
        dtype, limit = type_on(world.device, self.config.precision), self.config.clip_norm
        freezing, optimizer, lora = self._what_trains()
        update = Update(optimizer, world, clip_norm=limit, dtype=dtype, lora=lora)
        self.step = Step(self.pair, freezing, update, dtype, run.configs["distributed"].gradient_compression)
        schedule = run.classes["lr_scheduler"](run.configs["lr_scheduler"])
        examples = self.config.update_freq * next(iter(task.plan(None, world.rank, world.size))).examples
        self.budget = Budget(self.config, task.examples, examples, schedule)
        self.state = TrainingState()
        self.stop = StopRequest(signal.SIGTERM, signal.SIGUSR1, notice=NOTICE if world.is_main else "")
        self.reports = Reports(progress, self.pair, self.budget.spent, task.examples)
        self._late: tuple[Results, Group, float, dict[str, float]] | None = None
        """Results of the last step, with its batches, its rate, and its pairs, tokens and seconds."""

    def _what_trains(self) -> tuple[Freezing, torch.optim.Optimizer, LowRank | None]:
        """Return what is frozen, the optimizer of everything else, and the low-rank changes that it trains, if any."""
        model, criterion, run = self.pair.model, self.pair.criterion, self.run
        frozen, adapted, lora = [*self.config.freeze, *criterion.frozen], set[str](), None
        if self.config.lora_rank:
            known = (name.removeprefix("model.") for name, _ in Freezing(frozen).ever_trained(self.pair))
            lora = LowRank(model, set(known), self.config.lora_rank, self.config.lora_alpha)
            criterion.add_module("lora", lora)  # it is saved with the criterion, as it is not kept
            frozen += [f"model.{name}" for name in lora.others]
            adapted = {f"model.{name}" for name in lora.targets}
        freezing, names = Freezing(frozen), [name for name, _ in self.pair.named_parameters()]
        trained = [(name, p) for name, p in freezing.ever_trained(self.pair) if name not in adapted]
        groups = parameter_groups(run.configs["optimizer"], trained, names)
        make = partial(run.classes["optimizer"].build, run.configs["optimizer"])
        sharded = run.configs["distributed"].shard == "optimizer" and self.world.size > 1
        return freezing, sharded_optimizer(groups, make) if sharded else make(groups), lora

    def train(self) -> TrainingState:
        """Train to the end of the budget, or until the run is asked to stop; return the final state.

        Raises:
            TrainingError: a loss or gradient is not finite, memory ran out, a worker died, or the ranks drifted apart.
        """
        self._started, save_every = time.monotonic() - self.state.seconds, self.checkpoints.config.save_every
        self.step.train_mode()
        with closing(self.read()) as read, self.stop.watching():
            groups = self.agreed(read)
            while not self.finished:
                began = time.monotonic()
                group = next(groups)
                self.state.seconds = group.seconds
                if group.stop:  # every rank ends by the same signal, whichever of them got it
                    self.stop.signal = next(name for name in self.world.gather(self.stop.signal) if name)
                    self._record()
                    self._save(best=False, final=True)
                    break
                self.run_step(group, began)
                best = self._validate() if self.finished or self._due(self.config.validate_every) else False
                if self.finished:  # perhaps it is out of patience only now
                    self._record()
                # A step saves at most once, after its validation: a checkpoint on disk never depends on a second save.
                if self.finished or best or self._due(save_every):
                    self._save(best, final=self.finished)
            groups.close()  # not after an error, because a rank that has failed tells the others nothing
        return self.state

    @property
    def finished(self) -> bool:
        """Whether the budget is spent, or the last ``patience`` validations were all worse than the best one."""
        patience, best, every = self.config.patience, self.state.best_step, self.config.validate_every
        if patience is not None and best is not None and every and self.state.step - best >= patience * every:
            return True
        return self.budget.spent(self.state) >= 1.0

    def read(self) -> Generator[Group, None, None]:
        """Yield this rank's batches of each step that is left."""
        batches = PlannedBatches(self.task, self.pair.criterion, self.run.seed, self.world.rank)
        stop = None if (epochs := self.budget.max_epochs) is None else math.ceil(epochs * self.task.examples)
        options = {"workers": self.config.data_workers, "size": self.config.update_freq}
        return groups_of(batches, self.world, cursor=self.state.cursor, stop=stop, **options)

    def agreed(self, groups: Generator[Group, None, None]) -> Generator[Group, None, None]:
        """Yield the batches of each step with what the ranks agreed on (``steps_ahead``)."""
        status = lambda: (self._seconds(), self.stop.signal is not None)  # noqa: E731
        return steps_ahead(groups, self.world, self.pair.criterion, status)

    def run_step(self, group: Group, began: float) -> None:
        """Make a step and report it; ``began`` is the time at which its batches were asked for."""
        plan, state = group.plan, self.state
        rate = self.run.configs["optimizer"].lr * self.budget.rate(state, plan.examples)
        is_long = len(group.batches) > 1 or self.config.micro_batch is not None
        try:
            with self.reports.counting(state, "step in progress") if is_long else nullcontext():
                results = self.step.gradients(group.batches, group.sizes, state.step)
                self._read_late()  # those of the step before, while a GPU computes this one
                self.step.apply(results, rate)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            rank = f"rank {self.world.rank}, " if self.world.size > 1 else ""
            raise self._failed(state.step + 1, f"{rank}{self.world.device}: {out_of_memory(group.batches)}") from None
        counts = {"pairs": plan.examples - state.examples, "tokens": group.tokens, "waited": group.waited}
        self._late = results, group, rate, {**counts, "busy": time.monotonic() - began}
        state.step, state.examples, state.cursor = state.step + 1, plan.examples, plan.cursor
        if not self.step.update.late:
            self._read_late()
        if self._due(self.run.configs["distributed"].check_every):
            self._read_late()
            check_in_step(self.world, self.pair)
        if self._due(self.run.configs["logging"].log_every):
            self._record()
        self.reports.line(state)
        if self.world.size == 1 or self.config.max_minutes is not None:  # the clock of rank 0 counts for all ranks
            state.seconds = self.world.sums([self._seconds()])[0]
        if self.finished:
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
            self.world.stop_all(self._failed(self.state.step, where, cure), 1)
        self.reports.add(numbers, rate, counts)

    def _record(self) -> None:
        self._read_late()
        self.reports.record(self.state, self.checkpoints.stalled_seconds)

    def _failed(self, step: int, problem: str, cure: str = "") -> TrainingError:
        return TrainingError(f"step {step}: {problem}; last good checkpoint: {self.checkpoints.last_good()}{cure}")

    def _seconds(self) -> float:
        return time.monotonic() - self._started if self.world.is_main else 0.0

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
        value, best = metrics[self.validate.metric], self.state.best
        # Of equal values the later one counts as better, because its learning rate has decayed further.
        better = best is None or math.isnan(best) or (value >= best if self.validate.maximize else value <= best)
        if better:
            self.state.best, self.state.best_step = value, self.state.step
        self.reports.validated(self.state, metrics, self.validate.metric, better)
        return better

    def _save(self, best: bool, final: bool = False) -> None:
        self._read_late()
        everyone = self.world.gather(random_state(self.world.device))
        optimizer = whole_state(self.step.update.optimizer, self.world)
        training_state = {
            **vars(self.state),
            "data": self.task.fingerprint(),
            "optimizer": optimizer,
            "scaler": self.step.update.scaler.state_dict(),
            "random": everyone,
        }
        text = {"text": self.task.text, "save_tokenizers": self.task.save_tokenizers}
        parts: dict[str, Any] = {"model": self.pair.model, "criterion": self.pair.criterion, **text}
        facts = {"step": self.state.step, "config_yaml": self.run.to_yaml(), "training_state": training_state}
        with self.world.together():  # the others wait here while rank 0 waits for its disk
            if self.world.is_main:
                self.checkpoints.save(best, final, **parts, **facts)

    def resume(self, checkpoint: Checkpoint, saved: dict[str, Any]) -> None:
        """Resume exactly where ``checkpoint`` was written; ``saved`` is its training state.

        With another number of ranks, the order of data still goes on, but random numbers (dropout) are drawn anew.

        Raises:
            UserError: tensors or state are not those of this run.
        """
        load_weights(self.pair.model, checkpoint.tensors(), checkpoint.path / MODEL)
        load_weights(self.pair.criterion, checkpoint.tensors(CRITERION), checkpoint.path / CRITERION)
        update, path = self.step.update, checkpoint.path / STATE
        self.state = restore(saved, update.optimizer, update.scaler, path)
        if len(saved["random"]) == self.world.size:
            restore_random_state(saved["random"][self.world.rank], self.world.device)
        else:
            torch.manual_seed(hash((self.run.seed, self.world.rank, self.state.step)) % 2**63)

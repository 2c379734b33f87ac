"""The training loop. It is the same for all papers: the objective is whatever the criterion returns."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import torch

from xrep.config import RunConfig
from xrep.config.fields import Count, CountOrZero, NotNegative, Positive
from xrep.criteria.criterion import Criterion, Planned
from xrep.errors import TrainingError
from xrep.interrupts import NOTICE, StopRequest
from xrep.kernels.paths import triton_problem
from xrep.models.directory import CRITERION, MODEL, STATE, Checkpoint
from xrep.models.model import Model
from xrep.nn.encoder import counting_sentences, set_activation_checkpointing
from xrep.nn.weights import load_weights
from xrep.precision import TrainingPrecision
from xrep.progress import duration
from xrep.tasks.task import Task
from xrep.training.batches import Agreement, Group, PlannedBatches, agreed, groups_of
from xrep.training.budget import Budget
from xrep.training.checkpoint import Checkpoints
from xrep.training.distributed import World, check_in_step, pick_device
from xrep.training.faults import is_out_of_memory, not_finite, out_of_memory
from xrep.training.freezing import Freezing, pattern_problems
from xrep.training.gradient_cache import random_state, restore_random_state
from xrep.training.log import Log, Meters, Quiet, Recent, memory_megabytes
from xrep.training.lora import LowRank
from xrep.training.outcome import Results
from xrep.training.parameter_groups import parameter_groups
from xrep.training.sharding import sharded_optimizer, whole_state
from xrep.training.state import (
    TrainingState,
    load_optimizer,
    load_scaler,
    reading_state,
    state_of,
)
from xrep.training.step import Engine, TrainingModule
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
        self.module = TrainingModule(model, criterion).moved_to(world.device)
        set_activation_checkpointing(self.module, self.config.activation_checkpointing)
        if self.config.compile:
            from xrep.nn.compile import compile_layers  # the compiler is slow to import

            compile_layers(self.module)
        frozen, options, lora = [*self.config.freeze, *criterion.frozen], run.configs["optimizer"], None
        if self.config.lora_rank:
            known = (name.removeprefix("model.") for name, _ in Freezing(frozen).ever_trained(self.module))
            lora = LowRank(model, set(known), self.config.lora_rank, self.config.lora_alpha)
            criterion.add_module("lora", lora)  # it is saved with the criterion, as it is not kept
            frozen += [f"model.{name}" for name in lora.others]
        freezing, names = Freezing(frozen), [name for name, _ in self.module.named_parameters()]
        adapted = {f"model.{name}" for name in lora.targets} if lora is not None else set()
        trained = [(name, p) for name, p in freezing.ever_trained(self.module) if name not in adapted]
        make = partial(run.classes["optimizer"].build, options)
        groups, shared = parameter_groups(options, trained, names), run.configs["distributed"]
        sharded = shared.shard == "optimizer" and world.size > 1
        optimizer = sharded_optimizer(groups, make) if sharded else make(groups)
        rules = self.config.precision, self.config.clip_norm
        self.engine = Engine(self.module, optimizer, freezing, world, *rules, lora, shared.gradient_compression)
        schedule = run.classes["lr_scheduler"](run.configs["lr_scheduler"])
        step = self.config.update_freq * next(iter(task.plan(None, world.rank, world.size))).examples
        self.budget = Budget(self.config, task.examples, step, schedule)
        self.state = TrainingState()
        self.stop = StopRequest(signal.SIGTERM, signal.SIGUSR1, notice=NOTICE if world.is_main else "")
        self._meters, self._recent, self._rate, self._validation = Meters(), Recent(criterion), 0.0, ""
        self._unread: tuple[Results, int, list[Planned], dict[str, float]] | None = None
        """Results of the last step, with its number, its batches, and its pairs, tokens and seconds."""
        self._loss_scale = 1.0

    # -- the loop -----------------------------------------------------------------------------------------------------

    def train(self) -> TrainingState:
        """Train to the end of the budget, or until the run is asked to stop; return the final state.

        Raises:
            TrainingError: a loss or gradient is not finite, memory ran out, a worker died, or the ranks drifted apart.
        """
        self._started, world = time.monotonic() - self.state.seconds, self.world
        self.engine.train_mode()
        status = lambda: (self._seconds(), self.stop.signal is not None)  # noqa: E731
        with closing(self._groups()) as read, self.stop.watching():
            groups = agreed(read, world, self.module.criterion, status)
            while not self.finished:
                before = time.monotonic()
                group, wait = next(groups)
                self._meters.count(waited=time.monotonic() - before)
                self.state.seconds = (agreement := wait()).seconds
                if agreement.stop:  # every rank ends by the same signal, whichever of them got it
                    self.stop.signal = next(name for name in world.gather(self.stop.signal) if name)
                    self._record_rest()
                    self._save(best=False, final=True)
                    break
                self._step(group, agreement, before)
                if world.size == 1 or self.config.max_minutes is not None:  # the clock of rank 0 counts for all ranks
                    self.state.seconds = world.sums([self._seconds()])[0]
                if self.finished:
                    self._record_rest()
                best = self._validate() if self.finished or self._due(self.config.validate_every) else False
                if self.finished:  # perhaps it is out of patience only now
                    self._record_rest()
                # A step saves at most once, after its validation: a checkpoint on disk never depends on a second save.
                if self.finished or best or self._due(self.checkpoints.config.save_every):
                    self._save(best, final=self.finished)
            groups.close()
        return self.state

    def _is_out_of_patience(self) -> bool:
        """Return whether the last ``patience`` validations were all worse than the best one."""
        patience, best_step = self.config.patience, self.state.best_step
        if patience is None or best_step is None or not self.config.validate_every:
            return False
        return self.state.step - best_step >= patience * self.config.validate_every

    def _due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _groups(self) -> Generator[Group, None, None]:
        batches = PlannedBatches(self.task, self.module.criterion, self.run.seed, self.world.rank)
        stop = None if (epochs := self.budget.max_epochs) is None else math.ceil(epochs * self.task.examples)
        options = {"workers": self.config.data_workers, "size": self.config.update_freq}
        return groups_of(batches, self.world, cursor=self.state.cursor, stop=stop, **options)

    def _seconds(self) -> float:
        return time.monotonic() - self._started if self.world.is_main else 0.0

    @property
    def finished(self) -> bool:
        """Whether the budget is spent, or the validations have not become better for long enough."""
        return self.budget.spent(self.state) >= 1.0 or self._is_out_of_patience()

    def _step(self, group: Group, agreement: Agreement, began: float) -> None:
        batches, plan = [batch for batch, _ in group], group[-1][1]
        self._rate = rate = self.run.configs["optimizer"].lr * self.budget.rate(self.state, plan.examples)
        try:
            self.engine.prepare(self.state.step)
            is_long = len(batches) > 1 or self.config.micro_batch is not None
            with self._telling("step in progress") if is_long else nullcontext():
                update = partial(self._set_learning_rate, rate)
                results = self.engine.run(batches, agreement.sizes, update, self._settle)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            rank = f"rank {self.world.rank}, " if self.world.size > 1 else ""
            raise self._failed(self.state.step + 1, f"{rank}{self.world.device}: {out_of_memory(batches)}") from None
        pairs = plan.examples - self.state.examples
        speed = {"pairs": pairs, "tokens": agreement.tokens, "busy": time.monotonic() - began}
        self._unread = (results, self.state.step + 1, batches, speed)
        if not self.engine.late:
            self._settle()
        self.state.step, self.state.examples, self.state.cursor = self.state.step + 1, plan.examples, plan.cursor
        if self._due(self.run.configs["distributed"].check_every):
            self._settle()
            check_in_step(self.world, self.module)
        if self._due(self.run.configs["logging"].log_every):
            self._record()
        self.progress.line(self._line())

    def _settle(self) -> None:
        """Read the results of the last step, if they have not been read."""
        if self._unread is None:
            return
        (results, step, batches, speed), self._unread = self._unread, None
        outcome = results.outcome
        if not outcome.finite:  # the run ends on every rank, and names the module and the batch that went wrong
            where = not_finite(self.engine, outcome, batches, self.task.describe)
            self.world.stop_all(self._failed(step, where, "; lower `lr` or `clip_norm`, or look at these examples"), 1)
        self._loss_scale = outcome.scale
        self._meters.count(**speed, skipped=outcome.skipped)
        norm = {} if outcome.skipped else {"gradient_norm": outcome.norm}
        self._meters.add({"loss": outcome.loss, **outcome.values, **norm})
        self._recent.add({"loss": outcome.loss, **outcome.values, **speed})

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]

    def _failed(self, step: int, problem: str, cure: str = "") -> TrainingError:
        return TrainingError(f"step {step}: {problem}; last good checkpoint: {self.checkpoints.last_good()}{cure}")

    # -- reports ------------------------------------------------------------------------------------------------------

    def _record(self) -> None:
        """Log the means since the last record; speeds count the time of training without validation and saving."""
        self._settle()
        totals, busy = self._meters.totals, self._meters.totals["busy"]
        values = self._meters.means() | {
            "learning_rate": self._rate,
            "epoch": self.state.examples / self.task.examples,
            "pairs_per_second": totals["pairs"] / busy,
            "tokens_per_second": totals["tokens"] / busy,
            "waiting_for_data": totals["waited"] / busy,
            "memory_megabytes": memory_megabytes(self.world.device),
            "stalled_seconds": self.checkpoints.stalled_seconds,
            "seconds": self.state.seconds,
        }
        if self.engine.scaler.is_enabled():
            values |= {"loss_scale": self._loss_scale, "skipped_steps": totals["skipped"]}
        self.progress.record(self.state.step, values, "train")
        self._meters.clear()

    def _record_rest(self) -> None:
        """Log the means of the last steps of a run, if there are any since the last record."""
        self._settle()
        if self._meters.totals["pairs"]:
            self._record()

    def _line(self, doing: str = "") -> str:
        """Return the line of progress; ``doing`` says what a long step or validation is at."""
        spent = self.budget.spent(self.state)
        left = self.state.seconds * (1 / spent - 1) if spent else 0.0
        place = [f"epoch {self.state.examples / self.task.examples:.2f}", f"step {self.state.step}"]
        how_good = [*self._recent.quality(), self._validation, f"lr {self._rate:.2e}"]
        return " | ".join(filter(None, [*place, *how_good, *self._recent.speeds(), f"{duration(left)} left", doing]))

    def _telling(self, doing: str) -> AbstractContextManager[None]:
        """Return a context in which the line of progress counts the sentences that the model encodes."""
        done = 0

        def tell(sentences: int) -> None:
            nonlocal done
            done += sentences
            self.progress.line(self._line(f"{doing}: {done:,} sentences encoded"))

        return counting_sentences(self.module.model, tell)

    # -- validation and checkpoints -----------------------------------------------------------------------------------

    def _validate(self) -> bool:
        """Validate; return whether this is the best state so far."""
        self._settle()
        if self.validate is None:
            return True
        metrics: dict[str, float] = {}
        with self.world.together(), self.engine.autocast(), self._telling("validating"):
            metrics = self.validate(self.module.model, self.module.criterion, self.world)
        self.engine.train_mode()
        metrics = self.world.from_main(metrics)
        self.progress.record(self.state.step, metrics, "valid")
        value, maximize = metrics[self.validate.metric], self.validate.maximize
        self._validation, best = f"validation {self.validate.metric} {value:.4g}", self.state.best
        # Of equal values the later one counts as better, because its learning rate has decayed further.
        better = best is None or math.isnan(best) or (value >= best if maximize else value <= best)
        if better:
            self.state.best, self.state.best_step = value, self.state.step
        shown = ", ".join(f"{name} {metrics[name]:.2f}" for name in metrics if "-" not in name)
        self.progress.say(f"step {self.state.step}: validation {shown}{' (best so far)' if better else ''}")
        return better

    def _save(self, best: bool, final: bool = False) -> None:
        self._settle()
        everyone = self.world.gather_to_main(random_state(self.world.device))
        optimizer = whole_state(self.engine.optimizer, self.world)
        if not self.world.is_main:
            return
        self.checkpoints.save(
            best,
            final,
            step=self.state.step,
            config_yaml=self.run.to_yaml(),
            text=self.task.text,
            save_tokenizers=self.task.save_tokenizers,
            model=self.module.model,
            criterion=self.module.criterion,
            training_state={
                **vars(self.state),
                "data": self.task.fingerprint(),
                "optimizer": optimizer,
                "scaler": self.engine.scaler.state_dict(),
                "random": everyone,
            },
        )

    def resume(self, checkpoint: Checkpoint, saved: dict[str, Any]) -> None:
        """Resume exactly where ``checkpoint`` was written; ``saved`` is its training state.

        With another number of ranks, the order of data still goes on, but random numbers (dropout) are drawn anew.

        Raises:
            UserError: tensors or state are not those of this run.
        """
        load_weights(self.module.model, checkpoint.tensors(), checkpoint.path / MODEL)
        load_weights(self.module.criterion, checkpoint.tensors(CRITERION), checkpoint.path / CRITERION)
        with reading_state(checkpoint.path / STATE):
            self.state = state_of(saved)
            load_optimizer(self.engine.optimizer, saved["optimizer"])
            load_scaler(self.engine.scaler, saved["scaler"])
            if len(saved["random"]) == self.world.size:
                restore_random_state(saved["random"][self.world.rank], self.world.device)
            else:
                torch.manual_seed(hash((self.run.seed, self.world.rank, self.state.step)) % 2**63)

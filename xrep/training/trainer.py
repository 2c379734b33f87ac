"""The training loop. It knows no paper: an objective is whatever the criterion returns."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from xrep.config import RunConfig
from xrep.criteria.criterion import Criterion, Loss
from xrep.errors import TrainingError
from xrep.kernels.paths import triton_problem
from xrep.models.directory import CRITERION, Checkpoint, write_checkpoint
from xrep.training.checkpoint import Checkpoints
from xrep.training.progress import Progress, duration


class TrainingModule(nn.Module):
    """Model and criterion side by side, as one module for the distributed engine."""

    def __init__(self, model: nn.Module, criterion: Criterion) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion

    def forward(self, batch: Any) -> Loss:
        return self.criterion(self.model, batch)


@dataclass
class TrainingState:
    """Where a run stands; saved with every checkpoint."""

    step: int = 0
    examples: int = 0
    """Cursor into the order of data: examples consumed since the start."""
    seconds: float = 0.0
    best: float | None = None
    """Value of the validation metric at ``best_step``."""
    best_step: int | None = None


class Trainer:
    """Accumulates, clips, steps, logs, validates, saves and resumes, for one process.

    Args:
        run: the resolved configuration.
        task: gives ``batches(...)``, ``examples``, ``text``, ``save_tokenizers(directory)`` and ``describe(batch)``.
        checkpoints, progress: of the run's directory.
        validate: ``validate(model) -> metrics``, with the attributes ``metric`` and ``maximize``; None: no validation.
    """

    @dataclass(kw_only=True)
    class Config:
        max_steps: int | None = None
        """Optimizer steps after which training ends. The first of the three bounds that is reached ends the run; with
        none of them it is 15 epochs."""
        max_epochs: float | None = None
        """Passes over the training examples after which training ends."""
        max_minutes: float | None = None
        """Minutes of training, validation included, after which it ends; the schedule decays towards that moment."""
        update_freq: int = 1
        """Batches whose gradients are accumulated for one step."""
        clip_norm: float = 10.0
        """Largest norm of the gradient; 0 does not clip."""
        validate_every: int = 1000
        """Steps between validations; 0 validates only at the end."""
        device: Literal["auto", "cpu", "cuda"] = "auto"
        """Where to train; auto takes a GPU if there is one."""
        kernels: Literal["auto", "reference", "chunked", "triton"] = "auto"
        """Implementation of the losses. auto: fused Triton kernels on a GPU, blockwise torch elsewhere; reference:
        everything written out in float64, to check the others."""

        def problems(self) -> list[str]:
            found = []
            for name in ("max_steps", "max_epochs", "max_minutes"):
                value = getattr(self, name)
                if value is not None and not value > 0:
                    found.append(f"{name} must be above 0, not {value}")
            for name, low in (("update_freq", 1), ("clip_norm", 0), ("validate_every", 0)):
                if not getattr(self, name) >= low:
                    found.append(f"{name} must be at least {low}, not {getattr(self, name)}")
            if self.device == "cuda" and not torch.cuda.is_available():
                found.append("device is cuda, but there is no GPU here")
            if self.kernels == "triton" and (triton_problem() or self.device == "cpu"):
                found.append(f"kernels is triton, but {triton_problem() or 'device is cpu'}")
            return found

    def __init__(
        self,
        run: RunConfig,
        task: Any,
        model: nn.Module,
        criterion: Criterion,
        checkpoints: Checkpoints,
        progress: Progress,
        validate: Callable[[nn.Module], dict[str, float]] | None,
    ) -> None:
        self.config: Trainer.Config = run.configs["trainer"]
        self.run, self.task = run, task
        self.checkpoints, self.progress, self.validate = checkpoints, progress, validate
        self.device = torch.device(pick_device(self.config.device))
        self.module = TrainingModule(model, criterion).to(self.device)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = run.classes["optimizer"].build(run.configs["optimizer"], self.parameters)
        self.schedule = run.classes["lr_scheduler"](run.configs["lr_scheduler"])
        self.state = TrainingState()
        self.max_epochs = self.config.max_epochs
        if self.config.max_steps is None and self.config.max_minutes is None and self.max_epochs is None:
            self.max_epochs = 15.0
        self._meters: dict[str, list[float]] = defaultdict(list)
        self._recent: dict[str, float] = {}

    # -- the loop -----------------------------------------------------------------------------------------------------

    def train(self) -> TrainingState:
        """Train to the end of the budget; returns the final state.

        Raises:
            TrainingError: a loss or gradient is not finite.
        """
        self._started = time.monotonic() - self.state.seconds
        self.module.train()
        groups = self._groups()
        finished = self.finished
        while not finished:
            self._step(next(groups), time.monotonic())
            finished = self._progress() >= 1.0
            best = self._validate() if finished or self._due(self.config.validate_every) else False
            # One checkpoint a step, written after its validation: what is on disk never waits for another one.
            if finished or best or self._due(self.checkpoints.config.save_every):
                self._save(best)
        return self.state

    def _due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _groups(self) -> Iterator[list[Any]]:
        """The batches of each optimizer step."""
        stop = None if self.max_epochs is None else math.ceil(self.max_epochs * self.task.examples)
        group: list[Any] = []
        for batch in self.task.batches("train", cursor=self.state.examples, stop=stop):
            group.append(batch)
            if len(group) == self.config.update_freq:
                yield group
                group = []
        if group:
            yield group

    def _progress(self) -> float:
        """Share of the training budget that is spent."""
        self.state.seconds = time.monotonic() - self._started
        return max(self._shares(self.state.step, self.state.examples, self.state.seconds))

    def _shares(self, step: int, examples: int, seconds: float) -> list[float]:
        shares = [0.0]
        if self.config.max_steps is not None:
            shares.append(step / self.config.max_steps)
        if self.max_epochs is not None:
            shares.append(examples / (self.max_epochs * self.task.examples))
        if self.config.max_minutes is not None:
            shares.append(seconds / 60 / self.config.max_minutes)
        return shares

    def _step(self, group: list[Any], started: float) -> None:
        sizes: Counter[str] = Counter()
        for batch in group:
            sizes.update(self.module.criterion.sizes(batch))
        rate = self._set_learning_rate(sum(len(batch) for batch in group))
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for batch in group:
            loss = self.module(batch.to(self.device))
            parts = {name: term.weight * term.sum / max(sizes[name], 1) for name, term in loss.terms.items()}
            objective = sum(parts.values())
            value = float(objective.detach())
            if not math.isfinite(value):
                self._stop_at(f"the loss is {value}", batch)
            objective.backward()
            total += value
            self._measure(loss.metrics)
            if len(parts) > 1:
                self._measure({f"loss_{name}": float(part.detach()) * len(group) for name, part in parts.items()})
        limit = self.config.clip_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit, error_if_nonfinite=False))
        if not math.isfinite(norm):
            self._stop_at(f"the norm of the gradient is {norm}", group[0])
        self.optimizer.step()
        self.module.criterion.after_step(self.module.model)
        self.state.step += 1
        self.state.examples += sum(len(batch) for batch in group)
        self._measure({"loss": total, "gradient_norm": norm, "tokens": sum(batch.token_count for batch in group)})
        self._measure({"pairs": sum(len(batch) for batch in group), "busy_seconds": time.monotonic() - started})
        if self._due(self.progress.config.log_every):
            self._record(rate)
        self.progress.line(self._line(rate))

    def _set_learning_rate(self, examples: int) -> float:
        schedule = self.schedule.config
        step, warmup = self.state.step, schedule.warmup_steps
        warmup_end = max(self._shares(warmup, warmup * examples, 0.0))
        factor = self.schedule.factor(step, self._progress(), min(warmup_end, 1.0))
        rate = self.run.configs["optimizer"].lr * factor
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _stop_at(self, what: str, batch: Any) -> None:
        raise TrainingError(
            f"step {self.state.step + 1}: {what}; the batch begins with {self.task.describe(batch)}; "
            f"last good checkpoint: {self.checkpoints.last_good()}; "
            "lower --lr or --clip-norm, or look at these examples"
        )

    # -- what it tells ------------------------------------------------------------------------------------------------

    def _measure(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._meters[name].append(value)

    def _record(self, rate: float) -> None:
        """Log the means since the last record; speed is that of training alone, without validation and saving."""
        busy, pairs, tokens = (sum(self._meters.pop(name)) for name in ("busy_seconds", "pairs", "tokens"))
        values = {name: sum(numbers) / len(numbers) for name, numbers in self._meters.items()}
        values |= {
            "learning_rate": rate,
            "epoch": self.state.examples / self.task.examples,
            "pairs_per_second": pairs / busy,
            "tokens_per_second": tokens / busy,
            "seconds": self.state.seconds,
        }
        self.progress.record(self.state.step, values, "train")
        self._recent = values
        self._meters.clear()

    def _line(self, rate: float) -> str:
        recent = self._recent or {name: numbers[-1] for name, numbers in self._meters.items()}
        spent = self._progress()
        left = self.state.seconds * (1 - spent) / spent if spent else 0.0
        parts = [f"epoch {self.state.examples / self.task.examples:.2f}", f"step {self.state.step}"]
        parts += [f"{name} {recent[name]:.4g}" for name in ("loss", "accuracy") if name in recent]
        parts.append(f"lr {rate:.2e}")
        if "pairs_per_second" in recent:
            parts.append(f"{recent['pairs_per_second']:,.0f} pairs/s")
            parts.append(f"{recent['tokens_per_second']:,.0f} tokens/s")
        return " | ".join([*parts, f"{duration(left)} left"])

    # -- validation and checkpoints -----------------------------------------------------------------------------------

    def _validate(self) -> bool:
        """Validate and say whether this is the best state so far."""
        if self.validate is None:
            return True
        metrics = self.validate(self.module.model)
        self.progress.record(self.state.step, metrics, "valid")
        value, maximize = metrics[self.validate.metric], self.validate.maximize
        # Of equal values the later counts: its learning rate is further down.
        better = self.state.best is None or (value >= self.state.best if maximize else value <= self.state.best)
        if better:
            self.state.best, self.state.best_step = value, self.state.step
        shown = ", ".join(f"{name} {metrics[name]:.2f}" for name in metrics if "-" not in name)
        self.progress.say(f"step {self.state.step}: validation {shown}{' (best so far)' if better else ''}")
        return better

    def _save(self, best: bool) -> None:
        self._progress()
        self.checkpoints.save(self.state.step, self._write, best)

    def _write(self, path: Path) -> None:
        write_checkpoint(
            path,
            step=self.state.step,
            config_yaml=self.run.to_yaml(),
            text=self.task.text,
            save_tokenizers=self.task.save_tokenizers,
            model=self.module.model,
            criterion=self.module.criterion,
            training_state={
                **vars(self.state),
                "data": self.task.fingerprint(),
                "optimizer": self.optimizer.state_dict(),
                "random": torch.get_rng_state(),
                "random_cuda": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            },
        )

    def resume(self, checkpoint: Checkpoint, saved: dict[str, Any]) -> None:
        """Go on exactly where ``checkpoint``, whose training state is ``saved``, was written."""
        self.module.model.load_state_dict(checkpoint.tensors())
        self.module.criterion.load_state_dict(checkpoint.tensors(CRITERION))
        self.optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        if self.device.type == "cuda" and saved["random_cuda"]:
            torch.cuda.set_rng_state_all(saved["random_cuda"])
        self.state = TrainingState(**{name: saved[name] for name in vars(self.state)})

    @property
    def finished(self) -> bool:
        """Whether the budget is spent."""
        return max(self._shares(self.state.step, self.state.examples, self.state.seconds)) >= 1.0


def pick_device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"

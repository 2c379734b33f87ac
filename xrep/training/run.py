"""Training from a resolved configuration: builds the parts, and resumes the run that its directory holds, if any."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from xrep.config import RunConfig, completed, say_ignored
from xrep.data.batch_plan import small_groups
from xrep.errors import UserError
from xrep.files import digests_of, link_or_copy, write_aside, write_json
from xrep.hashing import seed_of
from xrep.kernels.fused import describe
from xrep.kernels.precision import SLOW_BFLOAT16, allow_tf32
from xrep.models.directory import (
    CONFIG,
    CRITERION,
    MODEL,
    PREFIX,
    TRAINING_HASHES,
    Checkpoint,
    load_matching,
    open_checkpoint,
    read_saved_config,
)
from xrep.models.kinds import expect
from xrep.models.model import Model, SentenceModel
from xrep.progress import duration
from xrep.tasks.task import Task
from xrep.training.checkpoint import LOCK, Checkpoints, check_same_run, lock
from xrep.training.distributed import World, alone, check_equal, explain_lost_ranks, pick_device
from xrep.training.introduction import introduction, say_origin
from xrep.training.log import LOG, METRICS, TENSORBOARD, Log, Quiet
from xrep.training.state import TrainingState
from xrep.training.trainer import Trainer
from xrep.version import __version__

SUMMARY, DATA_STATISTICS = "summary.json", "data.json"
_BEFORE_CONFIG = {LOCK, LOG, METRICS, TENSORBOARD, "wandb"}
"""What a run that was killed before it had a configuration may have left."""


@dataclass(frozen=True)
class Summary:
    """How a run ended. ``directory`` holds ``best`` and ``last``; ``finished`` is False if it was asked to stop, by the
    signal of that name."""

    directory: Path
    state: TrainingState
    finished: bool
    signal: str | None = None


def train(run: RunConfig, world: World | None = None) -> Summary:
    """Train a run as configured, or resume it.

    Args:
        world: the processes that train together, each of which makes this call; None: this process alone.

    Raises:
        UserError: bad data, a directory of another run, or a checkpoint of other data (on rank 0; other ranks exit).
        TrainingError: a loss or gradient is not finite, memory ran out, or a process died.
    """
    world = world or alone(pick_device(run.configs["trainer"].device))
    directory, latest, initial = run.directory, None, None
    with explain_lost_ranks(world), ExitStack() as stack:
        with world.together():
            _check_model(run)
            if world.is_main:
                stack.enter_context(_own(directory, run))
        torch.manual_seed(run.seed)
        tokenizers = run.configs["model"].tokenizers
        task = world.in_turn(lambda: run.classes["task"](run.configs["task"], run.seed, tokenizers()))
        check_equal(world, {**run.values, "data": task.fingerprint(), "version": __version__})
        checkpoints = Checkpoints(run.configs["checkpoint"], directory)
        with world.together():
            task.check_size(world.size)
            if world.is_main:  # which alone compares a checkpoint with its checksums
                latest = checkpoints.latest()
                initial = open_checkpoint(run.init) if run.init and latest is None else None
        latest, initial = world.from_main((latest, initial))
        with world.together():
            trainer, notes = _make_trainer(run, task, world, checkpoints, latest, initial, stack)
        log = trainer.progress
        with world.together():
            if world.is_main:  # all checks have passed: from here on the directory belongs to this run
                _prepare_directory(directory, run, task, trainer.state.step)
                if latest is not None:  # a run that was killed may not have set the links
                    checkpoints.point(latest.step, trainer.state.best_step)
        if latest is not None:
            notes = [f"going on from {latest.path} (step {latest.step})"]
            if trainer.finished:
                cure = "raise `max_steps`, `max_epochs`, `max_minutes` or `patience` to go on"
                notes = [f"this run is finished: {latest.path}; {cure}"]
        elif world.size > 1:
            torch.manual_seed(seed_of(run.seed, world.rank))  # every rank draws its own dropout
        facts = {"ranks": world.size, "threads": torch.get_num_threads(), "device": str(world.device)}
        with log.launch(trainer.state, **facts, options=run.values) as end:
            for note in [*introduction(run, task, trainer), *notes, *_warnings(task, trainer)]:
                log.say(note)
            with allow_tf32(world.device), checkpoints:
                log.say(f"kernels: {describe(world.device)}")
                state = trainer.train()
            end["how"] = _say_how_it_ended(directory, state, trainer)
        return Summary(directory, state, trainer.finished, trainer.stop.signal)


def _check_model(run: RunConfig) -> None:
    """Raise UserError if a criterion or the validation needs another kind of model."""
    model, parts = run.classes["model"], run.configs["criterion"].parts if run.values.get("parts") else []
    asking = [("criterion", run.values[f"parts.{part.name}.criterion.name"], part.kind) for part in parts]
    asking = asking or [("criterion", run.values["criterion.name"], run.classes["criterion"])]
    for section, name, kind in [*asking, ("validation", run.values["validation.name"], run.classes["validation"])]:
        needs: type[Model] | None = kind.needs
        if needs is not None and not issubclass(model, needs):
            problem, chosen = f"the {section} {name} needs a {needs.kind}", run.values["model.name"]
            cure = f"choose the `model` {needs.example} or another `{section}`"
            raise UserError(f"{problem}, and the model {chosen} is not one", cure=cure)


def _make_trainer(
    run: RunConfig,
    task: Task,
    world: World,
    checkpoints: Checkpoints,
    latest: Checkpoint | None,
    initial: Checkpoint | None,
    stack: ExitStack,
) -> tuple[Trainer, list[str]]:
    """Return the trainer, at the step of ``latest`` if there is one, and notes on where the weights come from.

    Each rank reads a checkpoint itself; ``stack`` closes the log.
    """
    step, saved, architecture, log, notes = 0, {}, None, Quiet(), list[str]()
    if latest is not None:
        step, saved, architecture = latest.step, latest.training_state(), latest.manifest["architecture"]
        if saved["data"] != task.fingerprint():
            cure = "choose another `save_dir`, and set `init` to start from its weights"
            raise UserError("this run was trained on other data", path=latest.path, cure=cure)
    if world.is_main:
        log = Log(run.configs["logging"], checkpoints.directory, step, run.values)
        checkpoints.say = log.say
    stack.callback(log.close)
    model = run.classes["model"](run.configs["model"], task.text, architecture)
    if latest is None:
        model.start_embeddings(task.tokenizers)
    else:
        say_origin(model, latest.text, latest.path, "this run", [])
    if initial is not None:  # before there is a criterion, which may copy weights (momentum encoders, heads)
        notes += _init_model(initial, model, task)
    criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
    criterion.check_task(task)
    criterion.prepare(task)
    if initial is not None:
        notes.append(_load(initial, CRITERION, "criterion", criterion)[1])
    validate = run.classes["validation"](run.configs["validation"], task)
    trainer = Trainer(run, task, model, criterion, checkpoints, log, validate, world)
    if latest is not None:
        trainer.resume(latest, saved)
    return trainer, notes


@contextmanager
def _own(directory: Path, run: RunConfig) -> Iterator[None]:
    """Context manager that makes the directory of a run, and keeps other processes from training there.

    A new directory is removed at the end if no run has begun in it, because data or options were refused.

    Raises:
        UserError: it holds another run, or something else, or another process is training there.
    """
    is_new = not directory.exists()
    if (directory / CONFIG).exists():
        saved, gone = completed(read_saved_config(directory / CONFIG))
        check_same_run(saved, run.values, directory)
        say_ignored(gone, directory / CONFIG)
    elif directory.is_dir() and any(path.name not in _BEFORE_CONFIG for path in directory.iterdir()):
        raise UserError("is not empty and holds no run", path=directory, cure="choose another `save_dir`")
    with lock(directory):
        try:
            yield
        finally:
            if is_new and not (directory / CONFIG).exists():
                shutil.rmtree(directory)


def _init_model(initial: Checkpoint, model: Model, task: Task) -> list[str]:
    new, note = _load(initial, MODEL, "model", model)
    if len(new) == len(model.state_dict()):
        expect(initial.path, type(model))
        cure = "give the model the same sizes"
        raise UserError("no tensor of the model fits this configuration", path=initial.path, cure=cure)
    say_origin(model, initial.text, initial.path, "init", new)
    with tempfile.TemporaryDirectory() as folder:
        task.save_tokenizers(Path(folder))
        if digests_of(Path(folder)) == digests_of(initial.tokenizer):
            return [note]
    warning = f"warning: {initial.path} has another vocabulary than this data, so its embeddings are of other subwords"
    return [note, warning]


def _load(initial: Checkpoint, file: str, kind: str, module: nn.Module) -> tuple[list[str], str]:
    """Copy the tensors that fit; return the names of those that keep their initial values, and a line of text on it."""
    tensors = initial.tensors(file)
    if isinstance(module, Model):
        tensors = module.carried_over(tensors, initial.text)
    new, total = load_matching(module, tensors), len(module.state_dict())
    listed = f"; new: {', '.join(new)}" if new else ""
    return new, f"init: {total - len(new)} of {total} {kind} tensors from {initial.path}{listed}"


def _prepare_directory(directory: Path, run: RunConfig, task: Task, step: int) -> None:
    for unfinished in directory.glob(f".{PREFIX}*"):  # left by a run that was killed while it saved
        shutil.rmtree(unfinished, ignore_errors=True)
    config, before = directory / CONFIG, directory / f"config-until-{step:08d}.yaml"
    # The options with which the steps so far were made stay beside the new ones.
    if step and not before.exists() and config.exists() and config.read_text(encoding="utf-8") != run.to_yaml():
        with write_aside(before) as aside:
            shutil.copyfile(config, aside)
    with write_aside(config) as aside:
        aside.write_text(run.to_yaml(), encoding="utf-8")
    write_json(directory / DATA_STATISTICS, {name: part.statistics() for name, part in task.parts.items()})
    known = [*directory.glob(TRAINING_HASHES)]
    if not step or not known:
        for file in known:
            file.unlink()
        for number, file in enumerate(task.training_hashes, start=1):
            name = "training_hashes.npy" if number == 1 else f"training_hashes.{number}.npy"
            link_or_copy(file, directory / name)


def _warnings(task: Task, trainer: Trainer) -> list[str]:
    half = trainer.config.precision in ("bf16", "bfloat16")
    slow = [SLOW_BFLOAT16] if half and trainer.step.dtype == torch.float32 else []
    by_vectors = trainer.validate is not None and trainer.validate.needs is SentenceModel
    untrained = "masked tokens alone train no sentence vectors, which the validation measures"
    untrained += "; `validation` loss chooses the best checkpoint by the loss instead"
    wrong = [untrained] if by_vectors and not trainer.pair.criterion.trains_vectors else []
    left_out = [name for part in task.parts.values() for name in part.left_out]
    unseen = [f"no validation on {', '.join(left_out)}: no training text is in these languages"] if left_out else []
    parts, ranks = task.parts.values(), trainer.world.size
    small = [warning for part in parts for warning in small_groups(part.order, part.size, ranks)]
    warnings = [*trainer.pair.criterion.warnings(task), *trainer.budget.warnings, *wrong, *slow, *unseen, *small]
    return [f"warning: {warning}" for warning in warnings]


def _say_how_it_ended(directory: Path, state: TrainingState, trainer: Trainer) -> str:
    """Write the summary of a finished run, say how it ended, and return that in a few words."""
    if not trainer.finished:
        why = "Ctrl-C" if trainer.stop.signal == "SIGINT" else trainer.stop.signal
        stopped = f"stopped by {why} after step {state.step}"
        trainer.progress.say(f"{stopped}; the same command goes on from {directory / 'last'}")
        return stopped
    if not trainer.world.is_main:
        return "finished"
    assert (own := trainer.validate) is not None  # every configuration has a validation
    best = {"metric": own.metric, "value": state.best, "step": state.best_step, "maximize": own.maximize}
    summary = {"steps": state.step, "examples": state.examples, "train_seconds": state.seconds, "best": best}
    write_json(directory / SUMMARY, summary)
    model = f"the model: {directory / 'best'} (last: {directory / 'last'})"
    trainer.progress.say(f"{state.step} steps in {duration(state.seconds)}; {model}")
    for line in [] if state.best is None else own.advice(state.best):
        trainer.progress.say(line)
    return "finished"

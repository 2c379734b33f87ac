"""A course of training: several runs in order, each starting from the weights of the previous one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from xrep.config import RunConfig, completed
from xrep.errors import UserError
from xrep.files import point_link
from xrep.models.directory import CONFIG, MANIFEST, read_saved_config
from xrep.training.run import SUMMARY, Summary

_HARMLESS = ("logging.", "checkpoint.", "distributed.", "trainer.data_workers", "trainer.device", "init", "plugins")
"""Options, or beginnings of them, that do not change what a run learns."""


def train_course(runs: list[RunConfig], train: Callable[[RunConfig], Summary], is_main: bool = True) -> Summary:
    """Train the stages of a course in their order; if it is stopped, the same call resumes it.

    A finished stage is left as it is, and an unfinished one is resumed. At the end, ``best`` and ``last`` in the
    directory of the course point at those of the last stage. A run without stages is trained in its own directory. All
    processes of a run make this call; ``is_main`` prints and writes.

    Returns what ``train`` returned for the last stage, or for the one that was asked to stop. Raises UserError if the
    directory holds a run without stages (other processes than the main one exit), or ``train`` raises it.
    """
    if not runs[0].stage:
        return train(runs[0])
    course = runs[0].directory.parent
    if (course / CONFIG).exists():
        if not is_main:  # the main process reports it
            raise SystemExit(2)
        raise UserError("holds a run without stages", path=course, cure="choose another `save_dir`")
    summary, finished, changed = None, True, False
    for number, run in enumerate(runs, 1):
        goes_on_from_old, before = changed and (run.directory / "last").exists(), _reached(run)
        finished = number < len(runs) and is_finished(run)
        if is_main:
            where = "finished before" if finished else f"in {run.directory}"
            print(f"stage {run.stage} ({number} of {len(runs)}, {run.label}): {where}", file=sys.stderr)
        if is_main and goes_on_from_old:
            problem = f"warning: stage {run.stage} began from earlier weights of the stage before it, which has changed"
            print(f"{problem}; to train it again, delete {run.directory}", file=sys.stderr)
        summary = summary if finished else train(run)
        changed = _reached(run) != before
        if summary and not summary.finished:
            return summary
    if is_main:
        for name in ("best", "last"):
            point_link(course / name, Path(runs[-1].stage) / name)
        print(f"the course is finished; the model: {course / 'best'} (last: {course / 'last'})", file=sys.stderr)
    assert summary is not None  # the last stage is never left out
    return summary


def _reached(run: RunConfig) -> str | None:
    """Return the name of the last checkpoint of a run, if there is one."""
    last = run.directory / "last"
    return last.resolve().name if last.exists() else None


def changed_options(run: RunConfig) -> list[str]:
    """Return the options of a run with which its last checkpoint was not trained, but for those that change nothing
    that it learns."""
    saved, _ = completed(read_saved_config(run.directory / "last" / CONFIG))
    other = (key for key, value in run.values.items() if saved.get(key) != value)
    return [key for key in other if not key.startswith(_HARMLESS)]


def is_finished(run: RunConfig) -> bool:
    """Return whether a run has finished with exactly this configuration.

    A run that was resumed with a larger budget and then killed has not: its summary has an earlier step than its last
    checkpoint, or that checkpoint has the earlier configuration.
    """
    last = run.directory / "last"
    try:
        steps = json.loads((run.directory / SUMMARY).read_text(encoding="utf-8"))["steps"]
        reached = json.loads((last / MANIFEST).read_text(encoding="utf-8"))["step"]
        return steps == reached and completed(read_saved_config(last / CONFIG))[0] == run.values
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return False

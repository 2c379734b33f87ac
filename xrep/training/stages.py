"""A course of training: one run after another, each from the weights of the one before."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from xrep.config import RunConfig, course_directory
from xrep.errors import UserError
from xrep.files import naming
from xrep.models.directory import CONFIG, MANIFEST

SUMMARY = "summary.json"


class Ended(Protocol):
    """What is known of a run that came to its end, or was asked to stop before."""

    @property
    def finished(self) -> bool: ...


S = TypeVar("S", bound=Ended)


def train_course(runs: list[RunConfig], train: Callable[[RunConfig], S], is_main: bool = True) -> S:
    """Train the stages of a course in their order; the same call goes on where it was stopped.

    A stage that is finished is left as it is, one that is not is resumed. At the end ``best`` and ``last`` of the
    course's directory point at those of its last stage. A run without stages is a course of one, in its own directory.

    Args:
        runs: as ``compose_course`` gives them.
        train: trains one of them.
        is_main: whether this process speaks and writes; all processes of a run make this call.

    Returns:
        What ``train`` returned for the last stage, or for the one that was asked to stop.

    Raises:
        UserError: the directory holds a run without stages (other processes than the main one exit), or what ``train``
            raises.
    """
    if not runs[0].stage:
        return train(runs[0])
    directory = course_directory(runs[0])
    if (directory / CONFIG).exists():
        if not is_main:  # told once
            raise SystemExit(2)
        raise UserError("holds a run without stages", path=directory, cure="choose another --save-dir")
    ended: S | None = None
    for number, run in enumerate(runs, 1):
        place = f"stage {run.stage} ({number} of {len(runs)}, {run.label})"
        if number < len(runs) and is_finished(run):
            _say(f"{place}: finished before", is_main)
            continue
        _say(f"{place}: in {run.values['checkpoint']['save_dir']}", is_main)
        ended = train(run)
        if not ended.finished:
            return ended
    if is_main:
        for name in ("best", "last"):
            _point(directory / name, Path(runs[-1].stage) / name)
        _say(f"the course is finished; the model: {directory / 'best'} (last: {directory / 'last'})", is_main)
    assert ended is not None  # the last stage is never passed over
    return ended


def is_finished(run: RunConfig) -> bool:
    """Whether a run came to its end with this very configuration.

    A run that was resumed with a larger budget and then killed is not: its summary is of an earlier step than its last
    checkpoint, or that checkpoint is of the earlier configuration.
    """
    directory = Path(run.values["checkpoint"]["save_dir"])
    last = directory / "last"
    try:
        steps = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))["steps"]
        reached = json.loads((last / MANIFEST).read_text(encoding="utf-8"))["step"]
        return steps == reached and (last / CONFIG).read_text(encoding="utf-8") == run.to_yaml()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _point(link: Path, target: Path) -> None:
    """Let a link point elsewhere, at once."""
    aside = link.with_name(f".{link.name}.new")
    with naming(link):
        aside.unlink(missing_ok=True)
        aside.symlink_to(target, target_is_directory=True)
        os.replace(aside, link)


def _say(text: str, is_main: bool) -> None:
    if is_main:
        print(text, file=sys.stderr)

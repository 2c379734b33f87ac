"""Averaging of the last checkpoints of a run; the average often performs better than each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from xrep.errors import UserError
from xrep.models.directory import Checkpoint, checkpoints_in, open_checkpoint


def average_last(run: str | Path, count: int) -> Checkpoint:
    """Return the newest checkpoint of a run with the model's tensors averaged over the ``count`` newest checkpoints.

    Floating-point tensors are averaged in float64 and returned in their own type. Other tensors are those of the newest
    checkpoint.

    Raises:
        UserError: The run has fewer checkpoints, one is damaged, or they belong to different models.
    """
    run = Path(run)
    paths = checkpoints_in(run)
    if len(paths) < count:
        cure = "lower `average`, or train with a larger `keep_last`" if paths else "name the directory of a run"
        raise UserError(f"has {len(paths)} checkpoints, not {count}", path=run, cure=cure)
    newest, *older = map(open_checkpoint, paths[: -count - 1 : -1])
    tensors = newest.tensors()
    sums = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
    for checkpoint in older:
        others = checkpoint.tensors()
        if problem := _difference(newest, tensors, checkpoint, others):
            cure = "average checkpoints of one run"
            raise UserError(f"{problem} than in {newest.path.name}", path=checkpoint.path, cure=cure)
        for name, total in sums.items():
            total += others[name]
    mean = {name: (total / count).to(tensors[name].dtype) for name, total in sums.items()}
    return replace(newest, mean=tensors | mean)


def _difference(a: Checkpoint, ours: dict[str, Tensor], b: Checkpoint, theirs: dict[str, Tensor]) -> str:
    """Return how the second checkpoint differs from the first; empty if the models match."""
    for name in sorted({*ours, *theirs}):
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape:
            return f"{name} is another tensor"
    same = a.manifest["architecture"] == b.manifest["architecture"] and a.text == b.text
    return "" if same else "it has another architecture or vocabulary"

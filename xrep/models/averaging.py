"""Averaging of the last checkpoints of a run; the average often performs better than each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from xrep.errors import UserError
from xrep.models.directory import Checkpoint, checkpoints_in, open_checkpoint


def average_last(run: str | Path, count: int) -> Checkpoint:
    """Return the newest checkpoint of a run with the model's tensors averaged over the ``count`` newest checkpoints.

    Floating-point tensors are averaged in float64 and returned in their own type. Other tensors are those of the newest
    checkpoint.

    Raises:
        UserError: The run has fewer checkpoints, or one is damaged.
    """
    run = Path(run)
    if paths := checkpoints_in(run):
        options = open_checkpoint(paths[-1]).config.get("checkpoint", {})
        paths = paths[-options.get("keep_last", len(paths)) :]  # an older one was kept as the best
    if len(paths) < count:
        cure = "lower `average`, or train with a larger `keep_last`" if paths else "name the directory of a run"
        raise UserError(f"has {len(paths)} checkpoints, not {count}", path=run, cure=cure)
    newest, *older = map(open_checkpoint, paths[: -count - 1 : -1])
    tensors = newest.tensors()
    sums = {name: tensor.double() for name, tensor in tensors.items() if tensor.is_floating_point()}
    for checkpoint in older:
        others = checkpoint.tensors()
        for name, total in sums.items():
            total += others[name]
    mean = {name: (total / count).to(tensors[name].dtype) for name, total in sums.items()}
    return replace(newest, mean=tensors | mean)

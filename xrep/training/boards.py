"""Where training sends its records besides metrics.jsonl: event files of TensorBoard, and Weights & Biases."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WANDB_ID = "wandb.id"
"""File in the directory of a run with its name at Weights & Biases, so that a resumed run goes on there."""


class TensorBoard:
    """An event file of TensorBoard, with the options of the run as hyperparameters. It hides events after ``step``."""

    def __init__(self, directory: Path, step: int, options: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        self._writer = SummaryWriter(directory, purge_step=step + 1 if step else None)
        plain = {name: value if isinstance(value, int | float) else str(value) for name, value in options.items()}
        _, start, _ = hparams(plain, {})
        self._writer._get_file_writer().add_summary(start, step)

    def record(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run at Weights & Biases (extra ``wandb``), in the project of the environment variable WANDB_PROJECT or xrep.

    Its other variables hold as well: with WANDB_MODE=offline the records stay in SAVE_DIR/wandb.
    """

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")  # not a plain import: the type checker would need the extra, too
        path, project = directory / WANDB_ID, os.environ.get("WANDB_PROJECT", "xrep")
        if not path.exists():
            path.write_text(secrets.token_hex(8), encoding="ascii")
        own = {"id": path.read_text(encoding="ascii"), "name": directory.name, "dir": directory, "resume": "allow"}
        quiet = wandb.Settings(console="off", silent=True)
        self._run = wandb.init(project=project, config=dict(options), settings=quiet, **own)

    def record(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()

"""Where training sends its records besides metrics.jsonl: event files of TensorBoard, and Weights & Biases."""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

WANDB_ID = "wandb.id"
"""File in the directory of a run with its name at Weights & Biases, so that a resumed run goes on there."""


class Board(Protocol):
    """Protocol of what takes the records of training."""

    path: Path
    """Where it writes, for messages."""

    def record(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """An event file of TensorBoard, written in the calling thread. The options of the run are its hyperparameters.

    ``SummaryWriter`` writes in its own thread, where a full disk leads to a traceback on the screen.
    """

    def __init__(self, directory: Path, resumed_step: int, options: Mapping[str, Any]) -> None:
        # protobuf makes these classes at import time, so no type checker finds them in the source of the modules.
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._event, self._summary = Event, Summary
        directory.mkdir(exist_ok=True)
        self.path = directory / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._write(file_version="brain.Event:2")
        if resumed_step:  # hides what an interrupted run wrote after its checkpoint
            self._write(step=resumed_step + 1, session_log=SessionLog(status=SessionLog.START))
        plain = {
            name: value if isinstance(value, (bool, int, float)) else str(value) for name, value in options.items()
        }
        if plain:
            self._write(step=resumed_step, summary=hparams_pb(plain))

    def record(self, step: int, values: dict[str, float]) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=self._summary(value=scalars))

    def _write(self, **event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        with open(self.path, "ab") as file:
            RecordWriter(file).write(self._event(wall_time=time.time(), **event).SerializeToString())

    def close(self) -> None:
        pass


class WeightsAndBiases:
    """A run at Weights & Biases (extra ``wandb``), in the project of the environment variable WANDB_PROJECT or xrep.

    Its other variables hold as well: with WANDB_MODE=offline the records stay in SAVE_DIR/wandb.
    """

    def __init__(self, directory: Path, options: Mapping[str, Any]) -> None:
        wandb = importlib.import_module("wandb")  # not a plain import: the type checker would need the extra, too
        self.path = directory / WANDB_ID
        if not self.path.exists():
            self.path.write_text(secrets.token_hex(8), encoding="ascii")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "xrep"),
            id=self.path.read_text(encoding="ascii"),
            name=directory.name,
            dir=directory,
            config=dict(options),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )

    def record(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()

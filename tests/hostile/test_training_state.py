"""A run goes on from a training state that fits it, or refuses the state in one line, whatever the file holds.

The checksums of the checkpoint are not looked at here: a state may be wrong although its checksum is right.
"""

from __future__ import annotations

import copy
import io
import math
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from tests.hostile.fuzzing import Fuzz, files_like
from tests.support.runs import compose_run, make_trainer
from xrep.errors import UserError
from xrep.models.directory import STATE, Checkpoint, open_checkpoint
from xrep.training.run import train
from xrep.training.trainer import Trainer

TINY = {"hidden_size": 8, "heads": 1, "feedforward_size": 8, "max_steps": 2, "criterion": "translation_ranking"}
DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]
HOSTILE: list[Any] = [
    None, -1, 0, 1, 2**63, 10**400, 1.5, -0.5, math.nan, math.inf, True, "", "x", b"x", [], {}, (), [None], {"a": 1},
    DEEP, torch.zeros(0), torch.zeros(3), torch.tensor(math.nan), torch.zeros(3, dtype=torch.uint8), torch.ones(1, 1),
    torch.zeros(1).expand(8), torch.zeros(5056, dtype=torch.uint8), torch.zeros(8, dtype=torch.complex64),
    torch.zeros(8).to_sparse(), torch.empty(8, device="meta"),
]  # fmt: skip


class Command:
    """A pickle that would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/xrep-was-here",)


def saved(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


@pytest.fixture
def checkpoint(data_directory: Path, fuzz: Fuzz) -> Checkpoint:
    """A copy of the last checkpoint of a run of two steps, in the folder of the fuzzer."""
    directory = fuzz.folder.parent / "run"
    train(compose_run(data_directory, directory, **TINY))
    shutil.copytree(directory / "last", fuzz.folder)
    return open_checkpoint(fuzz.folder)


@pytest.fixture
def trainer(data_directory: Path, tmp_path: Path) -> Trainer:
    return make_trainer(compose_run(data_directory, tmp_path / "again", **TINY), tmp_path / "again")


@st.composite
def changed(draw: st.DrawFn, state: dict[str, Any]) -> bytes:
    """Draw a training state in which some values were replaced, removed or added."""
    state = copy.deepcopy(state)
    for _ in range(draw(st.integers(0, 3))):
        place: Any = state
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys)) if keys else "new"
            inner = place[key] if keys else None
            if not isinstance(inner, dict | list) or not inner or draw(st.integers(0, 3)) == 0:
                break
            place = inner
        action = draw(st.sampled_from(["replace", "replace", "replace", "remove", "add"]))
        if action == "remove" and keys:
            del place[key]
        elif action == "add" and isinstance(place, dict):
            place[draw(st.sampled_from(["new", 0, 10**6, ""]))] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))
        elif keys or isinstance(place, dict):
            place[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))
    return saved(draw(st.sampled_from(HOSTILE)) if draw(st.integers(0, 19)) == 0 else state)


@pytest.mark.slow
def test_training_states_are_read_or_refused(checkpoint: Checkpoint, trainer: Trainer, fuzz: Fuzz) -> None:
    def read(path: Path) -> None:
        trainer.resume(checkpoint, checkpoint.training_state())

    state = checkpoint.training_state()
    commands = [pickle.dumps(Command()), pickle.dumps(DEEP), b"\x80\x02" + b"(" * 3000 + b"t."]
    files = st.one_of(changed(state), changed(state), changed(state), files_like(saved(state), *commands))
    fuzz("training_state.pt", STATE, files, read)
    assert not Path("/tmp/xrep-was-here").exists()


CHANGES: dict[str, Any] = {
    "it has other fields": lambda state: state.pop("step"),
    "`step` is not that of the checkpoint": lambda state: state.update(step=-1),
    "`examples` is not a count": lambda state: state.update(examples="60"),
    "`seconds` is not a time": lambda state: state.update(seconds=math.nan),
    "`best` is not a number": lambda state: state.update(best="high"),
    "`best_step` is not a count": lambda state: state.update(best_step=-2),
    "`cursor` is of another type": lambda state: state.update(cursor=[0]),
    "`cursor` is not a count": lambda state: state.update(cursor=-5),
    "`optimizer` has other fields": lambda state: state.update(optimizer=[]),
    "`optimizer` is that of other parameters": lambda state: state["optimizer"]["param_groups"].pop(),
    "`optimizer` has a parameter too many": lambda state: state["optimizer"]["state"].update({999: {}}),
    "`optimizer` is of another kind": lambda state: state["optimizer"]["state"][0].pop("exp_avg"),
    "`exp_avg` of parameter 0 in `optimizer`": lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.zeros(2, 2)),
    "`scaler` is not a state": lambda state: state.update(scaler=3),
    "`random` is not a list": lambda state: state.update(random={}),
    "`random` has other fields": lambda state: state["random"][0].update(gpu=1),
    "`random` is not the state of a generator": lambda s: s["random"][0].update(cpu=torch.zeros(7, dtype=torch.uint8)),
}


def test_each_part_of_a_state_is_checked(checkpoint: Checkpoint, trainer: Trainer) -> None:
    before = torch.get_rng_state()
    for message, change in CHANGES.items():
        state = checkpoint.training_state()
        change(state)
        with pytest.raises(UserError) as error:
            trainer.resume(checkpoint, state)
        start = f"{checkpoint.path / STATE}: not the training state of this run ({message}"
        assert str(error.value).startswith(start), (message, error.value)
        assert "delete its checkpoint" in str(error.value) and torch.equal(torch.get_rng_state(), before)
    trainer.resume(checkpoint, checkpoint.training_state())
    assert trainer.state.step == 2

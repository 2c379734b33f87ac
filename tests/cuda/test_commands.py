"""The commands on CUDA: training with validation and checkpoints, resuming, encoding and translating, as on a CPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.corpus import sentence_pairs
from tests.cuda.cases import CASES, RUN, write_data
from tests.cuda.table import absence
from tests.encoders import write_encoder
from tests.programs import PATIENCE, free_port, rank_environment
from tests.runs import environment
from tests.translators import write_translator
from xrep.models.directory import CRITERION, MODEL, open_checkpoint
from xrep_cli.train import main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(absence() is not None, reason=absence() or "")]
CLOSE = 1e-2 if os.path.exists("/dev/nvidiactl") else 2e-5
OPTIONS = {**RUN, **CASES["dual_moco"], "criterion": "dual_moco", "max_steps": 6, "validate_every": 3,
           "lr_scheduler": "constant", "kernels": "chunked", "precision": "float32"}  # fmt: skip


def option_line(**options: Any) -> list[str]:
    parts = [[f"--{name.replace('_', '-')}", *([] if v is None else [str(v)])] for name, v in options.items()]
    return [part for option in parts for part in option]


def train(data: Path, save_dir: Path, **given: Any) -> list[str]:
    """Return a line for ``tests.cuda.commands``."""
    options = {**OPTIONS, **given, "save_dir": save_dir}
    return ["xrep_cli.train", str(data / options.pop("data")), *option_line(**options)]


def run(lines: list[list[str]], folder: Path, ranks: int = 1) -> None:
    """Run commands in a process with a GPU, or in several that train together."""
    file, port = folder / "lines.json", free_port()
    file.write_text(json.dumps(lines), encoding="utf-8")
    places: list[dict[str, str]] = [{}]
    if ranks > 1:  # each is the first rank of its host, so that all of them share the device
        places = [{**rank_environment(rank, ranks, port), "LOCAL_RANK": "0"} for rank in range(ranks)]
    line, pipe = [sys.executable, "-m", "tests.cuda.commands", str(file)], subprocess.PIPE
    given = [{**environment(threads=1), **place} for place in places]
    processes = [subprocess.Popen(line, env=each, stdout=pipe, stderr=pipe, text=True) for each in given]
    try:
        ends = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (out, err) in zip(processes, ends, strict=True):
        assert process.returncode == 0, out + err


def tensors(path: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(path)
    return {f"{name}/{key}": value for name in (MODEL, CRITERION) for key, value in checkpoint.tensors(name).items()}


def records(run_directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_is_that_of_the_cpu(ranks: int, tmp_path: Path) -> None:
    data = write_data(tmp_path)
    cuda: dict[str, Any] = {"device": "cuda", "batch_size": OPTIONS["batch_size"] // ranks}
    if ranks > 1:
        cuda["distributed.backend"] = "gloo"
    resumed, whole = tmp_path / "resumed", tmp_path / "whole"
    lines = [train(data, resumed, **cuda, max_steps=steps) for steps in (3, 6)]
    for part in [lines] if ranks == 1 else [[line] for line in lines]:  # a process joins others only once
        run(part, tmp_path, ranks)
    main(train(data, whole, device="cpu")[1:])
    weights, exact = tensors(resumed / "last"), tensors(whole / "last")
    assert weights.keys() == exact.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, exact[name], rtol=0, atol=CLOSE, msg=lambda text, n=name: f"{n}: {text}")
    ours, theirs = ([entry for entry in records(folder) if entry["kind"] == "valid"] for folder in (resumed, whole))
    assert [entry["step"] for entry in ours] == [3, 6]
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(expected, abs=1e-3)


def test_vectors_and_translations_are_those_of_the_cpu(tmp_path: Path) -> None:
    encoder, translator = write_encoder(tmp_path / "e" / "best"), write_translator(tmp_path / "t" / "best")
    source = tmp_path / "lines.txt"
    source.write_text("".join(pair[0] + "\n" for pair in sentence_pairs(40)), encoding="utf-8")
    lines = []
    for device in ("cuda", "cpu"):
        shared = {"device": device, "input": source}
        output = {"path": encoder, "lang": "de", "output": tmp_path / f"{device}.npy"}
        lines.append(["xrep_cli.encode", *option_line(**shared, **output)])
        output = {"path": translator, "beam": 3, "max_length_b": 8, "output": tmp_path / f"{device}.txt"}
        lines.append(["xrep_cli.generate", *option_line(**shared, **output)])
    run(lines, tmp_path)
    vectors, expected = (np.load(tmp_path / f"{device}.npy") for device in ("cuda", "cpu"))
    np.testing.assert_allclose(vectors, expected, atol=CLOSE)
    found, wanted = ((tmp_path / f"{device}.txt").read_text(encoding="utf-8") for device in ("cuda", "cpu"))
    assert len(set(found.splitlines())) > 10 and (found == wanted or CLOSE == 1e-2)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_fused_kernels_are_checked_and_used(tmp_path: Path) -> None:
    data, runs = write_data(tmp_path), [tmp_path / device for device in ("cuda", "cpu")]
    given = {"max_steps": 2, "validate_every": 0, "kernels": "auto"}
    run([train(data, folder, **{**given, "device": folder.name}) for folder in runs], tmp_path)
    assert "kernels: triton\n" in (runs[0] / "log.txt").read_text(encoding="utf-8")
    for name, tensor in tensors(runs[0] / "last").items():
        torch.testing.assert_close(tensor, tensors(runs[1] / "last")[name], rtol=0, atol=CLOSE)

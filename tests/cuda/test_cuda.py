"""CUDA, emulated where there is no GPU, computes what the CPU does: training steps of every criterion, at the costs of
the table, and the commands.

A process takes seconds to start, so that one does everything, and two do everything that takes two ranks.
"""

import importlib.util
import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cuda.cases import CASES, command_line, option_line, write_data
from tests.cuda.table import SHARDED, absence, job, read_table, run, totals
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.programs import PATIENCE
from tests.support.translators import write_translator
from xrep.models.directory import CRITERION, MODEL, open_checkpoint
from xrep.registry import CRITERIA
from xrep_cli.eval import main as evaluate
from xrep_cli.train import main

REAL = os.path.exists("/dev/nvidiactl")
TRITON = importlib.util.find_spec("triton") is not None
APART = {"float32": 1e-2 if REAL else 2e-5, "bf16": 0.03, "fp16": 0.2}
"""How far losses and weights of five steps may be from those of the CPU in float32: losses as a share, weights as they
are. In float16 the first steps are skipped, until the loss is scaled by less."""
CLOSE = APART["float32"]
SOME = {
    1: ["float32/" + case for case in CASES]
    + ["bf16/dual_moco", "bf16/hictl", "bf16/label_smoothed_cross_entropy", "bf16/mlm"],
    2: ["float32/dual_moco", "float32/hictl", f"fp16/{SHARDED}"],
}
"""The cases of the usual run, by number of ranks; at night all of the table are run."""
Lines = list[list[str]]


def test_every_criterion_has_a_case() -> None:
    assert {case.partition(",")[0] for case in CASES} == set(CRITERIA.names())


@pytest.mark.slow
@pytest.mark.skipif(absence() is not None, reason=absence() or "")
@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "every case"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_cuda_computes_what_the_cpu_does(ranks: int, every: bool, tmp_path: Path) -> None:
    data = write_data(tmp_path)
    lines = [job(ranks, data, tmp_path / "steps.json", None if every else SOME[ranks])]
    lines += resumed_lines(ranks, data, tmp_path)
    if ranks == 1:
        lines += [["tests.cuda.not_finite", str(data / "pairs"), str(tmp_path / "not_finite.json")]]
        lines += [
            *using_lines(tmp_path),
            *fused_lines(data, tmp_path),
            *(measuring_lines(data, tmp_path) if every else []),
        ]
    run(lines, tmp_path, ranks)
    check_steps(ranks, tmp_path)
    check_resumed(data, tmp_path)
    if ranks == 1:
        check_not_finite(tmp_path)
        check_use(tmp_path)
        check_fused(tmp_path)
        if every:
            check_measured(data, tmp_path)


def check_steps(ranks: int, folder: Path) -> None:
    """Check losses, weights and costs of training steps."""
    torch_version, table = read_table()
    problems = []
    for case, found in json.loads((folder / "steps.json").read_text(encoding="utf-8")).items():
        for what in ("losses apart", "weights apart"):
            if not found.get(what, 0.0) <= APART[case.partition("/")[0]]:
                problems.append(f"{case}: {what} by {found[what]:.2g} from those of the CPU")
        known = table[ranks, case]
        for column, value in totals(found).items():
            # Which kernels an operation launches depends on the version of torch, and is not counted on a real GPU.
            if value > known[column] and not (column == "launches" and torch_version != version("torch")):
                problems.append(f"{case}: {value:g} {column} a step, and the table has {known[column]:g}")
                problems += [f"    {count:g} x {place}" for place, count in found["syncs"].items() if column == "syncs"]
    assert not problems, "\n".join(problems) + "\nIf this is meant: python -m tests.cuda.table"


def check_not_finite(folder: Path) -> None:
    """Check that a step that is not finite ends the run and changes nothing."""
    found = json.loads((folder / "not_finite.json").read_text(encoding="utf-8"))
    assert found["loss"]["end"].startswith("step 3: the loss is nan; it begins in criterion (from finite inputs); ")
    gradient = "the gradient of model.encoders.shared.token_embedding.weight"
    assert found["gradient"]["end"].startswith(f"step 3: the norm of the gradient is nan; it begins in {gradient}; ")
    assert found["loss"]["kept"] and found["gradient"]["kept"] and found["changes"]


def resumed_lines(ranks: int, data: Path, folder: Path) -> Lines:
    cuda: dict[str, Any] = {"device": "cuda", "batch_size": 12 // ranks}
    if ranks > 1:
        cuda["distributed.backend"] = "gloo"
    return [train(data, folder / "resumed", **cuda, max_steps=steps) for steps in (3, 6)]


def check_resumed(data: Path, folder: Path) -> None:
    """Check that weights and validations of a resumed run are those of the CPU."""
    main(train(data, folder / "whole", device="cpu")[1:])
    check_weights(folder / "resumed", folder / "whole")
    ours, theirs = (
        [entry for entry in records(folder / name) if entry["kind"] == "valid"] for name in ("resumed", "whole")
    )
    assert [entry["step"] for entry in ours] == [3, 6]
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(expected, abs=1e-3)


def using_lines(folder: Path) -> Lines:
    encoder, translator = write_encoder(folder / "e" / "best"), write_translator(folder / "t" / "best")
    source = folder / "lines.txt"
    source.write_text("".join(pair[0] + "\n" for pair in sentence_pairs(40)), encoding="utf-8")
    lines = []
    for device in ("cuda", "cpu"):
        shared = {"device": device, "input": source}
        output = {"path": encoder, "lang": "de", "output": folder / f"{device}.npy"}
        lines.append(["xrep_cli.encode", *option_line(**shared, **output)])
        output = {"path": translator, "beam": 3, "max_length_b": 8, "output": folder / f"{device}.txt"}
        lines.append(["xrep_cli.generate", *option_line(**shared, **output)])
    return lines


def check_use(folder: Path) -> None:
    """Check that vectors and translations are those of the CPU."""
    vectors, expected = (np.load(folder / f"{device}.npy") for device in ("cuda", "cpu"))
    np.testing.assert_allclose(vectors, expected, atol=CLOSE)
    found, wanted = ((folder / f"{device}.txt").read_text(encoding="utf-8") for device in ("cuda", "cpu"))
    assert len(set(found.splitlines())) > 10 and (found == wanted or REAL)


def measuring_lines(data: Path, folder: Path) -> Lines:
    """Return lines that measure a model of each class that loads models. Commands that measure have no ``--device``."""
    trained = ["xrep_cli.train", *command_line("classification", data, folder, device="cuda", save_dir=folder / "c")]
    for language, side in (("de", 0), ("en", 1), ("deu", 0), ("eng", 1)):
        name = f"tatoeba.deu-eng.{language}" if len(language) == 3 else f"test.{language}"
        text = "".join(f"{pair[side]}\n" for pair in sentence_pairs(40))
        (folder / name).write_text(text, encoding="utf-8")
    return [trained, *(line for precision in ("fp16", "float32") for line in measuring(data, folder, precision))]


def measuring(data: Path, folder: Path, precision: str) -> Lines:
    tests: dict[str, tuple[str, dict[str, Any]]] = {
        "tatoeba": ("e/best", {"data": folder, "langs": "de"}),
        "translation": ("t/best", {"data": folder / "test.{lang}", "langs": "de", "max_length_b": 8}),
        "amazon": ("c/best", {"data": data / "labels"}),
    }
    lines = []
    for test, (path, own) in tests.items():
        shared = {"path": folder / path, "precision": precision, "json": folder / f"{test}-{precision}.json"}
        lines.append(["xrep_cli.eval", test, *option_line(**shared, **own)])
    return lines


def check_measured(data: Path, folder: Path) -> None:
    """Check that commands that measure use the GPU: float16 is refused on CPUs, and float32 has the CPU's figures."""
    for test, *line in (line[1:] for line in measuring(data, folder, "float32")):
        found, half = (json.loads((folder / f"{test}-{p}.json").read_text("utf-8")) for p in ("float32", "fp16"))
        assert half["settings"]["precision"] == "fp16"
        if not REAL:
            assert evaluate([test, *line]) == 0
            on_cpu = json.loads((folder / f"{test}-float32.json").read_text("utf-8"))
            assert found["headline"] == pytest.approx(on_cpu["headline"], abs=1e-3)


def fused_lines(data: Path, folder: Path) -> Lines:
    given = {"max_steps": 3, "validate_every": 0, "mask_margin": 0.0}
    return [train(data, folder / f"on-{d}", "", **given, device=d) for d in ("cuda", "cpu")] if TRITON else []


def check_fused(folder: Path) -> None:
    """Check that the fused kernels were used, which are compared with plain torch at their first use."""
    if TRITON:
        assert "kernels: triton\n" in (folder / "on-cuda" / "log.txt").read_text(encoding="utf-8")
        check_weights(folder / "on-cuda", folder / "on-cpu")


def check_weights(cuda: Path, cpu: Path) -> None:
    weights, exact = tensors(cuda / "last"), tensors(cpu / "last")
    assert weights.keys() == exact.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, exact[name], rtol=0, atol=CLOSE, msg=lambda text, n=name: f"{n}: {text}")


def train(data: Path, save_dir: Path, kernels: str = "plain:", **given: Any) -> list[str]:
    """Return a line for ``tests.cuda.commands``."""
    usual = {"max_steps": 6, "validate_every": 3, "lr_scheduler": "constant"}
    options = {**usual, "precision": "float32", **given, "save_dir": save_dir}
    return [f"{kernels}xrep_cli.train", *command_line("dual_moco", data, save_dir, **options)]


def tensors(path: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(path)
    return {f"{name}/{key}": value for name in (MODEL, CRITERION) for key, value in checkpoint.tensors(name).items()}


def records(run_directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]

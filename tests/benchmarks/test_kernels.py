"""benchmarks/kernels.py: its report, the agreement of its contestants, and the order of their turns."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.support.closeness import assert_near
from xrep.kernels import precision

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "kernels.py"
KINDS = ("queue", "inbatch", "hard", "vocabulary")
SMALL = ["--device", "cpu", "--repeats", "1", "--precision", "default"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the modules of the script."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    parts = ("cases", "contestants", "memory")
    modules = {name: importlib.import_module(f"kernel_bench.{name}") for name in parts}
    return SimpleNamespace(bench=importlib.import_module("kernels"), **modules)


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"device": "cpu", "repeats": 2, "compile": False, "scale": 0.0, **given})


@pytest.mark.slow
def test_every_case_has_its_floor_its_ratios_and_its_peers(tmp_path: Path) -> None:
    package = tmp_path / "liger_kernel"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "transformers.py").write_text(
        "class LigerFusedLinearCrossEntropyLoss:\n"
        "    def __call__(self, weight, hidden, target):\n"
        "        raise RuntimeError('no kernel for\\nthis device')\n"
    )
    names = "queue,queue-bfloat16,queue-small,queue-temperature,queue-large,inbatch,inbatch-large,hard,vocabulary"
    file = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), *SMALL, "--scale", "0.001", "--no-memory", "--cases", names]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([*command, "--json", str(file)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures, printed, progress = json.loads(file.read_text(encoding="utf-8")), done.stdout, done.stderr
    results = {result["case"]: result for result in figures["results"]}
    assert list(results) == names.split(",") and figures["machine"]["device"] == "cpu"
    for name, result in results.items():
        times, ratios = result["seconds"], result["ratios"]
        floors = {key: value for key, value in times.items() if key.startswith("floor")}
        assert floors and times[result["floor"]] == min(floors.values()) > 0
        assert ratios["ours/floor"] == pytest.approx(times["ours"] / times[result["floor"]])
        assert f"| {name} " in printed and progress.count(f"{name}, default") >= 2
        if name != "inbatch-large":
            assert len(floors) == 2
            assert ratios["ours/plain"] == pytest.approx(times["ours"] / times["plain"])
            assert result["loss"]["ours"] == pytest.approx(result["loss"]["plain"], rel=1e-4) and result["loss"]["ours"]
    rows, columns, width = results["queue"]["size"]
    flops = results["queue"]["floor_tflops"] * 1e12 * results["queue"]["seconds"][results["queue"]["floor"]]
    assert flops == pytest.approx(4 * rows * columns * width) and (rows, columns, width) == (16, 410, 768)
    assert results["vocabulary"]["missing"] == {"liger": "RuntimeError: no kernel for"}
    assert "no liger: RuntimeError: no kernel for" in printed
    assert set(results["inbatch-large"]["missing"]) == {"floor-whole", "plain"}
    assert (
        0 < results["queue"]["loss_error"]["ours"] < 1e-5
        and "bfloat16-products" in results["queue-bfloat16"]["seconds"]
    )


@pytest.mark.slow
def test_peak_memory_is_measured_for_each_in_a_process_of_its_own(
    script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert script.bench.main([*SMALL, "--scale", "0.2", "--cases", "queue-temperature", "--json", "-"]) == 0
    printed, progress = capsys.readouterr()
    (result,) = json.loads(printed)["results"]
    memory, logits = result["memory"], 4e-6 * result["size"][0] * result["size"][1]
    assert set(memory) == {"ours", "plain", "floor"} and progress.count("peak memory") == 3
    assert all(peak["gradients_mb"] > 0 for peak in memory.values())
    if memory["ours"]["source"] != "VmHWM":
        pytest.skip("this system does not let a process reset its peak")
    # Plain torch holds at least two arrays of all similarities (11 MB each), ours holds a block of them.
    assert memory["plain"]["peak_mb"] > 2 * logits > 20
    assert memory["ours"]["peak_mb"] < logits


def test_a_peak_is_what_was_held_at_once_above_what_was_held_before(
    script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.ones(4_000_000)
    kept = [torch.ones(2500) for _ in range(1600)]  # the allocator keeps these 16 MB and could use them again unseen
    del kept

    def call() -> Tensor:
        passing = [torch.ones(8_000_000), *(torch.ones(2500) for _ in range(1600))]  # 32 and 16 MB
        result = before + 1  # 16 MB
        del passing
        return result

    found, peak, source = script.memory.peak_of(call, "cpu")
    if source != "VmHWM":
        pytest.skip("this system does not let a process reset its peak")
    assert found.sum() == 8_000_000 and 60 < peak < 70

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    _, peak, source = script.memory.peak_of(lambda: torch.ones(250_000_000 // 4), "cpu")
    assert source == "ru_maxrss" and 100 < peak < 260


@pytest.mark.parametrize("name", [*KINDS, "queue-bfloat16", "queue-temperature"])
def test_contestants_compute_the_same(script: SimpleNamespace, name: str) -> None:
    contest = script.contestants.build(script.cases.CASES[name], "cpu", scale=0.03 if name in KINDS[1:] else 0.001)
    losses, gradients = contest.prepare("ours")()
    expected, exact = contest.prepare("plain")()
    assert float(losses.mean()) == pytest.approx(float(expected.mean()), rel=1e-5) and losses.mean() > 0.05
    assert len(gradients) == len(exact) == 2 + (name == "queue-temperature")
    for mine, theirs in zip(gradients, exact, strict=True):
        assert theirs.abs().max() > 0
        assert float((mine - theirs).abs().max() / theirs.abs().max()) < 1e-4
    if name.startswith("queue"):
        some = torch.tensor([0, 3, 5])
        torch.testing.assert_close(losses[some].double(), contest.exact(some), rtol=0, atol=2e-6)


@pytest.mark.parametrize("products", [2, 3])
def test_the_floor_is_the_matrix_products(script: SimpleNamespace, products: int) -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(37, 8, generator=generator), torch.randn(53, 8, generator=generator)
    similarities = left @ right.t()
    expected = [similarities @ right, similarities.t() @ left][: products - 1]
    for tile in ((10, 20), (37, 53), (64, 64), (37, 7)):
        run = script.contestants.Products(left, right, tile, products)
        for _ in range(2):
            for found, exact in zip(run()[1], expected, strict=True):
                assert_near(found, exact)


class Recorded:
    """A contest that records which contestant ran, on which inputs and in which precision."""

    arrays, products = 1, 2
    sides = (torch.ones(2, 3), torch.ones(4, 3))

    def __init__(self, number: int, log: list[tuple[str, int, str]], failing: dict[str, Exception]) -> None:
        self.number, self.log, self.failing = number, log, failing

    def names(self) -> list[str]:
        return ["ours", "floor-blocks", "plain"]

    def exact(self, some: Tensor) -> None:
        return None

    def prepare(self, name: str):
        def run() -> tuple[Tensor, list[Tensor]]:
            self.log.append((name, self.number, torch.get_float32_matmul_precision()))
            if name in self.failing:
                raise self.failing[name]
            return torch.ones(2), []

        return run


def test_contestants_take_turns_in_an_order_that_rotates_and_on_inputs_that_do(
    script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, int, str]] = []
    times = iter(range(100))
    monkeypatch.setattr(script.bench, "seconds", lambda run, device: (float(next(times) ** 2 + 1), run()[0]))
    monkeypatch.setattr(precision, "fast_float32_is_exact", lambda: True)
    contests = [Recorded(number, log, {}) for number in range(2)]
    result = script.bench.compete("queue", "fast", contests, options(repeats=3))
    ours, floor, plain = contests[0].names()
    order = [ours, floor, plain, floor, plain, ours, plain, ours, floor, ours, floor, plain]
    assert [name for name, _, _ in log] == order
    assert [number for _, number, _ in log] == [0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    # Ours choose the fast product themselves; the benchmark chooses it for the others.
    usual = torch.get_float32_matmul_precision()
    assert {(name, setting) for name, _, setting in log} == {(ours, usual), (floor, "medium"), (plain, "medium")}
    # The k-th measurement takes k² + 1 seconds; the first three are warm-up.
    assert result["seconds"] == {ours: 50.0, floor: 65.0, plain: 37.0} and result["floor"] == floor
    log.clear()
    script.bench.compete("queue", "default", contests, options())
    assert {setting for _, _, setting in log} == {usual}


def test_a_failing_peer_is_missing_and_our_own_failure_is_not_hidden(script: SimpleNamespace) -> None:
    def compete(**failing: Exception) -> dict:
        return script.bench.compete("queue", "default", [Recorded(0, [], failing)], options())

    assert compete(plain=ValueError("unfit"))["missing"] == {"plain": "ValueError: unfit"}
    assert "ours/plain" not in compete(plain=ImportError("none"))["ratios"]
    too_small = torch.OutOfMemoryError("CUDA out of memory.\nMore about it")
    assert compete(ours=too_small)["missing"] == {"ours": "OutOfMemoryError: CUDA out of memory."}
    for failing in ({"ours": RuntimeError("illegal memory access")}, {"floor-blocks": ValueError("shapes")}):
        with pytest.raises(type(next(iter(failing.values())))):
            compete(**failing)


def test_what_this_machine_cannot_hold_is_left_out(script: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    case = script.cases.CASES["inbatch"]
    contest = script.contestants.build(case, "cpu", scale=0.03)
    monkeypatch.setattr(script.memory, "room", lambda device: 4 * 123**2 * 7.0)
    names = ["ours", "floor-tiles", "floor-whole", "plain"]
    assert list(script.bench.absent(case, contest, names, "cpu")) == ["floor-whole"]
    monkeypatch.setattr(script.memory, "room", lambda device: 1.0)
    assert list(script.bench.absent(case, contest, names, "cpu")) == ["floor-whole", "plain"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cases", "quue"], "unknown case 'quue'; did you mean queue?"),
        (["--cases", ","], "unknown case ','; one of: queue, "),
        (["--precision", "fst"], "unknown precision 'fst'; did you mean fast?"),
        (["--memory-of", "queue:oors"], "unknown contestant of queue 'oors'; did you mean ours?"),
        (["--scale", "-1"], "--scale is -1.0; give a positive number"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_that_helps(
    script: SimpleNamespace, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert script.bench.main(["--device", "cpu", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_help_names_every_case_and_needs_no_torch() -> None:
    program = (
        "import runpy, sys; sys.modules['torch'] = None; del sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), str(ROOT)])}
    command = [sys.executable, "-c", program, str(SCRIPT), "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "queue-bfloat16" in done.stdout and "ours/floor" in done.stdout

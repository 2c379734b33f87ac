"""The benchmarks can be imported, take turns, compute ratios of rounds, and write what their page is made of."""

from __future__ import annotations

import importlib
import itertools
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.support.closeness import assert_near
from tests.support.corpus import sentence_pairs
from tests.support.planning import plan
from xrep.criteria.dap import DAP
from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import exact_products
from xrep.models.dual_encoder import DualEncoder

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
SIZES = ["--layers", "3", "--hidden-size", "32", "--heads", "4", "--feedforward-size", "48", "--vocabulary-size", "90"]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_can_be_imported(name: str) -> None:
    assert module(name).__doc__


def test_the_readme_names_every_script() -> None:
    rows = re.findall(r"^\| `(\w+\.py)` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == [f"{name}.py" for name in SCRIPTS if name not in ("harness", "run")]


def test_contestants_take_turns_and_the_warm_up_is_not_measured() -> None:
    order: list[tuple[str, int]] = []
    contestants = {name: lambda value, name=name: order.append((name, value)) or f"{name}{value}" for name in "abc"}
    squares = (float(number**2) for number in itertools.count())
    turns = module("harness").take_turns(contestants, [7, 8, 9], warm_up=1, clock=lambda: next(squares))
    assert "".join(name for name, _ in order) == "abcbcacab" and [value for _, value in order[::3]] == [7, 8, 9]
    # The clock gives 0, 1, 4, 9, ...: the k-th measurement from 0 takes (2 k + 1) ** 2 - (2 k) ** 2 = 4 k + 1 seconds.
    assert turns.seconds == {"a": [21.0, 29.0], "b": [13.0, 33.0], "c": [17.0, 25.0]}
    assert turns.medians() == {"a": 25.0, "b": 23.0, "c": 21.0}


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    slow_machine = [1.0, 1.0, 3.0, 1.0, 1.0]  # ours and theirs are disturbed together in the third round
    steady = module("run").ratio(slow_machine, [2.0, 2.1, 6.0, 1.9, 2.0])
    assert steady["ratio"] == 2.0 and steady["spread"] == pytest.approx(0.0) and steady["steady"]
    assert not module("run").ratio(slow_machine, [2.0, 4.0, 6.0, 1.0, 3.0])["steady"]


@pytest.mark.parametrize(("layers", "ratio"), [(2, 1.0), (3, 0.5)])
def test_operations_are_those_that_torch_counts(layers: int, ratio: float) -> None:
    script = module("dap_cost")
    options = script.parser().parse_args([*SIZES, "--length", "7", "--batch-size", "5"])
    text, batches = script.text_of(options)
    sizes = {"layers": 3, "hidden_size": 32, "heads": 4, "feedforward_size": 48, "max_positions": 20}
    model = DualEncoder(DualEncoder.Config(towers="shared", **sizes), text)
    dap = DAP(DAP.Config(rtl_layers=layers, reconstruction_ratio=ratio, rtl_vocabulary="all"), model, text)
    planned = plan(dap, next(batches))
    counter = FlopCounterMode(display=False)
    with exact_products(), sdpa_kernel(SDPBackend.MATH), torch.no_grad():  # a loss computes its gradient with it
        with counter:
            dap.vectors(model, planned)
        encoder = counter.get_total_flops()
        with counter:
            dap.encode(model, planned)
    full = np.full(5, 7)
    assert script.operations(options, full, full) == encoder
    # The head's input of 60 tokens is filled up to 64 with copies, except in attention.
    packed = script.operations(options, full, full, layers=layers, ratio=ratio, words=None)
    assert packed + 2 * layers * 4 * (4 * 32**2 + 2 * 32 * 48) == counter.get_total_flops()


@pytest.mark.parametrize("kind", ["queue", "inbatch", "hard", "vocabulary"])
def test_contestants_of_a_kernel_agree(kind: str) -> None:
    case, contestants = module("kernel_bench.cases").CASES[kind], module("kernel_bench.contestants")
    contest = contestants.build(case, "cpu", scale=0.001)
    results = {name: contest.prepare(name)() for name in ("ours", "plain")}
    assert_near(results["ours"][0], results["plain"][0], 1e-4)
    for ours, plain in zip(results["ours"][1], results["plain"][1], strict=True):
        assert_near(ours, plain, 1e-3)


def _write_pairs(path: Path) -> Path:
    """Write 40 English sentences with two translations each, of which the second one differs in letters."""
    lines = [f"{english}\t{german}" for de, english in sentence_pairs(40) for german in (de, f"heute {de}")]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_texts_to_mine_share_no_meanings_but_the_planted_ones(tmp_path: Path) -> None:
    script = module("bitext_mining")
    meanings = script.read_meanings([str(_write_pairs(tmp_path / "deu-eng.tsv"))])
    assert len(meanings) == 40 and all(len(meaning["deu"]) == 2 for meaning in meanings)
    source, target, planted = script.make_texts(meanings, 30, seed=1)
    assert len(set(source)) == len(set(target)) == 30 and len(planted) == 6
    number = {sentence: n for n, meaning in enumerate(meanings) for same in meaning.values() for sentence in same}
    shared = {number[line] for line in source} & {number[line] for line in target}
    assert shared == {number[line] for line in planted} == {number[line] for line in planted.values()}
    with pytest.raises(UserError, match="too few sentences for 60 lines"):
        script.make_texts(meanings, 60, seed=1)


@pytest.mark.nightly
def test_both_ways_of_mining_find_the_same_pairs(tmp_path: Path, shared_encoder: Path) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("faiss")
    SentenceEncoder.load(shared_encoder, device="cpu").save(tmp_path / "encoder")
    pairs, figures = str(_write_pairs(tmp_path / "deu-eng.tsv")), tmp_path / "figures.json"
    line = ["--path", str(tmp_path / "encoder"), "--pairs", pairs, "--lines", "30", "--precisions", "float32"]
    assert module("bitext_mining").main([*line, "--repeats", "1", "--threads", "1", "--json", str(figures)]) == 0
    theirs, ours = json.loads(figures.read_text())["figures"].values()
    assert theirs["f1"] == ours["f1"] > 0 and ours["speed"] > 0 and ours["peak_mb"] > 100


@pytest.mark.nightly
def test_table_page_and_json_agree(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "figures.json"), "--page", str(tmp_path / "page.md")]
    assert module("run").main(["--quick", "--only", "dap_cost", *files]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    compared = [(row["benchmark"], row["ours"], row["beside"], row["rounds"]) for row in figures["rows"]]
    assert compared == [("dap_cost", "DAP", "TR", 15), ("dap_cost", "DAP", "TR+TLM", 15)]
    text, printed = (tmp_path / "page.md").read_text(), capfd.readouterr().out
    assert text == module("run").page(figures)
    for row in figures["rows"]:
        (line,) = [line for line in text.splitlines() if f"| {row['beside']} " in line]
        assert f"{row['ratio']:.2f}" in [cell.strip() for cell in line.split("|")] and line in printed

"""Configuration files and command lines of xrep-train: whatever they hold, they give a run or a line for each fault."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.hostile.fuzzing import Fuzz, files_like
from xrep.config import compose_course
from xrep.config.sections import DEFAULT_NAMES
from xrep.errors import UserError
from xrep.registry import CRITERIA
from xrep_cli.options import DEMO_RECIPE, parse

PARTS = b"""\
parts:
- {task: bitext, criterion: {name: dual_moco, queue_size: 64}, batch_size: 16}
- {name: rank, task: {name: bitext, data: news}, criterion: translation_ranking, weight: 0.5, proportion: 2}
mixing: proportion
optimizer: {lr: 1e-3, betas: [0.9, 0.98]}
plugins: []
"""
STAGES = b"""\
task: {name: bitext, batch_size: 32}
criterion: &moco {name: dual_moco, temperature: 0.05}
trainer: {max_steps: 10, precision: bf16}
stages:
- {}
- {name: rank, criterion: translation_ranking, trainer: {max_steps: "${trainer.max_steps}"}}
- {name: fresh, init: none, criterion: *moco, seed: 5}
"""


def compose_file(path: Path, *arguments: str) -> object:
    line = parse(["data", "--config", str(path), "--save-dir", "run", *arguments])
    return compose_course(line.layers, line.problems)


VALUES: list[Any] = [
    None, True, "", "x", "a\0b", "\ud800", "none", "nan", "inf", "1e30", "-1", "9" * 5000, 10**30, -1, 0, 0.5, 1e400,
    [], {}, [[]], [{}], [1, "x", None], {"name": "rank"}, {"name": None}, {"a": {"b": [1]}}, {5: 6}, "${seed}",
    "???", b"x", [{"name": "rank", "task": "bitext", "criterion": "mlm"}] * 2, "dual_moco", "previous/best",
    ["a", "a"],
]  # fmt: skip
"""What a value is replaced by: values of each type, text that means something elsewhere, names that stand twice."""


@st.composite
def retyped(draw: st.DrawFn, valid: Sequence[bytes]) -> bytes:
    """Draw one of the valid files with up to three values that are replaced, or added under another key of the file."""
    root = yaml.safe_load(draw(st.sampled_from(list(valid))))
    for _ in range(draw(st.integers(0, 3))):
        node, keys = root, [*DEFAULT_NAMES, *root]
        while True:
            key: Any = draw(st.sampled_from([*node, *keys] if isinstance(node, dict) else range(len(node))))
            inner = node[key] if isinstance(node, list) or key in node else None
            if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
                break
            node, keys = inner, ["name", "batch_size", "stages", "parts"]
        node[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return yaml.dump(root).encode("utf-8", "surrogatepass")


@pytest.mark.slow
def test_recipes(fuzz: Fuzz) -> None:
    fuzz("recipes", "c.yaml", files_like(DEMO_RECIPE.read_bytes(), PARTS, STAGES), compose_file)


@pytest.mark.slow
def test_recipes_with_values_of_other_types(fuzz: Fuzz) -> None:
    fuzz("retyped recipes", "c.yaml", retyped((DEMO_RECIPE.read_bytes(), PARTS, STAGES)), compose_file, inputs=500)


TEXTS = [
    "nan", "-inf", "1e400", "-1", "0", "1", "1e30", "-1e-400", str(10**30), "9" * 5000, "", "none", "true", "auto",
    "a,b", "[", "0.5,nan", "\0", "\ud800", "\udcff", "../..", "=", "--seed", "1_000", "\u0663", "0x10", "x" * 10000,
]  # fmt: skip
"""Values of options: numbers that are none, do not fit or are written strangely, and text that is none."""
CHOICES = [
    ["--task", "bitext", "--criterion", criterion] for criterion in CRITERIA.names() if criterion != "nli_triplet"
] + [["--task", "translation", "--criterion", "label_smoothed_cross_entropy"], ["--task", "nli", "--criterion", "nli"]]
KEYS = {tuple(chosen): [spec.key for spec in parse(["data", *chosen]).fields] for chosen in CHOICES}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a task and a criterion, and one or two arguments: options or keys with any of TEXTS as value, or alone."""
    chosen = draw(st.sampled_from(CHOICES))
    line = ["data", *chosen]
    for _ in range(draw(st.integers(1, 2))):
        key, text = draw(st.sampled_from(KEYS[tuple(chosen)])), draw(st.sampled_from(TEXTS) | st.text(max_size=8))
        option = "--" + key.rpartition(".")[2].replace("_", "-")
        forms = [[f"{key}={text}"], [f"{option}={text}"], [option, text], [option], [f"--{text}"]]
        line += draw(st.sampled_from(forms))
    return [word for word in line if not word.startswith(("--config", "--plugin", "plugin"))]


def numbers_of(values: Any) -> Iterator[int | float]:
    """Yield every number in nested values."""
    if isinstance(values, dict | list):
        for value in values.values() if isinstance(values, dict) else values:
            yield from numbers_of(value)
    elif isinstance(values, int | float):
        yield values


@pytest.mark.slow
def test_command_lines() -> None:
    """A run that is composed has only numbers that are finite and fit into 64 bits, and text that files can have."""
    counts = {"composed": 0, "refused": 0}

    @settings(max_examples=1000, phases=[Phase.generate, Phase.shrink])
    @given(command_lines())
    def check(line: list[str]) -> None:
        try:
            parsed = parse(line)
            runs = compose_course(parsed.layers, parsed.problems)
        except UserError as error:
            assert all(str(error).split("\n"))
            counts["refused"] += 1
            return
        counts["composed"] += 1
        for run in runs:
            assert all(math.isfinite(n) and (isinstance(n, float) or abs(n) < 2**63) for n in numbers_of(run.values))
            run.to_yaml().encode()

    check()
    assert min(counts.values()) > 50

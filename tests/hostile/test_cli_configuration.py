"""Configuration files and command lines of xrep-train: whatever they hold, they give a run or a line for each fault."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.hostile.fuzzing import Fuzz, files_like
from xrep.config import compose_course
from xrep.config.sections import SECTIONS, TOP_LEVEL
from xrep.errors import UserError
from xrep.registry import CRITERIA
from xrep_cli.options import DEMO_RECIPE, parse
from xrep_cli.train import main

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
        node, keys = root, [*SECTIONS, *TOP_LEVEL, *root]
        while True:
            key: Any = draw(st.sampled_from([*node, *keys] if isinstance(node, dict) else range(len(node))))
            inner = node[key] if isinstance(node, list) or key in node else None
            if not isinstance(inner, dict | list) or not inner or draw(st.booleans()):
                break
            node, keys = inner, ["name", "batch_size", "stages", "parts", "checkpoint", "init"]
        node[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return yaml.dump(root).encode("utf-8", "surrogatepass")


@pytest.mark.slow
def test_recipes(fuzz: Fuzz) -> None:
    fuzz("recipes", "c.yaml", files_like(DEMO_RECIPE.read_bytes(), PARTS, STAGES), compose_file)


@pytest.mark.slow
def test_recipes_with_values_of_other_types(fuzz: Fuzz) -> None:
    fuzz("retyped recipes", "c.yaml", retyped((DEMO_RECIPE.read_bytes(), PARTS, STAGES)), compose_file)


ALIASES = "b0: &b0 [x, x]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]\n" for n in range(1, 9))
INTERPOLATIONS = "b0: x\n" + "".join(f"b{n}: '${{b{n - 1}}}${{b{n - 1}}}'\n" for n in range(1, 40))
FILES = {
    ALIASES: "c.yaml: not a valid configuration: it has more than 10,000 values",
    INTERPOLATIONS: "it has more than 20 interpolations",
    "a: &a [*a]": "the alias 'a' stands inside of its own value",
    "task: " + "[" * 1000: "it has more than 50 levels",
    "".join(" " * n + f"a{n}:\n" for n in range(100)): "it has more than 50 levels",
    "a: " + "x" * 200_000: "it is larger than 100,000 bytes",
    "5": "not a valid configuration: Invalid loaded object type: int",
    "[1]": "is not a mapping of sections",
    "task:\n\tname: bitext": "c.yaml:2: not a valid configuration: found character",
    "task: bitext\nseed: 1\nseed: 2": "c.yaml:3: not a valid configuration: found duplicate key seed",
    "task: {name: bitext, name: nli}": "c.yaml:1: not a valid configuration: found duplicate key name",
    "seed: !!python/object/apply:os.system [ls]": "c.yaml:1: not a valid configuration: could not determine",
    "seed: !!int ''": "not a valid configuration: string index out of range",
    "seed: !!timestamp x": "not a valid configuration: 'NoneType' object",
    "seed: " + "9" * 5000: "seed" if sys.version_info < (3, 10, 7) else "not a valid configuration",
    "a: ${b}\nb: ${a}": "not a valid configuration: Recursive interpolation",
    "a: ${" + "x" * 50_000 + "}": "not a valid configuration: Interpolation key",
    "{[a]: 1}": "c.yaml:1: not a valid configuration: found unhashable key",
    "a: 1\n---\nb: 2": "c.yaml:2: not a valid configuration",
    "parts:": "parts must be a list of {task: ..., criterion: ...}",
    "stages:": "stages must be a list of the values of each stage",
}


@pytest.mark.parametrize(("text", "message"), FILES.items(), ids=range(len(FILES)))
def test_files_that_are_no_configuration(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    assert main(["--config", str(tmp_path / "c.yaml"), "--print-config"]) == 2
    errors = capsys.readouterr().err
    assert message in errors and len(errors) < 2000 and errors.count("\n") == errors.count("xrep-train: error: ")


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

"""Configurations of several parts: short forms, names, layers, problems, and YAML that gives the same run."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from xrep.config import SECTIONS, TOP_LEVEL, flat, nested, over, read_recipe, read_yaml, runs_of
from xrep.criteria.dual_moco import DualMoco
from xrep.criteria.multitask import Multitask
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.errors import ConfigError, UserError
from xrep.registry import CRITERIA, REGISTRIES
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask

TEXT = """
parts:
- {task: {name: bitext, batch_size: 16}, criterion: {name: dual_moco, queue_size: 64}}
- {task: {name: bitext, data: news}, criterion: dual_moco, weight: 0.5}
- {name: rank, task: bitext, criterion: {name: translation_ranking, temperature: 0.1}}
optimizer: {lr: 1e-3}
"""


def layer(tmp_path, text: str = TEXT, name: str = "c.yaml") -> tuple[str, dict[str, Any]]:
    (tmp_path / name).write_text(text)
    return name, read_yaml(tmp_path / name)


def problems(*layers: tuple[str, dict[str, Any]]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        runs_of(list(layers))
    return [problem.removeprefix("c.yaml: ") for problem in error.value.problems]


def test_parts_are_one_task_and_one_criterion_to_the_trainer(tmp_path):
    run = runs_of([layer(tmp_path)])[0]
    saved = nested(run.values)
    assert list(saved) == ["parts", *(s for s in SECTIONS if s not in ("task", "criterion")), *TOP_LEVEL, "mixing"]
    assert [list(part) for part in saved["parts"]] == [["name", "task", "criterion", "weight", "proportion"]] * 3
    assert run.classes["task"] is MixtureTask and run.classes["criterion"] is Multitask
    assert set(run.configs) == set(run.classes) == set(SECTIONS)
    tasks, criteria = run.configs["task"].parts, run.configs["criterion"].parts
    names = ["dual_moco", "dual_moco_2", "rank"]
    assert [part.name for part in tasks] == [part.name for part in criteria] == names
    assert [part.kind for part in tasks] == [BitextTask] * 3
    assert [part.kind for part in criteria] == [DualMoco, DualMoco, TranslationRanking]
    assert [part.config.batch_size for part in tasks] == [16, 128, 128]
    assert [part.weight for part in criteria] == [1, 0.5, 1] and [part.proportion for part in tasks] == [1, 1, 1]
    assert (criteria[0].config.queue_size, criteria[2].config.temperature) == (64, 0.1)
    assert (run.label, run.data, run.configs["task"].mixing) == ("dual_moco+dual_moco_2+rank", ["news"], "weight")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{task: {name: nli, data: a}, criterion: nli}", "nli"),
        ("{task: bitext, criterion: dual_moco}", "retrieval"),
        ("{task: {name: nli, data: a}, criterion: nli, validation: retrieval}", "retrieval"),
        ("parts: [{task: {name: nli, data: a}, criterion: nli}, {task: bitext, criterion: dual_moco}]", "retrieval"),
        ("parts: [{task: {name: nli, data: a}, criterion: nli}, {task: {name: nli, data: b}, criterion: nli}]", "nli"),
    ],
)
def test_without_a_choice_validation_fits_the_tasks(tmp_path, text, name):
    """With bitext, validation searches for translations; inference data has none."""
    run = runs_of([layer(tmp_path, text)])[0]
    assert run.values["validation.name"] == name and REGISTRIES["validation"].load(name) is run.classes["validation"]
    assert runs_of([layer(tmp_path, run.to_yaml())])[0] == run


def test_saved_parts_give_the_same_run(tmp_path):
    run = runs_of([layer(tmp_path, TEXT + "mixing: proportion\n"), ("", {"parts": {"rank": {"proportion": 3}}})])[0]
    again = runs_of([layer(tmp_path, run.to_yaml(), "saved.yaml")])[0]
    assert again == run and again.to_yaml() == run.to_yaml()
    assert flat(yaml.safe_load(run.to_yaml())) == run.values
    single = runs_of([layer(tmp_path, "{task: bitext, criterion: dual_moco}")])[0]
    assert runs_of([layer(tmp_path, single.to_yaml())])[0] == single and single.label == "bitext-dual_moco"
    assert single.data == [] and "parts" not in single.values


def test_a_list_replaces_parts_and_a_mapping_changes_them(tmp_path):
    lower = layer(tmp_path)[1]
    changed = over(lower, flat({"parts": {"rank": {"weight": 2, "criterion": {"temperature": 1}}}}))
    assert changed == {**lower, "parts.rank.weight": 2, "parts.rank.criterion.temperature": 1}
    other = over(lower, flat({"parts": {"dual_moco": {"criterion": "translation_ranking"}}}))
    assert "parts.dual_moco.criterion.queue_size" not in other
    assert over(lower, flat({"parts": [{"name": "new"}]})) == {"parts": ["new"], "optimizer.lr": 1e-3}


def test_all_problems_of_all_parts_are_told_together(tmp_path):
    text = """
    mixing: both
    parts:
    - {task: {name: bitext, batch_size: 0}, criterion: {name: dual_moco, momentum: 7, alpha: 1}}
    - {name: rank, task: {name: bitex}, criterion: translation_ranking, wieght: 2, weight: -1, proportion: x}
    - {name: none, task: bitext}
    seed: -1
    """
    found = problems(layer(tmp_path, text))
    assert [line.partition("; known: ")[0] for line in found] == [
        "parts.dual_moco.task.batch_size must be at least 1, not 0",
        "parts.dual_moco.criterion.momentum must lie in [0, 1], not 7.0",
        "parts.rank.task: unknown task 'bitex'; did you mean 'bitext'?",
        f"no parts.none.criterion is chosen; set `parts.none.criterion` to one of {', '.join(CRITERIA.names())}",
        "parts.rank.weight must be above 0, not -1.0",
        "parts.rank.proportion must be a finite number or none, not 'x'",
        "seed must lie in [0, 4294967295], not -1",
        "mixing must be weight or proportion, not 'both'",
        "unknown key parts.dual_moco.criterion.alpha",
        "unknown key parts.rank.wieght; did you mean 'weight'?",
    ]
    changes = "my.yaml", {"parts": {"rnk": {"weight": 1}}}
    assert problems(layer(tmp_path), changes) == [
        "my.yaml: unknown key parts.rnk.weight; did you mean 'parts.rank.weight'?"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "task: bitext\n", "a run has either parts or one task and criterion, but task is given beside parts"),
        ("parts: [3]", "parts must be a list of the values of each item: [{task: ..., criterion: ...}, ...]"),
        ("parts: [{name: a.b, task: bitext, criterion: dual_moco}]",
         "'a.b' cannot be one of the parts; use letters, digits and _"),
        ("parts: [{name: a, task: bitext, criterion: dual_moco}, {name: a, task: bitext, criterion: dual_moco}]",
         "two parts are named 'a'; rename one"),
        ("parts: [{name: training, task: bitext, criterion: dual_moco}]",
         "'training' cannot be the name of a part: torch has it; choose another"),
        ("parts: [{task: bitext, criterion: dual_moco, proportion: 2}]",
         "parts.dual_moco.proportion is given, but mixing is weight; set mixing to proportion"),
        ("parts: [{task: bitext, criterion: dual_moco, proportion: 0}]\nmixing: proportion",
         "parts.dual_moco.proportion must be above 0, not 0.0"),
    ],
)  # fmt: skip
def test_what_parts_may_not_be(tmp_path, text, message):
    assert problems(layer(tmp_path, text)) == [message]


@pytest.mark.parametrize(("options", "expected"), [
    ("size: small", (64, 4096, 0.997, 0.5)),
    ("trainer: {device: cpu}", (64, 4096, 0.997, 0.5)),  # its size is small, too
    ("size: base", (64, 409_600, 0.999, 0.5)),
    ("size: small\nmodel: {layers: 2}", (64, 409_600, 0.999, 0.5)),  # a size that is given by number
])  # fmt: skip
def test_a_size_reaches_the_criteria_of_parts(tmp_path, options, expected):
    """Below what a part or an upper layer says itself."""
    command = ("command line", {"parts": {"dual_moco": {"criterion": {"momentum": 0.5}}}})
    criteria = runs_of([layer(tmp_path, TEXT + options), command])[0].configs["criterion"].parts
    first, second, rank = (part.config for part in criteria)
    assert (first.queue_size, second.queue_size, second.momentum, first.momentum) == expected
    assert rank.temperature == 0.1


BASE = """
task: {name: bitext, data: a, batch_size: 16}
criterion: {name: dual_moco, queue_size: 64}
optimizer.lr: 1e-4
"""


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("optimizer.lr: 1e-3", {"optimizer.lr": 1e-3, "criterion.queue_size": 64, "task.batch_size": 16}),
        ("task: {data: b}\ncriterion: translation_ranking", {"task.data": "b", "task.batch_size": 16}),
        (
            "parts: [{name: moco}, {name: rank, weight: 0.5, criterion: {name: translation_ranking}}]",
            {"parts.moco.criterion.queue_size": 64, "parts.rank.task.data": "a", "parts.rank.weight": 0.5},
        ),
        ("stages: [{parts: [moco], seed: 2}]", {"parts": ["moco"], "parts.moco.criterion.queue_size": 64, "seed": 2}),
    ],
)
def test_a_file_lies_over_its_base(tmp_path, own: str, expected: dict[str, Any]) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "c.yaml").write_text(f"base: base.yaml\n{own}\n")
    (run,) = runs_of([("c.yaml", read_recipe(tmp_path / "c.yaml"))])
    assert {key: run.values[key] for key in expected} == expected


def test_a_stage_takes_parts_of_the_course_by_name(tmp_path) -> None:
    text = TEXT + "stages: [{name: a, parts: [rank]}, {name: b}, {name: c, parts: [{name: rank, weight: 0.1}]}]"
    first, second, third = runs_of([layer(tmp_path, text)])
    assert [run.values["parts"] for run in (first, second, third)] == [["rank"], second.values["parts"], ["rank"]]
    assert len(second.values["parts"]) == 3 and [
        first.values["parts.rank.weight"],
        third.values["parts.rank.weight"],
    ] == [1, 0.1]
    assert third.values["parts.rank.criterion.temperature"] == 0.1


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("c.yaml", "c.yaml: is its own base; name another base"),
        (
            "moco_bert/en-hz",
            "moco_bert/en-hz: no such file or recipe; did you mean 'moco_bert/en-zh'? (xrep recipes lists",
        ),
        ("[a]", r"c.yaml: base \['a'\] is no name; write for example"),
    ],
)
def test_a_base_that_is_none(tmp_path, base: str, problem: str) -> None:
    (tmp_path / "c.yaml").write_text(f"base: {base}\n")
    with pytest.raises(UserError, match=problem.replace("(", r"\(").replace("?", r"\?")):
        read_recipe(tmp_path / "c.yaml")

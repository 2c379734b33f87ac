"""Options are read from source text, converted, merged and composed, and all problems are reported together."""

import dataclasses
from typing import Annotated, Literal

import pytest

from xrep.config import (
    SECTIONS,
    TOP_LEVEL,
    convert,
    flat,
    nested,
    over,
    read_fields,
    read_yaml,
    runs_of,
    to_yaml,
)  # fmt: skip
from xrep.config.fields import Count, Positive, Share, fields_of_class, problems_of, type_in_words
from xrep.errors import ConfigError, UserError
from xrep.registry import FIXED_SECTIONS, REGISTRIES

CHOSEN = ("file", {"task": {"name": "bitext"}, "criterion": {"name": "dual_moco"}})
PARTS = [registry for kind, registry in REGISTRIES.items() if kind not in ("encoder", "format", "predictor")]
TARGETS = [f"{registry.target(name)}.Config" for registry in PARTS for name in registry.names()]
TARGETS += [f"{target}.Config" for target in FIXED_SECTIONS.values()]
TARGETS += [f"xrep.config.sections:{name}" for name in ("RunOptions", "MixtureOptions", "PartOptions")]


@pytest.mark.parametrize("target", TARGETS)
def test_every_option_has_a_help_and_a_default_of_its_type(target):
    for spec in read_fields("x", target):
        assert spec.help.endswith(".") and len(spec.help) > 10, f"{target}: {spec.name} has no help"
        if spec.default is not dataclasses.MISSING:
            assert convert(spec.default, spec.annotation) == spec.default


THEIRS = '''
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["a", "b"]

@dataclass(kw_only=True)
class Options:
    size: int
    """How
    large."""
    mode: Mode | None = None
    sizes: list[int] = field(default_factory=lambda: [1])
    """Which sizes."""
'''


def test_any_dataclass_has_options(tmp_path, monkeypatch):
    (tmp_path / "their_options.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    specs = read_fields("", "their_options:Options")
    assert [(s.key, s.default, s.help) for s in specs] == [
        ("size", dataclasses.MISSING, "How large."), ("mode", None, ""), ("sizes", [1], "Which sizes."),
    ]  # fmt: skip
    assert [type_in_words(spec.annotation) for spec in specs] == ["an integer", "a, b or none", "a list of integers"]
    assert type_in_words(list[Literal["x", "y"]]) == "a list of x or y"


@pytest.mark.parametrize("target", ["xrep.config.resolve:RunConfig2", "xrep.config.nowhere:A", "fractions:Fraction"])
def test_what_has_no_options(target):
    with pytest.raises(UserError, match=f"{target} (cannot be loaded|is not a dataclass)"):
        read_fields("", target)


@pytest.mark.parametrize(("value", "annotation", "expected"), [
    ("65536", int, 65536), ("1e5", int, 100_000), (3.0, int, 3), ("-5", int, -5),
    ("9007199254740993", int, 9007199254740993), ("2e-5", float, 2e-5),
    (1, float, 1.0), ("yes", bool, True), ("off", bool, False),
    (0, bool, False), ("none", int | None, None), (None, str | None, None), ("7", int | None, 7),
    ("a,b", list[str], ["a", "b"]),
    (["a,b"], list[str], ["a,b"]), ("[0.9, 0.98]", list[float], [0.9, 0.98]),
    ('["a", "b c"]', list[str], ["a", "b c"]),
    ("", list[str], []), ("cuda", Literal["auto", "cuda"], "cuda"), ("2", Literal[1, 2], 2),
    ("1.10", str, "1.10"), ("none", Literal["target", "none"], "none"), (None, Literal["target", "none"], "none"),
    ("none", Literal["a"] | None, None),
])  # fmt: skip
def test_conversion(value, annotation, expected):
    converted = convert(value, annotation)
    assert converted == expected and type(converted) is type(expected)


@pytest.mark.parametrize(("value", "annotation"), [
    ("abc", int), ("1.5", int), (True, int), ("inf", int), ("nan", int | None), ([1], int),
    ({}, float),
    ("maybe", bool), (None, int), ("tpu", Literal["auto", "cuda"]), (5, list[int]), ("1,x", list[int]),
    ({"a": 1}, str), ({}, list[str]),
])  # fmt: skip
def test_what_cannot_be_converted_is_refused(value, annotation):
    with pytest.raises(ValueError, match="must be"):
        convert(value, annotation)


def test_text_that_yaml_reads_as_something_else_is_refused(tmp_path):
    """1.10 would be the folder 1.1, 010 the folder 8, and the language no is false."""
    for text, kind in (("1.10", str), ("010", str | None), ("no", str), ("[de, no]", list[str]), ("1:30", str)):
        (tmp_path / "c.yaml").write_text(f"key: {text}")
        with pytest.raises(ValueError, match="must be a .*; put it in quotes"):
            convert(read_yaml(tmp_path / "c.yaml")["key"], kind)


def test_an_option_has_one_value_in_a_file(tmp_path):
    for text in ("optimizer: {lr: 1}\noptimizer.lr: 2", "task: nli\ntask.name: bitext", "a: {b: {c: 1}}\na.b.c: 1"):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(UserError, match="(optimizer.lr|task.name|a.b.c) is given twice; leave one of them out"):
            read_yaml(tmp_path / "c.yaml")
    (tmp_path / "c.yaml").write_text("validation: {validate_with: [sts], name: several}\nvalidation.sts_split: test")
    assert read_yaml(tmp_path / "c.yaml")["validation.name"] == "several"


def test_what_starts_from_trained_weights_is_not_trained_like_a_small_encoder():
    def chosen(**values):
        student = {"criterion.name": "frozen_source", "task.name": "bitext", "trainer.device": "cpu"}
        values = {key.replace("_", ".", 1): value for key, value in values.items()}
        run = runs_of([("command line", student | values)])[0].values
        return run["optimizer.lr"], run["model.dropout"], run["trainer.max_epochs"], run["model.encoder"]

    small, default = (3e-3, 0.0, 8.0, None), (5e-4, 0.1, None)
    assert chosen(model_towers="shared") == chosen(model_encoder="none") == chosen(criterion_teacher="a") == small
    assert chosen(model_encoder="a") == chosen(model_towers="shared", criterion_teacher="a") == (*default, "a")
    assert chosen(model_towers="shared", criterion_teacher="a", model_encoder="none") == small
    bounded = chosen(trainer_max_steps="none"), chosen(trainer_max_steps="5"), chosen(trainer_max_epochs="none")
    assert [epochs for _, _, epochs, _ in bounded] == [8.0, None, None]


def test_a_part_of_another_name_forgets_the_options_of_the_old_one():
    lower = {"criterion.name": "dual_moco", "criterion.queue_size": 8, "seed": 1}
    assert over(lower, {"criterion.queue_size": 9}) == {**lower, "criterion.queue_size": 9}
    assert over(lower, {"criterion.name": "dual_moco", "seed": 2}) == {**lower, "seed": 2}
    assert over(lower, {"criterion.name": "simcse"}) == {"criterion.name": "simcse", "seed": 1}
    # One that is named later keeps the options given before.
    named = {"criterion.name": "dual_moco"}
    assert over({"criterion.queue_size": 9}, named) == {"criterion.queue_size": 9, **named}


def test_nested_values_are_a_layer_and_the_other_way_round():
    values = {
        "task": {"name": "bitext"},
        "parts": [{"name": "a", "criterion": {"name": "mlm", "betas": [1, 2]}, "weight": 2}],
        "stages": [{"name": "1", "seed": 3}, {"name": "b", "parts": [{"name": "c", "weight": 1}]}],
    }
    layer = {
        "task.name": "bitext", "parts": ["a"], "parts.a.criterion.name": "mlm", "parts.a.criterion.betas": [1, 2],
        "parts.a.weight": 2, "stages": ["1", "b"], "stages.1.seed": 3, "stages.b.parts": ["c"],
        "stages.b.parts.c.weight": 1,
    }  # fmt: skip
    short = {**values, "task": "bitext", "stages": [{"seed": 3}, values["stages"][1]]}
    assert flat(values) == flat(short) == flat(layer) == layer and nested(layer) == values


def test_later_layers_win():
    layers = [
        ("a.yaml", {"criterion": {"name": "dual_moco", "queue_size": 8, "momentum": 0.5}, "task": {"name": "bitext"}}),
        ("b.yaml", {"criterion": {"queue_size": 9}, "seed": 5}),
        ("command line", {"criterion": {"queue_size": "10"}, "optimizer": {"lr": "1e-3"}}),
    ]
    run = runs_of(layers)[0]
    assert (run.configs["criterion"].queue_size, run.configs["criterion"].momentum) == (10, 0.5)
    assert (run.seed, run.configs["optimizer"].lr, run.configs["optimizer"].weight_decay) == (5, 1e-3, 1e-4)
    assert list(nested(run.values)) == [*SECTIONS, *TOP_LEVEL]


def test_all_problems_are_told_together():
    wrong = {
        "criterion": {"queue_size": -5, "temperature": "hot", "momentun": 0.9},
        "checkpoint": 5,
        "optimiser": {"lr": 1},
        "momentum": 0.9,
        "optimizer": {"lr": "high", "lr_multipliers": ["x"]},  # the name of one option is in that of the other
        "lr_scheduler": {"name": "cosin"},
        "seed": -1,
        "plugins": {"a": 1},
    }
    with pytest.raises(ConfigError) as error:
        runs_of([CHOSEN, ("my.yaml", wrong)], ["unknown option --foo"])
    cut = [problem.partition("; known: ")[0] for problem in error.value.problems]
    assert cut == [
        "unknown option --foo",
        "my.yaml: criterion.queue_size must be at least 0, not -5",
        "my.yaml: criterion.temperature must be a finite number, not 'hot'",
        "my.yaml: optimizer.lr must be a finite number, not 'high'",
        "my.yaml: optimizer.lr_multipliers must be PATTERN=FACTOR with a factor of at least 0, not 'x'",
        "unknown lr_scheduler 'cosin'; did you mean 'cosine'?",
        "my.yaml: seed must lie in [0, 4294967295], not -1",
        "my.yaml: unknown key criterion.momentun; did you mean 'momentum'?",
        "my.yaml: checkpoint must be a mapping of options, not 5",
        "my.yaml: unknown key optimiser.lr; did you mean 'optimizer.lr'?",
        "my.yaml: unknown key momentum; did you mean 'criterion.momentum'?",
        "my.yaml: unknown key plugins.a; did you mean 'plugins'?",
    ]


@pytest.mark.parametrize(
    "text",
    ["1e3", ".5", "0x1f", "1_000", "yes", "null", "~", "-", "2024-01-01", "a: b", "ü #x", "${x", "a\\${b}", "'", "+3",
     ".inf"],
)  # fmt: skip
def test_text_stays_text_in_saved_yaml(text, tmp_path):
    (tmp_path / "c.yaml").write_text(to_yaml({"checkpoint": {"save_dir": text}}), encoding="utf-8")
    assert read_yaml(tmp_path / "c.yaml") == {"checkpoint.save_dir": text}


@pytest.mark.parametrize("number", [1e-5, 3e-4, 1e16, 2**62, 0.1 + 0.2, 5.0])
def test_numbers_stay_numbers_in_saved_yaml(number, tmp_path):
    (tmp_path / "c.yaml").write_text(to_yaml({"optimizer": {"lr": number}}), encoding="utf-8")
    read = read_yaml(tmp_path / "c.yaml")["optimizer.lr"]
    assert read == number and type(read) is type(number)


@pytest.mark.parametrize("content", [b"\xff\xfe\xff", b"a: ${nowhere}", b"x: !!python/object/apply:os.getcwd []"])
def test_a_file_that_is_no_configuration(content, tmp_path):
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(UserError, match="not a valid configuration") as error:
        read_yaml(tmp_path / "c.yaml")
    assert str(error.value).startswith(f"{tmp_path / 'c.yaml'}:") and "\n" not in str(error.value)


def test_a_short_file(tmp_path):
    (tmp_path / "c.yaml").write_text("task: bitext\ntrainer: {max_steps: 1e4}\n")
    assert read_yaml(tmp_path / "c.yaml") == {"task.name": "bitext", "trainer.max_steps": 1e4}
    (tmp_path / "c.yaml").write_text("")
    assert read_yaml(tmp_path / "c.yaml") == {}


@dataclasses.dataclass
class Ranged:
    ratio: "Share | None" = None
    count: Count = 1

    def problems(self):
        return ["count is odd"] if self.count % 2 else []


def test_a_range_is_checked_and_told():
    assert [spec.help for spec in fields_of_class("", Ranged)] == ["It must lie in [0, 1].", "It must be at least 1."]
    assert (convert("0.5", Share | None), convert(None, Share | None), convert("3", Count)) == (0.5, None, 3)
    assert convert("auto", Literal["auto"] | Positive) == "auto"
    assert convert("[0.5, 1]", Annotated[list[float], "(0, 1]"]) == [0.5, 1.0]
    for value, kind, message in (
        (2, Share, "must lie in [0, 1], not 2.0"), (0, Count, "must be at least 1, not 0"),
        (0, Literal["auto"] | Positive, "must be above 0, not 0.0"), ("x", Count, "must be an integer, not 'x'"),
        ([2.0], Annotated[list[float], "[0, 1)"], "must lie in [0, 1), not [2.0]"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            convert(value, kind)
        assert str(error.value) == message
    assert problems_of(Ranged(ratio=2.0)) == ["ratio must lie in [0, 1], not 2.0", "count is odd"]

"""Each stage is a run in its own folder, which starts from the stage before; the command line overrides all stages."""

from typing import Any

import pytest

from xrep.config import read_yaml, runs_of, to_configuration
from xrep.errors import ConfigError
from xrep_cli.train_options import parse

TEXT = """
task: {name: bitext, data: text}
criterion: {name: dual_moco, queue_size: 64}
trainer: {max_steps: 10, clip_norm: 1.0}
init: start
stages:
- {}
- name: rank
  criterion: translation_ranking
  trainer: {max_steps: 20}
- name: both
  init: previous/last
  parts:
  - {task: bitext, criterion: dual_moco}
  - {name: b, task: bitext, criterion: translation_ranking}
- {name: fresh, init: none, criterion: {momentum: 0.5}}
"""


@pytest.fixture
def course(tmp_path):
    """``course(*arguments)`` returns the runs of TEXT with these arguments on the command line."""
    (tmp_path / "course.yaml").write_text(TEXT)

    def read(*arguments: str) -> list[Any]:
        line = parse(["--config", str(tmp_path / "course.yaml"), *arguments])
        return runs_of(line.layers, line.problems)

    return read


def problems(course, *arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        course(*arguments)
    return error.value.problems


def test_stages_are_runs_over_the_common_values(course):
    runs = course("--save-dir", "out")
    assert [run.stage for run in runs] == ["1", "rank", "both", "fresh"]
    assert [run.configs["checkpoint"].save_dir for run in runs] == ["out/1", "out/rank", "out/both", "out/fresh"]
    assert [run.init for run in runs] == ["start", "out/1/best", "out/rank/last", None]
    assert [run.configs["trainer"].max_steps for run in runs] == [10, 20, 10, 10]
    assert all(run.configs["trainer"].clip_norm == 1 for run in runs)
    labels = ["bitext-dual_moco", "bitext-translation_ranking", "dual_moco+b", "bitext-dual_moco"]
    assert [run.label for run in runs] == labels
    assert [run.data for run in runs] == [["text"], ["text"], [], ["text"]]
    assert (runs[3].configs["criterion"].momentum, runs[3].configs["criterion"].queue_size) == (0.5, 64)
    assert not any(key.startswith(("task.", "criterion.")) for key in runs[2].values)
    assert course()[1].init == "runs/bitext-dual_moco+bitext-translation_ranking+dual_moco+b/1/best"


def test_the_command_line_goes_over_every_stage_that_has_the_option(course):
    runs = course(
        "--max-steps", "5", "stages.rank.trainer.max_steps=7", "--stages.both.parts.b.criterion.temperature", "0.5",
        "criterion.queue_size=32", "stages.both.parts.dual_moco.criterion.queue_size=16", "--init", "elsewhere",
        "stages.fresh.init=x",
        "stages.1.criterion=translation_ranking", "--stages.rank.task.exclude", "p", "stages.rank.task.exclude=q",
    )  # fmt: skip
    assert [run.configs["trainer"].max_steps for run in runs] == [5, 7, 5, 5]
    assert [run.init for run in runs][::3] == ["elsewhere", "x"]
    assert runs[1].init.endswith("/1/best")
    assert [run.label for run in runs[:2]] == ["bitext-translation_ranking"] * 2
    assert runs[3].configs["criterion"].queue_size == 32
    both = runs[2].configs["criterion"].parts
    assert (both[0].config.queue_size, both[1].config.temperature) == (16, 0.5)
    assert [run.configs["task"].exclude for run in (runs[0], runs[1])] == [[], ["p", "q"]]
    names = [
        run.values["criterion.name"] for run in course("--criterion", "translation_ranking") if run.stage != "both"
    ]
    assert names == ["translation_ranking"] * 3


@pytest.mark.slow
def test_a_printed_course_gives_itself_again(course, tmp_path):
    runs = course("--save-dir", "1e3/x", "--max-steps", "5", "criterion.queue_size=32")
    printed = to_configuration(runs)
    (tmp_path / "printed.yaml").write_text(printed)
    again = runs_of([("printed.yaml", read_yaml(tmp_path / "printed.yaml"))])
    assert again == runs and to_configuration(again) == printed
    # A stage saves the configuration of a run without stages.
    for run in runs:
        (tmp_path / "saved.yaml").write_text(run.to_yaml())
        alone = runs_of([("saved.yaml", read_yaml(tmp_path / "saved.yaml"))])[0]
        assert alone.values == run.values and alone.stage == ""


def test_a_run_without_stages_is_a_course_of_one():
    layers = [("", {"task": {"name": "bitext"}, "criterion": {"name": "dual_moco"}, "init": "previous/best"})]
    (run,) = runs_of(layers)
    assert (run.stage, run.values["checkpoint.save_dir"], run.init) == ("", None, "previous/best")
    assert to_configuration([run]) == run.to_yaml()


def test_problems_of_all_stages_are_told_together_and_once(course):
    found = problems(
        course, "--max-steps", "many", "stages.rank.criterion.queue_size=9",
        "stages.fresh.checkpoint.save_dir=here", "stages.both.parts.b.weight=-2",
    )  # fmt: skip
    assert found == [
        "stages.fresh.checkpoint.save_dir is given, but a stage trains in SAVE_DIR/NAME; "
        "set checkpoint.save_dir of the whole course",
        "trainer.max_steps must be an integer or none, not 'many'",
        "stage rank: unknown key criterion.queue_size; known: name, matryoshka, mask_margin, "
        "mask_margin_relative, guide, guide_text, temperature, "
        "mask_equal_sentences, cross_rank_negatives, margin, directions",
        "stage both: parts.b.weight must be above 0, not -2.0",
    ]
    assert problems(course, "stages.bth.seed=1") == [
        "unknown option --stages.bth.seed; did you mean '--stages.both.seed'?"
    ]


@pytest.mark.parametrize(("stages", "message"), [
    ("[]", "stages must be a list of the values of each item: [{task: ..., criterion: ...}, ...]"),
    ("{a: {seed: 1}}", "there is no stage 'a'; list the stages in a configuration file"),
    ("[{name: best}]", "'best' cannot be one of the stages; use letters, digits and _"),
    ("[{name: a}, {name: a}]", "two stages are named 'a'; rename one"),
    ("[{stages: [{}]}]", "c.yaml: unknown key stages; known: "),
])  # fmt: skip
def test_what_stages_may_not_be(tmp_path, stages, message):
    (tmp_path / "c.yaml").write_text(f"task: bitext\ncriterion: dual_moco\nstages: {stages}\n")
    with pytest.raises(ConfigError) as error:
        runs_of([("c.yaml", read_yaml(tmp_path / "c.yaml"))])
    assert [problem[: len(message)] for problem in error.value.problems] == [message]


def test_a_stage_without_a_name_has_one_that_is_free(tmp_path):
    (tmp_path / "c.yaml").write_text("task: bitext\ncriterion: dual_moco\nstages: [{name: '2'}, {}]\n")
    assert [run.stage for run in runs_of([("c.yaml", read_yaml(tmp_path / "c.yaml"))])] == ["2", "2_2"]

"""The table of XTREME: which task is measured by which run, and how its score is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.encoders import write_encoder
from xrep.errors import UserError
from xrep.evaluation.evaluation import Figures
from xrep.evaluation.xtreme import parse_runs, task_score
from xrep_cli import eval


def test_runs_are_named_by_task() -> None:
    assert parse_runs("xnli=a/best, qa=b/best") == {
        "xnli": "a/best", "xquad": "b/best", "mlqa": "b/best", "tydiqa": "b/best"
    }  # fmt: skip
    for wrong in ("xnli", "xnli=", "tatoeba=a", "sts=a"):
        with pytest.raises(UserError, match="the tasks are xnli, pawsx, pos, ner, xquad, mlqa, tydiqa"):
            parse_runs(wrong)


def test_scores_of_tasks() -> None:
    answers = {"languages": {"de": {"f1": 60.0, "exact_match": 40.0}, "en": {"f1": 80.0, "exact_match": 60.0}}}
    figures = Figures(text="", values=answers, headline={"f1, mean of 2": 70.0}, settings={})
    assert task_score("xquad", figures) == 60 and task_score("ner", figures) == 70


@pytest.mark.slow
def test_the_table_of_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_encoder(tmp_path / "encoder")
    data = tmp_path / "xtreme" / "tatoeba"
    data.mkdir(parents=True)
    for language, lines in (("deu", "der Koch\ndie Katze\n"), ("eng", "the cook\nthe cat\n")):
        (data / f"tatoeba.deu-eng.{language}").write_text(lines, encoding="utf-8")
    line = ["xtreme", "--data", str(tmp_path / "xtreme"), "--retrieval", str(tmp_path / "encoder")]
    assert eval.main(line) == 0
    table = capsys.readouterr().out
    assert "tatoeba" in table and "average" not in table
    assert "not measured, without data or a run: xnli, pawsx, pos, ner, xquad, mlqa, tydiqa, bucc" in table
    assert eval.main([*line, "--layer", "7"]) == 2
    assert "--layer 7 of an encoder of 1 layers; choose one of 0 to 1" in capsys.readouterr().err
    assert eval.main([*line, "--layer", "0"]) == 0
    assert eval.main(["xtreme", "--data", str(tmp_path / "xtreme")]) == 2
    assert "no task has both data and a run; name runs with --paths" in capsys.readouterr().err

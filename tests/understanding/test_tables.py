"""Tables of annotated text: they are built once, from all of its files."""

from pathlib import Path

import pytest

from xrep.understanding.classifier import Annotation
from xrep.understanding.labels import ClassificationTask


def test_labels_in_a_file_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sentences of both sides and their labels are in three files, and read again when one of them has changed."""

    def built() -> tuple[list[str], int, bool]:
        task = ClassificationTask(ClassificationTask.Config(data=str(tmp_path), vocab_size=30), seed=1)
        said = "train: 40 examples, 40 sequences\n" in capsys.readouterr().out
        return Annotation.of(task.text).labels, task.examples, said

    for name in ("s1.train", "s2.train"):
        (tmp_path / name).write_text("".join(f"ein Satz mit der Zahl {n}\n" for n in range(40)), encoding="utf-8")
    (tmp_path / "labels.train").write_text("a\nb\n" * 20, encoding="utf-8")
    assert built() == (["a", "b"], 40, True) and built() == (["a", "b"], 40, False)
    (tmp_path / "labels.train").write_text("a\nb\nc\nd\n" * 10, encoding="utf-8")
    assert built() == (["a", "b", "c", "d"], 40, True)

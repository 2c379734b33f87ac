"""The tasks of annotated text: what their vocabulary is trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.annotated import write_labels
from xrep.tasks.annotated import ClassificationTask


def test_a_new_dev_split_gives_another_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a dev split nothing is held out, so that the vocabulary is trained on all of the training text."""

    def vocabulary() -> dict[str, bytes]:
        options = {"data": str(text), "languages": ["de"], "dev_share": 0.5, "vocab_size": 45}
        task = ClassificationTask(ClassificationTask.Config(**options), seed=1)
        sizes.append((task.examples, len(task.dev_examples)))
        task.tokenizers["shared"].save(tmp_path / str(len(sizes)))
        return {file.name: file.read_bytes() for file in (tmp_path / str(len(sizes))).iterdir()}

    sizes: list[tuple[int, int]] = []
    text = write_labels(tmp_path / "text")
    dev = (text / "dev-de.tsv").rename(tmp_path / "dev-de.tsv")
    half = vocabulary()
    dev.rename(text / "dev-de.tsv")
    whole = vocabulary()
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "elsewhere"))
    assert whole == vocabulary() != half
    (train, held_out), now, _ = sizes
    assert held_out > 50 and now == (train + held_out, 40)

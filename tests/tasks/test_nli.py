"""What is particular to the task nli: triplets, sides, and what it keeps."""

from pathlib import Path

import pytest
import torch

from tests.support.nli_data import write_simcse
from tests.tasks.kinds import KINDS, NLI, first, rows_of


def test_triplets(texts: Path, data_directory: Path, tmp_path: Path) -> None:
    of_premise: dict[str, dict[str, str]] = {}
    for premise, hypothesis, label in NLI:
        of_premise.setdefault(premise, {})[label] = hypothesis
    expected = {(premise, own["entailment"], own["contradiction"]) for premise, own in of_premise.items()}
    file = write_simcse(tmp_path / "nli_for_simcse.csv", sorted(expected))
    for data in (texts / "nli", file):
        task = KINDS["nli"].make(texts, data_directory, data=str(data), form="triplets")
        batch = task.make(first(100))
        assert task.examples == 100 and {row[3:] for row in rows_of(task, batch)} == expected
        assert batch.labels.tolist() == [-1] * 100 and batch.ids.shape == (100, 3)
    assert list(task.validation_batches()) == [] and not task.has_validation


@pytest.mark.parametrize("form", ["pairs", "triplets"])
def test_languages_are_on_their_sides(texts: Path, data_directory: Path, form: str) -> None:
    task = KINDS["nli, two languages"].make(texts, data_directory, form=form)
    assert (task.text.source_languages, task.text.target_languages) == (["de"], ["en"])
    batch = task.make(first(task.examples))
    border = len(batch.source)
    assert 0 < border < batch.places.numel() and torch.equal(batch.languages, (batch.places >= border).long())
    assert all(side.tokens.size(1) == int(side.lengths.max()) for side in batch.rows(2, 3).sides.values() if len(side))
    alone = KINDS["nli"].make(texts, data_directory)
    assert len(alone.make(first(5)).source) == 0 and alone.text.source_languages == []
    every = KINDS["nli, two languages"].make(texts, data_directory, target_languages=[])
    assert (every.text.source_languages, every.text.target_languages) == (["de", "en"], [])

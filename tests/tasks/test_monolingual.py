"""What is particular to the task monolingual: neighbours, orders of tokens, and sentences that are excluded."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.nli_data import write
from tests.support.planning import streamed
from tests.tasks.kinds import (
    ENGLISH,
    GERMAN,
    KINDS,
    VALID,
    flat,
    hashes_of,
    neighbours,
    rows_of,
    sequences,
    write_documents,
)
from xrep.data import build
from xrep.errors import UserError
from xrep.tasks.monolingual import MonolingualTask
from xrep.text.cleaning import sentence_hash

ALL = [*neighbours(GERMAN), *neighbours(ENGLISH)]


@pytest.fixture
def make(texts: Path, data_directory: Path) -> Callable[..., MonolingualTask]:
    """``make(units="adjacent", batch_size=7)`` returns the task with the tokenizer of ``data_directory``."""
    return lambda **options: KINDS["sentences"].make(texts, data_directory, **options)


def epochs(task: MonolingualTask, count: int) -> list[list[Any]]:
    """Return the sequences (``sequences``) of each epoch, in the order of their indices."""
    found = []
    for number in range(count):
        first, last = number * task.examples, (number + 1) * task.examples
        found.append(sorted(row for batch, _ in streamed(task, cursor=first, stop=last) for row in sequences(batch)))
    return found


def test_half_of_the_neighbours_are_swapped_anew_in_each_epoch(make) -> None:
    plain = dict(epochs(make(units="adjacent", swap_order=False), 1)[0])
    swapped = []
    for epoch in epochs(make(units="adjacent"), 2):
        assert all(row in (plain[index], plain[index][::-1]) for index, row in epoch)
        swapped.append({index for index, row in epoch if row != plain[index]})
        assert 0.4 < len(swapped[-1]) / len(plain) < 0.6
    assert swapped[0] != swapped[1]


def test_tokens_are_reordered_anew_in_each_epoch(make) -> None:
    first, second = epochs(make(units="reordered"), 2)
    for index, (before, after) in first:
        assert (before[0], before[-1]) == (after[0], after[-1]) and sorted(before) == sorted(after), index
    moved = [one != other for _, (before, after) in first for one, other in zip(before, after, strict=True)]
    assert 0.6 < np.mean(moved) < 0.95  # bos and eos stay, and some tokens stay in place by chance
    assert np.mean([one[1] != other[1] for (_, one), (_, other) in zip(first, second, strict=True)]) > 0.99


def test_every_order_is_as_likely(make) -> None:
    """Chi square of the 24 orders of four tokens: 1 in 1000 is above 49.7."""
    task = make(units="reordered", max_length=6)
    row = next(index for index, (own, _) in epochs(task, 1)[0] if index < 400 and len({*own}) == 6)
    batch = task.make(np.array([[0, row, number] for number in range(24_000)]))
    counts = Counter(map(tuple, batch.target.tokens[:, 1:5].tolist()))
    assert len(counts) == 24 and sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 50


def test_evaluation_sets_are_dropped(make, texts: Path, tmp_path: Path) -> None:
    """The sentences before and after a dropped sentence are not neighbours, and the dev split is not trained on."""
    inner = next(document for document in GERMAN if len(document) > 3)
    excluded = write(tmp_path / "tatoeba.tsv", [f"x\t{inner[1].upper()}!", VALID[0][0]])
    task = make(exclude=[str(excluded)], units="adjacent", batch_size=10, swap_order=False)
    found = [row[2:] for batch, _ in streamed(task, stop=task.examples) for row in rows_of(task, batch)]
    assert Counter(found) == Counter(set(ALL) - set(pairwise(inner[:3])))
    kept = set(flat(GERMAN) + flat(ENGLISH)) - {inner[1]}
    assert hashes_of(task) == {sentence_hash(text) for text in kept}
    write_documents(tmp_path / "train.de", [[VALID[0][0], "ein anderer Satz", "noch einer"]])
    write_documents(tmp_path / "valid.de", VALID)
    small = make(data=str(tmp_path), batch_size=1)
    assert small.examples == 2 and small.fingerprint() != task.fingerprint()
    with pytest.raises(UserError, match="no training text is left; check the text and `exclude`"):
        make(data=str(tmp_path), exclude=[str(tmp_path / "train.de")])


@pytest.mark.slow
def test_text_is_kept_and_found_again(make, monkeypatch, tmp_path: Path, capsys) -> None:
    """It is written in chunks whose borders cross documents, where sentences are dropped."""
    inner = [document[1] for document in GERMAN if len(document) > 3]
    options = {"units": "adjacent", "exclude": [str(write(tmp_path / "excluded" / "a.txt", inner))]}
    prints = []
    for size in (100_000, 1, 7):
        monkeypatch.setattr(build, "_CHUNK", size)
        monkeypatch.setenv("XREP_HOME", str(tmp_path / str(size)))
        prints += [make(**options).fingerprint()]
        assert "tokenising" in capsys.readouterr().out
        assert make(**options).fingerprint() == prints[-1] and capsys.readouterr().out == ""
    assert len(set(prints)) == 1
    (tmp_path / "excluded" / "a.txt").unlink()
    with pytest.raises(UserError, match=r"a.txt: no such file; check the name"):
        make(exclude=[str(tmp_path / "excluded" / "a.txt")])
    assert capsys.readouterr().out == ""

"""Ids of sentences: a sentence without words has no key, and so equals no other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.nli_data import write, write_simcse
from xrep.tasks.bitext import BitextTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.tasks.nli import NliTask
from xrep.text.cleaning import sentence_key

WORDLESS = ["!!!", "???", "!!!", "...", "!!!", "???"]
PAIRS = sentence_pairs(20)
GERMAN = [german for german, _ in PAIRS]
BARE = list(zip(WORDLESS, reversed(WORDLESS), strict=True))
"""Pairs without words on either side."""


def mixed_pairs() -> list[tuple[str, str]]:
    """Return pairs of which some lack words on one side or on both."""
    pairs = [(german, english) for german, (_, english) in zip(WORDLESS, PAIRS, strict=False)]
    return [*PAIRS[6:], *pairs, *zip(GERMAN, WORDLESS, strict=False), *BARE]


def bitext(folder: Path) -> BitextTask:
    for split, pairs in (("train", mixed_pairs()), ("valid", BARE)):
        for language, side in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
            write(folder / f"{split}.de-en.{language}", list(side))
    return BitextTask(BitextTask.Config(data=str(folder), vocab_size=60), seed=1)


def text(folder: Path, **options: Any) -> MonolingualTask:
    """Return a task with different documents, of which some have lines without words, or nothing else."""
    documents = [[one, other] for one, other in zip(GERMAN, GERMAN[1:], strict=False)]
    first, second, *_ = GERMAN
    documents += [[first, second, first], [second], [second, first], [first, first]]
    documents += [[line, line] for line in WORDLESS] + [[german, "!!!"] for german in GERMAN[2:6]]
    write(folder / "de.txt", ["\n".join(document) + "\n" for document in documents])
    return MonolingualTask(MonolingualTask.Config(data=str(folder), vocab_size=60, **options), seed=1)


def triplets(folder: Path) -> NliTask:
    rows = [(*pair, GERMAN[-1]) for pair in mixed_pairs()] + [(line, line, line) for line in WORDLESS]
    write_simcse(folder / "nli_for_simcse.csv", rows)
    return NliTask(NliTask.Config(data=str(folder), form="triplets", vocab_size=60), seed=1)


def whole(task: Any) -> Any:
    """Return all training examples as one batch, in their order."""
    extra = [0] if isinstance(task, MonolingualTask) else []
    rows = [[0, row, *extra] for row in range(task.examples)]
    return task.make(np.arange(task.examples) if isinstance(task, NliTask) else np.array(rows))


def columns_of(task: Any) -> list[list[str]]:
    """Return the keys of the sentences in each column of the ids, from what the task says of each example."""
    batch = whole(task)
    described = task.describe(batch, limit=len(batch)).split("; ")
    texts = [text[text.index("'") if "'" in text else 0 :].split(" ||| ") for text in described]
    return [[sentence_key(text) for text in column] for column in zip(*texts, strict=True)]


@pytest.mark.parametrize("make", [bitext, triplets, text], ids=["bitext", "nli", "neighbours"])
def test_only_sentences_with_words_are_equal(make: Any, tmp_path: Path) -> None:
    task = text(tmp_path, units="adjacent", swap_order=False) if make is text else make(tmp_path)
    ids, wordless = whole(task).ids, []
    for column, keys in zip(ids.T.tolist(), columns_of(task), strict=True):
        assert keys.count("") > 5
        for row, key in enumerate(keys):
            same = [number for number, other in enumerate(keys) if number == row or key == other != ""]
            assert [number for number, other in enumerate(column) if other == column[row]] == same
        wordless += [one for one, key in zip(column, keys, strict=True) if not key]
    if make is not text:  # where a sentence is the second of one pair and the first of the next
        assert len(set(wordless)) == len(wordless), "nor in another column"
    assert torch.equal(whole(task).ids, ids)

"""Ids of sentences: a sentence without words has no key, and so equals no other one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.nli_data import write, write_simcse
from tests.tasks.kinds import first
from xrep.tasks.bitext import BitextTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.tasks.nli import NliTask
from xrep.text.cleaning import sentence_key

WORDLESS = ["!!!", "???", "!!!", "...", "!!!", "???"]
PAIRS = sentence_pairs(20)
GERMAN, ENGLISH = zip(*PAIRS, strict=True)
BARE = list(zip(WORDLESS, reversed(WORDLESS), strict=True))
ROWS = [*PAIRS, *zip(WORDLESS, ENGLISH, strict=False), *zip(GERMAN, WORDLESS, strict=False), *BARE]
"""Pairs of which some lack words on one side or on both, and whose sentences occur more than once."""


def make(kind: str, folder: Path) -> Any:
    options = {"data": str(folder), "vocab_size": 60}
    if kind == "bitext":
        for split, pairs in (("train", ROWS), ("valid", BARE)):
            write(folder / f"{split}.de-en.tsv", ["\t".join(pair) for pair in pairs])
        return BitextTask(BitextTask.Config(**options), seed=1)
    if kind == "nli":
        rows = [(*pair, GERMAN[-1]) for pair in ROWS] + [(line, line, line) for line in WORDLESS]
        write_simcse(folder / "nli_for_simcse.csv", rows)
        return NliTask(NliTask.Config(form="triplets", **options), seed=1)
    write(folder / "de.txt", ["\n".join(document) + "\n" for document in ROWS])
    return MonolingualTask(MonolingualTask.Config(units="adjacent", swap_order=False, **options), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bitext", "nli", "neighbours"])
def test_only_sentences_with_words_are_equal(kind: str, tmp_path: Path) -> None:
    task = make(kind, tmp_path)
    batch, wordless = task.make(first(task.examples)), []
    described = task.describe(batch, limit=len(batch)).split("; ")
    texts = [text[text.index("'") if "'" in text else 0 :].split(" ||| ") for text in described]
    for column, sentences in zip(batch.ids.T.tolist(), zip(*texts, strict=True), strict=True):
        keys = [sentence_key(sentence) for sentence in sentences]
        assert keys.count("") > 5 and len(set(filter(None, keys))) < len(keys) - keys.count("")
        for row, key in enumerate(keys):
            same = [number for number, other in enumerate(keys) if number == row or key == other != ""]
            assert [number for number, other in enumerate(column) if other == column[row]] == same
        wordless += [one for one, key in zip(column, keys, strict=True) if not key]
    assert len(set(wordless)) == len(wordless), "nor in another column"
    assert torch.equal(task.make(first(task.examples)).ids, batch.ids)

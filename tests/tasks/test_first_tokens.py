"""Tasks with a tokenizer that puts no token in front of a sentence: rows of exactly ``max_length`` tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.first_tokens import write_tokenizer_without_first_token
from tests.support.nli_data import nli_rows, write_jsonl
from xrep.data.batching import TokenBatch
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.tasks.bitext import BitextTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.tasks.nli import NliTask
from xrep.tasks.task import Task
from xrep.tasks.translation import TranslationTask
from xrep.text.readers import discover_bitext

LENGTH = 5
"""Every sentence of the corpus has more words."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = {word for pair in sentence_pairs(2048) for sentence in pair for word in sentence.split()}
    return write_tokenizer_without_first_token(tmp_path_factory.mktemp("own") / "tokenizer", sorted(words))


def bitext(kind: type[BitextTask], folder: Path, tokenizer: Path, **options: Any) -> BitextTask:
    raw = write_corpus(folder / "raw", train=40, valid=5, test=5)
    preprocess(discover_bitext(raw), folder / "bin", PreprocessOptions(tokenizers={"shared": str(tokenizer)}))
    return kind(kind.Config(data=str(folder / "bin"), max_length=LENGTH, **options), seed=1)


def with_negatives(folder: Path, tokenizer: Path) -> BitextTask:
    pairs = sentence_pairs(50)
    lines = [f"{german}\t{english}\t{other}\n" for (german, english), (_, other) in zip(pairs, pairs[1:], strict=False)]
    (folder / "negatives.tsv").write_text("".join(lines), encoding="utf-8")
    return bitext(BitextTask, folder, tokenizer, negatives=[str(folder / "negatives.tsv")])


def sentences(folder: Path, tokenizer: Path, **options: Any) -> MonolingualTask:
    (folder / "train.en").write_text("".join(f"{english}\n" for _, english in sentence_pairs(40)), encoding="utf-8")
    config = MonolingualTask.Config(data=str(folder), tokenizer=str(tokenizer), max_length=LENGTH, **options)
    return MonolingualTask(config, seed=1)


def inference(folder: Path, tokenizer: Path) -> NliTask:
    write_jsonl(folder / "snli_1.0_train.jsonl", nli_rows(20))
    config = NliTask.Config(data=str(folder), tokenizer=str(tokenizer), max_length=LENGTH, target_languages=["de"])
    return NliTask(config, seed=1)


TASKS: dict[str, Callable[[Path, Path], Task]] = {
    "bitext": lambda folder, tokenizer: bitext(BitextTask, folder, tokenizer),
    "translation": lambda folder, tokenizer: bitext(TranslationTask, folder, tokenizer, max_tokens=50),
    "hard negatives": with_negatives,
    "monolingual": sentences,
    "monolingual, packed": lambda folder, tokenizer: sentences(folder, tokenizer, pack=True),
    "monolingual, by tokens": lambda folder, tokenizer: sentences(folder, tokenizer, max_tokens=50),
    "nli": inference,
}


@pytest.mark.parametrize("name", TASKS)
def test_long_sentences_have_the_greatest_length(
    name: str, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    task = TASKS[name](tmp_path / "data", tokenizer)
    batch: Any = task.make(next(iter(task.plan())).what)
    sides: list[TokenBatch] = list(getattr(batch, "sides", ())) or [batch.source, batch.target]
    sides += [batch.negatives.tokens] if name == "hard negatives" else []
    rows = [row for side in sides for row in side.tokens[:, :LENGTH].tolist()]
    assert {len(row) for row in rows} == {LENGTH} and len(rows) >= 10
    eos = task.text.vocabulary("target").eos_id
    assert sum(row.index(eos) == LENGTH - 1 for row in rows) >= 0.9 * len(rows)
    if name in ("translation", "monolingual, by tokens"):
        assert [side.real_tokens for side in sides] == [50] * len(sides)

"""frozen_source with source vectors from a cache on disk, or from another system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, with_negatives
from tests.support.runs import SMALL_MODEL, compose_run, make_trainer
from xrep.criteria.frozen_source import FrozenSource
from xrep.data.teacher_vectors import TeacherVectors, token_keys
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import NO_KEY, sentence_hashes

SMALL = {**SMALL_MODEL, "max_positions": 48, "dropout": 0.0, "attention_dropout": 0.0}


def make(
    text, seed: int = 0, towers: str = "separate", heads: int = SMALL["heads"], **given: Any
) -> tuple[DualEncoder, FrozenSource]:
    torch.manual_seed(seed)
    model = DualEncoder(DualEncoder.Config(**{**SMALL, "towers": towers, "heads": heads}), text)
    return model, FrozenSource(FrozenSource.Config(**given), model, text)


def count_encoded(model: DualEncoder, tower: str = "source") -> Callable[[], int]:
    """Count the sentences that a tower encodes, since the last call."""
    rows, encode = [], model.encode

    def counting(name, batch):
        rows.extend([1] * (len(batch) if name == tower else 0))
        return encode(name, batch)

    model.encode = counting

    def told() -> int:
        found = len(rows)
        rows.clear()
        return found

    return told


@pytest.fixture
def batches(make_batch):
    """Return batches in which source sentences are repeated, within a batch and between two; the second one has hard
    negatives, some of which are sentences of the batches."""
    some = sentence_pairs(12)
    pairs = [*some[:6], (some[0][0], some[7][1]), *some[6:12], (some[3][0], some[1][1])]
    return [make_batch(pairs[:7]), with_negatives(make_batch(pairs[7:]), make_batch(some[8:11]).target, [0, 0, 4])]


def token_rows(batch) -> list[tuple[int, ...]]:
    return [tuple(row[:length]) for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)]


@pytest.mark.parametrize("side", ["source", "target"])
def test_each_distinct_sentence_is_encoded_once(text, batches, tmp_path: Path, side: str) -> None:
    if side == "source":  # hard negatives are of the target side
        batches[1].negatives = None
    model, criterion = make(text, cache_source=str(tmp_path / "cache"), source_side=side)
    exact = make(text, source_side=side)[1]
    distinct = len({row for batch in batches for row in token_rows(getattr(batch, side))})
    told = count_encoded(model, side)
    for epoch in range(3):
        for batch in batches:
            mine, theirs = loss_of(criterion, model, batch), loss_of(exact, make(text)[0], batch)
            terms = [loss.terms["frozen_source"].sum for loss in (mine, theirs)]
            torch.testing.assert_close(*terms, rtol=1e-5, atol=1e-6)
        assert told() == (0 if epoch else distinct)
    other, again = make(text, cache_source=str(tmp_path / "cache"), source_side=side)  # a run that starts later
    told = count_encoded(other, side)
    loss_of(again, other, batches[0])
    assert told() == 0 and again.frozen == [f"encoders.{side}"]


def test_vectors_of_another_tower_are_not_used(text, batches, tmp_path: Path) -> None:
    model, criterion = make(text, cache_source=str(tmp_path))
    loss_of(criterion, model, batches[0])
    for change in ({"seed": 1}, {"source_side": "target"}, {"heads": 2 * SMALL["heads"]}):
        other, criterion = make(text, cache_source=str(tmp_path), **change)
        told = count_encoded(other, change.get("source_side", "source"))
        loss_of(criterion, other, batches[0])
        assert told() > 0
    model, criterion = make(text, cache_source=str(tmp_path))
    with torch.no_grad():
        model.encoders["target"].token_embedding.weight.zero_()  # it is the student's
    told = count_encoded(model)
    loss_of(criterion, model, batches[0])
    assert told() == 0


def test_rows_of_the_same_tokens_have_the_same_key(make_batch) -> None:
    some = make_batch([*sentence_pairs(200), (sentence_pairs(1)[0][0], "x " * 30)]).source
    keys, rows = token_keys(some).tolist(), token_rows(some)
    assert len(set(keys)) == len(set(rows)) < len(rows) and keys[0] == keys[-1]
    assert token_keys(some.rows(0, 1)).tolist() == keys[:1], "padding counts"
    swapped = some.rows(0, 1)
    swapped.tokens[0, [1, 2]] = swapped.tokens[0, [2, 1]]
    assert token_keys(swapped).tolist() != keys[:1]


@pytest.mark.slow
def test_a_run_is_killed_and_another_one_goes_on(data_directory: Path, tmp_path: Path) -> None:
    """In a whole training run, the second run and every later epoch encode no source sentence."""
    for number, steps in enumerate((25, 30)):
        run = compose_run(
            data_directory, tmp_path / f"run{number}", criterion="frozen_source", max_steps=steps, save_every=0,
            towers="separate", cache_source=tmp_path / "cache", validation="loss",
        )  # fmt: skip
        trainer = make_trainer(run, tmp_path / f"run{number}")
        told = count_encoded(trainer.pair.model)
        trainer.train()
        encoded = told()
        if number == 0:
            assert 300 < encoded <= 630, "an epoch has 21 steps"
            (keys,) = (tmp_path / "cache").glob("*/*.keys")
            keys.write_bytes(keys.read_bytes()[:-8])  # as if it was killed before it wrote the last key
            del trainer
        else:
            assert encoded == 1


# -- vectors of another system ----------------------------------------------------------------------------------------


def write_teacher(folder: Path, sentences: list[str], width: int = 32) -> dict[str, str]:
    vectors = np.random.default_rng(0).normal(size=(len(sentences), width)).astype(np.float16)
    np.save(folder / "teacher.npy", vectors)
    (folder / "teacher.txt").write_text("".join(f"{s}\n" for s in sentences), encoding="utf-8")
    return {"teacher_vectors": str(folder / "teacher.npy"), "teacher_text": str(folder / "teacher.txt")}


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_student_learns_the_vectors_of_a_file(text, make_batch, tmp_path: Path, side: str) -> None:
    """The sentences of the file are in another order and writing; the loss is their squared distance."""
    pairs = sentence_pairs(20)
    taught = [pair[["source", "target"].index(side)] for pair in pairs]
    shuffled = [f"{taught[n].upper()}!" for n in np.random.default_rng(1).permutation(20)]
    given = write_teacher(tmp_path, [*shuffled, "not in the training text"])
    model, criterion = make(text, towers="shared", loss="mse", source_side=side, **given)
    assert criterion.frozen == ()
    batch = make_batch(pairs)
    (source,) = criterion.constants(model, plan(criterion, batch))
    rows = [next(n for n, line in enumerate(shuffled) if line.lower() == f"{s.lower()}!") for s in taught]
    expected = torch.from_numpy(np.load(given["teacher_vectors"])[rows].astype(np.float32))
    torch.testing.assert_close(source, expected / expected.norm(dim=1, keepdim=True))
    told = count_encoded(model, "shared")
    loss = loss_of(criterion, model, batch).terms["frozen_source"].sum
    assert told() == 20, "the student's side alone is encoded"
    student = model.encode("shared", batch.target if side == "source" else batch.source)[0]
    torch.testing.assert_close(loss, (student - source).square().sum())


def test_a_teacher_that_cannot_be_used(text, tmp_path: Path) -> None:
    given = write_teacher(tmp_path, [english for _, english in sentence_pairs(10)])
    with pytest.raises(UserError, match=r"take the place of a source tower, .*; set `towers` to shared"):
        make(text, **given)
    _, criterion = make(text, towers="shared", source_side="target", **given)
    for value, problem in (
        (1, "lacks the source sentences of 3 of 3 training pairs; add them"),
        (NO_KEY, "3 of 3 training pairs have a source sentence without words; remove these pairs"),
    ):
        hashes = np.full((3, 2), value, np.uint64)
        with pytest.raises(UserError, match=rf"teacher\.txt: {problem}"):
            criterion.prepare(Mock(spec=BitextTask, train=[SimpleNamespace(hashes=hashes)]))
    write_teacher(tmp_path, ["a", "b"], width=24)
    with pytest.raises(UserError, match=r"vectors of 24 numbers, the model's have 32; set `projection_size` to 24"):
        make(text, towers="shared", **given)


def test_lines_without_words_share_no_vector(tmp_path: Path) -> None:
    write_teacher(tmp_path, ["A dog.", "...", "!!!"])
    teacher = TeacherVectors(tmp_path / "teacher.npy", tmp_path / "teacher.txt")
    assert teacher.rows(sentence_hashes(["a dog"])).tolist() == [0]
    with pytest.raises(UserError, match="1 of 2 training pairs have a source sentence without words"):
        teacher.read(sentence_hashes(["a dog", "???"]))

"""frozen_source with source vectors that its tower, or another system, has computed before training."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, with_negatives
from tests.support.runs import SMALL_MODEL
from xrep.criteria.frozen_source import FrozenSource
from xrep.data.teacher_vectors import TeacherVectors
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import NO_KEY, sentence_hashes

SMALL = {**SMALL_MODEL, "max_positions": 48, "dropout": 0.0, "attention_dropout": 0.0}


def make(text, towers: str = "separate", **given: Any) -> tuple[DualEncoder, FrozenSource]:
    torch.manual_seed(0)
    model = DualEncoder(DualEncoder.Config(**{**SMALL, "towers": towers}), text)
    return model, FrozenSource(FrozenSource.Config(**given), model, text)


def count_encoded(encode: Mock, tower: str) -> int:
    """Return how many sentences a tower has encoded since the last call."""
    counts = [len(batch) for name, batch in (call.args for call in encode.call_args_list) if name == tower]
    encode.reset_mock()
    return sum(counts)


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
    model.encode = Mock(wraps=model.encode)
    loss = loss_of(criterion, model, batch).terms["frozen_source"].sum
    assert count_encoded(model.encode, "shared") == 20, "the student's side alone is encoded"
    student = model.encode("shared", batch.target if side == "source" else batch.source)[0]
    torch.testing.assert_close(loss, (student - source).square().sum())


def test_vectors_of_the_source_tower(text, make_batch, tmp_path: Path) -> None:
    """The tower encodes only what the file lacks, and hard negatives; the loss is the same as without the file."""
    pairs = sentence_pairs(12)
    given = write_teacher(tmp_path, [english for _, english in pairs[:9]])
    batches = make_batch(pairs[:9]), with_negatives(make_batch(pairs[3:]), make_batch(pairs[:2]).target, [0, 4])
    exact = make(text, source_side="target")
    vectors = exact[0].encode("target", batches[0].target)[0].detach().numpy()
    np.save(given["teacher_vectors"], vectors)
    model, criterion = make(text, source_side="target", **given)
    assert criterion.frozen == ["encoders.target"] and criterion.uses_hard_negatives
    model.encode = Mock(wraps=model.encode)
    for batch, encoded in zip(batches, (0, 9 + 2), strict=True):
        terms = [loss_of(own, one, batch).terms["frozen_source"].sum for one, own in (exact, (model, criterion))]
        torch.testing.assert_close(*terms, rtol=1e-5, atol=1e-6)
        assert count_encoded(model.encode, "target") == encoded


def test_validation_by_the_loss_names_the_dev_sentences_without_vectors(text, make_batch, tmp_path: Path) -> None:
    pairs = sentence_pairs(5)
    given = write_teacher(tmp_path, [english for _, english in pairs[:3]])
    _, criterion = make(text, towers="shared", source_side="target", **given)
    with pytest.raises(UserError, match=r"teacher\.txt: lacks 2 sentences of the dev split.*to retrieval or sts"):
        plan(criterion, make_batch(pairs))


def test_a_teacher_that_cannot_be_used(text, tmp_path: Path) -> None:
    given = write_teacher(tmp_path, [english for _, english in sentence_pairs(10)])
    _, criterion = make(text, towers="shared", source_side="target", **given)
    for value, problem in (
        (1, "lacks 3 of 3 training sentences that need a vector; add them"),
        (NO_KEY, "3 of 3 training sentences that need a vector have no words; remove their pairs"),
    ):
        hashes = np.full((3, 2), value, np.uint64)
        with pytest.raises(UserError, match=rf"teacher\.txt: {problem}"):
            criterion.prepare(Mock(spec=BitextTask, train=[SimpleNamespace(hashes=hashes)]))
    sentences = [english for _, english in sentence_pairs(10)]
    pairs = SimpleNamespace(hashes=np.stack([sentence_hashes(sentences[:3])] * 2, 1))
    vectors = np.load(given["teacher_vectors"])
    for line, value, problem in ((9, np.nan, None), (2, np.inf, "2: .* is not finite"), (3, 0, "3: .* is zero")):
        changed = vectors.copy()
        changed[line - 1] = value
        np.save(given["teacher_vectors"], changed)
        _, criterion = make(text, towers="shared", source_side="target", **given)
        with nullcontext() if problem is None else pytest.raises(UserError, match=rf"teacher\.npy:{problem}"):
            criterion.prepare(Mock(spec=BitextTask, train=[pairs]))
    write_teacher(tmp_path, ["a", "b"], width=24)
    with pytest.raises(UserError, match=r"vectors of 24 numbers, the model's have 32; set `projection_size` to 24"):
        make(text, towers="shared", **given)


def test_lines_without_words_share_no_vector(tmp_path: Path) -> None:
    write_teacher(tmp_path, ["A dog.", "...", "!!!"])
    teacher = TeacherVectors(tmp_path / "teacher.npy", tmp_path / "teacher.txt")
    assert teacher.rows(sentence_hashes(["a dog"])).tolist() == [0]
    hashes = sentence_hashes(["a dog", "???"])
    assert teacher.has(hashes).tolist() == [True, False]
    with pytest.raises(UserError, match="1 of 2 training sentences that need a vector have no words"):
        teacher.read(hashes)


def test_the_vectors_of_a_guide(tmp_path: Path) -> None:
    """They are those of the same sentences at length 1, and not a number for sentences that it does not know."""
    given = write_teacher(tmp_path, ["ein Hund", "a dog"], width=5)
    hashes = sentence_hashes(["A dog!", "a cat", "Ein Hund", "a dog"]).reshape(2, 2)
    found = TeacherVectors(*given.values(), "guide").of(torch.from_numpy(hashes.view(np.int64)))
    vectors = torch.from_numpy(np.load(given["teacher_vectors"]).astype(np.float32))
    german, english = vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found[0, 0], english)
    torch.testing.assert_close(found[1], torch.stack([german, english]))
    assert found[0, 1].isnan().all() and found.shape == (2, 2, 5)

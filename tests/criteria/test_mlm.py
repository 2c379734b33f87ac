"""mlm and tlm: pairs that are read together, neighbours, and pretrained heads."""

import dataclasses
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.criteria.by_hand import rows
from tests.criteria.objectives import Maker, tlm
from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of
from tests.support.vocabulary import small_tokenizer
from xrep.config import Part
from xrep.criteria.mlm import MLM
from xrep.criteria.multitask import Multitask
from xrep.criteria.tlm import read_together
from xrep.data.batch import TextSpec, Vocabulary, collate
from xrep.models.dual_encoder import DualEncoder
from xrep.registry import CRITERIA
from xrep.tasks.task import ExampleKind
from xrep.training.run import _warnings
from xrep.validation.loss import LossValidator
from xrep.validation.retrieval import RetrievalValidator


def test_the_next_sentence_is_told_from_others(make: Maker) -> None:
    """Half of the second sentences are those of other pairs."""
    model, criterion, batch = make("tlm, next sentence")
    (starts, ends), drawn = ([ids.tolist() for ids in rows(side)] for side in (batch.source, batch.target)), []
    for seed in range(40):
        masked, follows = plan(criterion, batch, seed).details
        original = masked.batch.tokens.flatten().index_copy(0, masked.positions, masked.labels)
        original = rows(dataclasses.replace(masked.batch, tokens=original.view_as(masked.batch.tokens)))
        for row, (ids, follow) in enumerate(zip(original, follows.tolist(), strict=True)):
            assert ids[: len(starts[row])].tolist() == starts[row]
            others = [ends[row]] if follow else ends[:row] + ends[row + 1 :]
            assert ids[len(starts[row]) :].tolist() in [end[1:] for end in others]
        drawn += follows.tolist()
    assert 0.4 < np.mean(drawn) < 0.6
    assert plan(criterion, batch.rows(0, 1)).details[1].tolist() == [1], "a single pair has no other sentence"


@pytest.mark.parametrize("limit", [8, 13, 14, 30])
def test_pairs_are_cut_to_the_position_table(limit: int) -> None:
    vocabulary = Vocabulary(size=200, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    lengths = [(3, 3), (3, 20), (20, 3), (20, 20), (4, 7), (0, 0), (11, 0)]
    sides = [collate([np.arange(10, 10 + n) + 100 * k for n in side], vocabulary, 64)
             for k, side in enumerate(zip(*lengths, strict=True))]  # fmt: skip
    together = read_together(*sides, vocabulary, limit)
    read = [ids.tolist() for ids in rows(together)]
    for row, (n, m) in zip(read, lengths, strict=True):
        assert len(row) == min(n + m + 3, limit)
        of_x = next(i for i, number in enumerate(row) if number == 3) + 1
        x, y = row[:of_x], row[of_x:]
        assert x[0] == 2 and x[-1] == y[-1] == 3 and row.count(3) == 2
        assert x[1:-1] == list(range(10, 10 + len(x) - 2)) and y[:-1] == list(range(110, 110 + len(y) - 1))
        assert len(x) >= min(n + 2, limit // 2) and len(y) >= min(m + 1, limit // 2)
    assert together.real_tokens == sum(map(len, read))
    assert together.host_lengths.tolist() == together.lengths.tolist() == [len(row) for row in read]


def test_long_pairs_are_cut(make: Maker, make_batch) -> None:
    """Two sentences of max_length do not fit into the position table."""
    words = " ".join(german for german, _ in sentence_pairs(20))
    model, criterion = make.build(tlm(), max_positions=48)
    long = make_batch([(words, words)] * 2)
    assert sizes_of(criterion, long) == {"tlm": 2 * round(0.25 * (48 - 3))}
    assert torch.isfinite(loss_of(criterion, model, long).terms["tlm"].sum)


def test_the_head_of_a_pretrained_encoder(tmp_path) -> None:
    """Masked tokens are predicted as the model of the transformers library predicts them."""
    models = pytest.importorskip("tests.nn.small_models", reason="compares with the transformers library")
    theirs = models.make_model("BertForMaskedLM")
    directory = models.save(theirs, tmp_path / "bert")
    vocabulary = Vocabulary(size=models.VOCABULARY, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    spec = TextSpec(vocabularies={"shared": vocabulary}, max_length=20, source_languages=["de"])
    write_wordpiece(directory, models.VOCABULARY)
    config = DualEncoder.Config(towers="shared", encoder=str(directory), dropout=0.0, attention_dropout=0.0)
    model = DualEncoder(config, spec)
    criterion = MLM(MLM.Config(), model, spec)
    batch = collate([np.arange(5, 5 + n) for n in (3, 17, 9)], vocabulary, 20)
    masked = criterion.masked_lm.mask("shared", batch, torch.Generator().manual_seed(0))
    vectors = masked.at_positions(model.encoders["shared"](masked.batch))
    found = criterion.masked_lm("shared", model.encoders["shared"], vectors, masked.labels)
    with torch.no_grad():
        logits = theirs(input_ids=masked.batch.tokens, attention_mask=batch.mask.long()).logits
    expected = F.cross_entropy(masked.at_positions(logits), masked.labels, reduction="sum")
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert criterion.warnings(None) == []

    bare = models.save(models.make_model("BertModel"), tmp_path / "bare")
    write_wordpiece(bare, models.VOCABULARY)
    config = DualEncoder.Config(towers="shared", encoder=str(bare))
    (note,) = MLM(MLM.Config(), DualEncoder(config, spec), spec).warnings(None)
    assert note == f"{bare} has no masked language head; tower shared gets a new one"


def test_the_head_of_a_pretrained_encoder_with_the_subwords_of_the_text(tmp_path) -> None:
    """All of the head is the pretrained one but the bias, which is of other subwords, even if they are as many."""
    models = pytest.importorskip("tests.nn.small_models", reason="compares with the transformers library")
    theirs = models.make_model("BertForMaskedLM")
    directory = models.save(theirs, tmp_path / "bert")
    write_wordpiece(directory, models.VOCABULARY)
    for size in (models.VOCABULARY, 90):
        tokenizer = small_tokenizer(size)
        spec = TextSpec(vocabularies={"shared": Vocabulary.of(tokenizer)}, max_length=20, source_languages=["de"])
        model = DualEncoder(DualEncoder.Config(towers="shared", encoder=str(directory), vocabulary="text"), spec)
        model.start_embeddings({"shared": tokenizer})
        head = MLM(MLM.Config(), model, spec).masked_lm.heads["shared"]
        assert torch.equal(head.dense.weight, theirs.cls.predictions.transform.dense.weight)
        assert head.bias.shape == (tokenizer.vocabulary_size,) and not head.bias.any()


@pytest.mark.parametrize(("kinds", "validation", "warned"), [
    (["tlm"], RetrievalValidator, True), (["tlm"], LossValidator, False),
    (["translation_ranking", "tlm"], RetrievalValidator, False), (["mlm", "tlm"], RetrievalValidator, True),
])  # fmt: skip
def test_a_validation_by_vectors_that_nothing_trains_is_warned_of(
    make: Maker, kinds: list[str], validation: type, warned: bool
) -> None:
    model, alone = make.build(tlm())
    classes = map(CRITERIA.load, kinds)
    parts = [Part(name, kind, kind.Config(), 1.0, 1.0) for name, kind in zip(kinds, classes, strict=True)]
    criterion = Multitask(Multitask.Config(parts=parts, mixing="weight"), model, make.text) if len(kinds) > 1 else alone
    trainer: Any = Mock(validate=Mock(needs=validation.needs), pair=Mock(criterion=criterion))
    trainer.budget.warnings = []
    task: Any = Mock(parts={name: Mock(left_out=[], gives=ExampleKind.TRANSLATIONS) for name in kinds})
    criterion.prepare(task)
    warnings = _warnings(task, trainer)
    assert [("masked tokens alone" in warning) for warning in warnings] == [True] * warned


def write_wordpiece(directory: Path, size: int) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(size - 5))]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")

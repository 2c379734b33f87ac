"""Hard negatives in the bitext task and in a run: batches, hashes, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.runs import compose_run
from xrep.data.stream import stream
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import sentence_hash
from xrep.training.run import train

PAIRS = sentence_pairs(600)
ELSEWHERE = "nobody has heard this sentence"


@pytest.fixture
def negatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every second training pair has two negatives, the targets of the next pairs; one has a third."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    lines = ["\t".join([*PAIRS[n], PAIRS[n + 1][1], PAIRS[(n + 2) % 600][1]]) for n in range(0, 600, 2)]
    lines[0] += f"\t{ELSEWHERE}"
    (tmp_path / "negatives.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "negatives.tsv"


def make(data: Path, *negatives: Path, **options) -> BitextTask:
    return BitextTask(BitextTask.Config(data=str(data), negatives=[str(file) for file in negatives], **options), 1)


def test_batches_have_the_negatives_of_their_pairs(data_directory: Path, negatives: Path) -> None:
    task, plain = make(data_directory, negatives, batch_size=64), make(data_directory, batch_size=64)
    assert task.has_hard_negatives and not plain.has_hard_negatives
    place, found = {german: n for n, (german, _) in enumerate(PAIRS)}, 0
    for (batch, _), (other, _) in zip(stream(task, stop=630), stream(plain, stop=630), strict=True):
        assert torch.equal(batch.source.tokens, other.source.tokens) and other.negatives is None
        assert batch.negatives is not None
        tokens, decode = batch.negatives.tokens, task.tokenizers["shared"].decode
        for row, ids, length in zip(batch.negatives.rows, tokens.tokens.tolist(), tokens.lengths.tolist(), strict=True):
            source = decode(batch.source.tokens[row, 1 : batch.source.lengths[row] - 1].tolist())
            number, text = place[source], decode(ids[1 : length - 1])
            assert number % 2 == 0 and text in (PAIRS[number + 1][1], PAIRS[(number + 2) % 600][1], ELSEWHERE)
            found += 1
        assert batch.token_count == other.token_count + tokens.real_tokens
    assert found == 601
    assert task.statistics()["negatives"] == {"sentences": 601, "pairs": 300}
    assert all(batch.negatives is None for batch in task.validation_batches())


def test_the_run_knows_them(data_directory: Path, negatives: Path, tmp_path: Path) -> None:
    """They are training text: the fingerprint of a run depends on them, and evaluations find them."""
    task, plain = make(data_directory, negatives), make(data_directory)
    assert task.fingerprint() != plain.fingerprint()
    for name, one in (("with", task), ("without", plain)):
        one.write_training_hashes(tmp_path / name)
    found, before = (np.load(tmp_path / name) for name in ("with", "without"))
    assert set(found.tolist()) == {*before.tolist(), sentence_hash(ELSEWHERE)} and (np.diff(found) > 0).all()


def test_negatives_of_other_text_are_refused(data_directory: Path, negatives: Path) -> None:
    negatives.write_text("ein Satz\ta sentence\tanother one\n", encoding="utf-8")
    with pytest.raises(UserError, match="negatives.tsv: none of its pairs is in the training text; mine negatives of"):
        make(data_directory, negatives)


@pytest.mark.slow
def test_a_run_resumes_exactly(
    data_directory: Path, negatives: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """The second half continues as if nothing had happened, in pieces and with dropout, too."""
    options = {"criterion": "translation_ranking", "negatives": negatives, "dropout": 0.1, "micro_batch": 8}
    options |= {"lr_scheduler": "constant", "warmup_steps": 0}
    for name, courses in (("once", [4]), ("parts", [2, 4])):
        for steps in courses:
            train(compose_run(data_directory, tmp_path / name, max_steps=steps, **options))
    one, other = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("once", "parts"))
    assert one == other
    assert "hard negatives: 300 of 630 training pairs have some\n" in capsys.readouterr().err

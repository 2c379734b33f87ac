"""Hard negatives in the bitext task and in a run: batches, hashes and resuming."""

from pathlib import Path

import pytest
import torch

from tests.support.nli_data import write
from tests.support.planning import streamed
from tests.support.runs import going_on_is_never_stopping
from tests.tasks.kinds import PAIRS, hashes_of, rows_of
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import sentence_hash

ELSEWHERE = "nobody has heard this sentence"


@pytest.fixture
def negatives(tmp_path: Path) -> Path:
    """Every second training pair has two negatives, the targets of the next pairs; one has a third."""
    lines = ["\t".join([*PAIRS[n], PAIRS[n + 1][1], PAIRS[(n + 2) % 600][1]]) for n in range(0, 600, 2)]
    lines[0] += f"\t{ELSEWHERE}"
    return write(tmp_path / "negatives.tsv", lines)


def make(data: Path, *negatives: Path, **options) -> BitextTask:
    return BitextTask(BitextTask.Config(data=str(data), negatives=[str(file) for file in negatives], **options), 1)


def test_batches_have_the_negatives_of_their_pairs(data_directory: Path, negatives: Path, tmp_path: Path) -> None:
    task, plain = make(data_directory, negatives, batch_size=64), make(data_directory, batch_size=64)
    assert task.has_hard_negatives and not plain.has_hard_negatives
    place, found = {german: n for n, (german, _) in enumerate(PAIRS)}, 0
    for (batch, _), (other, _) in zip(streamed(task, stop=630), streamed(plain, stop=630), strict=True):
        assert torch.equal(batch.source.tokens, other.source.tokens) and other.negatives is None
        assert batch.negatives is not None
        tokens, decode = batch.negatives.tokens, task.tokenizers["shared"].decode
        sources = [row[2] for row in rows_of(task, batch)]
        for row, ids, length in zip(batch.negatives.rows, tokens.tokens.tolist(), tokens.lengths.tolist(), strict=True):
            number, text = place[sources[row]], decode(ids[1 : length - 1])
            assert number % 2 == 0 and text in (PAIRS[number + 1][1], PAIRS[(number + 2) % 600][1], ELSEWHERE)
            found += 1
    assert found == 601
    assert task.statistics()["negatives"] == {"sentences": 601, "pairs": 300}
    assert all(batch.negatives is None for batch in task.validation_batches())
    # They are training text: the fingerprint of a run depends on them, and evaluations find them.
    assert task.fingerprint() != plain.fingerprint()
    assert hashes_of(task) == {*hashes_of(plain), sentence_hash(ELSEWHERE)}


def test_negatives_of_other_text_are_refused(data_directory: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "negatives.tsv", ["ein Satz\ta sentence\tanother one"])
    with pytest.raises(UserError, match="negatives.tsv: none of its pairs is in the training text; mine negatives of"):
        make(data_directory, file)


@pytest.mark.slow
def test_a_run_resumes_exactly(data_directory: Path, negatives: Path, tmp_path: Path, capsys) -> None:
    """In pieces and with dropout, too."""
    options = {"criterion": "translation_ranking", "negatives": negatives, "dropout": 0.1, "micro_batch": 8}
    going_on_is_never_stopping(data_directory, tmp_path, stop=1, steps=2, validate_every=1, warmup_steps=0, **options)
    assert "hard negatives: 300 of 630 training pairs have some\n" in capsys.readouterr().err

"""The bitext task on preprocessed real text of two language pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.corpus import sentence_pairs, write_corpus
from tests.fixtures import spanish_pairs
from xrep.data.batching import PairBatch, TokenBatch
from xrep.data.store import DataDirectory
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import sentence_hash

# The Spanish corpus comes first: examples 0 to 29.
TRAIN = spanish_pairs()[:30] + sentence_pairs(600)
VALID = spanish_pairs()[30:] + sentence_pairs(660)[600:]


def make(data: Path, seed: int = 1, **options) -> BitextTask:
    return BitextTask(BitextTask.Config(data=str(data), **options), seed)


def sentences(task: BitextTask, side: TokenBatch) -> list[str]:
    rows = zip(side.tokens.tolist(), side.lengths.tolist(), strict=True)
    return [task.tokenizers["shared"].decode(ids[1 : length - 1]) for ids, length in rows]


def pairs(task: BitextTask, batch: PairBatch) -> list[tuple[str, str]]:
    return list(zip(sentences(task, batch.source), sentences(task, batch.target), strict=True))


def test_an_epoch_is_the_training_text(data_directory: Path) -> None:
    task = make(data_directory, batch_size=64)
    assert task.examples == 630
    batches = list(task.batches("train", stop=630))
    assert [len(batch) for batch in batches] == [64] * 9 + [54]
    assert Counter(pair for batch in batches for pair in pairs(task, batch)) == Counter(TRAIN)
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(630))
    for batch in batches:
        for (german, english), ids in zip(pairs(task, batch), batch.ids.tolist(), strict=True):
            assert [number % 2**64 for number in ids] == [sentence_hash(german), sentence_hash(english)]
    spec = task.text
    assert (
        spec.source_languages == ["de", "es"]
        and spec.target_languages == ["en"]
        and spec.vocabulary("target").size == 150
    )
    first = batches[0].source
    vocabulary = spec.vocabulary("source")
    assert set(first.tokens[:, 0].tolist()) == {vocabulary.bos_id}
    assert bool((first.tokens[~first.mask] == vocabulary.pad_id).all())
    assert all(row[n - 1] == vocabulary.eos_id for row, n in zip(first.tokens, first.lengths, strict=True))


@pytest.mark.parametrize("start, stop", [(0, 256), (100, 500), (600, 1301)])
def test_ranks_share_the_stream(data_directory: Path, start: int, stop: int) -> None:
    task = make(data_directory, batch_size=32)
    single = torch.cat([batch.indices for batch in task.batches("train", start, stop=stop)])
    assert len(single) == stop - start
    for world_size in (2, 4):
        ranks = [list(task.batches("train", start, rank, world_size, stop)) for rank in range(world_size)]
        steps = list(zip(*ranks, strict=True))
        assert all(len(batch) == 32 for step in steps[:-1] for batch in step)
        assert torch.equal(torch.cat([batch.indices for step in steps for batch in step]), single)


def test_a_restart_goes_on_where_it_was_with_another_batch_size(data_directory: Path) -> None:
    before = list(make(data_directory, batch_size=50).batches("train", stop=300))
    after = list(make(data_directory, batch_size=70).batches("train", 300, stop=630))
    assert sorted(torch.cat([batch.indices for batch in before + after]).tolist()) == list(range(630))
    endless = make(data_directory, batch_size=400).batches("train", 300)
    assert [len(next(endless)) for _ in range(4)] == [400] * 4
    other = next(make(data_directory, seed=2, batch_size=50).batches("train")).indices
    assert not torch.equal(other, before[0].indices)


def test_sampling_repeats_the_small_language_pair(data_directory: Path) -> None:
    task = make(data_directory, sampling_alpha=0.5, batch_size=90)
    indices = torch.cat([batch.indices for batch in task.batches("train", stop=630)])
    spanish = indices[indices < 30]
    assert len(spanish) == 115 and set(spanish.tolist()) == set(range(30))  # 630 * √30 / (√600 + √30) = 115.1


def test_other_splits_are_read_once_in_order(data_directory: Path) -> None:
    task = make(data_directory, batch_size=32)
    assert [pair for batch in task.batches("valid") for pair in pairs(task, batch)] == VALID
    with pytest.raises(UserError, match="has no split 'dev'"):
        next(task.batches("dev"))


def test_validation_pools(data_directory: Path) -> None:
    task = make(data_directory)
    spanish, german = task.validation_pools(40)
    assert (german.name, german.source_language, german.target_language) == ("de-en", "de", "en")
    assert (spanish.name, spanish.source_language, spanish.target_language) == ("es-en", "es", "en")
    for pool, expected in ((spanish, VALID[:6]), (german, VALID[6:46])):
        for _ in range(2):  # it can be read again
            batches = list(pool.batches())
            found = {i: pair for b in batches for i, pair in zip(b.indices.tolist(), pairs(task, b), strict=True)}
            assert found == dict(enumerate(expected))
            lengths = torch.cat([batch.source.lengths + batch.target.lengths for batch in batches])
            assert bool((lengths.diff() >= 0).all())


def test_long_sentences_are_cut(data_directory: Path) -> None:
    whole, cut = (next(make(data_directory, max_length=n).batches("train", stop=100)) for n in (128, 9))
    assert int(whole.source.lengths.max()) > 9
    eos = make(data_directory).text.vocabulary("target").eos_id
    for long, short in ((whole.source, cut.source), (whole.target, cut.target)):
        assert torch.equal(short.lengths, long.lengths.clamp(max=9)) and short.tokens.size(1) == 9
        assert bool((short.tokens.gather(1, short.lengths[:, None] - 1) == eos).all())
        content = torch.arange(9) < short.lengths[:, None] - 1
        assert torch.equal(short.tokens[content], long.tokens[:, :9][content])


def test_describe_names_the_pairs(data_directory: Path) -> None:
    task = make(data_directory)
    batch = next(task.batches("train"))
    named = [(29, "es-en pair 29"), (30, "de-en pair 0"), (629, "de-en pair 599")]
    batch.indices = torch.tensor([index for index, _ in named] + [0])
    said = [f"{name}: {TRAIN[index][0]!r} ||| {TRAIN[index][1]!r}" for index, name in named]
    assert task.describe(batch) == "; ".join(said)


def test_fingerprint_and_hashes(data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(data_directory)
    assert task.fingerprint() == make(data_directory, batch_size=7).fingerprint()
    hashes = np.load(task.training_hashes, allow_pickle=False)
    assert set(hashes.tolist()) == {sentence_hash(sentence) for pair in TRAIN for sentence in pair}
    # Raw text is preprocessed once, with the vocabulary that was asked for.
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    raw = write_corpus(tmp_path / "raw", train=120)
    from_raw = make(raw, vocab_size=130, batch_size=20)
    assert from_raw.text.vocabulary("source").size == 130 and from_raw.examples == 120
    assert from_raw.fingerprint() != task.fingerprint()
    (cached,) = (tmp_path / "home" / "preprocessed").iterdir()
    before = (cached / "manifest.json").stat()
    again = make(raw, vocab_size=130, batch_size=20)
    assert again.fingerprint() == from_raw.fingerprint() == DataDirectory.open(cached).fingerprint
    assert (cached / "manifest.json").stat() == before


def test_what_it_refuses(data_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="630 training pairs do not fill a batch of 631; lower --batch-size") as caught:
        make(data_directory, batch_size=631)
    assert str(data_directory) in str(caught.value)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        make(tmp_path / "nowhere")
    config = BitextTask.Config(batch_size=0, max_length=2, sampling_alpha=1.1)
    assert [problem.split()[0] for problem in config.problems()] == ["batch_size", "max_length", "sampling_alpha"]

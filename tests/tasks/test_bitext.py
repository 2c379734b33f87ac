"""The bitext task on preprocessed real text of two language pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs, spanish_pairs, write_corpus
from xrep.data.batching import PairBatch, TokenBatch
from xrep.data.store import DataDirectory
from xrep.data.stream import stream
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import sentence_hash

# The Spanish corpus is the first, with examples 0 to 29.
TRAIN = spanish_pairs()[:30] + sentence_pairs(600)
VALID = spanish_pairs()[30:] + sentence_pairs(660)[600:]


def make(data: Path, seed: int = 1, **options) -> BitextTask:
    return BitextTask(BitextTask.Config(data=str(data), **options), seed)


def batches(task: BitextTask, start: int = 0, **options) -> Iterator[PairBatch]:
    return (batch for batch, _ in stream(task, cursor=start, **options))


def sentences(task: BitextTask, side: TokenBatch) -> list[str]:
    rows = zip(side.tokens.tolist(), side.lengths.tolist(), strict=True)
    return [task.tokenizers["shared"].decode(ids[1 : length - 1]) for ids, length in rows]


def pairs(task: BitextTask, batch: PairBatch) -> list[tuple[str, str]]:
    return list(zip(sentences(task, batch.source), sentences(task, batch.target), strict=True))


def test_an_epoch_is_the_training_text(data_directory: Path) -> None:
    task = make(data_directory, batch_size=64)
    assert task.examples == 630
    epoch = list(batches(task, stop=630))
    assert [len(batch) for batch in epoch] == [64] * 9 + [54]
    assert Counter(pair for batch in epoch for pair in pairs(task, batch)) == Counter(TRAIN)
    assert sorted(torch.cat([batch.indices for batch in epoch]).tolist()) == list(range(630))
    for batch in epoch:
        for (german, english), ids in zip(pairs(task, batch), batch.ids.tolist(), strict=True):
            assert [number % 2**64 for number in ids] == [sentence_hash(german), sentence_hash(english)]
    spec = task.text
    assert (
        spec.source_languages == ["de", "es"]
        and spec.target_languages == ["en"]
        and spec.vocabulary("target").size == 150
    )
    first = epoch[0].source
    vocabulary = spec.vocabulary("source")
    assert set(first.tokens[:, 0].tolist()) == {vocabulary.bos_id}
    assert bool((first.tokens[~first.mask] == vocabulary.pad_id).all())
    assert all(row[n - 1] == vocabulary.eos_id for row, n in zip(first.tokens, first.lengths, strict=True))


@pytest.mark.parametrize("start, stop", [(0, 256), (100, 500), (600, 1301)])
def test_ranks_share_the_stream(data_directory: Path, start: int, stop: int) -> None:
    task = make(data_directory, batch_size=32)
    single = torch.cat([batch.indices for batch in batches(task, start, stop=stop)])
    assert len(single) == stop - start
    for world_size in (2, 4):
        ranks = [list(batches(task, start, rank=rank, world_size=world_size, stop=stop)) for rank in range(world_size)]
        steps = list(zip(*ranks, strict=True))
        assert all(len(batch) == 32 for step in steps[:-1] for batch in step)
        assert torch.equal(torch.cat([batch.indices for step in steps for batch in step]), single)


def read(task: BitextTask, world_size: int, cursor: int | None, stop: int) -> tuple[list[list[int]], list[int]]:
    """Return the indices of each global batch and the cursors after it, which must be equal on every rank."""
    ranks = [
        list(stream(task, cursor=cursor, rank=rank, world_size=world_size, stop=stop)) for rank in range(world_size)
    ]
    cursors = {tuple(plan.cursor for _, plan in rank) for rank in ranks}
    assert cursors == {tuple(plan.examples for _, plan in rank) for rank in ranks} and len(cursors) == 1
    steps = [[i for batch, _ in step for i in batch.indices.tolist()] for step in zip(*ranks, strict=True)]
    return steps, list(cursors.pop())


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_resumed_on_other_ranks_an_epoch_holds_each_example_once(data_directory: Path, before: int, after: int) -> None:
    """A run stops within the epoch and continues with another batch size and number of ranks; the end is ragged."""
    first, cursors = read(make(data_directory, batch_size=37), before, None, 630)
    cursor = cursors[1]
    rest, cursors = read(make(data_directory, batch_size=23), after, cursor, 630)
    assert cursors[-1] == 630
    assert sorted(i for step in [*first[:2], *rest] for i in step) == list(range(630))


def test_parts_may_be_empty(data_directory: Path) -> None:
    task = make(data_directory, batch_size=157)  # 630 = 4 * 157 + 2
    last = [list(batches(task, rank=rank, world_size=4, stop=630))[-1] for rank in range(4)]
    assert [len(batch) for batch in last] == [1, 1, 0, 0]
    nothing = last[3]
    assert nothing.source.tokens.shape == nothing.target.tokens.shape == (0, 2)
    assert nothing.ids.shape == (0, 2) and nothing.indices.shape == (0,) and nothing.token_count == 0
    assert nothing.source.mask.shape == (0, 2) and not nothing.source.is_padded
    assert len(nothing.to("cpu")) == 0 and len(nothing.source.followed_by(last[0].source, 0)) == 1
    assert {t.dtype for t in (nothing.source.tokens, nothing.target.lengths, nothing.ids, nothing.indices)} == {
        torch.int64
    }
    assert task.describe(nothing) == "no examples"


def test_training_goes_on_for_ever(data_directory: Path) -> None:
    endless = batches(make(data_directory, batch_size=400), 300)
    assert [len(next(endless)) for _ in range(4)] == [400] * 4
    first, other = (next(batches(make(data_directory, seed=seed, batch_size=50))).indices for seed in (1, 2))
    assert not torch.equal(first, other)


def test_sampling_repeats_the_small_language_pair(data_directory: Path) -> None:
    task = make(data_directory, sampling_alpha=0.5, batch_size=90)
    indices = torch.cat([batch.indices for batch in batches(task, stop=630)])
    spanish = indices[indices < 30]
    assert len(spanish) == 115 and set(spanish.tolist()) == set(range(30))  # 630 * √30 / (√600 + √30) = 115.1


def test_validation_pools(data_directory: Path) -> None:
    task = make(data_directory)
    spanish, german = task.validation_pools(40)
    assert (german.name, german.source_language, german.target_language) == ("de-en", "de", "en")
    assert (spanish.name, spanish.source_language, spanish.target_language) == ("es-en", "es", "en")
    for pool, expected in ((spanish, VALID[:6]), (german, VALID[6:46])):
        for _ in range(2):  # the pools can be read again
            read = list(pool.batches())
            found = {i: pair for b in read for i, pair in zip(b.indices.tolist(), pairs(task, b), strict=True)}
            assert found == dict(enumerate(expected))
            lengths = torch.cat([batch.source.lengths + batch.target.lengths for batch in read])
            assert bool((lengths.diff() >= 0).all())


def test_long_sentences_are_cut(data_directory: Path) -> None:
    whole, cut = (next(batches(make(data_directory, max_length=n))) for n in (128, 9))
    assert int(whole.source.lengths.max()) > 9
    eos = make(data_directory).text.vocabulary("target").eos_id
    for long, short in ((whole.source, cut.source), (whole.target, cut.target)):
        assert torch.equal(short.lengths, long.lengths.clamp(max=9)) and short.tokens.size(1) == 9
        assert bool((short.tokens.gather(1, short.lengths[:, None] - 1) == eos).all())
        content = torch.arange(9) < short.lengths[:, None] - 1
        assert torch.equal(short.tokens[content], long.tokens[:, :9][content])


def test_describe_names_the_pairs(data_directory: Path) -> None:
    task = make(data_directory)
    batch = next(batches(task))
    named = [(29, "es-en pair 29"), (30, "de-en pair 0"), (629, "de-en pair 599")]
    batch.indices = torch.tensor([index for index, _ in named] + [0])
    said = [f"{name}: {TRAIN[index][0]!r} ||| {TRAIN[index][1]!r}" for index, name in named]
    assert task.describe(batch) == "; ".join(said)


def test_fingerprint_and_hashes(data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(data_directory)
    assert task.fingerprint() == make(data_directory, batch_size=7).fingerprint()
    task.write_training_hashes(tmp_path / "hashes.npy")
    hashes = np.load(tmp_path / "hashes.npy", allow_pickle=False)
    assert set(hashes.tolist()) == {sentence_hash(sentence) for pair in TRAIN for sentence in pair}
    # Raw text is preprocessed once, with the requested vocabulary.
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    raw = write_corpus(tmp_path / "raw", train=120)
    from_raw = make(raw, vocab_size=130, batch_size=20)
    assert from_raw.text.vocabulary("source").size == 130 and from_raw.examples == 120
    assert from_raw.fingerprint() != task.fingerprint()
    (cached,) = (tmp_path / "home" / "preprocessed").iterdir()
    before = (cached / "manifest.json").stat()
    again = make(raw, vocab_size=130, batch_size=20)
    assert again.fingerprint() == from_raw.fingerprint() == DataDirectory(cached).fingerprint
    assert (cached / "manifest.json").stat() == before


def test_what_it_refuses(data_directory: Path, tmp_path: Path) -> None:
    make(data_directory, batch_size=630).check_size(1)
    with pytest.raises(
        UserError, match="630 training pairs do not fill a batch of 631; lower `batch_size` or"
    ) as caught:
        make(data_directory, batch_size=631).check_size(1)
    assert str(data_directory) in str(caught.value)
    make(data_directory, batch_size=78).check_size(8)
    problem = (
        "630 training pairs do not fill a batch of 79 on each of 8 ranks; lower `batch_size`, start fewer processes"
    )
    with pytest.raises(UserError, match=problem):
        make(data_directory, batch_size=79).check_size(8)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        make(tmp_path / "nowhere")
    config = BitextTask.Config(batch_size=0, max_length=2, vocab_size=0, sampling_alpha=1.1)
    assert [problem.split()[0] for problem in config.problems()] == [
        "batch_size", "max_length", "vocab_size", "sampling_alpha"
    ]  # fmt: skip

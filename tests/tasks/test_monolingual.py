"""The task monolingual on a small text of known documents in two languages."""

from __future__ import annotations

import gzip
import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from xrep.config import Part
from xrep.data import text_store
from xrep.data.batching import PairBatch, TokenBatch
from xrep.data.store import MANIFEST_FILE
from xrep.data.stream import stream
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.monolingual import MonolingualTask, SentenceBatch
from xrep.text.cleaning import sentence_hash
from xrep.text.tokenizer import train_tokenizer


def documents(sentences: list[str], seed: int) -> list[list[str]]:
    """Return documents of 1 to 6 sentences."""
    chance, found = random.Random(seed), []
    while sentences:
        size = chance.randint(1, 6)
        found.append(sentences[:size])
        sentences = sentences[size:]
    return found


GERMAN = documents([german for german, _ in sentence_pairs(400)], 1)
ENGLISH = documents([english for _, english in sentence_pairs(90)], 2)
VALID = documents([german for german, _ in sentence_pairs(450)[400:]], 3)


def write(path: Path, some: list[list[str]]) -> None:
    text = "\n".join("".join(f"{sentence}\n" for sentence in document) for document in some)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write German text in two files, so that there is a border between them."""
    folder = tmp_path_factory.mktemp("text")
    write(folder / "news.1.de", GERMAN[:50])
    write(folder / "news.2.de.gz", GERMAN[50:])
    write(folder / "en.txt", ENGLISH)
    write(folder / "valid.de", VALID)
    return folder


@pytest.fixture
def make(raw: Path, data_directory: Path) -> Callable[..., MonolingualTask]:
    """``make(units="adjacent", batch_size=7)`` returns the task with the tokenizer of ``data_directory``."""

    def made(seed: int = 1, brought: dict[str, str] | None = None, **options: Any) -> MonolingualTask:
        given = {"data": str(raw), "tokenizer": str(data_directory), "max_length": 64, "sampling_alpha": 1.0}
        return MonolingualTask(MonolingualTask.Config(**{**given, **options}), seed, brought)

    return made


def sentences(task: MonolingualTask, side: TokenBatch) -> list[str]:
    rows = zip(side.tokens.tolist(), side.lengths.tolist(), strict=True)
    return [task.tokenizers["shared"].decode(ids[1 : length - 1]) for ids, length in rows]


def pairs(task: MonolingualTask, batch: PairBatch) -> list[tuple[str, str]]:
    return list(zip(sentences(task, batch.source), sentences(task, batch.target), strict=True))


def neighbours(some: list[list[str]]) -> list[tuple[str, str]]:
    return [pair for document in some for pair in itertools.pairwise(document)]


def flat(some: list[list[str]]) -> list[str]:
    return [sentence for document in some for sentence in document]


def test_sentences(make) -> None:
    task = make(batch_size=64)
    assert task.examples == 490 and task.text.languages == task.text.source_languages == ["de", "en"]
    epoch = [batch for batch, _ in stream(task, stop=490)]
    assert [len(batch) for batch in epoch] == [64] * 7 + [42] and isinstance(epoch[0], SentenceBatch)
    expected = Counter(flat(GERMAN) + flat(ENGLISH))
    assert Counter(text for batch in epoch for text in sentences(task, batch.sentences)) == expected
    assert sorted(torch.cat([batch.indices for batch in epoch]).tolist()) == list(range(490))
    english = set(flat(ENGLISH))
    for batch in epoch:
        languages = ["en" if text in english else "de" for text in sentences(task, batch.sentences)]
        assert [task.text.languages[place] for place in batch.languages] == languages
        assert batch.token_count == int(batch.sentences.lengths.sum())
    batch = epoch[0]
    some = batch.rows(3, 9)
    assert sentences(task, some.sentences) == sentences(task, batch.sentences)[3:9] and len(some) == 6
    assert torch.equal(some.indices, batch.indices[3:9]) and torch.equal(some.languages, batch.languages[3:9])
    assert batch.to("meta").sentences.tokens.device.type == "meta" and batch.to("meta").indices.device.type == "cpu"
    found = list(task.validation_batches())
    assert task.has_validation and Counter(s for b in found for s in sentences(task, b.sentences)) == Counter(
        flat(VALID)
    )
    assert task.validation_pools(10) == []


@pytest.mark.parametrize("swap", [False, True])
def test_neighbours(make, swap: bool) -> None:
    task = make(units="adjacent", batch_size=50, swap_order=swap)
    expected = neighbours(GERMAN) + neighbours(ENGLISH)
    assert task.examples == len(expected)
    seen = []
    for number in range(2):
        cursor = number * len(expected)
        batches = [batch for batch, _ in stream(task, cursor=cursor, stop=cursor + len(expected))]
        epoch = [pair for batch in batches for pair in pairs(task, batch)]
        turned = [pair[::-1] if pair[::-1] in expected else pair for pair in epoch]
        assert Counter(turned) == Counter(expected)
        share = np.mean([pair not in expected for pair in epoch])
        assert 0.4 < share < 0.6 if swap else share == 0
        seen.append({pair for pair in epoch if pair not in expected})
        for batch in batches:
            hashes = [[sentence_hash(text) for text in pair] for pair in pairs(task, batch)]
            assert [[number % 2**64 for number in row] for row in batch.ids.tolist()] == hashes
            assert torch.equal(batch.languages[:, 0], batch.languages[:, 1])
            assert all(s.tokens.size(1) == int(s.lengths.max()) for s in (batch.source, batch.target))
    assert (seen[0] != seen[1]) is swap, "drawn anew in each epoch"
    found = [pair for batch in task.validation_batches() for pair in pairs(task, batch)]
    assert {frozenset(pair) for pair in found} == {frozenset(pair) for pair in neighbours(VALID)}


def test_reordered(make) -> None:
    task = make(units="reordered", batch_size=490)
    first, second = (batch for batch, _ in stream(task, stop=980))
    orders: list[dict[str, list[int]]] = []
    for batch in (first, second):
        texts = sentences(task, batch.source)
        assert Counter(texts) == Counter(flat(GERMAN) + flat(ENGLISH))
        orders.append({})
        for x, y, n, text in zip(batch.source.tokens, batch.target.tokens, batch.source.lengths, texts, strict=True):
            assert x[:1].equal(y[:1]) and x[n - 1 :].equal(y[n - 1 :]) and x[:n].sort()[0].equal(y[:n].sort()[0])
            orders[-1][text] = y[:n].tolist()
        assert torch.equal(batch.source.lengths, batch.target.lengths)
        moved = (batch.source.tokens != batch.target.tokens)[batch.source.mask].double().mean()
        assert 0.6 < moved < 0.95  # bos and eos stay, and some tokens stay in place by chance
    assert np.mean([orders[0][text] != orders[1][text] for text in orders[0]]) > 0.99, "another order in each epoch"
    assert torch.equal(first.ids[:, 0], first.ids[:, 1])


def test_every_order_is_as_likely(make) -> None:
    task = make(units="reordered")
    lengths = np.full(24_000, 4)
    ids, _ = task._reordered(np.tile(np.arange(4), 24_000), lengths, np.arange(24_000))
    counts = Counter(map(tuple, ids.reshape(-1, 4).tolist()))
    assert len(counts) == 24
    assert (
        sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 50
    )  # chi square of 23: 1 in 1000 is above 49.7


@pytest.mark.parametrize("alpha, share", [(1.0, 90 / 490), (0.3, 0.39), (0.0, 0.5)])
def test_smoothed_sampling(make, alpha: float, share: float) -> None:
    task = make(sampling_alpha=alpha, batch_size=490)
    places = next(batch for batch, _ in stream(task)).languages
    assert task.text.languages == ["de", "en"] and places.double().mean().item() == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_budget_of_tokens(make, batch_size: int | None) -> None:
    """The budget counts special tokens, and long sentences after they are cut."""
    task = make(max_tokens=400, batch_size=batch_size, max_length=14)
    for world in (1, 2, 3):
        ranks = [[batch for batch, _ in stream(task, rank=rank, world_size=world, stop=490)] for rank in range(world)]
        assert len({len(batches) for batches in ranks}) == 1
        batches = [batch for step in zip(*ranks, strict=True) for batch in step]
        texts = Counter(index for batch in batches for index in batch.indices.tolist())
        assert texts == Counter(range(490))
        for batch, following in itertools.pairwise(batch for batch in batches if len(batch)):
            assert batch.token_count == int(batch.sentences.lengths.sum()) <= 400
            assert batch.token_count + following.sentences.lengths[0] > 400 or len(batch) == batch_size
        assert max(int(batch.sentences.lengths.max()) for batch in batches if len(batch)) == 14
    mean = 490 / sum(1 for batch in batches if len(batch))
    assert task.examples_per_batch == pytest.approx(mean) and (batch_size is None or mean < 20)
    task.check_size(3)
    with pytest.raises(UserError, match="490 training sentences do not fill a batch of 5000 tokens on each of 3 ranks"):
        make(max_tokens=5000).check_size(3)
    assert [len(batch) for batch, _ in stream(make(max_tokens=1), stop=490)] == [1] * 490
    assert make(max_tokens=400).fingerprint() == make().fingerprint() and make().examples_per_batch == 128


@pytest.mark.slow
@pytest.mark.parametrize("units", ["sentences", "adjacent", "reordered"])
@pytest.mark.parametrize("before, after", [(1, 3), (2, 1), (4, 2)])
def test_a_run_goes_on_with_other_ranks_and_batches(make, units: str, before: int, after: int) -> None:
    """Examples and random draws are the same."""
    seen: list[Any] = []
    cursor = None

    def rows(batch: Any) -> list[Any]:
        sides = [batch.sentences] if units == "sentences" else [batch.source, batch.target]
        texts = [[ids[:n].tolist() for ids, n in zip(s.tokens, s.lengths, strict=True)] for s in sides]
        return list(zip(batch.indices.tolist(), *texts, strict=True))

    for world, size, steps in ((before, 23, 3), (after, 31, 5)):
        task = make(units=units, batch_size=size)
        ranks = [
            list(itertools.islice(stream(task, cursor=cursor, rank=r, world_size=world), steps)) for r in range(world)
        ]
        for step in zip(*ranks, strict=True):
            seen += [row for batch, _ in step for row in rows(batch)]
            assert {(plan.cursor, plan.examples) for _, plan in step} == {(len(seen),) * 2}
            cursor = step[0][1].cursor
    one = make(units=units, batch_size=len(seen))
    assert seen == rows(next(batch for batch, _ in stream(one)))
    other = next(batch for batch, _ in stream(make(units=units, batch_size=len(seen), seed=2)))
    assert seen != rows(other)


def test_parts_of_a_batch_may_be_empty(make) -> None:
    for units in ("sentences", "adjacent", "reordered"):
        task = make(units=units, batch_size=4)
        nothing = task.make(np.zeros((0, 3), dtype=np.int64))
        assert len(nothing) == nothing.token_count == 0 and task.describe(nothing) == "no examples"


def test_workers_make_the_same_batches(make) -> None:
    task = make(units="reordered", batch_size=50)
    for (mine, _), (theirs, _) in zip(stream(task, stop=200), stream(task, stop=200, workers=2), strict=True):
        assert torch.equal(mine.target.tokens, theirs.target.tokens) and torch.equal(mine.ids, theirs.ids)


def test_beside_bitext(make, raw: Path, data_directory: Path) -> None:
    """The languages of the other part change the numbers of this part's languages."""
    of_text = {"data": str(raw), "tokenizer": str(data_directory), "batch_size": 20, "max_length": 64}
    parts = [
        Part("mono", MonolingualTask, MonolingualTask.Config(**of_text), 1.0, 1.0),
        Part("pairs", BitextTask, BitextTask.Config(data=str(data_directory), batch_size=10), 1.0, 1.0),
    ]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    assert task.text.languages == ["de", "en", "es"]
    batch = next(batch for batch, _ in stream(task))
    assert isinstance(batch.parts["mono"], SentenceBatch) and len(batch) == 30
    english = set(flat(ENGLISH))
    own = batch.parts["mono"]
    for text, place in zip(sentences(task.parts["mono"], own.sentences), own.languages.tolist(), strict=True):
        assert task.text.languages[place] == ("en" if text in english else "de")


@pytest.mark.parametrize("max_tokens, longest", [(90, "mono"), (2000, "pairs")])
def test_a_budget_beside_a_batch_size(raw: Path, data_directory: Path, max_tokens: int, longest: str) -> None:
    """An epoch reads the longest part once, whichever it is."""
    of_text = {"data": str(raw), "tokenizer": str(data_directory), "max_tokens": max_tokens, "max_length": 32}
    parts = [
        Part("mono", MonolingualTask, MonolingualTask.Config(**of_text, sampling_alpha=1.0), 1.0, 1.0),
        Part("pairs", BitextTask, BitextTask.Config(data=str(data_directory), batch_size=20), 1.0, 1.0),
    ]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    sizes = {"mono": 490, "pairs": 630}
    for world in (1, 2):
        ranks = [list(task.plan(rank=rank, world_size=world, stop=task.examples)) for rank in range(world)]
        steps = list(zip(*ranks, strict=True))
        assert all(
            (plan.cursor, plan.examples) == (step[0].cursor, step[0].examples) for step in steps for plan in step
        )
        seen = {name: sum(len(plan.what[name]) for step in steps for plan in step) for name in sizes}
        assert steps[-1][0].cursor["parts"] == seen and seen[longest] == sizes[longest]
        assert steps[-1][0].examples >= task.examples > steps[-2][0].examples
        # The share of the other part follows from the mean of its batches.
        assert sum(seen.values()) == pytest.approx(task.examples, rel=0.05)
        assert task.make(steps[0][0].what).parts["mono"].token_count <= max_tokens


def test_describe(make) -> None:
    task = make(units="adjacent", swap_order=False, batch_size=300)
    batch = next(batch for batch, _ in stream(task))
    lines = task.describe(batch, 300).split("; ")
    for line, pair in zip(lines, pairs(task, batch), strict=True):
        language, _, row, *_ = line.split(" ")
        assert line == f"{language} sentence {row} {pair[0]!r} ||| {pair[1]!r}" and language in ("de", "en")


def test_evaluation_sets_are_dropped(make, raw: Path, tmp_path: Path) -> None:
    """The sentences before and after a dropped sentence are not neighbours."""
    inner = next(document for document in GERMAN if len(document) > 3)
    (tmp_path / "tatoeba.tsv").write_text(f"x\t{inner[1].upper()}!\n{VALID[0][0]}\n")
    task = make(exclude=[str(tmp_path / "tatoeba.tsv")], units="adjacent", batch_size=10, swap_order=False)
    examples = [pair for batch, _ in stream(task, stop=task.examples) for pair in pairs(task, batch)]
    expected = set(neighbours(GERMAN) + neighbours(ENGLISH)) - set(itertools.pairwise(inner[:3]))
    assert Counter(examples) == Counter(expected)
    task.write_training_hashes(tmp_path / "hashes.npy")
    kept = set(flat(GERMAN) + flat(ENGLISH)) - {inner[1]}
    assert set(np.load(tmp_path / "hashes.npy").tolist()) == {sentence_hash(text) for text in kept}
    write(tmp_path / "train.de", [[VALID[0][0], "ein anderer Satz", "noch einer"]])
    write(tmp_path / "valid.de", VALID)
    small = make(data=str(tmp_path), batch_size=1)
    assert small.examples == 2, "sentences of the split valid are not trained on"
    assert small.fingerprint() != task.fingerprint()


def test_a_vocabulary_of_its_own(make, raw: Path, tmp_path: Path) -> None:
    task = make(tokenizer=None, vocab_size=120)
    assert task.text.vocabulary("shared").size == 120
    assert make(tokenizer=None, vocab_size=120, vocabulary_alpha=1.0).fingerprint() != task.fingerprint()
    task.save_tokenizers(tmp_path / "own")
    brought = {"shared": str(tmp_path / "own")}
    assert make(tokenizer=None, brought=brought).text.vocabulary("shared").size == 120
    with pytest.raises(UserError, match="is another vocabulary than that of the pretrained encoder; leave it out"):
        make(brought=brought)
    train_tokenizer(flat(GERMAN), 90, tmp_path / "other")
    sides = {"source": str(tmp_path / "own"), "target": str(tmp_path / "other")}
    with pytest.raises(UserError, match="the pretrained encoders have tokenizers of their own; all languages share"):
        make(tokenizer=None, brought=sides)


def test_what_is_kept_is_found_again(make, raw: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path))
    first = make()
    assert "tokenising" in capsys.readouterr().out
    again = make()
    assert again.fingerprint() == first.fingerprint() and capsys.readouterr().out == ""
    (folder,) = (tmp_path / "text").iterdir()
    tokens = folder / "train.de.de.tokens"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"train.de.de.tokens: \d+ bytes, .*; copy it again or remove its directory"):
        make()
    (folder / MANIFEST_FILE).write_text("{")
    with pytest.raises(UserError, match="the manifest is no JSON; remove its directory; it is made again"):
        make()


def test_a_missing_file_to_exclude_is_named_before_anything_is_done(make, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    excluded = tmp_path / "excluded"
    excluded.mkdir()
    (excluded / "a.txt").write_text("nothing of this\n", encoding="utf-8")
    make(exclude=[str(excluded)])
    (excluded / "a.txt").unlink()
    excluded.rmdir()
    capsys.readouterr()
    with pytest.raises(UserError, match="excluded: no such file; check the name"):
        make(exclude=[str(excluded)])
    assert capsys.readouterr().out == "" and len(list((tmp_path / "home" / "text").iterdir())) == 1


def test_text_is_written_in_pieces(make, monkeypatch, tmp_path: Path) -> None:
    """Documents cross the borders of the chunks that are tokenised at a time, where sentences are dropped."""
    inner = [document[1] for document in GERMAN if len(document) > 3]
    (tmp_path / "excluded.txt").write_text("".join(f"{sentence}\n" for sentence in inner), encoding="utf-8")
    exclude = [str(tmp_path / "excluded.txt")]
    whole = make(units="adjacent", exclude=exclude).fingerprint()
    for size in (1, 7):
        monkeypatch.setattr(text_store, "_CHUNK", size)
        monkeypatch.setenv("XREP_HOME", str(tmp_path / str(size)))
        assert make(units="adjacent", exclude=exclude).fingerprint() == whole


@pytest.mark.parametrize("units, specials", [("sentences", 2), ("reordered", 2), ("adjacent", 4)])
def test_examples_are_sorted_by_all_of_their_tokens(make, units: str, specials: int) -> None:
    task = make(units=units, batch_size=1)
    for plan in itertools.islice(task.plan(), 20):
        batch = task.make(plan.what)
        corpus, row, _ = plan.what[0]
        both = batch.token_count // (2 if units == "reordered" else 1)
        assert task._train.lengths(corpus, np.array([row])).tolist() == [both - specials]


def test_refused(make, tmp_path: Path) -> None:
    write(tmp_path / "train.de", [["eins"], ["zwei"]])
    with pytest.raises(UserError, match="no document has two sentences; only a blank line ends one; or set `units`"):
        make(data=str(tmp_path), units="adjacent")
    with pytest.raises(UserError, match="2 training sentences do not fill a batch of 3; lower `batch_size`"):
        make(data=str(tmp_path), batch_size=3).check_size(1)
    with pytest.raises(UserError, match="no training sentence is left; check the text and `exclude`"):
        make(data=str(tmp_path), exclude=[str(tmp_path / "train.de")])
    assert (
        MonolingualTask.Config(data="x").problems() == MonolingualTask.Config(data="x", max_tokens=9).problems() == []
    )
    assert MonolingualTask.Config(data="x", max_tokens=9, units="adjacent").problems() == [
        "max_tokens is for units sentences; batches of adjacent ones have a batch_size"
    ]
    wrong = MonolingualTask.Config(
        data="x", sampling_alpha=2, vocabulary_alpha=-1, batch_size=0, max_length=2, vocab_size=7, max_tokens=0
    )
    assert len(wrong.problems()) == 6

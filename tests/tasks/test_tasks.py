"""What is true of every task, for each kind of examples: text of an epoch, order, ranks, resuming, collation."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.first_tokens import write_tokenizer_without_first_token
from tests.support.nli_data import write
from tests.support.once import made_once
from tests.support.planning import streamed
from tests.tasks.kinds import KINDS, PAIRS, SPANISH, SWAPPED, Kind, contents, hashes_of, rows_of, sequences
from xrep.config import problems_of
from xrep.data.batch import TokenBatch
from xrep.data.batch_plan import mean_size
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.monolingual import MonolingualTask
from xrep.tasks.nli import NliTask
from xrep.tasks.task import ExampleKind, Task
from xrep.tasks.translation import TranslationTask
from xrep.text.cleaning import sentence_hash
from xrep.text.nli import LABELS
from xrep.text.sides import open_tokenizers

BY_TOKENS = [name for name, kind in KINDS.items() if "max_tokens" in kind.options]
BY_SIZE = [name for name in KINDS if name not in BY_TOKENS]


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture
def make(name: str, texts: Path, data_directory: Path) -> Callable[..., Any]:
    """``make(batch_size=7)`` returns the task of the kind."""
    return lambda seed=1, **options: KINDS[name].make(texts, data_directory, seed, **options)


def in_any_order(name: str, rows: list[tuple[str, ...]]) -> Counter[Any]:
    return Counter(tuple(sorted(row)) if name in SWAPPED else row for row in rows)


def sides_of(batch: Any) -> list[TokenBatch]:
    return list(batch.sides.values())


def epoch(task: Task, **options: Any) -> list[Any]:
    return [batch for batch, _ in streamed(task, stop=task.examples, **options)]


def test_an_epoch_is_the_training_text(name: str, kind: Kind, make) -> None:
    task = make()
    batches = epoch(task)
    found = [row for batch in batches for row in rows_of(task, batch)]
    indices = [index for batch in batches for index in batch.indices.tolist()]
    assert task.examples == kind.size == len(found) and sorted(indices) == list(range(kind.size))
    if kind.train is None:
        assert len(set(found)) == kind.size
        return
    assert in_any_order(name, found) == in_any_order(name, kind.train)
    if name not in (*SWAPPED, "nli", "nli, two languages"):  # stored in another order than that of the files
        assert [row for _, row in sorted(zip(indices, found, strict=True))] == kind.train


def test_the_order_is_the_seed_s(kind: Kind, make) -> None:
    """Batches of any size are cuts of one order; the next epoch has another one, and so has another seed."""
    task, size = make(), kind.size

    def indices(task: Task, first: int, last: int) -> list[int]:
        return [index for batch, _ in streamed(task, cursor=first, stop=last) for index in batch.indices.tolist()]

    first, second = indices(task, 0, size), indices(task, size, 2 * size)
    assert first != second and sorted(first) == sorted(second) == list(range(size))
    assert indices(make(**kind.smaller), 0, size) == first != indices(make(seed=2), 0, size)


def test_a_run_goes_on_with_other_ranks_and_batches(kind: Kind, make) -> None:
    """The cursor passes through four numbers of ranks; together they give what one process gives, with equal draws."""
    seen: list[Any] = []
    cursor = None
    for world, options, steps in ((2, {}, 1), (3, kind.smaller, 2), (1, {}, 1), (4, kind.smaller, None)):
        stop = None if steps else kind.size + 5
        task = make(**{**({} if "max_tokens" in kind.options else {"batch_size": 17}), **options})
        ranks = [list(itertools.islice(streamed(task, cursor=cursor, rank=rank, world_size=world, stop=stop), steps))
                 for rank in range(world)]  # fmt: skip
        for step in zip(*ranks, strict=True):
            seen += [row for batch, _ in step for row in sequences(batch)]
            assert {(plan.cursor, plan.examples) for _, plan in step} == {(len(seen), len(seen))}
        cursor = step[0][1].cursor
    assert len(seen) == kind.size + 5
    assert seen == [row for batch, _ in streamed(make(), stop=kind.size + 5) for row in sequences(batch)]
    assert sorted(index for index, _ in seen[: kind.size]) == list(range(kind.size))


def test_a_batch_is_a_function_of_its_plan_alone(make) -> None:
    task, other = make(), make()
    plans = list(itertools.islice(task.plan(), 3))
    batches = [contents(task.make(plan.rows)) for plan in plans]
    assert [contents(other.make(plan.rows)) for plan in reversed(plans)] == batches[::-1]
    nothing = task.make(plans[0].rows[:0])
    assert rows_of(task, nothing) == [] and task.describe(nothing) == "no examples"
    kinds = {kind for kind in str(contents(nothing)).split("'") if kind.startswith("torch.")}
    assert kinds == {"torch.int64", *(["torch.float32"] if task.gives is ExampleKind.SCORED_PAIRS else [])}


def test_micro_batches_are_parts_of_a_batch(make) -> None:
    task = make()
    batch = task.make(next(task.plan()).rows)
    whole = rows_of(task, batch)
    for start, stop in ((0, len(batch)), (0, 2), (2, 3), (3, 9), (4, 4)):
        some = batch.rows(start, stop)
        for side in sides_of(some):
            assert side.tokens.size(1) >= (int(side.lengths.max()) if len(side) else 0)
        assert some.indices.tolist() == batch.indices.tolist()[start:stop] and len(some) == stop - start
        assert rows_of(task, some) == whole[start:stop]
        assert all(torch.equal(fact, batch.facts[name][start:stop]) for name, fact in some.facts.items())
    moved = batch.to("meta")
    assert {side.tokens.device.type for side in sides_of(moved)} == {"meta"}
    assert moved.indices.device.type == "cpu" and moved.token_count == batch.token_count


@pytest.mark.slow
def test_workers_make_the_same_batches(make) -> None:
    task = make()
    stop = min(150, task.examples)
    alone, together = streamed(task, stop=stop), streamed(task, stop=stop, workers=2)
    for (mine, plan), (theirs, other) in zip(alone, together, strict=True):
        assert contents(mine) == contents(theirs) and plan.cursor == other.cursor


def test_long_sentences_are_cut(kind: Kind, make) -> None:
    whole, cut = make(), make(max_length=9)
    long, short = ([each for batch in epoch(task) for each in sequences(batch)] for task in (whole, cut))
    assert any(len(own) > 9 for _, row in long for own in row)
    if kind.data == "labels":  # which are cut before they are sorted by length
        long, short = sorted(long), sorted(short)
    for (index, before), (other, after) in zip(long, short, strict=True):
        wanted = [own if len(own) <= 9 else own[:8] + own[-1:] for own in before]
        assert index == other
        if kind.options.get("units") == "reordered":  # what is left is in another order
            assert after[0] == wanted[0] and sorted(after[1]) == sorted(wanted[0])
        else:
            assert after == wanted


@pytest.mark.slow
def test_a_tokenizer_that_puts_no_token_first(name, kind, texts, data_directory, tmp_path):
    """Every sentence of the corpus is longer than ``max_length``, so that all rows have exactly this length."""
    words = sorted({word for pair in sentence_pairs(2048) for sentence in pair for word in sentence.split()})
    own = made_once("whole-words", lambda folder: write_tokenizer_without_first_token(folder / "own", words)) / "own"
    options: dict[str, Any] = {"max_length": 5} if name != "labels" else {"max_length": 8}
    if name == "bitext":
        lines = [f"{german}\t{english}\t{PAIRS[0][1]}" for german, english in PAIRS[1:]]
        options["negatives"] = [str(write(tmp_path / "negatives.tsv", lines))]
    if not issubclass(kind.task, BitextTask):
        options["tokenizer"] = None
    if "max_tokens" in kind.options:
        options["max_tokens"] = 50
    task = kind.make(texts, data_directory.parent / "raw", brought={"shared": str(own)}, **options)
    batch = task.make(next(task.plan()).rows)
    rows = [each for _, row in sequences(batch) for each in row]
    if name == "bitext":
        assert batch.negatives.tokens.lengths.tolist() == [5] * len(batch.negatives.rows) and len(batch.negatives.rows)
    eos = task.text.vocabulary("shared").eos_id
    assert len(rows) >= 10 and all(row.index(eos) == len(row) - 1 for row in rows)
    assert np.mean([len(row) == options["max_length"] for row in rows]) >= 0.9
    if name in BY_TOKENS:
        assert len(batch) == 10 and all(len(row) == 5 for row in rows)
    if name.startswith(("bitext", "translation")):
        both = {" ".join(sentence.split()[:4]) for pair in (*PAIRS, *SPANISH) for sentence in pair}
        said = task.references(batch)
        assert len(said) == len(batch) and set(said) <= both | {text for text in said if "<unk>" in text}


def test_validation(name: str, kind: Kind, make) -> None:
    """All of the split is returned by length, and can be read again."""
    task = make()
    assert task.has_validation == bool(kind.valid)
    for _ in range(2):
        batches = list(task.validation_batches())
        rows = [row for batch in batches for row in rows_of(task, batch)]
        assert in_any_order(name, rows) == in_any_order(name, kind.valid)
    by_corpus: dict[Any, list[int]] = {}
    for batch in batches if kind.unit == "pairs" or kind.data == "text" else ():
        key = tuple(batch.languages[0].reshape(-1).tolist())
        by_corpus.setdefault(key, []).extend(sum(side.lengths for side in sides_of(batch)).tolist())
    assert all(lengths == sorted(lengths) for lengths in by_corpus.values())


def test_examples_are_described(name: str, kind: Kind, make) -> None:
    task = make()
    batch = epoch(task)[0]
    rows, lines = rows_of(task, batch), task.describe(batch, len(batch)).split("; ")
    for row, line in zip(rows, lines, strict=True):
        texts = [
            repr(word) if " " in word else word for word in row if " " in word or word in LABELS or word[0].isdigit()
        ]
        said = line.partition(": ")[2].split(" ||| ")
        assert said == texts or name in SWAPPED and said == texts[::-1]
    assert task.describe(batch) == "; ".join(lines[:3])
    if kind.names:
        batch.facts["indices"] = torch.tensor(list(kind.names))
        named = task.describe(batch, len(kind.names)).split("; ")
        assert [line.partition(": ")[0] for line in named] == list(kind.names.values())


def test_what_a_run_keeps(kind: Kind, make, tmp_path: Path) -> None:
    task = make()
    assert task.fingerprint() == make(seed=3, **kind.smaller).fingerprint()
    found = hashes_of(task)
    known = {
        sentence_hash(text) for batch in epoch(task) for row in rows_of(task, batch) for text in row if " " in text
    }
    assert found == known or found > known and task.gives is ExampleKind.NEIGHBOURS  # others have no neighbour
    task.save_tokenizers(tmp_path / "tokenizer")
    assert open_tokenizers(tmp_path / "tokenizer")["shared"].vocabulary_size == 150
    assert task.statistics()["examples"] == task.examples
    assert bool(task.validation_pools(4)) == issubclass(kind.task, BitextTask)


@pytest.mark.parametrize("name", BY_SIZE)
def test_an_epoch_fills_a_batch_of_each_rank(kind: Kind, make) -> None:
    make(batch_size=kind.size // 4).check_size(4)
    problem = f"{kind.size} training {kind.unit} do not fill a batch of {{}}; lower `batch_size`"
    for size, world, of in ((kind.size + 1, 1, ""), (kind.size // 4 + 1, 4, " on each of 4 ranks")):
        with pytest.raises(UserError, match=problem.format(f"{size}{of}")):
            make(batch_size=size).check_size(world)


@pytest.mark.parametrize("most", [None, 20])
@pytest.mark.parametrize("name", BY_TOKENS)
def test_batches_fill_their_budget_of_tokens(kind: Kind, make, most: int | None) -> None:
    """No side exceeds the budget, and another example would not fit; long sentences count after they are cut."""
    task = make(max_tokens=400, batch_size=most, max_length=14)
    for world in (1, 3):
        ranks = [epoch(task, rank=rank, world_size=world) for rank in range(world)]
        batches = [batch for step in zip(*ranks, strict=True) for batch in step if len(batch)]
        sides = [sides_of(batch) for batch in batches]
        for own, following in itertools.pairwise(sides):
            totals = np.array([int(side.lengths.sum()) for side in own])
            more = totals + [int(side.lengths[0]) for side in following]
            assert (totals <= 400).all() and ((more > 400).any() or len(own[0]) == most)
        assert (max(map(len, batches)) == most) is (most is not None)
        assert max(int(side.lengths.max()) for own in sides for side in own) == 14
        if world == 1:
            assert mean_size(task.order, task.size) == pytest.approx(kind.size / len(batches), rel=0.05)
    assert {len(batch) for batch, _ in itertools.islice(streamed(make(max_tokens=1)), 9)} == {1}
    make(max_tokens=400).check_size(3)
    problem = f"{kind.size} training {kind.unit} do not fill a batch of 50000 tokens on each of 3 ranks; lower `max_t"
    with pytest.raises(UserError, match=problem):
        make(max_tokens=50_000).check_size(3)


@pytest.mark.parametrize(("name", "alpha", "share"), [
    ("bitext", 0.5, 115 / 630), ("translation, both", 0.5, 115 / 630), ("bitext", 0.0, 0.5),
    ("sentences", 1.0, 400 / 490), ("sentences", 0.3, 0.61), ("sentences", 0.0, 0.5),
])  # fmt: skip
def test_small_languages_are_repeated(name: str, alpha: float, share: float, make) -> None:
    """The share of each corpus is n ** alpha: 115 of 630 pairs are 630 * √30 / (√600 + √30)."""
    task = make(sampling_alpha=alpha)
    rows = [row for batch in epoch(task) for row in rows_of(task, batch)]
    rare = [row for row in rows if ("de" in row[:1] if name == "sentences" else "es" in row[:2])]
    assert len(rare) / len(rows) == pytest.approx(share, abs=0.01)
    assert name == "sentences" or len(set(rare)) == 30 * (len(rows) // 630)


@pytest.mark.parametrize("name", ["bitext", "translation, both"])
def test_validation_pools(name: str, make) -> None:
    task = make()
    pools = task.validation_pools(5)
    pairs = [("es", "en"), ("de", "en")] + [("en", "es"), ("en", "de")] * (name != "bitext")
    assert [(pool.source_language, pool.target_language) for pool in pools] == pairs
    assert [pool.name for pool in pools] == ["-".join(pair) for pair in pairs]
    for pool, (source, target) in zip(pools, pairs, strict=True):
        for _ in range(2):
            rows = [row for b in pool.batches() for row in zip(b.indices.tolist(), rows_of(task, b), strict=True)]
            first = [row for row in KINDS[name].valid if row[:2] == (source, target)][:5]
            assert sorted(rows) == list(enumerate(first))


@pytest.mark.parametrize(("config", "words"), [
    (TranslationTask.Config(batch_size=0, max_length=2, sampling_alpha=1.1, max_tokens=0),
     "batch_size max_length sampling_alpha max_tokens"),
    (NliTask.Config(data="x", batch_size=0, max_length=2, vocab_size=3), "batch_size max_length vocab_size"),
    (MonolingualTask.Config(data="x", max_tokens=9, units="adjacent"), "max_tokens is for units sentences; batches of"),
    (MonolingualTask.Config(data="x", sampling_alpha=2, vocabulary_alpha=-1, batch_size=0, max_length=2, vocab_size=7,
                            max_tokens=0),
     "sampling_alpha vocabulary_alpha batch_size max_tokens max_length vocab_size"),
])  # fmt: skip
def test_options_out_of_range(config: Any, words: str) -> None:
    problems = problems_of(config)
    assert {problem.split()[0] for problem in problems} == {*words.split()} or problems[0].startswith(words)

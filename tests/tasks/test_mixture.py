"""Several tasks in one: de-en and es-en text (630 pairs) beside 47 pairs of de-en, or beside a task of another kind."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import write_corpus
from tests.support.once import made_once
from tests.tasks.kinds import KINDS, contents, hashes_of, rows_of
from xrep.config import Part
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.stream import Plan
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.text.find import discover_bitext

SIZES = {"large": 630, "small": 47}


@pytest.fixture(scope="session")
def small_directory(data_directory: Path) -> Path:
    """Return 47 training pairs and 8 others, in the vocabulary of ``data_directory``."""

    def make(folder: Path) -> None:
        raw = write_corpus(folder / "raw", train=47, valid=8, test=1)
        options = PreprocessOptions(tokenizers={"shared": str(data_directory / "tokenizer")})
        preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False)

    return made_once("small-bitext", make) / "bin"


@pytest.fixture
def mix(data_directory: Path, small_directory: Path):
    """``mix(large=32, small=8, mixing="weight", ...)`` returns the mixture with these batch sizes."""

    def make(large: int = 32, small: int = 8, mixing: Any = "weight", shares=(1.0, 1.0), seed: int = 1) -> MixtureTask:
        configs = {
            "large": BitextTask.Config(data=str(data_directory), batch_size=large),
            "small": BitextTask.Config(data=str(small_directory), batch_size=small, max_length=64),
        }
        parts = [Part(n, BitextTask, c, 1.0, share) for (n, c), share in zip(configs.items(), shares, strict=True)]
        return MixtureTask(MixtureTask.Config(parts=parts, mixing=mixing), seed)

    return make


def rows(task: MixtureTask, plans: Iterator[Plan] | list[Plan]) -> dict[str, list[int]]:
    """Return the examples of each part in the order of the plans."""
    found: dict[str, list[int]] = {name: [] for name in SIZES}
    for plan in plans:
        for name, batch in task.make(plan.rows).parts.items():
            found[name] += batch.indices.tolist()
    return found


def test_every_step_has_a_batch_of_each_part(mix) -> None:
    task = mix()
    # 630 pairs in batches of 32 take longer than 47 in batches of 8; in that time the small part gives 630 * 8 / 32.
    assert task.examples == 630 + round(157.5)
    plans = list(task.plan(stop=task.examples))
    assert [plan.examples for plan in plans] == [40 * n for n in range(1, 20)] + [790]
    batches = [task.make(plan.rows) for plan in plans]
    assert [[len(part) for part in batch.parts.values()] for batch in batches] == [[32, 8]] * 19 + [[22, 8]]
    assert [len(batch) for batch in batches] == [40] * 19 + [30]
    assert batches[0].token_count == sum(part.token_count for part in batches[0].parts.values())
    assert len(batches[0].to("meta")) == 40
    large, small = (task.parts[name].describe(batches[0].parts[name]) for name in SIZES)
    assert task.describe(batches[0]) == f"large: {large}; small: {small}"


@pytest.mark.parametrize(("large", "small"), [(32, 8), (13, 1)])
@pytest.mark.parametrize(("epochs", "mixing"), [(1, "proportion"), (3, "weight"), (0.4, "proportion")])
def test_the_part_that_takes_longest_ends_exactly(mix, large, small, epochs, mixing) -> None:
    task = mix(large, small, mixing, (3.0, 1.0))
    rates = {"large": large * (3 if mixing == "proportion" else 1), "small": small}
    longest = max(SIZES, key=lambda name: SIZES[name] / rates[name])
    epoch = {name: SIZES[longest] * rate / rates[longest] for name, rate in rates.items()}
    assert task.examples == sum(map(round, epoch.values()))
    stop = math.ceil(epochs * task.examples)
    for world_size in (1, 3):
        *before, last = task.plan(stop=stop, world_size=world_size)
        seen = last.cursor["examples"][longest]
        assert seen == epochs * SIZES[longest] or epochs < 1 and 0 <= seen - epochs * SIZES[longest] < 2
        # The count of the trainer reaches the end with the last batch and not before.
        assert all(plan.examples < stop for plan in before) and last.examples >= stop
        assert all(a.examples <= b.examples for a, b in itertools.pairwise([*before, last]))
        assert list(task.plan(last.cursor, stop=stop, world_size=world_size)) == []


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["weight", "proportion"])
def test_a_run_goes_on_with_other_batch_sizes_and_ranks(mix, mixing) -> None:
    """Each example of each part occurs once per epoch of its part, while the cursor passes through four topologies."""
    found: dict[str, list[int]] = {name: [] for name in SIZES}
    cursor, examples = None, 0
    for batch_sizes, world_size, steps in [((32, 8), 1, 9), ((20, 16), 3, 7), ((64, 5), 2, 4), ((16, 8), 4, 12)]:
        task = mix(*batch_sizes, mixing)
        ranks = [task.plan(cursor, rank, world_size) for rank in range(world_size)]
        for _ in range(steps):
            plans = [next(rank) for rank in ranks]
            assert all((plan.cursor, plan.examples) == (plans[0].cursor, plans[0].examples) for plan in plans)
            assert all(list(plan.rows) == list(plans[0].rows) for plan in plans)
            for name, some in rows(task, plans).items():
                found[name] += some
            cursor = plans[-1].cursor
            examples += sum(len(some) for plan in plans for some in plan.rows.values())
            assert plans[0].examples == examples == sum(map(len, found.values()))
    assert len(found["large"]) > 630 and len(found["small"]) > 2 * 47
    for name, size in SIZES.items():
        for start in range(0, len(found[name]) - size + 1, size):
            assert sorted(found[name][start : start + size]) == list(range(size)), (name, start)
    whole = rows(task, itertools.islice(mix(mixing=mixing).plan(), 200))
    assert all(whole[name][: len(some)] == some for name, some in found.items())


def test_proportions_are_kept_over_any_stretch(mix) -> None:
    task = mix(mixing="proportion", shares=(3.0, 1.0))
    drawn = [next(iter(plan.rows)) for plan in itertools.islice(task.plan(), 1500)]
    other = mix(mixing="proportion", shares=(3.0, 1.0), seed=2)
    assert [next(iter(plan.rows)) for plan in itertools.islice(other.plan(), 100)] != drawn[:100]
    assert all(abs(drawn[17 : 17 + length].count("small") - length / 4) <= 3 for length in (20, 200, 1000))
    # The order is random: between two batches of the small part there are one to four others.
    assert set(np.diff(np.flatnonzero(np.array(drawn) == "small")).tolist()) == {2, 3, 5}
    # Batches of 32 are three times as frequent as batches of 8: 630 pairs take 630 / (3 * 32) turns.
    assert task.examples == 630 + round(630 / 96 * 8)
    seldom = mix(mixing="proportion", shares=(99.0, 1.0))
    assert seldom.examples == round(47 / 8 * 99 * 32) + 47


def test_text_pools_hashes_and_messages(mix, data_directory: Path, small_directory: Path, tmp_path: Path) -> None:
    task = mix()
    assert task.text.max_length == 128 and task.text.source_languages == ["de", "es"]
    assert [part.text.max_length for part in task.parts.values()] == [128, 64]
    assert hashes_of(task) == set.union(*(hashes_of(part) for part in task.parts.values()))
    task.save_tokenizers(tmp_path / "tokenizer")
    for file in (data_directory / "tokenizer").iterdir():
        assert (tmp_path / "tokenizer" / file.name).read_bytes() == file.read_bytes()
    prints = [part.fingerprint() for part in task.parts.values()]
    assert task.fingerprint() == mix(5, 6).fingerprint() not in prints
    turned = MixtureTask(MixtureTask.Config(parts=task.config.parts[::-1], mixing="weight"), 1)
    assert turned.fingerprint() == task.fingerprint()
    # Pools of one language pair are put together, and equal data counts once.
    pools = {pool.name: pool for pool in task.validation_pools(40)}
    assert list(pools) == ["es-en", "de-en"]
    indices = [torch.cat([batch.indices for batch in pool.batches()]).tolist() for pool in pools.values()]
    assert [sorted(some) for some in indices] == [list(range(6)), list(range(48))]
    config = BitextTask.Config(data=str(data_directory), batch_size=8)
    same = MixtureTask.Config(parts=[Part(name, BitextTask, config, 1.0, 1.0) for name in "ab"], mixing="weight")
    alone = [sum(len(batch) for batch in pool.batches()) for pool in MixtureTask(same, 1).validation_pools(40)]
    assert alone == [6, 40]
    # Validation batches are those of one part after the other.
    batches = [next(iter(batch.parts.items())) for batch in task.validation_batches()]
    assert task.has_validation and [name for name, _ in batches] == ["large", "large", "small"]
    each = [contents(batch) for part in task.parts.values() for batch in part.validation_batches()]
    assert [contents(batch) for _, batch in batches] == each


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("bitext", "labels")])
@pytest.mark.parametrize("smaller", [False, True])
def test_each_kind_beside_bitext(name: str, smaller: bool, texts: Path, data_directory: Path) -> None:
    """The longest part is read once, whichever it is, and languages keep their names among those of all parts."""
    kind = KINDS[name]
    config = kind.make(texts, data_directory, **(kind.smaller if smaller else {})).config
    bitext = BitextTask.Config(data=str(data_directory), batch_size=10 if smaller else 40)
    parts = [Part("pairs", BitextTask, bitext, 1.0, 1.0), Part("own", kind.task, config, 1.0, 1.0)]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    plans = list(task.plan(stop=task.examples))
    counts = {part: sum(len(plan.rows[part]) for plan in plans) for part in ("pairs", "own")}
    assert counts == plans[-1].cursor["examples"] and (counts["pairs"] == 630 or counts["own"] == kind.size)
    assert sum(counts.values()) == pytest.approx(task.examples, rel=0.05)
    own, found = task.parts["own"], task.make(plans[0].rows).parts["own"]
    assert task.text.languages == own.text.languages == ["de", "en", "es"]
    alone = kind.make(texts, data_directory)
    assert rows_of(own, found) == rows_of(alone, alone.make(plans[0].rows["own"]))
    assert {pool.name for pool in task.validation_pools(9)} >= {"es-en", "de-en"}


def test_what_it_refuses(mix, texts: Path, data_directory: Path) -> None:
    other = KINDS["sentences"].make(texts, data_directory, tokenizer=None, vocab_size=60).config
    parts = [*mix().config.parts[:1], Part("mono", KINDS["sentences"].task, other, 1.0, 1.0)]
    with pytest.raises(UserError, match="^the parts large and mono have different vocabularies; preprocess the text"):
        MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    mix().check_size(5)
    problem = "the part small: 47 training pairs do not fill a batch of 8 on each of 6 ranks"
    with pytest.raises(UserError, match=problem):
        mix().check_size(6)

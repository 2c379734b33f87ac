"""Batches of one language pair or corpus: pure, each pair once an epoch, for any number of ranks, and resumable."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs, spanish_pairs, write_lines
from tests.support.once import made_once
from tests.support.planning import streamed
from tests.support.runs import compose_run, going_on_is_never_stopping
from tests.tasks.kinds import rows_of
from xrep.config import Part
from xrep.data.batch_plan import mean_size, small_groups
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.translation import TranslationTask
from xrep.text.find import parse_bitext
from xrep.training.run import train

GERMAN, SPANISH = sentence_pairs(500), spanish_pairs()
CORPORA = {"news": GERMAN[:331], "talks": GERMAN[331:400], "es": SPANISH[:30]}
SIZES = {"language_pair": [30, 400], "corpus": [30, 69, 331]}
TOKENS = {"max_tokens": 300, "batch_size": None}


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Text of two German corpora, of which one pair is dropped as a duplicate, and a Spanish one."""

    def make(folder: Path) -> None:
        some = {**CORPORA, "talks": [GERMAN[5], *CORPORA["talks"]]}
        files = {name: write_lines(folder / f"{name}.tsv", map("\t".join, rows)) for name, rows in some.items()}
        given = [parse_bitext(f"{'es' if name == 'es' else 'de'}-en={file}:1,2") for name, file in files.items()]
        valid = parse_bitext(f"de-en={write_lines(folder / 'v.tsv', map(chr(9).join, GERMAN[400:420]))}:1,2")
        options = PreprocessOptions(vocabulary_size=150)
        preprocess({"train": given, "valid": [valid]}, folder / "bin", options, lambda line: None, progress=False)

    return made_once("corpora", make) / "bin"


@pytest.fixture
def make(corpora: Path, request: pytest.FixtureRequest):
    """``make("corpus", batch_size=16)`` returns the task; with ``max_tokens``, that of translation."""

    def make(by: str | None, **options: Any) -> BitextTask:
        kind = TranslationTask if "max_tokens" in options else BitextTask
        return kind(kind.Config(**{"data": str(corpora), "batch_by": by, "batch_size": 32, **options}), 1)

    return make


def group_of(task: Any, by: str, batch: Any) -> str:
    """Return the language pair or corpus that all pairs of a batch are of."""
    rows = [(row[0], row[2:4]) for row in rows_of(task, batch)]
    found = {language if by == "language_pair" else next(name for name, some in CORPORA.items() if pair in some)
             for language, pair in rows}  # fmt: skip
    assert len(found) == 1
    return found.pop()


def steps(task: Any, world: int, **place: Any) -> Iterator[list[Any]]:
    """Return the batches of all ranks in each step, with the plans."""
    return zip(*(streamed(task, rank=rank, world_size=world, **place) for rank in range(world)), strict=True)


@pytest.mark.parametrize("options", [{}, TOKENS], ids=["pairs", "tokens"])
@pytest.mark.parametrize("by", SIZES)
def test_batches_are_of_one_group_and_each_pair_is_once_in_an_epoch(make, by: str, options: dict[str, Any]) -> None:
    whole = None
    for world in (1, 2, 4):
        task = make(by, **(options or {"batch_size": 32 // world}))
        indices, sizes, seen = [], dict[str, list[int]](), 0
        for step in steps(task, world, stop=2 * task.examples):
            batches = [batch for batch, _ in step if len(batch)]
            (group,) = {group_of(task, by, batch) for batch in batches}
            sizes.setdefault(group, []).append(sum(map(len, batches)))
            own = [index for batch in batches for index in batch.indices.tolist()]
            indices.append(own)
            seen += len(own)
            assert all(plan.examples == seen == sum(plan.cursor) for _, plan in step)
        flat = list(itertools.chain(*indices))
        assert sorted(flat[: len(flat) // 2]) == sorted(flat[len(flat) // 2 :]) == list(range(task.examples))
        assert sorted(sum(own) // 2 for own in sizes.values()) == SIZES[by]
        if not options:  # batches of a group are of one size, and the ranks share those of one process
            assert all(max(own) - min(own) <= 1 and max(own) <= 32 for own in sizes.values())
            assert whole in (None, indices) and 32 - mean_size(task.order, 32) < 4
            whole = indices
            groups = [group_of(task, by, batch) for batch, _ in streamed(make(by), stop=task.examples)]
            assert groups != sorted(groups) and groups != sorted(groups, reverse=True)


@pytest.mark.parametrize("by", SIZES)
def test_a_run_goes_on_with_other_ranks_and_batches(make, by: str) -> None:
    """The order inside a group stays, whatever batches are made of it; so nothing is lost or repeated."""
    cursor, found = None, list[int]()
    legs = [(2, {"batch_size": 16}, 3), (3, {"batch_size": 7}, 4), (1, TOKENS, 3), (4, {"batch_size": 16}, None)]
    for world, options, count in legs:
        task = make(by, **options)
        stop = None if count else task.examples
        for step in itertools.islice(steps(task, world, cursor=cursor, stop=stop), count):
            found += [index for batch, _ in step for index in batch.indices.tolist()]
            (cursor,) = {tuple(plan.cursor) for _, plan in step}
    assert sorted(found) == list(range(task.examples))
    once = [index for batch, _ in streamed(make(by), stop=task.examples) for index in batch.indices.tolist()]
    borders = np.cumsum([0, 331, 69, 30] if by == "corpus" else [0, 400, 30])
    for first, last in itertools.pairwise(borders):
        assert [n for n in found if first <= n < last] == [n for n in once if first <= n < last]
    # The same batches come again from the same place.
    again = [batch.indices.tolist() for batch, _ in streamed(make(by), cursor=list(cursor), stop=500)]
    assert again == [batch.indices.tolist() for batch, _ in streamed(make(by), cursor=list(cursor), stop=500)] != []


def test_small_corpora_are_repeated_by_their_temperature(make) -> None:
    task = make("corpus", sampling_alpha=0.5)
    wanted = np.sqrt([331, 69, 30])
    for epoch in range(3):
        place = {"cursor": [epoch * quota for quota in task.order.quotas.tolist()], "stop": (epoch + 1) * 430}
        counts = Counter[str]()
        for batch, _ in streamed(task, **place):
            counts[group_of(task, "corpus", batch)] += len(batch)
        assert [counts[name] for name in CORPORA] == pytest.approx(430 * wanted / wanted.sum(), abs=1)
    assert task.examples == 430 and sum(task.order.quotas) == 430


def test_a_part_of_a_mixture(make) -> None:
    config = make("corpus").config
    parts = [Part("own", BitextTask, config, 1.0, 1.0), Part("mixed", BitextTask, make(None).config, 1.0, 1.0)]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    batches = [batch.parts["own"] for batch, _ in streamed(task, stop=task.examples)]
    assert {group_of(task.parts["own"], "corpus", batch) for batch in batches} == {*CORPORA}
    assert sorted(torch.cat([batch.indices for batch in batches]).tolist()) == list(range(430))


def test_both_directions_of_a_translation_are_groups(make) -> None:
    task = make("corpus", **TOKENS, direction="both")
    assert len(task.order.groups) == 6 and task.examples == 860
    assert sorted(index for batch, _ in streamed(task, stop=860) for index in batch.indices.tolist()) == list(
        range(860)
    )


def test_groups_that_fill_no_batch_are_named(make) -> None:
    def said(options: dict[str, Any], ranks: int = 1) -> list[str]:
        task = make("corpus", **options)
        return [warning.split(" of `batch_by`")[0] for warning in small_groups(task.order, task.size, ranks)]

    assert said({"batch_size": 30}) == []
    assert said({"batch_size": 31}) == said({"batch_size": 30}, 2) == said(TOKENS, 4) == ["1 of 3 groups"]
    assert said({"batch_size": 70}) == ["2 of 3 groups"]
    task = make(None, batch_size=400)
    assert small_groups(task.order, task.size, 1) == []


def test_the_largest_group_fills_a_batch(make) -> None:
    make("corpus", batch_size=331).check_size(1)
    problem = (
        "331 training pairs of the largest group do not fill a batch of 200 on each of 2 ranks; lower `batch_size`"
    )
    with pytest.raises(UserError, match=problem):
        make("corpus", batch_size=200).check_size(2)


@pytest.mark.slow
def test_a_run_that_stops_ends_like_another(corpora: Path, tmp_path: Path) -> None:
    given = {"criterion": "translation_ranking", "update_freq": 2, "warmup_steps": 0, "validate_every": 3}
    run = going_on_is_never_stopping(corpora, tmp_path, batch_by="corpus", **given)
    with pytest.raises(UserError, match="task.batch_by 'corpus' -> None"):
        train(compose_run(corpora, run, max_steps=9, lr_scheduler="constant", log_every=1, **given))

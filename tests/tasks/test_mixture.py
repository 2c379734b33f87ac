"""Two bitext tasks in one: de-en and es-en text (630 pairs), and 47 pairs of de-en with the same vocabulary."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.nli_data import write_columns
from xrep.config import Part
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.stream import Plan, stream
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.nli import NliTask
from xrep.text.cleaning import sentence_hash
from xrep.text.readers import discover_bitext

SIZES = {"large": 630, "small": 47}
FRENCH = [
    ("Maria has lived in Berlin since 1998.", "Maria vit à Berlin depuis 1998."),
    ("The hotel has 45 rooms and a bar.", "L'hôtel a 45 chambres et un bar."),
    ("We drink water.", "Nous buvons de l'eau."),
    ("The president visited Japan in October.", "Le président a visité le Japon en octobre."),
    ("Did you read the book?", "As-tu lu le livre ?"),
    ("Tom loves music.", "Tom aime la musique."),
]
"""English and French."""


@pytest.fixture(scope="module")
def small_directory(data_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return 47 training pairs and 8 others, in the vocabulary of ``data_directory``."""
    folder = tmp_path_factory.mktemp("small")
    raw = write_corpus(folder / "raw", train=47, valid=8, test=1)
    options = PreprocessOptions(tokenizers={"shared": str(data_directory / "tokenizer")})
    preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False)
    return folder / "bin"


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
        for name, batch in task.make(plan.what).parts.items():
            found[name] += batch.indices.tolist()
    return found


def check_epochs(found: dict[str, list[int]]) -> None:
    """Each example of a part occurs exactly once in each whole epoch of the part, independently of the other part."""
    for name, size in SIZES.items():
        for start in range(0, len(found[name]) - size + 1, size):
            assert sorted(found[name][start : start + size]) == list(range(size)), (name, start)


def test_every_step_has_a_batch_of_each_part(mix) -> None:
    task = mix()
    # 630 pairs in batches of 32 take longer than 47 in batches of 8; in that time the small part gives 630 * 8 / 32.
    assert task.examples == 630 + round(157.5)
    plans = list(task.plan(stop=task.examples))
    assert len(plans) == 20 and all(list(plan.what) == ["large", "small"] for plan in plans)
    assert [plan.examples for plan in plans] == [40 * n for n in range(1, 20)] + [790]
    batches = [task.make(plan.what) for plan in plans]
    assert [[len(part) for part in batch.parts.values()] for batch in batches] == [[32, 8]] * 19 + [[22, 8]]
    assert [len(batch) for batch in batches] == [40] * 19 + [30]
    assert batches[0].token_count == sum(part.token_count for part in batches[0].parts.values())
    found = rows(task, plans)
    assert sorted(found["large"]) == list(range(630)) and len(found["small"]) == 160
    check_epochs(found)
    moved = batches[0].to("meta")
    assert {part.source.tokens.device.type for part in moved.parts.values()} == {"meta"} and len(moved) == 40


@pytest.mark.parametrize(("large", "small"), [(32, 8), (30, 7), (100, 16), (7, 5), (13, 1), (630, 3)])
@pytest.mark.parametrize("epochs", [1, 3, 0.4])
@pytest.mark.parametrize("mixing", ["weight", "proportion"])
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


@pytest.mark.parametrize("mixing", ["weight", "proportion"])
def test_a_run_goes_on_with_other_batch_sizes_and_ranks(mix, mixing) -> None:
    """Each example of each part occurs once per epoch of its part, while the cursor passes through four topologies."""
    found: dict[str, list[int]] = {name: [] for name in SIZES}
    cursor, examples = None, 0
    for batch_sizes, world_size, steps in [((32, 8), 1, 9), ((20, 16), 3, 7), ((64, 5), 2, 4), ((16, 8), 4, 12)]:
        ranks = [mix(*batch_sizes, mixing).plan(cursor, rank, world_size) for rank in range(world_size)]
        for _ in range(steps):
            plans = [next(rank) for rank in ranks]
            assert all((plan.cursor, plan.examples) == (plans[0].cursor, plans[0].examples) for plan in plans)
            assert all(list(plan.what) == list(plans[0].what) for plan in plans)
            for name, some in rows(mix(), plans).items():
                found[name] += some
            cursor = plans[-1].cursor
            examples += sum(len(some) for plan in plans for some in plan.what.values())
            assert plans[0].examples == examples == sum(map(len, found.values()))
    assert len(found["large"]) > 630 and len(found["small"]) > 2 * 47
    check_epochs(found)
    whole = rows(mix(mixing=mixing), itertools.islice(mix(mixing=mixing).plan(), 200))
    assert all(whole[name][: len(some)] == some for name, some in found.items())


@pytest.mark.parametrize("mixing", ["weight", "proportion"])
def test_a_run_that_is_resumed_is_the_run(mix, mixing) -> None:
    whole = list(mix(mixing=mixing).plan(stop=1500))
    for at in (1, 7, len(whole) - 1):
        rest = list(mix(mixing=mixing).plan(whole[at - 1].cursor, stop=1500))
        assert [plan.cursor for plan in rest] == [plan.cursor for plan in whole[at:]]
        assert [plan.examples for plan in rest] == [plan.examples for plan in whole[at:]]
        assert rows(mix(), rest) == rows(mix(), whole[at:])


def test_proportions_are_kept_over_any_stretch(mix) -> None:
    task = mix(mixing="proportion", shares=(3.0, 1.0))
    drawn = [task.drawn(step)[0] for step in range(4000)]
    for start in (0, 17, 1000, 3000):
        for length in (20, 200, 1000):
            assert abs(drawn[start : start + length].count("small") - length / 4) <= 3
    assert [list(plan.what) for plan in itertools.islice(task.plan(), 50)] == [[name] for name in drawn[:50]]
    other = mix(mixing="proportion", shares=(3.0, 1.0), seed=2)
    assert [other.drawn(step)[0] for step in range(100)] != drawn[:100]
    # The order is random: between two batches of the small part there are one to four others.
    turns = np.flatnonzero(np.array(drawn) == "small")
    assert set(np.diff(turns).tolist()) == {2, 3, 5}
    # Batches of 32 are three times as frequent as batches of 8: 630 pairs take 630 / (3 * 32) turns. The small part
    # gives 8 pairs in each.
    assert task.examples == 630 + round(630 / 96 * 8)


def test_the_small_part_takes_longest_where_it_is_drawn_seldom(mix) -> None:
    task = mix(mixing="proportion", shares=(99.0, 1.0))
    assert task.examples == round(47 / 8 * 99 * 32) + 47
    last = list(task.plan(stop=task.examples))[-1]
    assert last.cursor["examples"]["small"] == 47 and list(last.what) == ["small"] and len(last.what["small"]) == 7


def test_workers_make_the_same_batches(mix) -> None:
    task = mix()
    for (mine, plan), (theirs, other) in zip(stream(task, stop=200), stream(task, stop=200, workers=2), strict=True):
        assert plan.cursor == other.cursor and list(mine.parts) == list(theirs.parts)
        for name in SIZES:
            assert torch.equal(mine.parts[name].source.tokens, theirs.parts[name].source.tokens)


def test_text_pools_hashes_and_messages(mix, data_directory: Path, small_directory: Path, tmp_path: Path) -> None:
    task = mix()
    assert task.text.max_length == 128 and task.text.source_languages == ["de", "es"]
    assert task.text.vocabularies == task.parts["small"].text.vocabularies
    task.write_training_hashes(tmp_path / "hashes.npy")
    found = np.load(tmp_path / "hashes.npy", allow_pickle=False)
    own = []
    for name, part in task.parts.items():
        part.write_training_hashes(tmp_path / f"{name}.npy")
        own.append(np.load(tmp_path / f"{name}.npy", allow_pickle=False))
    assert found.dtype == np.uint64 and bool((found[1:] > found[:-1]).all())
    assert set(found.tolist()) == set(np.concatenate(own).tolist())
    assert sentence_hash(sentence_pairs(47)[-1][0]) in found
    task.save_tokenizers(tmp_path / "tokenizer")
    for file in (data_directory / "tokenizer").iterdir():
        assert (tmp_path / "tokenizer" / file.name).read_bytes() == file.read_bytes()
    assert task.fingerprint() == mix(5, 6).fingerprint() != task.parts["large"].fingerprint()
    batch = task.make(next(task.plan()).what)
    large, small = (task.parts[name].describe(batch.parts[name]) for name in SIZES)
    assert task.describe(batch) == f"large: {large}; small: {small}"


def test_validation_pools_of_one_language_pair_are_put_together(mix, data_directory: Path) -> None:
    task = mix()
    pools = {pool.name: pool for pool in task.validation_pools(40)}
    assert list(pools) == ["es-en", "de-en"]
    indices = [torch.cat([batch.indices for batch in pool.batches()]).tolist() for pool in pools.values()]
    assert [sorted(some) for some in indices] == [list(range(6)), list(range(48))]
    config = BitextTask.Config(data=str(data_directory), batch_size=8)
    same = MixtureTask.Config(parts=[Part(name, BitextTask, config, 1.0, 1.0) for name in "ab"], mixing="weight")
    alone = [sum(len(batch) for batch in pool.batches()) for pool in MixtureTask(same, 1).validation_pools(40)]
    assert alone == [6, 40]


def test_validation_batches_are_those_of_all_parts(mix, small_directory: Path) -> None:
    """One part after the other, each batch of one part."""
    task = mix()
    batches = list(task.validation_batches())
    assert task.has_validation and all(len(batch.parts) == 1 for batch in batches)
    expected = [(name, batch) for name, part in task.parts.items() for batch in part.validation_batches()]
    for batch, (name, own) in zip(batches, expected, strict=True):
        assert torch.equal(batch.parts[name].target.tokens, own.target.tokens) and len(batch) == len(own)
    assert [name for name, _ in expected] == ["large", "large", "small"]


def test_parts_of_different_languages_tell_them_alike(data_directory: Path, tmp_path: Path, monkeypatch) -> None:
    """The languages in a part's batch are numbered as in the text of all parts, which criteria get."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    for name, rows in (("fr", FRENCH), ("de", [pair[::-1] for pair in sentence_pairs(40)])):
        (tmp_path / name).mkdir()
        for split, some in (("train", rows[:-3]), ("valid", rows[-3:])):
            text = "".join(f"{other}\t{english}\n" for english, other in some)
            (tmp_path / name / f"{split}.{name}-en.tsv").write_text(text, encoding="utf-8")
    write_columns(tmp_path / "nli" / "train-fr.tsv", [(*pair[::-1], "neutral") for pair in FRENCH])
    given = {"data": str(tmp_path / "nli"), "tokenizer": str(data_directory)}
    tokenizers = {"shared": str(data_directory / "tokenizer")}
    parts = [
        Part("french", BitextTask, BitextTask.Config(data=str(tmp_path / "fr"), max_length=8), 1.0, 1.0),
        Part("german", BitextTask, BitextTask.Config(data=str(tmp_path / "de")), 1.0, 1.0),
        Part("nli", NliTask, NliTask.Config(**given), 1.0, 1.0),
    ]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1, tokenizers)
    assert task.text.languages == ["de", "en", "fr"] and task.text.source_languages == ["de", "fr"]
    batch = task.make(next(task.plan()).what)
    for name, languages in (("french", ("fr", "en")), ("german", ("de", "en")), ("nli", ("fr", "fr"))):
        found = {tuple(task.text.languages[place] for place in row) for row in batch.parts[name].languages.tolist()}
        assert found == {languages}, name
        assert task.parts[name].text.languages == task.text.languages
    assert [own.text.max_length for own in task.parts.values()] == [8, 128, 128] and task.text.max_length == 128
    assert batch.parts["french"].source.tokens.size(1) == 8 < batch.parts["german"].source.tokens.size(1)


def test_what_it_refuses(mix, data_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    raw = write_corpus(tmp_path / "raw", train=120)
    configs = [BitextTask.Config(data=str(data_directory)), BitextTask.Config(data=str(raw), vocab_size=130)]
    parts = [Part(name, BitextTask, c, 1.0, 1.0) for name, c in zip(("nli", "pairs"), configs, strict=True)]
    with pytest.raises(UserError, match="^the parts nli and pairs have different vocabularies; preprocess the text"):
        MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    mix().check_size(5)
    with pytest.raises(
        UserError, match="the part small: 47 training pairs do not fill a batch of 8 on each of 6 ranks"
    ):
        mix().check_size(6)

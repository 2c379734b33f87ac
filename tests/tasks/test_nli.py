"""The task nli on small inference data of two languages."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.nli_data import Row, nli_rows, write_columns, write_jsonl, write_simcse
from xrep.config import Part
from xrep.data.store import DataDirectory
from xrep.data.stream import stream
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.nli import NliBatch, NliTask
from xrep.text.cleaning import sentence_hash
from xrep.text.nli_readers import LABELS
from xrep.text.sides import save_tokenizers
from xrep.text.tokenizer import train_tokenizer

ROWS = nli_rows(100)
GERMAN = nli_rows(100, "de")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nli")
    write_jsonl(folder / "snli_1.0_train.jsonl", [*ROWS, ("dropped", "pair", "-")])
    write_jsonl(folder / "snli_1.0_dev.jsonl", nli_rows(20, seed=1))
    return folder


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write German and English rows that translate each other."""
    folder = tmp_path_factory.mktemp("both")
    write_columns(folder / "train-de.tsv", GERMAN)
    write_columns(folder / "train-en.tsv", ROWS)
    return folder


@pytest.fixture
def make(data_directory: Path) -> Callable[..., NliTask]:
    """``make(folder, batch_size=7)`` returns the task with the tokenizer of ``data_directory``."""

    def made(folder: Path, seed: int = 1, brought: dict[str, str] | None = None, **options: Any) -> NliTask:
        given = {"tokenizer": str(data_directory), "max_length": 64, **options}
        return NliTask(NliTask.Config(data=str(folder), **given), seed, brought)

    return made


def examples(task: NliTask, batch: NliBatch) -> list[tuple[str, ...]]:
    """Return the sentences of each example and its label."""
    texts = []
    for side, tokens in zip(("source", "target"), batch.sides, strict=True):
        tokenizer = task.tokenizers.get("shared") or task.tokenizers[side]
        rows = zip(tokens.tokens.tolist(), tokens.lengths.tolist(), strict=True)
        texts += [tokenizer.decode(ids[1 : length - 1]) for ids, length in rows]
    label = [[LABELS[label]] if label >= 0 else [] for label in batch.labels.tolist()]
    places = zip(batch.places.tolist(), label, strict=True)
    return [(*(texts[place] for place in row), *own) for row, own in places]


def test_an_epoch_is_the_training_text(make, raw: Path) -> None:
    task = make(raw, batch_size=64)
    assert task.examples == 300
    epoch = [batch for batch, _ in stream(task, stop=300)]
    assert [len(batch) for batch in epoch] == [64] * 4 + [44]
    assert Counter(example for batch in epoch for example in examples(task, batch)) == Counter(ROWS)
    assert sorted(torch.cat([batch.indices for batch in epoch]).tolist()) == list(range(300))
    for batch in epoch:
        found = [[number % 2**64 for number in row] for row in batch.ids.tolist()]
        assert found == [[sentence_hash(text) for text in row[:2]] for row in examples(task, batch)]
        assert len(batch.sides[0]) == 0 and batch.token_count == int(batch.sides[1].lengths.sum())
        assert sorted(batch.places.flatten().tolist()) == list(range(2 * len(batch)))
    assert (task.text.source_languages, task.text.target_languages, task.text.max_length) == ([], ["en"], 64)
    valid = list(task.validation_batches())
    assert Counter(example for batch in valid for example in examples(task, batch)) == Counter(nli_rows(20, seed=1))
    assert task.has_validation and task.validation_pools(10) == []


def test_triplets(make, raw: Path, tmp_path: Path) -> None:
    of_premise: dict[str, dict[str, str]] = {}
    for premise, hypothesis, label in ROWS:
        of_premise.setdefault(premise, {})[label] = hypothesis
    expected = {(premise, own["entailment"], own["contradiction"]) for premise, own in of_premise.items()}
    task = make(raw, form="triplets", batch_size=30)
    found = [example for batch, _ in stream(task, stop=100) for example in examples(task, batch)]
    assert task.examples == len(found) == 100 and set(found) == expected
    file = write_simcse(tmp_path / "nli_for_simcse.csv", sorted(expected))
    same = make(file, form="triplets", batch_size=30)
    assert set(examples(same, same.make(np.arange(100)))) == expected
    batch = same.make(np.arange(5))
    assert batch.labels.tolist() == [-1] * 5 and batch.ids.shape == (5, 3)
    first = sorted(expected)[0]
    assert same.describe(batch, 1) == f"example 0: {' ||| '.join(map(repr, first))}"
    assert list(same.validation_batches()) == [] and not same.has_validation


def rows_of(batch: NliBatch, task: NliTask) -> list[tuple[str, ...]]:
    assert sorted(batch.places.flatten().tolist()) == list(range(batch.places.numel()))
    assert sum(map(len, batch.sides)) == batch.places.numel()
    assert all(side.tokens.size(1) == (int(side.lengths.max()) if len(side) else side.tokens.size(1))
               for side in batch.sides)  # fmt: skip
    return examples(task, batch)


@pytest.mark.parametrize("form", ["pairs", "triplets"])
def test_premise_and_hypothesis_of_different_languages(make, both: Path, form: str) -> None:
    task = make(both, cross_lingual=True, form=form, batch_size=50)
    assert (task.text.source_languages, task.text.target_languages) == (["de"], ["en"])
    whole = task.make(np.arange(task.examples))
    if form == "pairs":
        pairs = [(de, en) for de, en in zip(GERMAN, ROWS, strict=True)]
        expected = {(de[0], en[1], en[2]) for de, en in pairs} | {(en[0], de[1], en[2]) for de, en in pairs}
        assert set(examples(task, whole)) == expected and task.examples == 600
    else:
        assert task.examples == 200 and len(set(examples(task, whole))) == 200
    assert len(whole.sides[0]) > 0 and len(whole.sides[1]) > 0
    border = len(whole.sides[0])  # German belongs to the source side
    assert torch.equal(whole.languages, (whole.places >= border).long()) and task.text.languages == ["de", "en"]
    batch = task.make(np.array([3, 17, 40, 41, 9, 160]))
    all_of_it = rows_of(batch, task)
    for start, stop in ((0, 6), (0, 2), (2, 3), (3, 6), (4, 4), (6, 9)):
        some = batch.rows(start, stop)
        assert rows_of(some, task) == all_of_it[start:stop] and len(some) == len(all_of_it[start:stop])
        for name in ("labels", "ids", "indices", "languages"):
            assert torch.equal(getattr(some, name), getattr(batch, name)[start:stop])
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in (moved.places, moved.labels, moved.ids, moved.sides[0].tokens)} == {"meta"}
    assert moved.token_count == batch.token_count


def test_sides_with_tokenizers_of_their_own(make, both: Path, data_directory: Path, tmp_path: Path) -> None:
    other = train_tokenizer([text for row in GERMAN for text in row[:2]], 95, tmp_path / "german")
    english = DataDirectory(data_directory).tokenizers["shared"]
    save_tokenizers({"source": other, "target": english}, tmp_path / "sides" / "tokenizer")
    task = make(both, tokenizer=str(tmp_path / "sides"), cross_lingual=True, batch_size=600)
    assert {side: vocabulary.size for side, vocabulary in task.text.vocabularies.items()} == {
        "source": 95,
        "target": 150,
    }
    found = examples(task, task.make(np.arange(600)))
    assert {(row[0], row[2]) for row in found} == {(r[0], r[2]) for r in [*GERMAN, *ROWS]}
    task.text.vocabularies["source"] = replace(task.text.vocabularies["source"], bos_id=7, eos_id=8)
    for side, bos, eos in zip(task.make(np.arange(600)).sides, (7, 2), (8, 3), strict=True):
        assert set(side.tokens[:, 0].tolist()) == {bos}
        assert set(side.tokens.gather(1, side.lengths[:, None] - 1).flatten().tolist()) == {eos}
    brought = {"source": str(tmp_path / "german"), "target": str(data_directory / "tokenizer")}
    same = make(both, tokenizer=None, brought=brought, cross_lingual=True)
    assert same.fingerprint() == task.fingerprint() == make(both, brought=brought, tokenizer=str(tmp_path / "sides"),
                                                            cross_lingual=True).fingerprint()  # fmt: skip
    one = {"source": brought["source"]}
    assert (
        make(both, brought=one, tokenizer=str(tmp_path / "sides"), cross_lingual=True).fingerprint()
        == same.fingerprint()
    )
    with pytest.raises(
        UserError, match="the pretrained encoder has a tokenizer of the source side alone; name the data"
    ):
        make(both, brought=one, tokenizer=None)
    with pytest.raises(UserError, match="is another vocabulary than that of the pretrained encoder; leave it out"):
        make(both, brought=brought)
    sources = make(both, tokenizer=str(tmp_path / "sides"), target_languages=[])
    assert sources.text.source_languages == ["de", "en"] and sources.text.target_languages == []


@pytest.mark.parametrize("before, after", [(1, 3), (2, 1), (4, 2)])
def test_a_run_goes_on_with_other_ranks_and_batches(make, raw: Path, before: int, after: int) -> None:
    seen: list[int] = []
    cursor = None
    for world, size, steps in ((before, 23, 3), (after, 31, 5)):
        task = make(raw, batch_size=size)
        ranks = [list(itertools.islice(task.plan(cursor, rank, world), steps)) for rank in range(world)]
        for plans in zip(*ranks, strict=True):
            assert {(plan.cursor, plan.examples) for plan in plans} == {(len(seen) + size * world,) * 2}
            seen += [row for plan in plans for row in plan.what.tolist()]
            cursor = plans[0].cursor
    whole = np.concatenate([plan.what for plan in itertools.islice(make(raw, batch_size=100).plan(), 9)]).tolist()
    assert seen == whole[: len(seen)] and sorted(whole[:300]) == list(range(300)) != whole[:300]
    assert whole[300:600] != whole[:300]
    last = [list(make(raw, batch_size=149).plan(None, rank, 2, 300))[-1].what for rank in (0, 1)]
    assert [len(what) for what in last] == [1, 1]


def test_workers_make_the_same_batches(make, raw: Path) -> None:
    task = make(raw, batch_size=50)
    for (mine, _), (theirs, _) in zip(stream(task, stop=200), stream(task, stop=200, workers=2), strict=True):
        assert torch.equal(mine.places, theirs.places) and torch.equal(mine.sides[1].tokens, theirs.sides[1].tokens)


def test_what_is_kept_is_found_again(make, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("XREP_HOME", str(tmp_path))
    task = make(raw, tokenizer=None, vocab_size=70)
    said = capsys.readouterr().out
    assert "train: 300 pairs of 301 examples, 1 left out (no label)" in said and "vocabulary of 70 pieces" in said
    assert task.text.vocabularies["shared"].size == 70
    again = make(raw, tokenizer=None, vocab_size=70, batch_size=9)
    assert capsys.readouterr().out == "" and again.fingerprint() == task.fingerprint()
    assert make(raw).fingerprint() != task.fingerprint()
    (cached,) = {path.parent for path in (tmp_path / "nli").glob("*/manifest.json")} - {
        path.parent
        for path in (tmp_path / "nli").glob("*/manifest.json")
        if '"vocabulary_size": 70' not in path.read_text()
    }
    task.write_training_hashes(tmp_path / "hashes.npy")
    hashes = np.load(tmp_path / "hashes.npy", allow_pickle=False)
    assert set(hashes.tolist()) == {sentence_hash(text) for row in ROWS for text in row[:2]}
    task.save_tokenizers(tmp_path / "tokenizer")
    assert (tmp_path / "tokenizer" / "sentencepiece.model").is_file()
    for name, kept in (
        ("train.premise-hypothesis.premise.tokens", 200),
        ("train.premise-hypothesis.labels", 0),
        ("manifest.json", 50),
    ):
        whole = (cached / name).read_bytes()
        (cached / name).write_bytes(whole[:kept])
        with pytest.raises(UserError, match=f"{cached}/{name}: .* remove its directory; it is made again"):
            make(raw, tokenizer=None, vocab_size=70)
        (cached / name).write_bytes(whole)
    assert not [path for path in (tmp_path / "nli").iterdir() if path.name.startswith(".")]


def test_beside_bitext(make, raw: Path, data_directory: Path) -> None:
    """Each step has a batch of both tasks, in one vocabulary."""
    nli = NliTask.Config(data=str(raw), tokenizer=str(data_directory), batch_size=16)
    bitext = BitextTask.Config(data=str(data_directory), batch_size=32)
    parts = [Part("bitext", BitextTask, bitext, 1.0, 1.0), Part("nli", NliTask, nli, 0.1, 1.0)]
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    assert task.text.languages == ["de", "en", "es"] and task.examples == 630 + 315
    batches = [batch for batch, _ in stream(task, stop=task.examples)]
    assert [len(batch.parts["nli"]) for batch in batches] == [16] * 20
    assert [pool.name for pool in task.validation_pools(10)] == ["es-en", "de-en"]
    assert "; nli: example " in task.describe(batches[0])
    plans = list(task.plan(stop=task.examples))
    rest = list(task.plan(plans[6].cursor, stop=task.examples))
    assert [plan.what["nli"].tolist() for plan in rest] == [plan.what["nli"].tolist() for plan in plans[7:]]


def test_what_it_refuses(make, raw: Path, tmp_path: Path) -> None:
    make(raw, batch_size=100).check_size(3)
    with pytest.raises(UserError, match="300 training examples do not fill a batch of 101 on each of 3 ranks; lower"):
        make(raw, batch_size=101).check_size(3)
    config = NliTask.Config(data="x", batch_size=0, max_length=2, vocab_size=3)
    assert [problem.split()[0] for problem in config.problems()] == ["batch_size", "max_length", "vocab_size"]
    neutral: list[Row] = [row for row in ROWS if row[2] == "neutral"]
    alone = write_jsonl(tmp_path / "train.jsonl", neutral)
    with pytest.raises(
        UserError, match=r"train.jsonl: no triplet \(an entailment and a contradiction of one premise\)"
    ):
        make(alone, form="triplets")
    with pytest.raises(UserError, match="no labelled pair for train; check the files"):
        make(write_jsonl(tmp_path / "empty" / "train.jsonl", [("a", "b", "-")]))
    assert not list(Path(tmp_path).glob("**/.*"))

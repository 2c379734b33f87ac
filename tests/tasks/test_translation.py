"""The translation task on preprocessed real text of two language pairs, in either direction and in both."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.corpus import sentence_pairs, spanish_pairs, write_corpus
from xrep.config import Part
from xrep.data.batching import PairBatch, TokenBatch
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.stream import stream
from xrep.errors import UserError
from xrep.tasks.bitext import BitextTask
from xrep.tasks.mixture import MixtureTask
from xrep.tasks.task import Examples
from xrep.tasks.translation import TranslationTask
from xrep.text.cleaning import sentence_hash
from xrep.text.readers import discover_bitext
from xrep.text.sides import open_tokenizers, tokenizer_of
from xrep.text.tokenizer import train_tokenizer

# The Spanish corpus is the first, with examples 0 to 29.
TRAIN = spanish_pairs()[:30] + sentence_pairs(600)
VALID = spanish_pairs()[30:] + sentence_pairs(660)[600:]
DIRECTIONS = ["forward", "reverse", "both"]


def make(
    data: Path, seed: int = 1, tokenizers: dict[str, str] | None = None, kind: type[BitextTask] = TranslationTask,
    **options,
) -> TranslationTask:  # fmt: skip
    return kind(kind.Config(data=str(data), **options), seed, tokenizers)


def sentences(task: BitextTask, side: str, batch: PairBatch) -> list[str]:
    tokens: TokenBatch = getattr(batch, side)
    rows = zip(tokens.tokens.tolist(), tokens.lengths.tolist(), strict=True)
    return [tokenizer_of(task.tokenizers, side).decode(ids[1 : length - 1]) for ids, length in rows]


def translations(task: BitextTask, batches: Iterator[PairBatch]) -> list[tuple[str, str, str, str]]:
    """Return source language, source, target language and target of each pair."""
    found = []
    for batch in batches:
        names = [[task.text.languages[place] for place in side] for side in batch.languages.T.tolist()]
        columns = names[0], sentences(task, "source", batch), names[1], sentences(task, "target", batch)
        found += list(zip(*columns, strict=True))
    return found


def wanted(direction: str, pairs: list[tuple[str, str]], spanish: int) -> list[tuple[str, str, str, str]]:
    """Return what ``translations`` should return for pairs of which the first ones are Spanish."""
    forward = [("es" if n < spanish else "de", one, "en", other) for n, (one, other) in enumerate(pairs)]
    reverse = [(target, other, source, one) for source, one, target, other in forward]
    return {"forward": forward, "reverse": reverse, "both": forward + reverse}[direction]


def epoch(task: TranslationTask) -> Iterator[PairBatch]:
    return (batch for batch, _ in stream(task, stop=task.examples))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_epoch_is_the_training_text(data_directory: Path, direction: str) -> None:
    task = make(data_directory, direction=direction, max_tokens=700)
    expected = wanted(direction, TRAIN, 30)
    assert task.examples == len(expected) and task.gives is Examples.TRANSLATIONS
    assert Counter(translations(task, epoch(task))) == Counter(expected)
    assert (task.text.source_languages, task.text.target_languages) == {
        "forward": (["de", "es"], ["en"]),
        "reverse": (["en"], ["de", "es"]),
        "both": (["de", "en", "es"], ["de", "en", "es"]),
    }[direction]
    pairs = [("es", "en"), ("de", "en")]
    turned = [("en", "es"), ("en", "de")]
    assert task.language_pairs == {"forward": pairs, "reverse": turned, "both": pairs + turned}[direction]
    batch = next(epoch(task))
    for (_, source, _, target), ids in zip(translations(task, iter([batch])), batch.ids.tolist(), strict=True):
        assert [number % 2**64 for number in ids] == [sentence_hash(source), sentence_hash(target)]


def test_batches_fill_their_budget(data_directory: Path) -> None:
    """Neither side exceeds the budget, and another pair would not fit."""
    for most in (None, 20):
        task = make(data_directory, max_tokens=500, batch_size=most)
        batches = list(epoch(task))
        assert len(batches) > 10 and (max(len(batch) for batch in batches) == 20) is (most == 20)
        for batch, following in itertools.pairwise(batches):
            totals = np.array([side.real_tokens for side in (batch.source, batch.target)])
            one_more = totals + [side.lengths[0].item() for side in (following.source, following.target)]
            assert (totals <= 500).all() and ((one_more > 500).any() or len(batch) == most)
    fixed = [len(batch) for batch in epoch(make(data_directory, max_tokens=None, batch_size=50))]
    assert fixed == [50] * 12 + [30]
    assert make(data_directory, max_tokens=None, batch_size=50).examples_per_batch == 50
    assert make(data_directory, max_tokens=500).examples_per_batch == pytest.approx(630 / len(batches), rel=0.5)


def test_long_sentences_are_cut(data_directory: Path) -> None:
    """A budget counts the tokens that are left of them."""
    task = make(data_directory, max_length=9, max_tokens=90)
    batches = list(epoch(task))
    assert max(int(batch.target.lengths.max()) for batch in batches) == 9
    assert any(len(batch) == 10 and batch.source.real_tokens == 90 for batch in batches)
    eos = task.text.vocabulary("target").eos_id
    for batch in batches:
        assert bool((batch.target.tokens.gather(1, batch.target.lengths[:, None] - 1) == eos).all())


LEGS = [{"max_tokens": 300}, {"max_tokens": 1100}, {"max_tokens": None, "batch_size": 17}, {"max_tokens": 90}]


@pytest.mark.parametrize(
    ("direction", "before", "after"),
    [("forward", 1, 3), ("reverse", 3, 2), ("both", 2, 4), ("both", 4, 1)],
)
@pytest.mark.parametrize("legs", [(0, 1), (1, 2), (2, 3)])
def test_resumed_an_epoch_holds_each_example_once(
    data_directory: Path, direction: str, before: int, after: int, legs: tuple[int, int]
) -> None:
    """A run stops within the epoch and continues with other ranks and batches; the last batches are smaller."""
    seen: list[int] = []
    cursor = None
    for leg, world, steps in ((legs[0], before, 2), (legs[1], after, None)):
        task = make(data_directory, direction=direction, **LEGS[leg])
        ranks = [
            list(itertools.islice(stream(task, cursor=cursor, rank=rank, world_size=world, stop=task.examples), steps))
            for rank in range(world)
        ]
        for step in zip(*ranks, strict=True):
            seen += [index for batch, _ in step for index in batch.indices.tolist()]
            assert {(plan.cursor, plan.examples) for _, plan in step} == {(len(seen), len(seen))}
        cursor = ranks[0][-1][1].cursor
    assert sorted(seen) == list(range(len(wanted(direction, TRAIN, 30))))


def test_a_batch_is_a_function_of_its_plan_alone(data_directory: Path) -> None:
    task, other = (make(data_directory, direction="both", max_tokens=400) for _ in range(2))
    plans = list(itertools.islice(task.plan(), 4))
    batches = [task.make(plan.what) for plan in plans]
    for plan, batch in zip(reversed(plans), reversed(batches), strict=True):
        again = other.make(plan.what)
        assert torch.equal(again.target.tokens, batch.target.tokens) and torch.equal(again.ids, batch.ids)
        assert torch.equal(again.languages, batch.languages) and torch.equal(again.indices, batch.indices)
    nothing = task.make(plans[0].what[:0])
    assert len(nothing) == nothing.token_count == 0 and task.describe(nothing) == "no examples"
    assert task.references(nothing) == []


def test_small_language_pairs_are_repeated(data_directory: Path) -> None:
    """The share of each direction of each pair is n ** alpha: temperature 2 is alpha 0.5."""
    task = make(data_directory, direction="both", sampling_alpha=0.5, max_tokens=2000)
    counts = Counter((source, target) for source, _, target, _ in translations(task, epoch(task)))
    large, small = 600**0.5, 30**0.5
    share = 1260 / (2 * large + 2 * small)
    assert counts == {
        ("de", "en"): pytest.approx(share * large, abs=1), ("en", "de"): pytest.approx(share * large, abs=1),
        ("es", "en"): pytest.approx(share * small, abs=1), ("en", "es"): pytest.approx(share * small, abs=1),
    }  # fmt: skip


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_validation(data_directory: Path, direction: str) -> None:
    """All pairs of the split are returned by language pair and by length, and can be read again."""
    task = make(data_directory, direction=direction)
    expected = wanted(direction, VALID, 6)
    for _ in range(2):
        batches = list(task.validation_batches())
        found = translations(task, iter(batches))
        assert Counter(found) == Counter(expected)
        names = [(source, target) for source, _, target, _ in found]
        assert [key for key, _ in itertools.groupby(names)] == task.language_pairs
        for batch in batches:
            assert bool(((batch.source.lengths + batch.target.lengths).diff() >= 0).all())
        texts = [text for batch in batches for text in task.references(batch)]
        assert texts == [target for *_, target in found]
    pools = task.validation_pools(5)
    assert [(p.source_language, p.target_language, sum(map(len, p.batches()))) for p in pools] == [
        (*pair, 5) for pair in task.language_pairs
    ]
    assert [pool.name for pool in pools] == ["-".join(pair) for pair in task.language_pairs]


def test_references_are_what_the_batch_has(data_directory: Path) -> None:
    task = make(data_directory, max_length=6)
    batch = next(task.validation_batches())
    texts = task.references(batch)
    whole = {target for _, target in VALID}
    assert not whole & set(texts) and all(any(one.startswith(text) for one in whole) for text in texts)
    vocabulary = task.text.vocabulary("target")
    batch.target.tokens[:, 1:5] = torch.tensor([vocabulary.mask_id, vocabulary.eos_id, vocabulary.bos_id, 9])
    assert set(task.references(batch)) == {task.tokenizers["shared"].decode([9])}


def test_describe_and_what_is_kept(data_directory: Path, tmp_path: Path) -> None:
    tasks = {direction: make(data_directory, direction=direction) for direction in DIRECTIONS}
    batch = next(tasks["both"].validation_batches())
    batch.indices = torch.tensor([29, 30, 630, 1259])
    (es, en), (de, en_2), (de_2, en_3) = TRAIN[29], TRAIN[30], TRAIN[629]
    assert tasks["both"].describe(batch, 4) == (
        f"es-en pair 29: {es!r} ||| {en!r}; de-en pair 0: {de!r} ||| {en_2!r}; "
        f"en-es pair 0: {TRAIN[0][1]!r} ||| {TRAIN[0][0]!r}; en-de pair 599: {en_3!r} ||| {de_2!r}"
    )
    prints = {direction: task.fingerprint() for direction, task in tasks.items()}
    assert len(set(prints.values())) == 3
    assert prints["reverse"] == make(data_directory, direction="reverse", max_tokens=99, seed=3).fingerprint()
    for task in tasks.values():
        task.write_training_hashes(tmp_path / "hashes.npy")
        hashes = np.load(tmp_path / "hashes.npy", allow_pickle=False)
        assert set(hashes.tolist()) == {sentence_hash(sentence) for pair in TRAIN for sentence in pair}
        task.save_tokenizers(tmp_path / "tokenizer")
        assert open_tokenizers(tmp_path / "tokenizer")["shared"].vocabulary_size == 150
    both = sum(len(hashes) for hashes in tasks["both"].hashes())
    assert both == 2 * sum(len(hashes) for hashes in tasks["reverse"].hashes()) == 1260


@pytest.fixture(scope="module")
def of_sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Write text with a vocabulary of 90 German and one of 60 English subwords, and return the folders of both."""
    folder = tmp_path_factory.mktemp("sides")
    raw = write_corpus(folder / "raw", train=200, valid=20, test=20)
    paths = {"source": str(folder / "source"), "target": str(folder / "target")}
    for column, size, path in zip(zip(*sentence_pairs(200), strict=True), (90, 60), paths.values(), strict=True):
        train_tokenizer(list(column), size, path)
    options = PreprocessOptions(tokenizers=paths)
    preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False)
    return folder / "bin", paths


def test_vocabularies_of_their_own(of_sides: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    """The tokenizers of the data, of the model and of the checkpoint are swapped with the direction."""
    data, paths = of_sides
    turned = {"source": paths["target"], "target": paths["source"]}
    for direction, sizes, brought in (("forward", [90, 60], paths), ("reverse", [60, 90], turned)):
        for given in (None, brought, {"source": brought["source"]}):
            task = make(data, direction=direction, tokenizers=given)
            assert [task.text.vocabulary(side).size for side in ("source", "target")] == sizes
        found = translations(task, epoch(task))
        assert Counter(found) == Counter(wanted(direction, sentence_pairs(200), 0))
        batch = next(task.validation_batches())
        assert task.references(batch) == sentences(task, "target", batch)
        task.save_tokenizers(tmp_path / direction)
        kept = open_tokenizers(tmp_path / direction)
        assert [kept[side].vocabulary_size for side in ("source", "target")] == sizes
    with pytest.raises(UserError, match="another vocabulary than that of the pretrained encoder"):
        make(data, direction="reverse", tokenizers={"source": paths["source"]})
    with pytest.raises(UserError, match="of their own, so a pair cannot be read both ways; set `direction`"):
        make(data, direction="both")


def test_a_tokenizer_of_the_source_alone_reads_raw_english(of_sides, tmp_path: Path, monkeypatch) -> None:
    """From English the source is the second column of the text, and the other vocabulary is trained on the first."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    raw = write_corpus(tmp_path / "raw", train=120, valid=10, test=10)
    task = make(raw, direction="reverse", vocab_size=85, tokenizers={"source": of_sides[1]["target"]})
    assert [task.text.vocabulary(side).size for side in ("source", "target")] == [60, 85]
    assert Counter(translations(task, epoch(task))) == Counter(wanted("reverse", sentence_pairs(120), 0))


def test_beside_bitext(data_directory: Path) -> None:
    """The longest part is read once, and languages keep their names among those of all parts."""
    parts = [
        Part("pairs", BitextTask, BitextTask.Config(data=str(data_directory), batch_size=40), 1.0, 1.0),
        Part("nmt", TranslationTask, TranslationTask.Config(
            data=str(data_directory), direction="reverse", max_tokens=300), 1.0, 1.0),
    ]  # fmt: skip
    task = MixtureTask(MixtureTask.Config(parts=parts, mixing="weight"), 1)
    plans = list(task.plan(stop=task.examples))
    assert sum(len(plan.what["nmt"]) for plan in plans) == 630
    own = task.parts["nmt"]
    found = translations(own, (task.make(plan.what).parts["nmt"] for plan in plans))
    assert Counter(found) == Counter(wanted("reverse", TRAIN, 30))
    assert {(pool.name) for pool in task.validation_pools(9)} == {"es-en", "de-en", "en-es", "en-de"}


def test_what_it_refuses(data_directory: Path, tmp_path: Path) -> None:
    make(data_directory, max_tokens=4000).check_size(1)
    with pytest.raises(UserError, match="630 training pairs do not fill a batch of 100000 tokens; lower `max_tokens`"):
        make(data_directory, max_tokens=100_000).check_size(1)
    with pytest.raises(UserError, match="do not fill a batch of 4000 tokens on each of 8 ranks; lower `max_tokens`"):
        make(data_directory, max_tokens=4000).check_size(8)
    with pytest.raises(UserError, match="630 training pairs do not fill a batch of 631; lower `batch_size` or"):
        make(data_directory, max_tokens=None, batch_size=631).check_size(1)
    train = {"train": discover_bitext(write_corpus(tmp_path / "raw", train=100))["train"]}
    options = PreprocessOptions(vocabulary_size=80, valid_size=0)
    preprocess(train, tmp_path / "bin", options, lambda line: None, progress=False)
    task = make(tmp_path / "bin")
    assert not task.has_validation and not list(task.validation_batches())
    with pytest.raises(UserError, match="has no split 'valid'; preprocess the text with that split"):
        task.validation_pools(9)
    config = TranslationTask.Config(batch_size=0, max_length=2, sampling_alpha=1.1, max_tokens=0)
    assert [problem.split()[0] for problem in config.problems()] == [
        "batch_size", "max_length", "sampling_alpha", "max_tokens"
    ]  # fmt: skip
    assert TranslationTask.Config(max_tokens=None).problems() == ["batch_size must be given where max_tokens is none"]
    assert TranslationTask.Config().problems() == TranslationTask.Config(max_tokens=None, batch_size=2).problems() == []

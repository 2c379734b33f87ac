"""Vocabularies of tasks: trained on their text, named, or brought by an encoder; shared, or one of each side."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.annotated import write_labels
from tests.support.corpus import write_corpus
from tests.support.nli_data import write
from tests.support.once import made_once
from tests.tasks.kinds import GERMAN_NLI, KINDS, NLI, PAIRS, VALID_PAIRS, first, rows_of, sequences, translated
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.errors import UserError
from xrep.text.find import discover_bitext
from xrep.text.sides import open_tokenizer, open_tokenizers, save_tokenizers
from xrep.text.train_tokenizer import train_tokenizer
from xrep.understanding.labels import ClassificationTask


def write_sides(folder: Path) -> None:
    """Write bitext with a vocabulary of 90 German and one of 60 English subwords, and both vocabularies."""
    raw = write_corpus(folder / "raw", train=200, valid=20, test=20)
    paths = {side: str(folder / side) for side in ("source", "target")}
    for column, size, path in zip(zip(*PAIRS[:200], strict=True), (90, 60), paths.values(), strict=True):
        train_tokenizer(list(column), size, path)
    options = PreprocessOptions(tokenizers=paths)
    preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False)
    save_tokenizers({side: open_tokenizer(path) for side, path in paths.items()}, folder / "sides" / "tokenizer")


@pytest.fixture(scope="session")
def sides() -> Path:
    return made_once("sides-of-tasks", write_sides)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_sides_are_turned_with_the_direction(sides: Path, texts: Path, tmp_path: Path, direction: str) -> None:
    """The tokenizers of the data, of the model and of the checkpoint are."""
    kind, names = KINDS["translation"], ("source", "target") if direction == "forward" else ("target", "source")
    brought = {"source": str(sides / names[0]), "target": str(sides / names[1])}
    sizes = {"source": 90, "target": 60}
    for given in (None, brought, {"source": brought["source"]}):
        task = kind.make(texts, sides / "bin", direction=direction, brought=given)
        assert [task.text.vocabulary(side).size for side in ("source", "target")] == [sizes[name] for name in names]
    rows = [row for plan in task.plan(stop=task.examples) for row in rows_of(task, task.make(plan.rows))]
    assert Counter(rows) == Counter(translated(direction, [], PAIRS[:200]))
    batch = next(task.validation_batches())
    assert task.references(batch) == [row[3] for row in rows_of(task, batch)]
    task.save_tokenizers(tmp_path)
    kept = open_tokenizers(tmp_path)
    assert [kept[side].vocabulary_size for side in ("source", "target")] == [sizes[name] for name in names]
    with pytest.raises(UserError, match="another vocabulary than that of the pretrained encoder"):
        kind.make(texts, sides / "bin", direction=direction, brought={"source": brought["target"]})
    with pytest.raises(UserError, match="of their own, so a pair cannot be read both ways; set `direction`"):
        kind.make(texts, sides / "bin", direction="both")


def test_what_cannot_be_of_a_data_directory_is_refused(data_directory: Path, texts: Path, tmp_path: Path) -> None:
    seen, unseen = write(tmp_path / "seen.txt", [PAIRS[0][0].upper()]), write(tmp_path / "other.txt", ["ganz anders"])
    KINDS["bitext"].make(texts, data_directory, exclude=[str(unseen)])
    with pytest.raises(UserError, match="has 1 of the sentences to exclude; name the raw text, or preprocess it with"):
        KINDS["bitext"].make(texts, data_directory, exclude=[str(seen), str(unseen)])


def test_no_validation_on_languages_without_training_text(texts: Path, tmp_path: Path) -> None:
    for name, pairs in (("train.de-en", PAIRS[:300]), ("valid.de-en", VALID_PAIRS), ("valid.fr-en", PAIRS[300:310])):
        write(tmp_path / f"{name}.tsv", ["\t".join(pair) for pair in pairs])
    task = KINDS["bitext"].make(texts, tmp_path)
    assert [pool.name for pool in task.validation_pools(9)] == ["de-en"] and task.left_out == ["fr-en"]
    assert sum(map(len, task.validation_batches())) == len(VALID_PAIRS)


@pytest.mark.slow
def test_a_tokenizer_of_the_source_alone_reads_raw_english(sides: Path, texts: Path) -> None:
    """From English the source is the second column of the text, and the other vocabulary is trained on the first."""
    brought = {"source": str(sides / "target")}
    task = KINDS["translation, reverse"].make(texts, sides / "raw", vocab_size=85, brought=brought)
    assert [task.text.vocabulary(side).size for side in ("source", "target")] == [60, 85] and task.examples == 200


def test_references_are_what_the_batch_has(data_directory: Path, texts: Path) -> None:
    task = KINDS["translation"].make(texts, data_directory, max_length=6)
    batch = next(task.validation_batches())
    decode = task.tokenizers["shared"].decode
    assert task.references(batch) == [decode(row[1][1:-1]) for _, row in sequences(batch)]
    vocabulary = task.text.vocabulary("target")
    for place, token in enumerate((vocabulary.mask_id, vocabulary.eos_id, vocabulary.bos_id, 9), start=1):
        batch.target.tokens[:, place] = token
    assert set(task.references(batch)) == {decode([9])}
    both = KINDS["translation, both"].make(texts, data_directory)
    assert sum(map(len, both.train)) == 2 * sum(map(len, task.train)) == 1260
    assert (
        len({kind.make(texts, data_directory).fingerprint() for name, kind in KINDS.items() if "transl" in name}) == 3
    )


def test_inference_of_two_sides(sides: Path, texts: Path, data_directory: Path) -> None:
    def make(**options):
        return KINDS["nli, two languages"].make(texts, data_directory, **options)

    task = make(tokenizer=str(sides / "sides"))
    assert {side: own.size for side, own in task.text.vocabularies.items()} == {"source": 90, "target": 60}
    found = rows_of(task, task.make(first(600)))
    assert {(row[2], row[4]) for row in found} == {(row[0], row[2]) for row in [*GERMAN_NLI, *NLI]}
    task.text.vocabularies["source"] = replace(task.text.vocabularies["source"], bos_id=7, eos_id=8)
    rows_of(task, task.make(first(600)))
    brought = {side: str(sides / side) for side in ("source", "target")}
    named = str(sides / "sides")
    for own, given in ((None, brought), (named, brought), (named, {"source": brought["source"]})):
        assert make(tokenizer=own, brought=given).fingerprint() == task.fingerprint()
    with pytest.raises(UserError, match="a tokenizer of source alone; give one for both sides"):
        make(tokenizer=None, brought={"source": brought["source"]})
    with pytest.raises(UserError, match="these tokenizers differ, and .* leave `tokenizer` out"):
        make(brought=brought)


@pytest.mark.slow
def test_a_vocabulary_of_its_own(sides: Path, texts: Path, data_directory: Path, tmp_path: Path) -> None:
    def make(**options):
        return KINDS["sentences"].make(texts, data_directory, **{"tokenizer": None, **options})

    task = make(vocab_size=120)
    assert task.text.vocabulary("shared").size == 120
    assert make(vocab_size=120, vocabulary_alpha=1.0).fingerprint() != task.fingerprint()
    task.save_tokenizers(tmp_path)
    brought = {"shared": str(tmp_path)}
    assert make(brought=brought).text.vocabulary("shared").size == 120
    with pytest.raises(UserError, match="these tokenizers differ, and .* leave `tokenizer` out"):
        make(brought=brought, tokenizer=str(data_directory))
    with pytest.raises(UserError, match="these tokenizers differ, and all languages are read by one"):
        make(brought={side: str(sides / side) for side in ("source", "target")})
    with pytest.raises(UserError, match="these tokenizers differ, and all languages are read by one"):
        make(tokenizer=str(sides / "sides"))


@pytest.mark.slow
def test_a_new_dev_split_gives_another_vocabulary(tmp_path: Path, monkeypatch) -> None:
    """With a dev split nothing is held out, so that the vocabulary is trained on all of the training text."""

    def vocabulary() -> dict[str, bytes]:
        options = {"data": str(text), "languages": ["de"], "dev_share": 0.5, "vocab_size": 45}
        task = ClassificationTask(ClassificationTask.Config(**options), seed=1)
        sizes.append((task.examples, sum(1 for _ in task.examples_of("valid"))))
        task.tokenizers["shared"].save(tmp_path / str(len(sizes)))
        return {file.name: file.read_bytes() for file in (tmp_path / str(len(sizes))).iterdir()}

    sizes: list[tuple[int, int]] = []
    text = write_labels(tmp_path / "text")
    dev = (text / "dev-de.tsv").rename(tmp_path / "dev-de.tsv")
    half = vocabulary()
    dev.rename(text / "dev-de.tsv")
    whole = vocabulary()
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "elsewhere"))
    assert whole == vocabulary() != half
    (train, held_out), now, _ = sizes
    assert 80 < held_out < 160 and now == (train + held_out, 40)

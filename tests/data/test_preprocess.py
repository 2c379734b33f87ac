"""Preprocessing: exact counts of every step, no leak between splits, and no files after a failure."""

import gzip
import itertools
import multiprocessing
import os
from dataclasses import replace

import numpy as np
import pytest

from tests.support.runs import contents
from xrep.data import build, preprocess_stages
from xrep.data.preprocess import PreprocessOptions, prepare, preprocess
from xrep.data.table import DataDirectory
from xrep.errors import UserError
from xrep.text.cleaning import CleaningOptions, sentence_hashes, template_hash
from xrep.text.find import Bitext, discover_bitext, parse_bitext
from xrep.text.tokenizer import SentencePieceTokenizer
from xrep.text.train_tokenizer import train_tokenizer

ANIMALS = {"Hund": "dog", "Vogel": "bird", "Fisch": "fish", "Wolf": "wolf", "Bär": "bear", "Affe": "monkey"}
PLACES = {"Wald": "forest", "Fluss": "river", "Garten": "garden", "Park": "park", "Berg": "mountain", "See": "lake"}
ACTS = {"schläft": "sleeps", "spielt": "plays", "wartet": "waits", "singt": "sings", "sitzt": "sits"}
ALL = list(itertools.product(ANIMALS, ACTS, PLACES))
PAIRS = [(f"Der {a} {v} im {p}.", f"The {ANIMALS[a]} {ACTS[v]} in the {PLACES[p]}.") for a, v, p in ALL]
TURKISH = [(f"{ANIMALS[a]}ler {PLACES[p]}da {ACTS[v]}r", en) for (a, v, p), (_, en) in zip(ALL, PAIRS, strict=True)]


def tsv(path, pairs, language="de") -> Bitext:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return parse_bitext(f"{language}-en={path}:1,2")


def run(tmp_path, splits, workers=1, **options):
    options = PreprocessOptions(**{"vocabulary_size": 62, "valid_size": 0, **options})
    tmp_path.mkdir(exist_ok=True)
    return preprocess(splits, tmp_path / "bin", options, lambda line: None, False, workers=workers)


def texts(path, split):
    data = DataDirectory(path)
    decode = data.tokenizers["shared"].decode
    return {
        pair.name: [(decode(pair["source"][i]), decode(pair["target"][i])) for i in range(len(pair))]
        for pair in data.splits[split]
    }


def test_every_step_is_counted(tmp_path):
    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    # Full-width letters, another case and other punctuation, one on each side of a pair.
    (evaluation / "test.deu").write_text("der HUND schläft... im Wald\n", encoding="utf-8")
    (evaluation / "test.eng.gz").write_bytes(gzip.compress("Ｔhe bird sleeps, in the park!\n".encode()))
    (evaluation / "README.md").write_text("# About\n", encoding="utf-8")
    rows = [
        *PAIRS,
        ("", "nothing there"),
        ("nothing there", "  "),
        ("Spotify", "SPOTIFY!"),
        ("Der", "The one and only"),
        ("Der " * 13, "The " * 13),
        ("Der Hund", "The dog sleeps in the forest and plays"),
        ("der hund, SPIELT im Wald", "The dog plays in the forest"),
        ("Der Hund spielt im Wald!", "The dog is playing in the forest."),
    ]
    valid = [("Der Wolf wartet im Park", "something else here"), ("", "dropped")]
    splits = {"train": [tsv(tmp_path / "x.tsv", rows)], "valid": [tsv(tmp_path / "v.tsv", valid)]}
    cleaning = CleaningOptions(minimum_length=2, maximum_length=12, maximum_length_ratio=2, sample=100)
    report = run(tmp_path, splits, exclude=[str(evaluation)], cleaning=cleaning)
    assert report.cleaning["de-en x.tsv"] == {
        "read": 188, "empty": 2, "identical": 1, "too short": 1, "too long": 1, "length ratio": 1, "excluded": 2,
        "in valid/test": 1, "duplicate": 1, "held out": 0, "near held out": 0, "sampled away": 78, "kept": 100,
    }  # fmt: skip
    assert report.cleaning["valid de-en v.tsv"]["empty"] == 1
    kept = texts(report.path, "train")["de-en"]
    assert len(set(kept)) == len(kept) == 100 and set(kept) <= set(rows)
    assert not {PAIRS[0], PAIRS[33]} & set(kept)
    assert texts(report.path, "valid")["de-en"] == valid[:1]


def test_a_corpus_may_have_a_sample_of_its_own(tmp_path):
    first, second = (tsv(tmp_path / name, rows) for name, rows in (("x.tsv", PAIRS[:90]), ("y.tsv", PAIRS[90:])))
    few = replace(first, sample=20)
    report = run(tmp_path, {"train": [few, second]}, cleaning=CleaningOptions(sample=50))
    assert [row["kept"] for row in report.cleaning.values()] == [20, 50]


def test_without_cleaning_everything_is_kept(tmp_path):
    rows = [*PAIRS, PAIRS[0], ("der See", "der See")]
    cleaning = CleaningOptions(deduplicate=False, drop_identical=False)
    report = run(tmp_path, {"train": [tsv(tmp_path / "x.tsv", rows)]}, cleaning=cleaning)
    assert texts(report.path, "train")["de-en"] == rows


def test_duplicates_are_found_across_corpora_of_a_pair_but_not_across_pairs(tmp_path):
    first, second = tsv(tmp_path / "x.tsv", PAIRS), tsv(tmp_path / "y.tsv", PAIRS[:50] + [("Ein Haus", "A house")])
    third = tsv(tmp_path / "z.tsv", PAIRS, "nl")
    report = run(tmp_path, {"train": [first, second, third]})
    assert [report.cleaning[c]["duplicate"] for c in ("de-en x.tsv", "de-en y.tsv", "nl-en z.tsv")] == [0, 50, 0]
    assert {name: len(pairs) for name, pairs in texts(report.path, "train").items()} == {"de-en": 181, "nl-en": 180}


def test_held_out_pairs_have_no_near_duplicate_in_training(tmp_path):
    counted = [(f"{i}. {de}", f"{en} ({i} times, {{name_{i}}})") for i in range(4) for de, en in PAIRS]
    again = [(f"Übrigens: {de}", en) for de, en in PAIRS]
    train = [tsv(tmp_path / "x.tsv", counted), tsv(tmp_path / "y.tsv", again), tsv(tmp_path / "t.tsv", TURKISH, "tr")]
    report = run(tmp_path, {"train": train}, valid_size=20, vocabulary_size=75)
    data = DataDirectory(report.path)
    sizes = {pair.name: len(pair) for pair in data.splits["valid"]}
    assert sizes == {"de-en": 20, "tr-en": 9}  # at most 5%
    training = np.unique(np.concatenate([pair.hashes.ravel() for pair in data.splits["train"]]))
    assert np.array_equal(training, np.load(data.path / "training_hashes.npy"))
    for pair in data.splits["valid"]:
        assert not np.isin(pair.hashes, training).any()
        assert len(np.unique(pair.hashes[:, 0])) == len(np.unique(pair.hashes[:, 1])) == len(pair)
    train, valid = texts(report.path, "train"), texts(report.path, "valid")
    templates = [{template_hash(en) for rows in part.values() for _, en in rows} for part in (train, valid)]
    assert not templates[0] & templates[1]
    steps = ("read", "held out", "near held out", "kept")
    read, held_out, near, kept = (sum(row[step] for row in report.cleaning.values()) for step in steps)
    assert (read, held_out, kept) == (1080, 29, 1080 - 29 - near) and near > 29


def test_training_pairs_that_occur_in_valid_or_test_on_either_side_are_dropped(tmp_path):
    valid, test = tsv(tmp_path / "v.tsv", PAIRS[:5]), tsv(tmp_path / "t.tsv", TURKISH[10:15], "tr")
    train = [tsv(tmp_path / "x.tsv", PAIRS), tsv(tmp_path / "y.tsv", TURKISH, "tr")]
    report = run(tmp_path, {"train": train, "valid": [valid], "test": [test]})
    assert [row["in valid/test"] for row in report.cleaning.values()] == [0, 0, 10, 10]
    assert texts(report.path, "valid") == {"de-en": PAIRS[:5]} and len(texts(report.path, "test")["tr-en"]) == 5


@pytest.mark.slow
def test_sampling_is_uniform_and_follows_the_seed(tmp_path):
    bitext, drawn = tsv(tmp_path / "x.tsv", [(f"{de} {n}", f"{en} {n}") for n in range(5) for de, en in PAIRS]), []
    for number, seed in enumerate((1, 1, 2)):
        cleaning = CleaningOptions(sample=450)
        report = run(tmp_path / str(number), {"train": [bitext]}, cleaning=cleaning, seed=seed, vocabulary_size=70)
        (pair,) = DataDirectory(report.path).splits["train"]
        drawn.append(pair.hashes[:, 0].tolist())
    every = sentence_hashes([f"{de} {n}" for n in range(5) for de, _ in PAIRS]).tolist()
    assert len(drawn[0]) == 450 and drawn[0] == drawn[1] != drawn[2]
    # Five standard deviations about 225.
    assert all(180 < len(set(rows) & set(every[:450])) < 270 for rows in drawn)


@pytest.mark.slow
def test_the_tokenizer_s_text_is_bounded_in_characters(tmp_path, monkeypatch):
    read = []

    def train(sentences, *arguments):
        read.extend(sentences)
        return train_tokenizer(read, *arguments)

    monkeypatch.setattr(build, "train_tokenizer", train)
    whole = sum(len(text) for pair in PAIRS for text in pair)
    monkeypatch.setattr(build, "_TOKENIZER_CHARACTERS", whole // 2)
    run(tmp_path, {"train": [tsv(tmp_path / "x.tsv", PAIRS)]}, vocabulary_size=60)
    assert whole * 0.45 < sum(map(len, read)) < whole * 0.53
    # Evenly drawn: every animal occurs early or late in it.
    assert all(any(animal in text for text in read) for animal in ANIMALS)


def test_white_space_inside_sentences_is_one_space(tmp_path):
    (tmp_path / "x.de").write_text("Der\tHund \u2028 schläft\x0b im Wald\nDer Bär\n", encoding="utf-8")
    (tmp_path / "x.en").write_text("The  dog sleeps\n The bear \n", encoding="utf-8")
    bitext = parse_bitext(f"de-en={tmp_path / 'x.de'},{tmp_path / 'x.en'}")
    report = run(tmp_path, {"train": [bitext, tsv(tmp_path / "x.tsv", PAIRS)]})
    first = texts(report.path, "train")["de-en"][:2]
    assert first == [("Der Hund schläft im Wald", "The dog sleeps"), ("Der Bär", "The bear")]


ROWS = b"".join(f"{a}\t{b}\n".encode() for a, b in PAIRS * 60)


@pytest.mark.parametrize(("workers", "content", "options", "problem"), [
    (1, ROWS + b"one column\n", {}, r"x\.tsv:10801: 1 column where two"),
    (2, ROWS + b"one column\n", {}, r"x\.tsv:10801: 1 column where two"),
    (1, b"a\ta\n", {}, r"no training pair is left \(1 read, 1 identical\)"),
])  # fmt: skip
@pytest.mark.slow
def test_bad_input_leaves_nothing_behind(tmp_path, workers, content, options, problem):
    (tmp_path / "x.tsv").write_bytes(content)
    splits = {"train": [Bitext(("de", "en"), (str(tmp_path / "x.tsv"),), (0, 1))]}
    with pytest.raises(UserError, match=problem):
        run(tmp_path, splits, workers=workers, **options)
    assert os.listdir(tmp_path) == ["x.tsv"] and multiprocessing.active_children() == []


def test_after_a_full_disk_it_goes_on(tmp_path, monkeypatch):
    splits = {"train": [tsv(tmp_path / "x.tsv", PAIRS)]}
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(SentencePieceTokenizer, "encode", full_disk)
        run(tmp_path, splits)
    assert sorted(os.listdir(tmp_path)) == ["bin.job", "x.tsv"]
    monkeypatch.setattr(preprocess_stages, "clean", None)  # now the text is clean
    (tmp_path / "bin").mkdir()
    run(tmp_path, splits)  # an empty one is fine
    assert sorted(os.listdir(tmp_path)) == ["bin", "x.tsv"]


def full_disk(*arguments):
    raise OSError(28, "No space left on device")


@pytest.fixture
def raw(tmp_path, monkeypatch):
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    (tmp_path / "raw").mkdir()
    tsv(tmp_path / "raw" / "deu-eng.tsv", PAIRS)
    return tmp_path / "raw"


@pytest.mark.slow
def test_several_processes_prepare_text_once_and_go_on(raw, tmp_path, monkeypatch):
    options, log = PreprocessOptions(vocabulary_size=62), multiprocessing.SimpleQueue()
    whole = preprocess(discover_bitext(raw), tmp_path / "whole", options, lambda line: None, False)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(SentencePieceTokenizer, "encode", full_disk)
        prepare(raw, options, log.put)
    monkeypatch.setattr(preprocess_stages, "clean", None)  # now the text is clean
    processes = [multiprocessing.Process(target=prepare, args=(raw, options, log.put)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    place = prepare(raw, options)
    assert os.listdir(place.parent) == [place.name]
    lines = []
    while not log.empty():
        lines.append(log.get())
    assert lines.count(f"preprocessing {raw} (once; kept in {place})") == 2
    assert lines.count("going on with the text that an interrupted command has cleaned") == 1
    assert contents(place) == contents(whole.path)


@pytest.mark.slow
def test_prepare_caches_raw_text_until_it_changes(raw, tmp_path):
    options = PreprocessOptions(vocabulary_size=62)
    lines = []
    first = prepare(raw, options, lines.append)
    assert first.parent == tmp_path / "home" / "preprocessed" and lines
    manifest = (first / "manifest.json").stat()
    assert prepare(raw, options, lines.append) == first == prepare(first, options)
    assert (first / "manifest.json").stat().st_mtime_ns == manifest.st_mtime_ns
    tsv(raw / "deu-eng.tsv", PAIRS[:-1])
    changed = prepare(raw, options, lines.append)
    assert changed != first
    assert sum(len(rows) for split in ("train", "valid") for rows in texts(changed, split).values()) == 179
    (changed / "manifest.json").unlink()  # what is incomplete is built again
    assert prepare(raw, options) == changed and DataDirectory(changed).splits["train"]

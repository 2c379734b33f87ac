"""The token store reads what it wrote, and refuses files that are cut, swapped or foreign."""

import json
import shutil

import numpy as np
import pytest

from tests.data.test_preprocess import PAIRS, tsv
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.table import DataDirectory, TableWriter, flatten, open_table, token_type
from xrep.errors import UserError
from xrep.text.cleaning import sentence_hashes


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    options = PreprocessOptions(vocabulary_size=62, valid_size=10)
    train = {"train": [tsv(folder / "x.tsv", PAIRS)]}
    return preprocess(train, folder / "bin", options, lambda line: None, False).path


def test_sentences_come_back_with_their_hashes(original):
    data = DataDirectory(original)
    with pytest.raises(ValueError, match="read-only"):
        data.splits["train"][0]["source"].values[0] = 1
    decoded, decode = {}, data.tokenizers["shared"].decode
    for split, (pair,) in data.splits.items():
        sides = [[decode(column[i]) for i in range(len(pair))] for column in (pair["source"], pair["target"])]
        decoded[split] = list(zip(*sides, strict=True))
        assert pair.name == "de-en" and len(pair.hashes) == len(pair)
        for side in (0, 1):
            assert np.array_equal(pair.hashes[:, side], sentence_hashes(sides[side]))
    assert sorted(decoded["train"] + decoded["valid"]) == sorted(PAIRS) and len(decoded["valid"]) == 9
    hashes = np.load(data.path / "training_hashes.npy", mmap_mode="r", allow_pickle=False)
    assert np.array_equal(hashes, np.unique(sentence_hashes(text for pair in decoded["train"] for text in pair)))


@pytest.mark.parametrize("vocabulary_size", [65536, 65537])
def test_columns(tmp_path, vocabulary_size):
    generator = np.random.default_rng(0)
    sentences = [generator.integers(0, vocabulary_size, n).tolist() for n in (3, 0, 700, 1, 5, 0)]
    sentences[0][0] = vocabulary_size - 1
    schema = {"c": token_type(vocabulary_size)}
    with TableWriter(tmp_path, "train.x", schema) as writer:
        for start in range(0, 6, 2):
            writer.append({"c": flatten(sentences[start : start + 2])})
        writer.append({"c": flatten([])})
    assert writer.facts == {"rows": 6, "tokens": {"c": 709}, "columns": schema}
    dtype = "<u2" if vocabulary_size == 65536 else "<u4"
    column = open_table("x", writer.facts, lambda name: tmp_path / f"train.x.{name}")["c"]
    assert [column[i].tolist() for i in range(len(column))] == sentences
    rows = np.array([2, 0, 1, 2])
    assert column.lengths(rows).tolist() == [700, 3, 0, 700]
    ids, lengths = column.gather(rows, 2)
    assert ids.dtype == dtype and lengths.tolist() == [2, 2, 0, 2]
    assert ids.tolist() == [token for i in rows for token in sentences[i][:2]]
    assert [len(part) for part in column.gather(rows[:0], 2)] == [0, 0]
    with pytest.raises(IndexError):
        column[6]


def truncate(folder, name):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: len(content) // 2])


def reverse(file):
    file.write_bytes(file.read_bytes()[::-1])


def edit_manifest(folder, **changes):
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **changes}))


@pytest.mark.parametrize(("damage", "problem"), [
    (lambda f: truncate(f, "train.de-en.source"), r"train\.de-en\.source: \d+ bytes, but the manifest says"),
    (lambda f: (f / "valid.de-en.hashes").unlink(), r"valid\.de-en\.hashes: missing file"),
    (lambda f: reverse(f / "tokenizer" / "sentencepiece.model"), "not the tokenizer that made these tokens"),
    (lambda f: truncate(f, "manifest.json"), "the manifest is not of an xrep data directory"),
    (lambda f: edit_manifest(f, format="other"), "is not of an xrep data directory"),
    (lambda f: edit_manifest(f, schema=99), "data schema 99, but this xrep reads 5; run xrep-preprocess again"),
])  # fmt: skip
def test_damaged_directories_are_refused(original, tmp_path, damage, problem):
    folder = shutil.copytree(original, tmp_path / "bin")
    damage(folder)
    with pytest.raises(UserError, match=problem):
        DataDirectory(folder)

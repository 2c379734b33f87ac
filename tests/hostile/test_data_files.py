"""Files of tokenised text and of cached vectors: whatever they hold, they are read or refused in one line."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.hostile.fuzzing import Fuzz, files_like
from tests.support.nli_data import nli_rows, write_jsonl
from xrep.data.nli_store import NLI, NliData, NliOptions, prepare_nli
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.store import PAIRS, DataDirectory, gather_rows
from xrep.data.text_store import TEXT, TextOptions, prepare_text
from xrep.data.vector_cache import VectorCache
from xrep.errors import UserError
from xrep.text.readers import parse_bitext
from xrep.text.sides import Tokenizers, open_tokenizers

PARTS = (("one", "two", "three"), ("red", "blue"), ("car", "bus", "cat"))
WORDS = [" ".join(words) for words in itertools.product(*PARTS)]
KINDS = {"xrep-data": PAIRS, "xrep-text": TEXT, "xrep-nli": NLI}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small directory of each kind, by its format."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "x.tsv").write_text("".join(f"{text[::-1]}\t{text}\n" for text in WORDS), encoding="utf-8")
    (folder / "text").mkdir()
    (folder / "text" / "train.en").write_text("\n".join(WORDS), encoding="utf-8")
    (folder / "nli").mkdir()
    write_jsonl(folder / "nli" / "snli_1.0_train.jsonl", nli_rows(20))
    options = PreprocessOptions(vocabulary_size=25)
    splits = {"train": [parse_bitext(f"de-en={folder / 'x.tsv'}")]}
    pairs = preprocess(splits, folder / "bin", options, lambda line: None, progress=False).path
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XREP_HOME", str(folder / "home"))
        text = prepare_text(folder / "text", TextOptions(vocabulary_size=24), {})
        nli_options = NliOptions(triplets=False, language="en", vocabulary_size=60)
        nli = prepare_nli(folder / "nli", nli_options, {})
    return {"xrep-data": pairs, "xrep-text": text.path, "xrep-nli": nli.path}


def read_all(data: DataDirectory) -> None:
    for corpora in data.splits.values():
        for corpus in corpora:
            rows = np.arange(len(corpus))
            corpus.lengths(rows)
            for column in corpus.columns:
                gather_rows([column], np.zeros_like(rows), rows, 1 << 40)
            if "followed" in corpus.arrays:
                corpus.source.lengths(corpus.arrays["followed"] + 1)


def opener(kind: str, tokenizers: Tokenizers, trusting: bool = False) -> type[DataDirectory]:
    """Return a class that does not load the tokenizer; ``trusting``: and takes the sizes of the files as they are."""

    class Reader(NliData if kind == "xrep-nli" else DataDirectory):
        def __init__(self, path: Path) -> None:
            self.__dict__["tokenizers"] = tokenizers
            super().__init__(*([path] if kind == "xrep-nli" else [path, KINDS[kind]]))

        def _check_file(self, name: str, expected: int, digest: str) -> None:
            if trusting:
                self._files[name]["bytes"] = (self.path / name).stat().st_size
            else:
                super()._check_file(name, expected, digest)

    return Reader


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_manifests(directories: dict[str, Path], fuzz: Fuzz, kind: str) -> None:
    shutil.copytree(directories[kind], fuzz.folder / "bin")
    reader = opener(kind, open_tokenizers(directories[kind] / "tokenizer"))
    manifest = json.loads((directories[kind] / "manifest.json").read_bytes())
    del manifest["options"]
    content = files_like(json.dumps(manifest).encode(), json.dumps(manifest, indent=1).encode())
    fuzz(f"manifest of {kind}", "bin/manifest.json", content, lambda path: read_all(reader(path.parent)))


def arrays_like(valid: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy for files of the same size with other numbers, and for files of other sizes."""
    place = st.integers(0, max(0, len(valid) - 8))
    number = st.sampled_from([0, 1, 2, 255, 65535, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])

    def damaged(damages: list[tuple[int, int]]) -> bytes:
        content = bytearray(valid)
        for start, value in damages:
            content[start : start + 8] = value.to_bytes(8, "little")[: len(content) - start]
        return bytes(content)

    aligned = st.tuples(place.map(lambda start: start // 8 * 8), number)
    same = st.lists(st.one_of(aligned, st.tuples(place, number)), min_size=1, max_size=4).map(damaged)
    return st.one_of(same, same, files_like(valid), st.integers(0, len(valid)).map(lambda end: valid[:end] * 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("xrep-data", "train.de-en.de.tokens"),
        ("xrep-data", "train.de-en.de.offsets"),
        ("xrep-data", "train.de-en.hashes"),
        ("xrep-text", "train.en.followed"),
        ("xrep-nli", "train.premise-hypothesis.languages"),
        ("xrep-nli", "train.premise-hypothesis.labels"),
    ],
)
def test_arrays(directories: dict[str, Path], fuzz: Fuzz, kind: str, name: str) -> None:
    shutil.copytree(directories[kind], fuzz.folder / "bin")
    reader = opener(kind, open_tokenizers(directories[kind] / "tokenizer"), trusting=True)
    content = arrays_like((directories[kind] / name).read_bytes())
    fuzz(name, f"bin/{name}", content, lambda path: read_all(reader(path.parent)))


def test_numbers_that_do_not_fit_are_refused(directories: dict[str, Path], tmp_path: Path) -> None:
    """A manifest that agrees with the files does not make them right."""
    kind, name = "xrep-data", "train.de-en.de"
    reader = opener(kind, open_tokenizers(directories[kind] / "tokenizer"), trusting=True)
    damages = [
        ("tokens", lambda a: a.astype("<u2") * 0 + 5000, "has token 5000, but the vocabulary has 25"),
        ("tokens", lambda a: a[:-1], "offsets do not fit"),
        ("tokens", lambda a: a[:0], "offsets do not fit"),
        ("offsets", lambda a: a - 1, "offsets do not fit"),
        ("offsets", lambda a: np.r_[a[0], a[-1] + 9, a[2:]], "offsets do not fit"),
        ("offsets", lambda a: np.r_[a[0], -(1 << 62), a[2:]], "offsets do not fit"),
        ("offsets", lambda a: np.r_[a[:2], a[3:]], "do not have .* rows"),
        ("offsets", lambda a: a.view("u1")[:-3], "ends within a row"),
        ("offsets", lambda a: a[:0], "offsets do not fit"),
    ]
    for number, (ending, damage, message) in enumerate(damages):
        folder = shutil.copytree(directories[kind], tmp_path / str(number))
        file = folder / f"{name}.{ending}"
        damage(np.fromfile(file, "<u2" if ending == "tokens" else "<i8")).tofile(file)
        with pytest.raises(UserError, match=message) as caught:
            read_all(reader(folder))
        assert "\n" not in str(caught.value) and "run xrep-preprocess again" in str(caught.value)


def test_hashes_that_were_changed_are_not_copied(directories: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(directories["xrep-data"], tmp_path / "bin")
    file = folder / "training_hashes.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(UserError, match=r"training_hashes\.npy: has other bytes than the manifest says"):
        DataDirectory(folder).copy_training_hashes(tmp_path / "copy.npy")
    assert not (tmp_path / "copy.npy").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cache.json", "index", "vectors"])
def test_vector_caches(fuzz: Fuzz, tmp_path: Path, name: str) -> None:
    keys = np.arange(8)
    folder = fuzz.folder / "cache"
    VectorCache(folder, 3, "x").add(keys, np.random.default_rng(0).normal(size=(8, 3)))

    def read(path: Path) -> None:
        cache = VectorCache(path.parent, 3, "x")
        places = cache.find(keys)
        cache.read(places[places >= 0])

    valid = (folder / name).read_bytes()
    content = files_like(valid) if name == "cache.json" else arrays_like(valid)
    fuzz(f"cached vectors: {name}", f"cache/{name}", content, read)

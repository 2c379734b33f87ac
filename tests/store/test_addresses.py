"""Files by their address: the same on this machine and in stores that fsspec has in memory or reads as file://."""

import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpus import sentence_pairs, write_lines
from xrep.errors import UserError
from xrep.inference import encoding
from xrep.store import addresses, contents
from xrep.store.addresses import join
from xrep.store.arrays import ArrayFile
from xrep.store.contents import Bytes, opened
from xrep.store.vectors import Vectors
from xrep.text.examples import read_text

MEMORY = "memory://tests"


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    addresses.remove(MEMORY)


@pytest.fixture(params=["path", "file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"path": str(tmp_path / "f"), "file": f"file://{tmp_path}/f", "memory": MEMORY}[request.param]


def put(address: str, content: bytes) -> str:
    addresses.make_folder(address.rpartition("/")[0])
    addresses.write(address, content)
    return address


def test_what_two_processes_publish_is_one_file(tmp_path: Path) -> None:
    """Where both names lead to one file already, the system leaves the other name when it renames."""
    (tmp_path / "out").mkdir()
    (tmp_path / "made").write_bytes(b"x")
    for _ in range(2):
        addresses.publish(tmp_path / "made", tmp_path / "out" / "a")
    assert os.listdir(tmp_path / "out") == ["a"]


def test_files_are_written_read_and_removed(folder: str, tmp_path: Path) -> None:
    place = join(folder, "a", "b.json")
    assert not addresses.exists(place) and addresses.names_in(folder) == []
    addresses.make_folder(join(folder, "a"))
    assert addresses.create(place, b"first") and not addresses.create(place, b"second")
    assert addresses.read(place) == b"first" and addresses.exists(place)
    before = addresses.state_of(place)
    addresses.write(place, b"third time")
    assert addresses.read(place) == b"third time" and addresses.state_of(place) != before
    (tmp_path / "new").write_bytes(b"new")
    addresses.publish(tmp_path / "new", join(folder, "a", "c"))
    addresses.publish(join(folder, "a", "c"), join(folder, "a", "d"))
    names = ["b.json", "c", "d"]
    assert addresses.names_in(join(folder, "a")) == names
    assert addresses.read_all([join(folder, "a", name) for name in names]) == [b"third time", b"new", b"new"]
    assert addresses.is_folder(join(folder, "a")) and not addresses.is_folder(place)
    addresses.remove(place)
    addresses.remove(place)
    assert addresses.names_in(join(folder, "a")) == ["c", "d"]
    addresses.remove(folder)
    assert addresses.names_in(folder) == []
    with pytest.raises(FileNotFoundError, match=r"b\.json"):
        addresses.read(place)


def test_patterns_name_files_in_order(folder: str) -> None:
    for name in ("b.txt", "a.txt", "c.csv", "x[1].txt"):
        put(join(folder, name), b"")
    found = addresses.matching_files(join(folder, "?.txt"))
    assert [name.rpartition("/")[2] for name in found] == ["a.txt", "b.txt"] and all(map(addresses.exists, found))
    fields = addresses.matching_files(join(folder, "?.txt:text"))
    assert fields == [f"{name}:text" for name in found]
    for name in (join(folder, "x[1].txt"), join(folder, "x[1].txt:text"), join(folder, "none.txt"), "-"):
        assert addresses.matching_files(name) == [name]
    with pytest.raises(UserError, match="no file matches; check the name"):
        addresses.matching_files(join(folder, "d*"))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30)), max_size=8), st.integers(0, 9))
def test_parts_of_a_file_are_read_in_any_order_by_few_requests(parts: list[tuple[int, int]], gap: int) -> None:
    content = bytes(range(130))
    place, wanted = put(join(MEMORY, "a"), content), [(start, start + size) for start, size in parts]
    requests, store = list[str](), addresses.store_of(MEMORY)
    own = store.cat_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contents, "_GAP", gap)
        patch.setattr(store, "cat_file", lambda file, *more: requests.append(file) or own(file, *more))
        assert Bytes(place).read_all(wanted) == [content[start:stop] for start, stop in wanted]
    filled = sorted((start, stop) for start, stop in wanted if start < stop)
    near = 0
    for number, (start, _) in enumerate(filled[1:], 1):
        near += start - max(stop for _, stop in filled[:number]) <= gap
    assert len(requests) == len(filled) - near


def test_a_file_is_read_from_its_beginning_as_from_any_place(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_BUFFER", 64)
    content = os.urandom(1000)
    with opened(put(join(folder, "a"), content)) as file:
        assert file.read(10) == content[:10] and file.tell() == 10 and file.peek(1)[:1] == content[10:11]
        assert file.seek(-100, os.SEEK_END) == 900 and file.read() == content[900:] and file.read(1) == b""
        assert file.seek(5) == 5 and file.read(700) == content[5:705]
        assert file.seek(2000) == 2000 and file.read(1) == b""


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_and_vectors_are_those_that_numpy_wrote(folder: str, version: tuple[int, int], tmp_path: Path) -> None:
    rows = np.arange(300, dtype=np.float16).reshape(100, 3)
    with open(tmp_path / "x.npy", "wb") as file:
        np.lib.format.write_array(file, rows, version)
    place = put(join(folder, "x.npy"), (tmp_path / "x.npy").read_bytes())
    vectors, wanted = Vectors(place), np.array([99, 3, 4, 5, 50, 3])
    assert len(vectors) == 100 and vectors.size == 3 and vectors.dtype == np.float16
    assert (vectors.stored(wanted) == rows[wanted]).all() and (vectors.stored(slice(90, 200)) == rows[90:]).all()
    assert (np.concatenate([block for _, block in ArrayFile.open(place, "x", "").blocks(30)]) == rows).all()


def test_a_truncated_array_and_one_in_another_order_are_refused(folder: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((50, 4), np.float32))
    whole = (tmp_path / "x.npy").read_bytes()
    np.save(tmp_path / "x.npy", np.zeros((50, 4), np.float32, order="F"))
    for content, problem in ((whole[:-1], "truncated"), ((tmp_path / "x.npy").read_bytes(), "one after the other")):
        with pytest.raises(UserError, match=problem):
            ArrayFile.open(put(join(folder, "x.npy"), content), "vectors", "make it again")


@pytest.mark.parametrize(("error", "message"), [
    (OSError("over\nloaded"), "the store fails: over loaded; check its address and your keys"),
    (TimeoutError(), "the store fails: TimeoutError; check"),
    (RuntimeError("no key"), "the store fails: no key; check"),
    (PermissionError("Forbidden"), r"the store refuses it (Forbidden); check your keys"),
])  # fmt: skip
def test_a_store_that_fails_or_refuses_is_named(error, message, monkeypatch):
    store, place = addresses.store_of(MEMORY), put(join(MEMORY, "a"), b"x")

    def cat(*_: Any, **__: Any) -> bytes:
        raise error

    monkeypatch.setattr(store, "cat_file", cat)
    with pytest.raises(OSError) as raised:
        addresses.read(place)
    assert raised.value.filename == place and message in str(raised.value)
    assert isinstance(raised.value, PermissionError) == isinstance(error, PermissionError)


@pytest.mark.parametrize(("address", "message"), [
    ("gs://bucket/a", r"gs:// needs another package \(.+\); pip install 'xrep\[gcs\]'"),
    ("nothing://bucket/a", "nothing:// is no store that fsspec knows; give a path, s3:// or gs://"),
])  # fmt: skip
def test_a_store_without_its_package_is_named(address: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = fsspec.filesystem

    def filesystem(protocol: str, **options: Any) -> Any:
        if protocol == "gs":
            raise ImportError("Please install gcsfs")
        return own(protocol, **options)

    monkeypatch.setattr(fsspec, "filesystem", filesystem)
    with pytest.raises(UserError, match=f"^{message}$"):
        addresses.read(address)


def test_texts_are_read_from_stores_and_archives_are_not(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table({"text": ["ein Satz", "noch einer"]}), tmp_path / "a.parquet")
    unit = '<tu><tuv xml:lang="de"><seg>{}</seg></tuv></tu>'
    files = {
        "a.txt": b"ein Satz\nnoch einer\n",
        "a.txt.gz": gzip.compress(b"ein Satz\nnoch einer\n"),
        "a.jsonl": b'{"text": "ein Satz"}\n{"text": "noch einer"}\n',
        "a.parquet": (tmp_path / "a.parquet").read_bytes(),
        "a.tmx": f"<tmx><body>{unit.format('ein Satz')}{unit.format('noch einer')}</body></tmx>".encode(),
    }
    for name, content in files.items():
        place = put(join(MEMORY, name), content)
        assert [text for _, text in read_text(place, "de")] == ["ein Satz", "noch einer"]
    assert [text for _, text in read_text(join(MEMORY, "a.jsonl:text"))] == ["ein Satz", "noch einer"]
    for name in ("a.zip", "a.zip/a.de"):
        with pytest.raises(UserError, match="a zip archive in an object store; unpack it, or copy it to this machine"):
            next(read_text(join(MEMORY, name)))
    with pytest.raises(UserError, match="a folder, not a file; name a file in it"):
        next(read_text(MEMORY))
    with pytest.raises(UserError, match="no such file; check the name"):
        next(read_text(join(MEMORY, "b.txt")))


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, list[str]]:
    """Two texts of two files each, one of them compressed, by the language: on this machine and in a store."""
    found, pairs = {"de": list[str](), "en": list[str]()}, sentence_pairs(60)
    for side, language in enumerate(found):
        for part, some in enumerate((pairs[:25], pairs[25:])):
            name, content = f"{part}.{language}", "".join(f"{pair[side]}\n" for pair in some).encode()
            name, content = (f"{name}.gz", gzip.compress(content, mtime=0)) if part else (name, content)
            (tmp_path / name).write_bytes(content)
            found[language].append(put(join(MEMORY, name), content))
    return found


def test_commands_write_the_same_bytes_to_a_store(cli, shared_encoder, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.store.texts.CHUNK_LINES", 8)
    for place in (str(tmp_path), MEMORY):
        for language in texts:
            encode = ["encode", "--path", shared_encoder, "--lang", language, "--input", join(place, f"*.{language}*")]
            for output in (join(place, f"{language}.npy"), join(place, f"v-{language}")):
                result = cli(*map(str, encode), "--output", output)
                assert (result.code, result.out) == (0, result.out) and result.out.endswith(f": {output}\n")
        mine = ["mine", "--output", join(place, "mined"), "--json", join(place, "mined.json")]
        for side, language in (("source", "de"), ("target", "en")):
            mine += [f"--{side}", join(place, f"*.{language}*"), f"--{side}-vectors", join(place, f"v-{language}")]
        assert cli(*mine).code == 0
    names = [name for name in addresses.names_in(MEMORY) if not name.startswith("v-") and name != "mined.json"]
    assert "mined" in names and not any(name.endswith(".job") for name in addresses.names_in(MEMORY))
    for name in names:
        assert addresses.read(join(MEMORY, name)) == (tmp_path / name).read_bytes(), name
    for folder in ("v-de", "v-en"):
        parts = addresses.names_in(join(MEMORY, folder))
        assert parts == sorted(path.name for path in (tmp_path / folder).iterdir())
        assert [addresses.read(join(MEMORY, folder, part)) for part in parts] == [
            (tmp_path / folder / part).read_bytes() for part in parts
        ]
    assert b'"pairs"' in addresses.read(join(MEMORY, "mined.json"))


def test_commands_refuse_what_they_cannot_write_in_a_store(cli, shared_encoder, texts, tmp_path):
    place = put(join(MEMORY, "same.npy"), b"x")
    encode = ["encode", "--path", str(shared_encoder), "--lang", "de"]
    result = cli(*encode, "--input", place, "--output", place)
    assert result.code == 2 and "--output is the same file as --input; choose another name" in result.err
    put(join(MEMORY, "other", "manifest.json"), b"{}")
    result = cli(*encode, "--input", texts["de"][0], "--output", join(MEMORY, "other"))
    assert result.code == 2 and "not the manifest of vectors, or of another version" in result.err
    result = cli("predict", "--path", shared_encoder, "--input", tmp_path / "0.de", "--output", place)
    assert result.code == 2 and "is in an object store; write to this machine, and copy it" in result.err
    assert addresses.read(place) == b"x" and addresses.names_in(join(MEMORY, "other")) == ["manifest.json"]


def test_a_pipe_is_copied_into_the_store_and_an_interrupted_command_goes_on(cli, shared_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("xrep.store.texts.CHUNK_LINES", 8)
    lines = [german for german, _ in sentence_pairs(40)]
    os.mkfifo(tmp_path / "pipe")
    output, encode = join(MEMORY, "x.npy"), ["encode", "--path", str(shared_encoder), "--lang", "de", "--input"]
    own, calls = encoding.Encode._converted, list[int]()

    def converted(self: Any, vectors: np.ndarray, start: int) -> np.ndarray:
        calls.append(start)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return own(self, vectors, start)

    monkeypatch.setattr(encoding.Encode, "_converted", converted)
    for code in (2, 0):
        writer = os.fork()
        if not writer:
            write_lines(tmp_path / "pipe", lines)
            os._exit(0)
        assert cli(*encode, tmp_path / "pipe", "--output", output).code == code
        os.waitpid(writer, 0)
    assert calls == [0, 8, 16, 16, 24, 32] and addresses.names_in(MEMORY) == ["x.npy"]
    write_lines(tmp_path / "lines", lines)
    assert cli(*encode, tmp_path / "lines", "--output", tmp_path / "x.npy").code == 0
    assert addresses.read(output) == (tmp_path / "x.npy").read_bytes()

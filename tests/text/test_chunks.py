"""Lines are read in chunks: full ones of a file, what has arrived of a pipe."""

import gzip
import os
import threading
import zipfile
from pathlib import Path

import pytest

from tests.support.corpus import write_lines
from xrep.errors import UserError
from xrep.text import chunks
from xrep.text.chunks import read_chunks


def test_a_file_comes_in_full_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "lines.txt", [str(n) for n in range(1000)])
    found = list(read_chunks(path, 64))
    assert [len(chunk) for chunk in found] == [64] * 15 + [40]
    assert [line for chunk in found for line in chunk] == [str(n) for n in range(1000)]
    monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 30)
    assert [len(chunk) for chunk in read_chunks(write_lines(tmp_path / "x", ["x" * 10] * 7), 64)] == [3, 3, 1]
    (tmp_path / "lines.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_chunks(tmp_path / "lines.gz", 64)) == list(read_chunks(path, 64))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.de", path.read_text())
    assert list(read_chunks(tmp_path / "a.zip" / "x.de", 64)) == list(read_chunks(path, 64))
    assert list(read_chunks(write_lines(tmp_path / "x", []))) == []


def test_what_stands_in_a_pipe_is_not_kept_waiting() -> None:
    """Each line is written only after the one before was read; a full pipe is read ahead by one chunk."""
    reading, writing = os.pipe()
    found = read_chunks(f"/dev/fd/{reading}", 500)
    for number in range(5):
        os.write(writing, f"{number}\n".encode())
        assert next(found) == [str(number)]
    lines = [str(n) for n in range(20_000)]

    def fill() -> None:
        os.write(writing, "\n".join(lines).encode())  # without an end
        os.close(writing)

    thread = threading.Thread(target=fill)
    thread.start()
    rest = list(found)
    thread.join()
    os.close(reading)
    assert [line for chunk in rest for line in chunk] == lines and max(map(len, rest)) == 500


def test_what_came_before_an_error_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\ntwo\nbr\xfccke\nfour\n")
    found = read_chunks(path)
    assert next(found) == ["one", "two"]
    with pytest.raises(UserError, match=r"lines.txt:3: invalid UTF-8"):
        next(found)
    with pytest.raises(UserError, match="absent: no such file"):
        list(read_chunks(tmp_path / "absent"))

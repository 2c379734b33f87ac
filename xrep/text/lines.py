"""Lines of text files: compressed or not, in zip archives or not, one at a time.

A file in a zip archive is named as if the archive were a folder: ``corpus.zip/corpus.de``.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.store.addresses import is_local
from xrep.store.contents import opened

MAXIMUM_WORDS = 10_000
MAXIMUM_CHARACTERS = 1_000_000
_MAXIMUM_BYTES = 4 * MAXIMUM_CHARACTERS
_KINDS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Endings of the names of compressed files."""


def read_lines(
    path: str | Path, *, allow_empty: bool = False, most_words: int | None = MAXIMUM_WORDS, cut: bool = False
) -> Iterator[tuple[int, str]]:
    r"""Yield the number (from 1) and the text of each line of a UTF-8 file, without its line ending.

    Gzip, bzip2, xz and zstd are recognised by their content, and a byte order mark is dropped. Only ``\n`` and
    ``\r\n`` end a line. Memory does not grow with the size of the file.

    Args:
        allow_empty: Accept a file without lines.
        most_words: Largest number of words in a line; None for readers that shorten lines themselves.
        cut: Yield every line, for readers that drop those that are too long (``is_too_long``). Of a line of more than
            1,000,000 characters one character more than that is left.

    Raises:
        UserError: If the file is missing, a folder, empty (unless ``allow_empty``), damaged or invalid UTF-8, or a line
            has more than ``most_words`` words or 1,000,000 characters (unless ``cut``). The message names file and
            line.
    """
    number = 0
    with Unpacked(path) as stream:
        while line := stream.readline(number + 1):
            number += 1
            if len(line) > _MAXIMUM_BYTES:
                if not cut:
                    raise _too_long(f"more than {MAXIMUM_CHARACTERS:,} characters", path, number)
                rest = line
                while rest and not rest.endswith(b"\n"):
                    rest = stream.readline(number)
                line = line.decode("utf-8", "ignore").encode()  # without the part of a character at its end
            text = _decode(line, path, number)
            if not cut:
                check_length(text, path, number, most_words)
            yield number, text[: MAXIMUM_CHARACTERS + 1]
    if number == 0 and not allow_empty:
        raise UserError("the file is empty", path=path, cure="give a file with text")


def read_latin1(path: str | Path, **options: Any) -> Iterator[tuple[int, str]]:
    """Return the lines of a file as ``read_lines`` does; one that is not valid UTF-8 is read as latin-1."""
    with Unpacked(path) as stream:
        content = stream.read(-1, 1)
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        # Only \n ends a line, because sentences of SentEval contain latin-1's next-line character (0x85).
        lines = content.decode("latin-1").removesuffix("\n").split("\n")
        return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))
    return read_lines(path, **options)


class Unpacked:
    """Context manager that reads the decompressed bytes of a file, or of one in a zip archive.

    Raises:
        UserError: The file is missing, a folder or damaged, or it needs the package zstandard.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._kind = path, "zip"
        self._file = _open(path)
        self._errors: tuple[type[Exception], ...] = (
            EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zipfile.BadZipFile, ValueError, RuntimeError,
        )  # fmt: skip
        try:
            self._stream = self._decompressed()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def readline(self, number: int) -> bytes:
        """Return the next line, or the beginning of a long one; if the file is damaged, ``number`` is named."""
        return self._try(self._stream.readline, _MAXIMUM_BYTES + 1, number)

    def read(self, size: int, number: int) -> bytes:
        """Return at most ``size`` bytes, as ``readline`` does."""
        return self._try(self._stream.read, size, number)

    def _try(self, read: Callable[[int], bytes], size: int, number: int) -> bytes:
        try:
            return read(size)
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):  # a damaged archive names places that there are not
                raise
        except self._errors:
            pass
        problem = f"damaged or truncated {self._kind} file"
        raise UserError(problem, path=self._path, line=number, cure="fetch it again")

    def _decompressed(self) -> Any:
        file, magic = self._file, self._try(self._file.peek, 6, 1)[:6]
        found = next((kind for start, kind in _KINDS.items() if magic.startswith(start)), None)
        self._kind = found or self._kind
        if found == "gzip":
            return gzip.GzipFile(fileobj=file)
        if found in ("bzip2", "xz"):
            return bz2.BZ2File(file) if found == "bzip2" else lzma.LZMAFile(file)
        if found is None:
            return file
        try:
            import zstandard
        except ModuleNotFoundError:
            raise UserError("compressed with zstd", path=self._path, cure="pip install 'xrep[zstd]'") from None
        self._errors = (*self._errors, zstandard.ZstdError)
        # A larger window than 128 MB is not that of a text.
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return BufferedReader(decompressor.stream_reader(file, read_across_frames=True, closefd=False))  # type: ignore


def _open(path: str | Path) -> BufferedReader:
    if not is_local(path) and ".zip/" in f"{path}/":
        raise UserError("a zip archive in an object store", path=path, cure="unpack it, or copy it to this machine")
    try:
        return opened(path)
    except IsADirectoryError:
        raise UserError("a folder, not a file", path=path, cure="name a file in it") from None
    except (FileNotFoundError, NotADirectoryError):
        if not is_local(path):
            raise UserError("no such file", path=path, cure="check the name") from None
        archive = container_of(Path(path))
    if not archive.is_file() or not zipfile.is_zipfile(archive):
        raise UserError("no such file", path=path, cure="check the name")
    try:
        with _seeking(archive):
            return BufferedReader(open_zip(archive).open(Path(path).relative_to(archive).as_posix()))  # type: ignore
    except KeyError:
        raise UserError("no such file in the archive", path=path, cure="check the name") from None
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError):
        raise UserError("a file that cannot be unpacked", path=path, cure="unpack it yourself") from None


def open_zip(path: str | Path) -> zipfile.ZipFile:
    """Open a zip archive; a UserError says that it is damaged."""
    try:
        with _seeking(path):
            return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError):
        raise UserError("damaged or truncated zip file", path=path, cure="fetch it again") from None


@contextmanager
def _seeking(path: str | Path) -> Iterator[None]:
    """Context manager in which a damaged archive may make zipfile seek to a place that there is not."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError("damaged or truncated zip file", path=path, cure="fetch it again") from None


def _decode(line: bytes, path: str | Path, number: int) -> str:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        problem = f"invalid UTF-8 (byte {error.start + 1} of the line)"
        cure = "convert the file, for example: iconv -f latin1 -t utf-8"
        raise UserError(problem, path=path, line=number, cure=cure) from None
    return text.removesuffix("\n").removesuffix("\r")


def is_too_long(text: str) -> bool:
    """Return whether a text has more than 10,000 words or 1,000,000 characters, and so is no sentence."""
    return len(text) > 2 * MAXIMUM_WORDS and (len(text) > MAXIMUM_CHARACTERS or len(text.split()) > MAXIMUM_WORDS)


def container_of(path: Path) -> Path:
    """Return the zip archive that a file is in, or the file itself."""
    return path if path.exists() else next((parent for parent in path.parents if parent.is_file()), path)


def check_length(text: str, path: str | Path, number: int, most_words: int | None = MAXIMUM_WORDS) -> None:
    """Raise UserError if a sentence has more than ``most_words`` words or 1,000,000 characters."""
    if len(text) > MAXIMUM_CHARACTERS:
        raise _too_long(f"{len(text):,} characters", path, number)
    if most_words is not None and len(text) > 2 * most_words and (words := len(text.split())) > most_words:
        raise _too_long(f"{words:,} words", path, number)


def _too_long(size: str, path: str | Path, number: int) -> UserError:
    cure = "put one sentence on a line, or remove the line"
    return UserError(f"a line of {size}, too long for a sentence", path=path, line=number, cure=cure)

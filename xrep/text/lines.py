"""Lines of text files: compressed or not, in zip archives or not, one at a time.

A file in a zip archive is named as if the archive were a folder: ``corpus.zip/corpus.de``.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TextIO

from xrep.errors import UserError
from xrep.store.addresses import is_local
from xrep.store.contents import opened

MAXIMUM_WORDS, MAXIMUM_CHARACTERS = 10_000, 1_000_000
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
"""Endings of the names of compressed files."""
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGE = (EOFError, OSError, ValueError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def read_lines(path: str | Path, *, allow_empty: bool = False) -> Iterator[tuple[int, str]]:
    r"""Yield the number (from 1) and the text of each line of a UTF-8 file, without its line ending.

    Gzip, bzip2, xz and zstd are recognised by their content, and a byte order mark is dropped. Only ``\n`` and
    ``\r\n`` end a line. One line at a time is in memory.

    Args:
        allow_empty: Accept a file without lines.

    Raises:
        UserError: If the file is missing, a folder, empty (unless ``allow_empty``), damaged or invalid UTF-8. The
            message names file and line.
    """
    number = 0
    with unpacked(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"invalid UTF-8 (byte {error.start + 1} of the line)"
                encoding = "utf-16" if line.startswith(_UTF_16) else "latin1"
                cure = f"convert the file, for example: iconv -f {encoding} -t utf-8"
                raise UserError(problem, path=path, line=number, cure=cure) from None
            yield number, text.removesuffix("\n").removesuffix("\r")
    if number == 0 and not allow_empty:
        raise UserError("the file is empty", path=path, cure="give a file with text")


def read_latin1(path: str | Path) -> Iterator[tuple[int, str]]:
    """Return the lines of a file as ``read_lines`` does; one that is not valid UTF-8 is read as latin-1."""
    content = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    # Only \n ends a line, because sentences of SentEval contain latin-1's next-line character (0x85).
    lines = text.removesuffix("\n").split("\n")
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def read_bytes(path: str | Path) -> bytes:
    """Return what a file holds, decompressed; raises as ``unpacked``."""
    with unpacked(path) as stream:
        return stream.read()


@contextmanager
def unpacked(path: str | Path) -> Iterator[IO[bytes]]:
    """Context manager that opens a file, or one in a zip archive, to read its decompressed bytes.

    Raises:
        UserError: The file is missing, a folder or damaged, or it needs the package zstandard.
    """
    damage: tuple[type[Exception], ...] = _DAMAGE
    try:
        with _open(path) as file:
            magic = file.peek(6)[:6]
            if magic.startswith(_ZSTD):
                zstandard = _zstandard(path)
                damage = (*damage, zstandard.ZstdError)
                stream = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
                yield BufferedReader(stream)
            else:
                opener: Any = next((opener for start, opener in _OPENERS.items() if magic.startswith(start)), None)
                yield opener(file) if opener else file
    except damage as error:
        # A damaged archive may name places that there are not (EINVAL); other numbers are errors of the system.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise UserError("damaged or truncated", path=path, cure="fetch it again, or unpack it yourself") from None


def _open(path: str | Path) -> BufferedReader:
    if not is_local(path) and ".zip/" in f"{path}/":
        raise UserError("a zip archive in an object store", path=path, cure="unpack it, or copy it to this machine")
    try:
        return opened(path)
    except IsADirectoryError:
        raise UserError("a folder, not a file", path=path, cure="name a file in it") from None
    except (FileNotFoundError, NotADirectoryError):
        archive = container_of(Path(path))
    if not is_local(path) or not zipfile.is_zipfile(archive):
        raise UserError("no such file", path=path, cure="check the name")
    try:
        return BufferedReader(zipfile.ZipFile(archive).open(Path(path).relative_to(archive).as_posix()))  # type: ignore
    except KeyError:
        raise UserError("no such file in the archive", path=path, cure="check the name") from None


def _zstandard(path: str | Path) -> Any:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise UserError("compressed with zstd", path=path, cure="pip install 'xrep[zstd]'") from None
    return zstandard


@contextmanager
def packed(path: str | Path, name: str | Path) -> Iterator[TextIO]:
    """Context manager that opens a file to write UTF-8 to, which is compressed as the ending of ``name`` says. The same
    text gives the same bytes, whenever it is written. Raises UserError as ``check_packing``."""
    ending = Path(name).suffix
    with ExitStack() as stack:
        stream: Any = stack.enter_context(open(path, "wb"))
        if ending == ".gz":
            stream = stack.enter_context(gzip.GzipFile("", "wb", 6, stream, mtime=0))
        elif ending in (".bz2", ".xz"):
            stream = stack.enter_context({".bz2": bz2.open, ".xz": lzma.open}[ending](stream, "wb"))
        elif ending == ".zst":
            stream = stack.enter_context(_zstandard(name).ZstdCompressor().stream_writer(stream, closefd=False))
        yield stack.enter_context(io.TextIOWrapper(stream, encoding="utf-8", newline="\n"))


def check_packing(name: str | Path) -> None:
    """Raise UserError if a file of this name cannot be written, because that needs the package zstandard."""
    if Path(name).suffix == ".zst":
        _zstandard(name)


def names_in_zip(path: str | Path) -> list[str]:
    """Return the names of the files in a zip archive; a UserError says that it is damaged."""
    with unpacked(path) as stream, zipfile.ZipFile(stream) as archive:
        return [info.filename for info in archive.infolist() if not info.is_dir()]


def container_of(path: Path) -> Path:
    """Return the zip archive that a file is in, or the file itself."""
    return path if path.exists() else next((parent for parent in path.parents if parent.is_file()), path)


def is_too_long(text: str) -> bool:
    """Return whether a text has more than 10,000 words or 1,000,000 characters, and so is no sentence."""
    return len(text) > 2 * MAXIMUM_WORDS and (len(text) > MAXIMUM_CHARACTERS or len(text.split()) > MAXIMUM_WORDS)

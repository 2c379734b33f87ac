"""The bytes of files by their address, of which any part can be read, or one after the other."""

from __future__ import annotations

import errno
import io
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from xrep.errors import UserError
from xrep.store.addresses import Address, asking, info_of, is_local

_GAP = 1 << 14
"""Bytes between two parts of a file in an object store that are read with them, instead of by two requests."""
_BUFFER = 1 << 24
"""Bytes of a file in an object store that are read at a time, from its beginning to its end."""


class Bytes(io.RawIOBase):
    """A file of which any part can be read, and which reads like a file of Python from one place to the next."""

    def __init__(self, address: Address) -> None:
        self._address, self._place, self._file = address, 0, None
        if is_local(address):
            self._file = open(address, "rb", buffering=0)
            self.size = os.fstat(self._file.fileno()).st_size
            return
        info = info_of(address)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a folder, not a file", str(address))
        self.size = int(info["size"])

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        return self._place

    def readinto(self, memory: Any) -> int:
        count = max(0, min(len(memory), self.size - self._place))
        self.fill([(self._place, memoryview(memory)[:count])])
        self._place += count
        return count

    def read_all(self, parts: Iterable[tuple[int, int]]) -> list[bytearray]:
        """Return the bytes of each part, which begins at one place and ends before another one."""
        places = [(start, bytearray(stop - start)) for start, stop in parts]
        self.fill((start, memoryview(content)) for start, content in places)
        return [content for _, content in places]

    def fill(self, parts: Iterable[tuple[int, memoryview]]) -> None:
        """Read as many bytes as each memory has, from its place in the file on."""
        if self._file is None:
            self._fetch([part for part in parts if len(part[1])])
            return
        for start, content in parts:
            while len(content):  # the system reads at most 2 GB at a time
                done = os.preadv(self._file.fileno(), [content], start)
                if not done:
                    raise UserError("a file was truncated while it was read", path=self._address, cure="make it again")
                start, content = start + done, content[done:]

    def _fetch(self, parts: Sequence[tuple[int, memoryview]]) -> None:
        """Read parts of a file in an object store: those that are near to each other by one request."""
        from fsspec.utils import merge_offset_ranges

        starts: list[Any] = [start for start, _ in parts]
        stops: list[Any] = [start + len(content) for start, content in parts]
        files, begins, ends = merge_offset_ranges([str(self._address)] * len(parts), starts, stops, _GAP)
        with asking(self._address) as store:
            blocks = store.cat_ranges(files, begins, ends, on_error="raise")
        for start, content in parts:
            number = bisect_right(begins, start) - 1
            begin = start - begins[number]
            content[:] = memoryview(blocks[number])[begin : begin + len(content)]


def opened(address: Address) -> io.BufferedReader:
    """Open a file to read its bytes."""
    return open(address, "rb") if is_local(address) else io.BufferedReader(Bytes(address), _BUFFER)

"""The lines of a file or of a pipe in chunks, read ahead by a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

from xrep.files import is_stream
from xrep.store.texts import CHUNK_CHARACTERS, CHUNK_LINES
from xrep.text.examples import read_text


def read_chunks(path: str | Path, most_lines: int = CHUNK_LINES, lang: str | None = None) -> Iterator[list[str]]:
    """Yield the lines of a file in chunks: of a regular file full ones, of a pipe or a terminal what is there.

    A thread reads ahead by at most one chunk. If reading fails, the lines before the error are yielded first.

    Args:
        path: A file as ``read_text`` reads it; for example ``/dev/stdin``.
        lang: Language of the text, if it is known.

    Raises:
        UserError: See ``read_text``.
    """
    path = "/dev/stdin" if str(path) == "-" else path
    waits = os.path.isfile(path) or not is_stream(path)
    arrived: Queue[str | BaseException | None] = Queue(most_lines)

    def read() -> None:
        end = None
        try:
            for _, line in read_text(path, lang, allow_empty=True):
                arrived.put(line)
        except BaseException as error:  # it is raised again below
            end = error
        arrived.put(end)

    threading.Thread(target=read, daemon=True).start()
    line: str | BaseException | None = ""
    while isinstance(line, str):
        chunk, room = [], CHUNK_CHARACTERS
        while len(chunk) < most_lines and room > 0 and (waits or not chunk or arrived.qsize()):
            line = arrived.get()
            if not isinstance(line, str):
                break
            chunk.append(line)
            room -= len(line)
        if chunk:
            yield chunk
    if line is not None:
        raise line

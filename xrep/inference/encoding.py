"""Encode the lines of a file into one .npy file of vectors, in constant memory and resumable after an interruption."""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.errors import UserError
from xrep.files import naming, try_lock, write_json
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interrupts import Interrupted, StopRequest
from xrep.nn.encoder import counting_sentences
from xrep.progress import Counter
from xrep.retrieval.vectors import HEADER_BYTES, npy_header
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_text

CHUNK_LINES = 4096
"""Number of lines that are read, sorted by length, encoded and written at a time. Chunks begin at the same lines in
every run, so that a resumed run writes the same bytes as an uninterrupted one."""
CHUNK_CHARACTERS = 8_000_000
"""Number of characters after which a chunk ends early, so that memory does not grow with the length of the lines."""


@dataclass(frozen=True)
class Encoded:
    """The result of ``encode_file``: ``path`` holds [lines, size], of which an earlier run wrote ``resumed`` lines."""

    path: Path
    lines: int
    size: int
    empty_lines: int
    resumed: int
    seconds: float


def shard_path(output: Path, rank: int, world_size: int) -> Path:
    """Return ``vectors.npy``, or ``vectors.00001-of-00004.npy`` if several processes share the work."""
    if world_size == 1:
        return output
    return output.with_name(f"{output.stem}.{rank:05d}-of-{world_size:05d}{output.suffix}")


def encode_file(
    encoder: SentenceEncoder,
    path: str | Path,
    output: Path,
    *,
    lang: str | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    batch_tokens: int = 4096,
    normalize: bool = True,
    prompt: str | None = None,
    rank: int = 0,
    world_size: int = 1,
    show_progress: bool = True,
) -> Encoded:
    """Encode each line of a UTF-8 file into a row of a .npy file.

    Until it is complete, the output is ``{output}.partial`` with a journal ``{output}.partial.json``. A second call
    with the same arguments continues after the last chunk in the journal, if the lines up to there are the same.

    Args:
        path: The input file, as ``read_text`` reads it; ``-`` is standard input.
        dtype: Type of the numbers in the file.
        lang, batch_tokens, normalize, prompt: As in ``SentenceEncoder.encode``.
        rank, world_size: Number of this process, from 0, and number of processes. Each process encodes a range of
            consecutive lines into its own shard, ``shard_path(output, rank, world_size)``.

    Raises:
        UserError: If a line is invalid, a vector is not finite in ``dtype``, there is an unfinished output of another
            encoder, other options or other lines, or another process is writing the output.
        Interrupted: Ctrl-C was pressed, and the chunk that was being encoded is saved.
    """
    started = time.monotonic()
    if not 0 <= rank < world_size:
        cure = "the environment variable RANK must count from 0 and be below WORLD_SIZE"
        raise UserError(f"this is process {rank} of {world_size}", cure=cure)
    refuse_pair(lang or "", "lang")
    lang = lang and canonical(lang)
    encoder.model.tower(lang)
    target, file = shard_path(output, rank, world_size), "/dev/stdin" if path == "-" else path
    if target.is_symlink():
        target = target.resolve()
    first, last, count = 0, None, None
    if world_size > 1:
        if not Path(file).is_file() or path == "-":
            raise UserError("several processes cannot share what can be read once only", path=path, cure="name a file")
        total = sum(1 for _ in read_text(file, lang))
        first, last = total * rank // world_size, total * (rank + 1) // world_size
        count = last - first
    facts = {
        "encoder": encoder.fingerprint(),
        "language": lang,
        "dtype": dtype,
        "batch_tokens": batch_tokens,
        "normalize": normalize,
        "size": encoder.output_size,
        "first_line": first,
        "prompt": prompt,
    }
    options: dict[str, Any] = {"batch_tokens": batch_tokens, "normalize": normalize, "prompt": prompt}
    lines = itertools.islice((text for _, text in read_text(file, lang)), first, last)
    with _Writer(target, facts, np.dtype(dtype)) as writer:
        writer.resume(lines)
        resumed = writer.lines
        try:
            with Counter("lines", done=resumed, total=count, shown=show_progress) as progress:
                for chunk in _chunks(lines):
                    with StopRequest().watching() as stop, counting_sentences(encoder.model, progress.update):
                        vectors = encoder.encode(chunk, lang, **options)
                        writer.append(chunk, _converted(vectors, writer.dtype, file, first + writer.lines))
                    if stop.signal:
                        raise KeyboardInterrupt
            writer.finish()
        except KeyboardInterrupt:
            saved = f"{writer.lines:,} lines are saved, and the same command goes on after them"
            raise Interrupted(saved if writer.lines else "nothing is saved yet") from None
    return Encoded(target, writer.lines, encoder.output_size, writer.empty, resumed, time.monotonic() - started)


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Yield lists of consecutive lines that end after CHUNK_LINES or after the line that reaches CHUNK_CHARACTERS."""
    chunk: list[str] = []
    characters = 0
    for line in lines:
        chunk.append(line)
        characters += len(line)
        if len(chunk) >= CHUNK_LINES or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _converted(vectors: np.ndarray, dtype: np.dtype, path: str | Path, before: int) -> np.ndarray:
    """Return the vectors as rows of the file; ``before`` is the number of lines before them, for error messages."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(vectors, dtype=dtype)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        too_large = np.isfinite(vectors[row]).all()
        cure = "use float32 or vectors of length 1" if too_large else "check the encoder, or compute in float32"
        raise UserError(f"its vector is not finite in {dtype}", path=path, line=before + row + 1, cure=cure)
    return rows


class _Writer:
    """Writer of the partial file and its journal. A chunk goes to the file first, so all rows in the journal are on
    disk."""

    def __init__(self, target: Path, facts: dict[str, Any], dtype: np.dtype) -> None:
        self.target, self.facts, self.dtype = target, facts, dtype
        self.partial = target.with_name(f"{target.name}.partial")
        self.journal = target.with_name(f"{target.name}.partial.json")
        self.lines = self.empty = 0
        self._digest, self._row_bytes = hashlib.sha256(), facts["size"] * dtype.itemsize

    def __enter__(self) -> _Writer:
        cure = "rename it, or write elsewhere"
        foreign = UserError("not the unfinished output of an earlier run", path=self.partial, cure=cure)
        with naming(self.partial):
            self._file: BufferedRandom = open(os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            if self._file.peek(6)[:6] not in (b"", np.lib.format.MAGIC_PREFIX):
                raise foreign
            with suppress(OSError):  # Some network file systems do not support locks.
                if not try_lock(self._file):
                    cure = "wait for it, or write elsewhere"
                    raise UserError("another process is writing this file", path=self.partial, cure=cure)
            self._saved = self._read_journal()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            self._file.close()
        except OSError:  # If the block failed, the cause (a full disk, for example) has been reported already.
            if kind is None:
                raise
        if kind is not None and self._saved is None and not self.journal.exists():
            self.partial.unlink(missing_ok=True)  # There is nothing to resume from.

    def resume(self, lines: Iterator[str]) -> None:
        """Skip the lines that are encoded already, check that they are the same, and cut the file after them."""
        if self._saved is None:
            self.journal.unlink(missing_ok=True)
        else:
            self._count(itertools.islice(lines, self._saved["lines"]))
            if (self.lines, self._digest.hexdigest()) != (self._saved["lines"], self._saved["sha256"]):
                raise self._other(f"its {self._saved['lines']:,} lines are not the first ones of this input")
        with naming(self.partial):
            self._file.truncate(HEADER_BYTES + self.lines * self._row_bytes)
            self._write_header()
            self._file.seek(0, os.SEEK_END)

    def append(self, chunk: list[str], rows: np.ndarray) -> None:
        with naming(self.partial):
            self._file.write(rows.data)
            self._flush()
        self._count(chunk)
        write_json(self.journal, {"facts": self.facts, "lines": self.lines, "sha256": self._digest.hexdigest()})

    def finish(self) -> None:
        """Write the header with the final number of lines, and rename the file to its final name."""
        with naming(self.target):
            self._write_header()
            self._flush()
            os.replace(self.partial, self.target)
        self.journal.unlink(missing_ok=True)
        for aside in self.target.parent.glob(f".{glob.escape(self.journal.name)}.*.tmp"):
            aside.unlink(missing_ok=True)  # A run that was killed while it wrote its journal left this file.

    def _write_header(self) -> None:
        self._file.seek(0)
        self._file.write(npy_header(self.dtype, (self.lines, self.facts["size"])))

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _count(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.lines += 1
            self.empty += not line.strip()
            self._digest.update(line.encode() + b"\n")

    def _read_journal(self) -> dict[str, Any] | None:
        """Return the journal of an earlier run; None if there is nothing to resume from."""
        size = os.fstat(self._file.fileno()).st_size
        if not size:
            return None  # The file is new. A journal without a file is from a run killed just before it deleted it.
        try:
            saved = json.loads(self.journal.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._other("its journal is damaged") from None
        if differing := differing_names(saved["facts"], self.facts):
            raise self._other(f"it was made with another {', '.join(differing).replace('_', ' ')}")
        return saved if size >= HEADER_BYTES + saved["lines"] * self._row_bytes else None

    def _other(self, why: str) -> UserError:
        return UserError(
            f"an unfinished output is there, and {why}", path=self.partial, cure=f"remove {self.journal} to begin anew"
        )


def differing_names(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the sorted keys that do not have the same value in both."""
    return sorted(name for name in {*a, *b} if a.get(name) != b.get(name))

"""Encode the lines of a file into vectors on disk, in constant memory; a command that was interrupted goes on."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from xrep.errors import UserError
from xrep.files import naming, replace_file, try_lock, write_aside
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import remove_work, work_folder
from xrep.interrupts import Interrupted, StopRequest
from xrep.models.kinds import kind_of
from xrep.nn.encoder import counting_sentences
from xrep.progress import Counter
from xrep.store.arrays import ArrayFile
from xrep.store.vectors import LOCK, MANIFEST, Manifest, Origin, Part, text_digest
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_text

CHUNK_LINES = 4096
"""Number of lines that are read, sorted by length, encoded and written at a time. Chunks begin at the same lines in
every run, so that a resumed run writes the same bytes as an uninterrupted one."""
CHUNK_CHARACTERS = 8_000_000
"""Number of characters after which a chunk ends early, so that memory does not grow with the length of the lines."""
PART_CHUNKS = 16
"""Number of such chunks in each part of a folder of vectors."""
_OWN_FILE = re.compile(r"whole\.npy|\.?chunk-\d{6}-[0-9a-f]{16}\.npy(\.\d+\.tmp)?")
_PART = re.compile(r"(part-\d{5}-[0-9a-f]{16}\.npy)(\.work)?")
"""Names of parts, and of the folders in which they are made."""


@dataclass(frozen=True)
class Encoded:
    """The result of ``encode_file``: ``path`` has the vectors [lines, size] of this process's ``lines``, of which an
    earlier call had computed those of ``resumed`` lines."""

    path: Path
    lines: int
    size: int
    empty_lines: int
    resumed: int
    seconds: float


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
    parts: bool = False,
    rank: int = 0,
    world_size: int = 1,
    show_progress: bool = True,
) -> Encoded:
    """Encode each line of a UTF-8 file into a row of a .npy file, or of the parts of a folder of ``Vectors``.

    The vectors of each finished chunk of lines are a file in ``{file}.work``, whose name has a digest of the lines and
    of what made the vectors. So a second call finds what it would compute again; so it does for the parts of a folder.

    Args:
        path: The input file, as ``read_text`` reads it; ``-`` is standard input.
        output: The file or, with ``parts``, the folder, in which other vectors are replaced. Its other files stay.
        dtype: Type of the numbers.
        lang, batch_tokens, normalize, prompt: As in ``SentenceEncoder.encode``.
        rank, world_size: Number of this process, from 0, and number of processes. They share the parts of a folder.

    Raises:
        UserError: A line is invalid, a vector is not finite in ``dtype``, another process is writing there, the folder
            holds something else than vectors, or several processes cannot share the work.
        Interrupted: Ctrl-C was pressed, and the chunk that was being encoded is saved.
    """
    started = time.monotonic()
    _check_ranks(rank, world_size, path, output if not parts else None)
    if parts:
        _check_folder(output)
    refuse_pair(lang or "", "lang")
    lang = lang and canonical(lang)
    encoder.model.tower(lang)
    origin = Origin(
        encoder=encoder.fingerprint(),
        language=lang,
        prompt=prompt,
        normalize=normalize,
        batch_tokens=batch_tokens,
        size=encoder.output_size,
        dtype=dtype,
    )
    lines, place = (text for _, text in read_text(path, lang)), Path(os.path.realpath(output))
    with Counter("lines", shown=show_progress) as progress:
        work = _Encoding(encoder, origin, path, progress)
        try:
            if parts:
                place.mkdir(exist_ok=True)
                # The ranks of one command share the folder; two commands do not.
                what = repr((origin, os.path.realpath(path), world_size)) if world_size > 1 else secrets.token_hex()
                with _locked(place, what):
                    _write_parts(work, place, lines, rank, world_size)
            else:
                work.write(place, lines)
        except KeyboardInterrupt:
            saved = f"{work.lines:,} lines are saved, and the same command goes on after them"
            raise Interrupted(saved if work.lines else "nothing is saved yet") from None
    seconds = time.monotonic() - started
    return Encoded(output, work.lines, encoder.output_size, work.empty, work.resumed, seconds)


def _check_ranks(rank: int, world_size: int, path: str | Path, single: Path | None) -> None:
    if not 0 <= rank < world_size:
        cure = "the environment variable RANK must count from 0 and be below WORLD_SIZE"
        raise UserError(f"this is process {rank} of {world_size}", cure=cure)
    if world_size > 1 and (path == "-" or not Path(path).is_file()):
        raise UserError("several processes cannot share what can be read once only", path=path, cure="name a file")
    if world_size > 1 and single is not None:
        raise UserError("several processes cannot write one file", path=single, cure="name a folder as `output`")


def _check_folder(folder: Path) -> None:
    """Raise a UserError if a folder has a manifest that is not one of vectors, which a new one would replace."""
    kind = kind_of(folder)
    if (folder / MANIFEST).exists() and kind != "folder of encoded lines":
        raise UserError(f"a {kind or f'folder with another {MANIFEST}'}", path=folder, cure="name a new folder")


@contextmanager
def _locked(folder: Path, what: str) -> Iterator[None]:
    """Context manager that locks a folder for the processes that write the same, which ``what`` says."""
    with (folder / LOCK).open("a+") as file:
        with suppress(OSError):  # some network file systems do not support locks
            if try_lock(file):
                file.truncate(0)
                file.write(what)
                file.flush()
            fcntl.flock(file, fcntl.LOCK_SH)
            file.seek(0)
            if file.read() != what:
                raise UserError("another process is writing it", path=folder, cure="wait for it, or write elsewhere")
        yield


def _chunks(lines: Iterable[str], chunks: int = 1) -> Iterator[list[str]]:
    """Yield lists of consecutive lines that end after CHUNK_LINES or after the line that reaches CHUNK_CHARACTERS, or
    after this multiple of both."""
    chunk: list[str] = []
    characters = 0
    for line in lines:
        chunk.append(line)
        characters += len(line)
        if len(chunk) >= chunks * CHUNK_LINES or characters >= chunks * CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _write_parts(work: _Encoding, folder: Path, lines: Iterator[str], rank: int, world_size: int) -> None:
    """Write this process's share of the parts of a folder. The last process that ends writes the manifest, and removes
    the parts of earlier vectors, also unfinished ones."""
    parts = list[Part]()
    for number, some in enumerate(_chunks(lines, PART_CHUNKS)):
        name = f"part-{number:05d}-{work.origin.digest(some)}.npy"
        parts.append(Part(file=name, rows=len(some), text=text_digest(some)))
        if number % world_size != rank:
            work.line += len(some)
        elif (folder / name).exists():
            work.count(some, found=True)
        else:
            work.write(folder / name, some)
    if all((folder / part.file).exists() for part in parts):
        Manifest(origin=work.origin, parts=parts).write(folder)
        named = {part.file for part in parts}
        for path, match in ((path, _PART.fullmatch(path.name)) for path in folder.iterdir()):
            if match and match[1] not in named:
                with suppress(FileNotFoundError):  # another process has ended at the same time
                    remove_work(path, _OWN_FILE) if match[2] else path.unlink()


class _Encoding:
    """Encodes lines chunk by chunk.

    Attributes:
        line: Number of the lines of the text before the next chunk.
        lines, empty, resumed: Number of lines of which there are vectors now, of those that are empty, and of those
            whose vectors were there already.
    """

    def __init__(self, encoder: SentenceEncoder, origin: Origin, source: str | Path, progress: Counter) -> None:
        self._encoder, self.origin, self._source, self._progress = encoder, origin, source, progress
        self.line = self.lines = self.empty = self.resumed = 0

    def count(self, lines: list[str], found: bool) -> None:
        """Count lines of which there are vectors now, or were before."""
        self.line += len(lines)
        self.lines += len(lines)
        self.empty += sum(not line.strip() for line in lines)
        if found:
            self.resumed += len(lines)
            self._progress.skip(len(lines))

    def write(self, target: Path, lines: Iterable[str]) -> None:
        """Write the vectors of lines to a .npy file."""
        with work_folder(target.with_name(f"{target.name}.work"), _OWN_FILE, "writing it", "chunk-*.npy") as folder:
            chunks = [self._chunk(folder, number, chunk) for number, chunk in enumerate(_chunks(lines))]
            with naming(target):
                whole = ArrayFile.create(folder / "whole.npy", self.origin.dtype, (self.origin.size,))
                for path in chunks:
                    whole.append(np.load(path, allow_pickle=False))
                whole.close()
                replace_file(folder / "whole.npy", target)

    def _chunk(self, folder: Path, number: int, lines: list[str]) -> Path:
        """Return the file of the vectors of some lines, after computing them unless it is there."""
        path = folder / f"chunk-{number:06d}-{self.origin.digest(lines)}.npy"
        if path.exists():
            self.count(lines, found=True)
            return path
        origin = self.origin
        options = {name: vars(origin)[name] for name in ("batch_tokens", "normalize", "prompt")}
        with StopRequest().watching() as stop, counting_sentences(self._encoder.model, self._progress.update):
            rows = self._converted(self._encoder.encode(lines, origin.language, **options))
            with write_aside(path) as aside, aside.open("wb") as file:
                np.save(file, rows, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
        self.count(lines, found=False)
        if stop.signal:
            raise KeyboardInterrupt
        return path

    def _converted(self, vectors: np.ndarray) -> np.ndarray:
        """Return the vectors of the next lines as rows of the file."""
        with np.errstate(over="ignore"):
            rows = vectors.astype(self.origin.dtype)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            row = int(np.argmin(finite))
            too_large = np.isfinite(vectors[row]).all()
            cure = "use float32 or vectors of length 1" if too_large else "check the encoder, or compute in float32"
            problem = f"its vector is not finite in {rows.dtype}"
            raise UserError(problem, path=self._source, line=self.line + row + 1, cure=cure)
        return rows

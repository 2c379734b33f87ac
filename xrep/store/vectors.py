"""The vectors of the lines of a text: a folder of parts with a manifest, or one .npy file, which is a single part.

Layout of a folder::

    manifest.json             what made the vectors, and the parts in the order of their rows
    part-00000-{digest}.npy   the vectors of the first lines, floats [n, D]; 00001 has those of the next ones
    .lock                     keeps two commands from writing there at a time
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from xrep.errors import UserError
from xrep.files import write_json
from xrep.store.arrays import ArrayFile
from xrep.store.lines import Lines, stored

MANIFEST, LOCK, SCHEMA = "manifest.json", ".lock", 1
_CURE = "give a .npy file of floats [sentences, size] or a folder of such parts, as xrep-encode writes them"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What vectors depend on, apart from the text: the fingerprint of the encoder, and how it was used."""

    encoder: str
    language: str | None
    prompt: str | None
    normalize: bool
    batch_tokens: int
    size: int
    dtype: str

    def digest(self, lines: Iterable[str]) -> str:
        """Return a short digest of lines and of what makes vectors of them."""
        digest = hashlib.sha256()
        for each in (vars(self), *lines):
            digest.update(json.dumps(each).encode() + b"\n")
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A file of vectors, its number of rows, and the ``text_digest`` of the lines that it encodes."""

    file: str
    rows: int
    text: str


def text_digest(lines: Iterable[str]) -> str:
    """Return the sha256 of lines, each of them stripped and as ``Lines`` stores it, in hexadecimal digits."""
    return hashlib.sha256(b"".join(stored(line.strip()) for line in lines)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a folder of vectors."""

    origin: Origin
    parts: list[Part] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, {"schema": SCHEMA, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder; a UserError says that it has none that this version reads."""
        if not (folder / MANIFEST).exists():
            cure = "run the same xrep-encode again, which completes it" if any(folder.glob("part-*")) else _CURE
            raise UserError(f"no vectors: it has no {MANIFEST}", path=folder, cure=cure)
        try:
            values = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if values["schema"] == SCHEMA:
                return cls(origin=Origin(**values["origin"]), parts=[Part(**part) for part in values["parts"]])
        except (ValueError, KeyError, TypeError):
            pass
        raise UserError("not the manifest of vectors, or of another version", path=folder / MANIFEST, cure=_CURE)


class Vectors:
    """The vectors [N, D] of a folder of parts or of a .npy file, which are read some rows at a time.

    Args:
        cure: What to do about a file that holds no vectors, for the message.

    Raises:
        UserError: There are none, or they are not floats in C order; in a folder, when the part is read.
    """

    def __init__(self, path: str | Path, cure: str = _CURE) -> None:
        self.path, self._cure = Path(path), cure
        self.manifest = Manifest.read(self.path) if self.path.is_dir() else None
        self._open = lru_cache(maxsize=64)(self._open_file)
        if self.manifest:
            origin, parts = self.manifest.origin, self.manifest.parts
            self._files, counts = [self.path / part.file for part in parts], [part.rows for part in parts]
            self.size, self.dtype = origin.size, np.dtype(origin.dtype)
        else:
            whole = self._open(self.path)
            self._files, counts = [self.path], [len(whole)]
            (self.size,), self.dtype = whole.width, whole.dtype
        self._starts = [0, *accumulate(counts)]

    def _open_file(self, path: Path) -> ArrayFile:
        part = ArrayFile.open(path, "vectors", self._cure)
        if len(part.width) != 1 or part.dtype.kind != "f" or not part.width[0]:
            raise UserError("not an array [N, D] of floats", path=path, cure=self._cure)
        return part

    def __len__(self) -> int:
        return self._starts[-1]

    def stored(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows as they are in the file, [rows, D]: a slice without a step, or their numbers."""
        if len(self._files) == 1:
            return self._open(self._files[0]).read(rows)
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        found, part_of = np.empty((len(rows), self.size), self.dtype), np.searchsorted(self._starts, rows, "right") - 1
        for part in np.unique(part_of).tolist():
            some = part_of == part
            found[some] = self._open(self._files[part]).read(rows[some] - self._starts[part])
        return found

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, L2-normalised: float32 [rows, D]."""
        with np.errstate(over="ignore", under="ignore"):  # of float64; ``check_finite`` refuses such rows
            return normalize_rows(self.stored(rows).astype(np.float32, copy=False))

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield all rows as they are in the file, some at a time: the number of the first one, and the rows [n, D]."""
        for path, first in zip(self._files, self._starts, strict=False):
            for start, rows in self._open(path).blocks():
                yield first + start, rows

    def check_finite(self, rows: np.ndarray, first: int) -> np.ndarray:
        """Return which of some stored rows, from number ``first`` on, are zero in float32, bool [n]; a UserError names
        one that is not finite."""
        with np.errstate(over="ignore", under="ignore"):
            values = rows.astype(np.float32, copy=False)
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            raise self.unusable("is not finite", first + int(np.argmin(finite)))
        return np.logical_not(values.any(axis=1))

    def check_text(self, lines: Lines, path: Path) -> None:
        """Raise a UserError that names ``path`` unless row i can be the vector of line i: there are as many of both
        and, if the vectors have a manifest, it has the checksums of the lines, which must be stripped."""
        if len(lines) != len(self):
            problem = f"{len(lines):,} lines, but {self.path} has {len(self):,} vectors"
            line = min(len(lines), len(self)) + 1
            raise UserError(problem, path=path, line=line, cure="row i must be the vector of line i")
        for start, part in zip(self._starts, self.manifest.parts if self.manifest else (), strict=False):
            if lines.digest(start, start + part.rows) != part.text:
                problem = f"{self.path / part.file} has the vectors of other lines than these {part.rows:,}"
                raise UserError(problem, path=path, line=start + 1, cure="encode this text, or name the one encoded")

    def unusable(self, problem: str, row: int) -> UserError:
        """Return an error that names a row."""
        part = bisect_right(self._starts, row) - 1
        cure = "encode that sentence again, or leave it out here and in the text"
        path, line = self._files[part], row - self._starts[part] + 1
        return UserError(f"the vector of this row {problem}", path=path, line=line, cure=cure)


def normalize_rows(x: np.ndarray) -> np.ndarray:
    """Return ``x`` [N, D] with each row divided by its L2 norm, so that inner products are cosines; zero rows stay."""
    with np.errstate(over="ignore", under="ignore"):
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        extreme = ~((norms[:, 0] > 1e-15) & (norms[:, 0] < np.inf))  # squares too small or too large for float32
        norms[extreme] = np.linalg.norm(x[extreme].astype(np.float64), axis=1, keepdims=True)
    return x / np.maximum(norms, np.finfo(x.dtype).tiny)

"""The vectors of the lines of a text: a folder of parts with a manifest, or one .npy file, which is a single part.

Layout of a folder::

    manifest.json             what made the vectors, and the parts in the order of their rows
    part-00000-{digest}.npy   the vectors of the first lines, floats [n, D]; 00001 has those of the next ones
"""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np

from xrep.errors import UserError
from xrep.files import json_text
from xrep.store.addresses import Address, is_local, join, read, write
from xrep.store.arrays import ArrayFile, by_part
from xrep.store.texts import stored

VECTORS_MANIFEST, VECTORS_SCHEMA = "manifest.json", 1
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


@dataclass(frozen=True, kw_only=True)
class VectorPart:
    """A file of vectors, its number of rows, and the ``text_digest`` of the lines that it encodes."""

    file: str
    rows: int
    text: str


def text_digest(lines: Iterable[str]) -> str:
    """Return the sha256 of lines, each of them stripped and as ``Texts`` stores it, in hexadecimal digits."""
    return hashlib.sha256(b"".join(stored(line.strip()) for line in lines)).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a folder of vectors."""

    origin: Origin
    parts: list[VectorPart] = field(default_factory=list)

    def write(self, folder: Address) -> None:
        write(join(folder, VECTORS_MANIFEST), json_text({"schema": VECTORS_SCHEMA, **asdict(self)}).encode())

    @classmethod
    def read(cls, folder: Address) -> Manifest:
        """Read the manifest of a folder; a UserError says that it has none that this version reads."""
        place = join(folder, VECTORS_MANIFEST)
        try:
            values = json.loads(read(place))
            if values["schema"] == VECTORS_SCHEMA:
                return cls(origin=Origin(**values["origin"]), parts=[VectorPart(**part) for part in values["parts"]])
        except FileNotFoundError:
            raise UserError(f"no vectors: it has no {VECTORS_MANIFEST}", path=folder, cure=_CURE) from None
        except (ValueError, KeyError, TypeError):
            pass
        raise UserError("not the manifest of vectors, or of another version", path=place, cure=_CURE)


class Vectors:
    """The vectors [N, D] of a folder of parts or of a .npy file, which are read some rows at a time.

    Args:
        path: The address of the folder or the file.
        cure: What to do about a file that holds no vectors, for the message.
        manifest: What the folder has, if there is no file that says so.

    Raises:
        UserError: There are none, or they are not floats in C order; in a folder, when the part is read.
    """

    def __init__(self, path: Address, cure: str = _CURE, manifest: Manifest | None = None) -> None:
        self.path, self._cure = str(path), cure
        is_folder = os.path.isdir(path) if is_local(path) else not self.path.endswith(".npy")
        self.manifest = manifest or (Manifest.read(path) if is_folder else None)
        self._open = lru_cache(maxsize=64)(self._open_file)
        if self.manifest:
            origin, parts = self.manifest.origin, self.manifest.parts
            self._files, counts = [join(self.path, part.file) for part in parts], [part.rows for part in parts]
            self.size, self.dtype = origin.size, np.dtype(origin.dtype)
        else:
            whole = self._open(self.path)
            self._files, counts = [self.path], [len(whole)]
            (self.size,), self.dtype = whole.width, whole.dtype
        self.starts = [0, *accumulate(counts)]
        """The number of the first row of each part, and the number of all rows."""

    def _open_file(self, path: Address) -> ArrayFile:
        part = ArrayFile.open(path, "vectors", self._cure)
        if len(part.width) != 1 or part.dtype.kind != "f" or not part.width[0]:
            raise UserError("not an array [N, D] of floats", path=path, cure=self._cure)
        return part

    def __len__(self) -> int:
        return self.starts[-1]

    def stored(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows as they are in the file, [rows, D]: a slice without a step, or their numbers."""
        rows = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        found = np.empty((len(rows), self.size), self.dtype)
        for part, its, some in by_part(self.starts, rows):
            found[its] = self._open(self._files[part]).read(some)
        return found

    def read(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return some rows, L2-normalised: float32 [rows, D]."""
        return as_directions(self.stored(rows))

    def check_rows(self, rows: np.ndarray, first: int, may_be_zero: np.ndarray) -> None:
        """Raise a UserError that names one of some stored rows, from number ``first`` on, which in float32 is not
        finite, or is zero and not one of those that may be, bool [n]."""
        with np.errstate(over="ignore", under="ignore"):
            values = rows.astype(np.float32, copy=False)
        not_finite, zero = ~np.isfinite(values).all(axis=1), ~values.any(axis=1) & ~may_be_zero
        for problem, wrong in (("is not finite", not_finite), ("is zero", zero)):
            if wrong.any():
                row = first + int(np.argmax(wrong))
                part = bisect_right(self.starts, row) - 1
                cure = "encode that sentence again, or leave it out here and in the text"
                path, line = self._files[part], row - self.starts[part] + 1
                raise UserError(f"the vector of this row {problem}", path=path, line=line, cure=cure)

    def check_count(self, lines: int, path: Address) -> None:
        """Raise a UserError that names ``path`` unless a text there has as many lines as there are vectors."""
        if lines != len(self):
            problem = f"{lines:,} lines, but {self.path} has {len(self):,} vectors"
            line = min(lines, len(self)) + 1
            raise UserError(problem, path=path, line=line, cure="row i must be the vector of line i")

    def check_text(self, number: int, digest: str, path: Address) -> None:
        """Raise a UserError that names ``path`` unless a part of a folder has the vectors of the lines with this
        digest, which were stripped."""
        assert self.manifest
        part = self.manifest.parts[number]
        if digest != part.text:
            problem = f"{join(self.path, part.file)} has the vectors of other lines than these {part.rows:,}"
            line, cure = self.starts[number] + 1, "encode this text, or name the one encoded"
            raise UserError(problem, path=path, line=line, cure=cure)


def as_directions(stored: np.ndarray) -> np.ndarray:
    """Return vectors [N, D] of any type as float32, L2-normalised."""
    with np.errstate(over="ignore", under="ignore"):  # of float64; ``check_rows`` refuses such rows
        return normalize_rows(stored.astype(np.float32, copy=False))


def normalize_rows(x: np.ndarray) -> np.ndarray:
    """Return ``x`` [N, D] with each row divided by its L2 norm, so that inner products are cosines; zero rows stay."""
    with np.errstate(over="ignore", under="ignore"):
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        extreme = ~((norms[:, 0] > 1e-15) & (norms[:, 0] < np.inf))  # squares too small or too large for float32
        norms[extreme] = np.linalg.norm(x[extreme].astype(np.float64), axis=1, keepdims=True)
    return x / np.maximum(norms, np.finfo(x.dtype).tiny)

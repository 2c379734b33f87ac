"""The directory of a search index, and how a part of it is written, as a job in ``{directory}.job``.

Layout::

    manifest.json            the encoder, where it is, its prompt, how vectors are indexed, and the parts: their text,
                             language, lines, sentences, faiss's description, and sha256 and bytes of their files
    part-{digest}/           the sentences that ``build`` wrote; each ``add_rows`` writes a further part
        lines.txt, offsets.npy and others        the sentences, and their numbers in the text (``xrep.store.texts``)
        vectors.npy          float16 [N, D], each of length 1
        00000.faiss, ...     faiss's index of the first vectors, of the next ones, and so on; none: the search is exact

A part never changes, and the manifest that lists it is written last, so whoever has read the manifest finds all that it
lists. The digest is one of the sentences, their numbers and language, and the encoder: the same sentences are never
there twice, and a command that was interrupted makes the same part again. Parts that are not listed were left by such
commands; the next one removes them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.files import (
    check_new_directory,
    check_output,
    flush_to_disk,
    remove_files,
    replace_file,
    sha256_of,
    write_json,
)
from xrep.inference.encoding import VECTORS, Encode, HeldEncoder, Join, Read, origin_of
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.jobs.engines import LOCAL, run_job
from xrep.jobs.outputs import job_address, publish_parts, repeatable, states_of
from xrep.jobs.plan import Advance, Job
from xrep.jobs.work import WorkerShare
from xrep.models.directory import file_facts
from xrep.models.kinds import MANIFEST, read_mapping
from xrep.retrieval.ivf import add_rows, make_index, train_index
from xrep.store import addresses
from xrep.store.texts import LINES_FILE, NUMBERS, TEXT_FILES
from xrep.store.vectors import Origin, Vectors
from xrep.version import __version__

INDEX_SCHEMA = 3
FLAT_ROWS = 100_000
"""A part with more sentences is not searched exactly, unless the user wants it."""
_CELLS = 4096
_INDEX_BYTES = 1 << 31
"""Bytes of the float32 vectors that are in one file of faiss."""
_KEYS = {"schema", "xrep", "encoder", "beside", "fingerprint", "precision", "prompt", "index", "size", "parts"}
_PART = re.compile(r"part-[0-9a-f]{16}")
Facts = dict[str, Any]
SentenceSource = str | Path | Iterable[str]
"""A file of sentences, one on each line, or the sentences themselves."""


def read_manifest(path: Path) -> Facts:
    """Read the manifest of a directory; a UserError says that this is not an index, or has another schema."""
    if not path.exists():
        raise UserError("no such index", path=path, cure="build it with xrep-search build")
    manifest = read_mapping(path / MANIFEST) or {}
    if _KEYS <= manifest.keys() and manifest["schema"] == INDEX_SCHEMA and manifest["parts"]:
        return manifest
    problem = f"not an index (no valid {MANIFEST} of schema {INDEX_SCHEMA})"
    raise UserError(problem, path=path, cure="name a directory that xrep-search build wrote, or build it again")


def _current(path: Path, new: Facts | None, folder: str = "") -> Facts:
    """Return the manifest of a directory, or a new one. A UserError says that a new index cannot be written there,
    because something is there that neither an interrupted ``build`` nor the same one (of the part in ``folder``, if
    that is known) has left."""
    if new is None:
        return read_manifest(path)
    with suppress(UserError):
        found = read_manifest(path)
        if found == new | {"parts": found["parts"][:1]} and folder in ("", found["parts"][0]["folder"]):
            return found
    if not all(map(_PART.fullmatch, addresses.names_in(path))):
        check_new_directory(path)
    return new


class ReadPart(Read):
    """Read the sentences of a part, and name it. ``new`` is as in ``_current``."""

    def __init__(self, file: str, source: str | None, origin: Origin, path: Path, new: Facts | None) -> None:
        super().__init__("text", [file], origin.language, "words")
        self._source, self._origin, self._path, self._new = source, origin, path, new

    def run(self, unit: str, folder: Path, advance: Advance) -> Facts:
        facts = super().run(unit, folder, advance)
        if not facts["rows"]:
            raise UserError("no sentence in it", path=self._source, cure="give a text with sentences")
        origin = vars(self._origin) | {"batch_tokens": 0}  # other batches make vectors that are as good
        content = json.dumps([origin, *(sha256_of(folder / file) for file in (LINES_FILE, NUMBERS))])
        name = f"part-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
        return {"folder": name, "source": self._source, "language": self._origin.language, **facts}

    @cached_property
    def manifest(self) -> Facts:
        """The manifest to which the part is added. A UserError says that a new index would replace another one."""
        return _current(self._path, self._new, self.results[0].facts["folder"])

    @property
    def is_there(self) -> bool:
        """Whether the index has the part already."""
        return any(part["folder"] == self.results[0].facts["folder"] for part in self.manifest["parts"])


class EncodePart(Encode):
    """Encode the sentences of a part. If it is there already, units have no lines, but a job has always the same."""

    source: ReadPart

    @cached_property
    def units(self) -> Sequence[tuple[int, int]]:
        units = super().units
        return [(0, 0) for _ in units] if self.source.is_there else units


class WritePart(Join):
    """Write the vectors of a part and their indexes. There are none where the search is exact; it is so in few
    sentences that are added to others."""

    name = "index"
    _encode: EncodePart

    def run(self, unit: tuple[int, int], folder: Path, advance: Advance) -> Facts:
        """An index is trained once. Copies of it are filled one after the other, so that one is in memory at a time. It
        takes as much as 2 GB of float32 vectors do at most, and less if it compresses them."""
        super().run(unit, folder, advance)
        vectors, manifest = Vectors(folder / VECTORS), self._encode.source.manifest
        rows, index = len(vectors), manifest["index"]
        if index == "auto" or (manifest["parts"] and rows <= FLAT_ROWS):
            index = f"IVF{min(_CELLS, int(4 * math.sqrt(rows)))},SQ8" if rows > FLAT_ROWS else "flat"
        if index != "flat" and rows:
            import faiss

            trained, step = make_index(index, vectors.size, rows)[0], max(1, _INDEX_BYTES // (4 * vectors.size))
            train_index(trained, index, vectors, 0, rows, 10_000)
            for file, first in enumerate(range(0, rows, step)):
                filled = faiss.clone_index(trained)
                add_rows(filled, index, vectors, first, min(first + step, rows))
                faiss.write_index(filled, str(folder / f"{file:05d}.faiss"))
        return {"index": index}


def write_part(
    path: Path, encoder: SentenceEncoder, new: Facts | None, lines: SentenceSource, lang: str | None, **how: Any
) -> None:
    """Write a new directory with one part, or add a part to one, unless these sentences are there already.

    Args:
        new: What is to be known of a new index, apart from what is found here; None: a part is added.
        how: ``batch_tokens`` and ``show_progress``.

    Raises:
        UserError: As ``encode_file``; something else is at ``path``, the text is empty, or faiss cannot index it.
    """
    path, source, show_progress = Path(os.path.realpath(path)), None, how.pop("show_progress")
    check_output(path, folder=True)
    base = new or read_manifest(path)
    origin = origin_of(encoder, lang, dtype="float16", normalize=True, prompt=base["prompt"], **how)
    if new is not None:
        made = {"fingerprint": origin.encoder, "size": origin.size, "parts": []}
        new = {"schema": INDEX_SCHEMA, "xrep": __version__, **new, **made}
        _current(path, new)
    if base["index"] not in ("auto", "flat"):
        make_index(base["index"], origin.size)  # to report a mistake in it before the text is encoded
    if isinstance(lines, str | Path):
        source, file = str(lines), repeatable(lines, path)
    else:
        file = repeatable((f"{' '.join(line.split())}\n".encode("utf-8", "replace") for line in lines), path)
    read = ReadPart(file, source, origin, path, new)
    encode = EncodePart("text", read, HeldEncoder(encoder), origin)
    write = WritePart(encode, parts=False)
    facts = {"input": states_of([file]), **vars(origin), "index": base["index"], "is_new": new is not None}
    job = Job(job_address(path), "search", facts, [read, encode, write])

    def finish() -> Facts:
        if not read.is_there:
            (text,), (written,) = read.results, write.results
            _put_in_place(path, read.manifest, text.facts | written.facts, text.files | written.files)
        return {}

    run_job(job, LOCAL, finish, str(path), show_progress=show_progress, share=WorkerShare())  # this process alone


def _put_in_place(path: Path, manifest: Facts, part: Facts, files: dict[str, str]) -> None:
    """Write a part with these files, then the manifest that lists it."""
    listed, folder = {one["folder"] for one in manifest["parts"]}, path / part["folder"]
    for left in sorted(path.glob("part-*")):
        if _PART.fullmatch(left.name) and left.name not in listed and left.is_dir():
            others = [file.name for pattern in ("*.faiss", ".*.tmp") for file in left.glob(pattern)]
            remove_files(left, [*TEXT_FILES, VECTORS, *others])
    publish_parts(files, str(folder))
    part = part | {"files": {name: file_facts(folder / name) for name in sorted(files)}}
    aside = folder / f".{MANIFEST}.tmp"  # so that it is removed with what else an interrupted command leaves
    write_json(aside, manifest | {"parts": [*manifest["parts"], part]})
    for each in (*map(folder.joinpath, files), aside, folder, path):
        flush_to_disk(each)
    replace_file(aside, path / MANIFEST)
    for each in (path, *([] if manifest["parts"] else [path.parent])):
        flush_to_disk(each)

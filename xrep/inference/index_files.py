"""Writing of the directory of a search index, part by part, as a job."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.files import check_new_directory, check_output, flush_to_disk, remove_files, replace_file, write_json
from xrep.inference.encoding import Encode, HeldEncoder, Join, Read, origin_of, write_words
from xrep.inference.index_parts import MANIFEST, VECTORS, Manifest, PartFacts
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.jobs.engines import LOCAL, run
from xrep.jobs.outputs import job_address, repeatable, states_of
from xrep.jobs.plan import COPY, PLAN, Advance, Job, Stage, read_json
from xrep.jobs.work import Share
from xrep.models.directory import describe
from xrep.retrieval.ivf import add, make_index, train
from xrep.store import addresses
from xrep.store.addresses import join
from xrep.store.lines import FILES
from xrep.store.vectors import Vectors
from xrep.text.readers import read_text

FLAT_ROWS = 100_000
"""A part with more sentences is not searched exactly, unless the user wants it."""
_CELLS = 4096
_INDEX_BYTES = 1 << 31
"""Bytes of the float32 vectors that are in one file of faiss."""
_PLACED = f"{COPY}placed"
"""File of a job that has its plan and the folder of the part that it has added, or was about to add. It is removed
after the plan, so that the same command never adds a part twice."""
Sentences = str | Path | Iterable[str]
"""A file of sentences, one on each line, or the sentences themselves."""


def check_place(output: Path, *others: object) -> None:
    """Raise UserError if a new directory would replace the current one, or be in that of the encoder or the text."""
    path, here = Path(os.path.realpath(output)), Path.cwd()
    if path in (here, *here.parents):
        raise UserError("the current folder, or one that it is in", path=output, cure="name a new directory")
    for other in (os.path.realpath(other) for other in others if isinstance(other, str | Path) and other):
        if os.path.exists(other) and Path(other) in (path, *path.parents):
            raise UserError(f"an index inside {other}", path=output, cure="choose another place")


def write_part(
    output: str | Path,
    encoder: SentenceEncoder,
    new: Manifest | None,
    sentences: Sentences,
    lang: str | None,
    *,
    batch_tokens: int,
    show_progress: bool,
) -> None:
    """Write a new directory with one part, or a further part of the one that is there, as a job in ``{directory}.job``.

    Args:
        new: The manifest of a new index, without parts; None: a part is added.

    Raises:
        UserError: As ``encode_file``; something else is at ``output``, the text is empty, or faiss cannot index it.
    """
    path, place = Path(os.path.realpath(output)), job_address(output)
    base = new or Manifest.read(path)
    check_output(path, folder=True)
    if new is not None and not _holds(path, new):
        check_new_directory(path)
    if base.index not in ("auto", "flat"):
        make_index(base.index, base.size)  # to report a mistake in it before the text is encoded
    origin = origin_of(encoder, lang, dtype="float16", batch_tokens=batch_tokens, normalize=True, prompt=base.prompt)
    name = str(sentences) if isinstance(sentences, str | Path) else None
    file = repeatable(sentences if isinstance(sentences, str | Path) else _lines_of(sentences), output)
    if new is not None and path.exists() and any(path.iterdir()):
        with tempfile.TemporaryDirectory() as copy:
            counts = write_words(Path(copy), read_text(file, origin.language))
            _check_filled(counts["rows"], name)
            same = _holds(path, new, Path(copy), source=name, language=origin.language, **counts)
        if not addresses.exists(join(place, PLAN)) or read_json(join(place, PLAN))["is_new"]:
            Job(place, "search", {}, []).clear()  # of a command that was interrupted when all was done, or a copy
        if not same:
            check_new_directory(path)
        return
    read = Read("text", [file], origin.language, "words")
    encode = Encode("text", read, HeldEncoder(encoder), origin)
    whole = Join(encode, parts=False)
    index = WriteIndexes(whole, base, name)
    facts = {"input": states_of([file]), **vars(origin), "index": base.index, "is_new": new is not None}
    job = Job(place, "search", facts, [read, encode, whole, index])

    def finish() -> dict[str, Any]:
        current = new or Manifest.read(path)
        if new is not None or not _is_added(job, current):
            files = {name: file for stage in (read, whole, index) for name, file in stage.results[0].files.items()}
            (made,), (text,) = index.results, read.results
            facts = {"source": name, "language": origin.language, **text.facts, **made.facts}
            _put_in_place(job, files, current, facts, path, is_new=new is not None)
        return {}

    run(job, LOCAL, finish, str(output), show_progress=show_progress, share=Share())  # this process alone


def _lines_of(sentences: Iterable[str]) -> Iterator[bytes]:
    for sentence in sentences:
        yield f"{' '.join(sentence.split())}\n".encode("utf-8", "replace")


def _check_filled(rows: int, name: str | None) -> None:
    if not rows:
        raise UserError("no sentence in it", path=name, cure="give a text with sentences")


class WriteIndexes(Stage):
    """Write the indexes of the vectors of a part; there are none where the search is exact."""

    name, unit = "index", "parts"

    def __init__(self, join: Join, base: Manifest, text: str | None) -> None:
        self._join, self._base, self._text = join, base, text

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        vectors = Vectors(self._join.results[0].files[VECTORS])
        rows, index = len(vectors), self._base.index
        _check_filled(rows, self._text)
        if index == "auto" or (self._base.parts and rows <= FLAT_ROWS):
            index = f"IVF{min(_CELLS, int(4 * math.sqrt(rows)))},SQ8" if rows > FLAT_ROWS else "flat"
        index_rows = 0 if index == "flat" else write_indexes(vectors, folder, index)
        return {"index": index, "index_rows": index_rows}


def _holds(path: Path, new: Manifest, copy: Path | None = None, **text: Any) -> bool:
    """Return whether an index of one part was built like a new one, and of the same text if there is a copy of it."""
    try:
        found = Manifest.read(path)
    except UserError:
        return False
    files = found.parts[0].files | {file.name: describe(file) for file in (copy.iterdir() if copy else ())}
    return found == replace(new, parts=[replace(found.parts[0], files=files, **text)])


def _is_added(job: Job, current: Manifest) -> bool:
    """Return whether the same command was interrupted when all was done but to remove its files."""
    placed = Path(job.address, _PLACED)
    return placed.exists() and placed.read_text() == json.dumps([job.plan, current.parts[-1].folder])


def _free_folder(path: Path, manifest: Manifest) -> str:
    """Return a name for the next part. Parts that no manifest lists are from killed commands, and are removed."""
    for left in {*path.glob("part-[0-9][0-9][0-9][0-9][0-9]")} - {path / part.folder for part in manifest.parts}:
        if left.is_dir():
            others = [file.name for pattern in ("*.faiss", ".*.tmp") for file in left.glob(pattern)]
            remove_files(left, [*FILES, VECTORS, *others])
    names = (f"part-{number:05d}" for number in count(len(manifest.parts)))
    return next(name for name in names if not (path / name).exists())


def _put_in_place(
    job: Job, files: dict[str, str], current: Manifest, facts: dict[str, Any], path: Path, *, is_new: bool
) -> None:
    """Write a part with these files, then the manifest that lists it; each step is done once."""
    target = Path(job.address, "data", "new") if is_new else path
    if is_new:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
    folder = _free_folder(path, current) if not is_new else "part-00000"
    (target / folder).mkdir()
    for name, file in sorted(files.items()):
        addresses.publish(file, target / folder / name)
    described = {name: describe(target / folder / name) for name in sorted(files)}
    manifest = replace(current, parts=[*current.parts, PartFacts(folder=folder, files=described, **facts)])
    aside = Path(job.address, "data", MANIFEST)  # not beside the old one, where a killed command would leave a file
    write_json(aside, asdict(manifest))
    if not is_new:
        Path(job.address, _PLACED).write_text(json.dumps([job.plan, folder]))
    for each in (target / folder, target, aside):
        flush_to_disk(each)
    replace_file(aside, target / MANIFEST)
    flush_to_disk(target)
    if is_new:
        replace_file(target, path)
        flush_to_disk(path.parent)


def write_indexes(vectors: Vectors, folder: Path, description: str) -> int:
    """Write the indexes of vectors to a folder, and return the number of rows in each file but the last one.

    They are trained once. One at a time is in memory, where it takes as much as 2 GB of float32 vectors do at most, and
    less if it compresses them.
    """
    import faiss

    rows, index_rows = len(vectors), max(1, _INDEX_BYTES // (4 * vectors.size))
    trained, _ = make_index(description, vectors.size, rows)
    train(trained, description, vectors, 0, rows, 10_000)
    for number, first in enumerate(range(0, rows, index_rows)):
        index = faiss.clone_index(trained)
        add(index, description, vectors, first, min(first + index_rows, rows))
        faiss.write_index(index, str(folder / f"{number:05d}.faiss"))
    return index_rows

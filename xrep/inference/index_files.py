"""Writing of the directory of a search index, part by part; a command that was interrupted goes on."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.files import (
    check_new_directory,
    check_output,
    digests_of,
    flush_to_disk,
    remove_files,
    replace_file,
    write_json,
)
from xrep.inference.encoding import encode_file
from xrep.inference.index_parts import MANIFEST, VECTORS, Manifest, PartFacts
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import work_folder
from xrep.models.directory import describe, digest_of
from xrep.retrieval.ivf import add, make_index, train
from xrep.store import lines as text_files
from xrep.store.vectors import Vectors
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_text

FLAT_ROWS = 100_000
"""A part with more sentences is not searched exactly, unless the user wants it."""
_CELLS = 4096
_INDEX_BYTES = 1 << 31
"""Bytes of the float32 vectors that are in one file of faiss."""
_OWN_FILE, _RESUMABLE = re.compile(r"lock|text|part-[0-9a-f]{64}|new|moved|manifest\.json|\..*\.tmp"), "**/[mv]*"
"""Names in the folder of unfinished work, and the pattern of those to go on from: vectors, and what follows them."""
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


@contextmanager
def write_part(
    output: str | Path,
    encoder: SentenceEncoder,
    new: Manifest | None,
    sentences: Sentences,
    lang: str | None,
    **how: Any,
) -> Iterator[None]:
    """Context manager that writes a new directory with one part, or a further part of the one that is there.

    The part is prepared in ``{directory}.work/part-{digest}``, where the digest is of what its vectors depend on. That
    folder is removed after the block: until then, the same command does not add the part again.

    Args:
        new: The manifest of a new index, without parts; None: a part is added.
        how: ``batch_tokens`` and ``show_progress`` of ``encode_file``.

    Raises:
        UserError: As ``encode_file``; something else is at ``output``, the text is empty, or faiss cannot index it.
    """
    path = Path(os.path.realpath(output))
    work = path.with_name(f"{path.name}.work")
    refuse_pair(lang or "", "lang")
    lang = lang and canonical(lang)
    check_output(path, folder=True)
    if new is not None and not _holds(path, new):
        check_new_directory(path)
    if new is not None and new.index not in ("auto", "flat"):
        make_index(new.index, new.size)  # to report a mistake in it before the text is encoded
    encoder.model.tower(lang)
    with work_folder(work, _OWN_FILE, "writing this index", _RESUMABLE):
        text = _copy(sentences, lang, work / "text")
        base = new or Manifest.read(path)
        made_of = {"encoder": base.fingerprint, "prompt": base.prompt, **digests_of(work / "text")}
        part = work / f"part-{digest_of({**text, **made_of})}"
        done = _holds(path, new, work / "text", **text) if new else _is_added(work, part, base)
        if not done:
            if new is not None:
                check_new_directory(path)
            if not part.exists():
                os.replace(work / "text", part)
            if not (part / VECTORS).exists():
                how |= {"prompt": base.prompt, "lang": lang, "dtype": "float16"}
                encode_file(encoder, part / text_files.LINES, part / VECTORS, **how)
            facts = PartFacts(folder=_free_folder(path, base), **text, **_finish(part, base))
            _put_in_place(work, part, replace(base, parts=[*base.parts, facts]), path)
        yield


def _holds(path: Path, new: Manifest, copy: Path | None = None, **text: Any) -> bool:
    """Return whether an index of one part was built like a new one, and of the same text if there is a copy of it."""
    try:
        found = Manifest.read(path)
    except UserError:
        return False
    files = found.parts[0].files | {file.name: describe(file) for file in (copy.iterdir() if copy else ())}
    return found == replace(new, parts=[replace(found.parts[0], files=files, **text)])


def _is_added(work: Path, part: Path, current: Manifest) -> bool:
    """Return whether the same command was interrupted when all was done but to remove its files."""
    moved = work / "moved"
    return moved.exists() and moved.read_text() == f"{part.name} {current.parts[-1].folder}"


def _copy(sentences: Sentences, lang: str | None, folder: Path) -> dict[str, Any]:
    """Write the lines that are not empty, with their numbers, and return what the manifest says of the text."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    name, lines = str(sentences) if isinstance(sentences, str | Path) else None, 0

    def filled() -> Iterator[tuple[int, str]]:
        nonlocal lines
        for lines, line in read_text(name, lang) if name is not None else enumerate(sentences, 1):  # type: ignore[arg-type]
            if text := " ".join(line.split()):
                yield lines, text

    if not len(text_files.Lines.write(folder, filled())):
        raise UserError("no sentence in it", path=name, cure="give a text with sentences")
    return {"source": name, "language": lang, "lines": lines}


def _finish(part: Path, base: Manifest) -> dict[str, Any]:
    """Write the indexes of the vectors of a part, and return what the manifest says of them and of all files."""
    for left in {*part.iterdir()} - {part / name for name in (*text_files.FILES, VECTORS)}:
        shutil.rmtree(left) if left.is_dir() else left.unlink()  # of a command that may have wanted another index
    rows, index = len(Vectors(part / VECTORS)), base.index
    if index == "auto" or (base.parts and rows <= FLAT_ROWS):
        index = f"IVF{min(_CELLS, int(4 * math.sqrt(rows)))},SQ8" if rows > FLAT_ROWS else "flat"
    index_rows = 0 if index == "flat" else write_indexes(part, index)
    for file in (*part.iterdir(), part):
        flush_to_disk(file)
    files = {file.name: describe(file) for file in sorted(part.iterdir())}
    return {"rows": rows, "index": index, "index_rows": index_rows, "files": files}


def _free_folder(path: Path, manifest: Manifest) -> str:
    """Return a name for the next part. Parts that no manifest lists are from killed commands, and are removed."""
    for left in {*path.glob("part-[0-9][0-9][0-9][0-9][0-9]")} - {path / part.folder for part in manifest.parts}:
        if left.is_dir():
            remove_files(left, [*text_files.FILES, VECTORS, *(file.name for file in left.glob("*.faiss"))])
    names = (f"part-{number:05d}" for number in count(len(manifest.parts)))
    return next(name for name in names if not (path / name).exists())


def _put_in_place(work: Path, part: Path, manifest: Manifest, path: Path) -> None:
    """Move a part that is ready to where the manifest says, and write the manifest; each step is done once."""
    is_new, folder = len(manifest.parts) == 1, manifest.parts[-1].folder
    target = work / "new" if is_new else path
    if is_new:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
    write_json(work / MANIFEST, asdict(manifest))  # not beside the old one, where a killed command would leave a file
    if not is_new:
        (work / "moved").write_text(f"{part.name} {folder}")
    os.replace(part, target / folder)
    for each in (target, work / MANIFEST):
        flush_to_disk(each)
    replace_file(work / MANIFEST, target / MANIFEST)
    flush_to_disk(target)
    if is_new:
        replace_file(target, path)
        flush_to_disk(path.parent)


def write_indexes(part: Path, description: str) -> int:
    """Write the indexes of the vectors of a part, and return the number of rows in each file but the last one.

    They are trained once. One at a time is in memory, where it takes as much as 2 GB of float32 vectors do at most, and
    less if it compresses them.
    """
    import faiss

    vectors = Vectors(part / VECTORS)
    rows, index_rows = len(vectors), max(1, _INDEX_BYTES // (4 * vectors.size))
    trained, _ = make_index(description, vectors.size, rows)
    train(trained, description, vectors, 0, rows, 10_000)
    for number, first in enumerate(range(0, rows, index_rows)):
        index = faiss.clone_index(trained)
        add(index, description, vectors, first, min(first + index_rows, rows))
        faiss.write_index(index, str(part / f"{number:05d}.faiss"))
    return index_rows

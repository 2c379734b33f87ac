"""Writing of the directory of a search index, part by part; a command that was interrupted goes on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from xrep.errors import UserError
from xrep.files import check_new_directory, check_output, flush_to_disk, naming, remove_files, replace_file, write_json
from xrep.inference.encoding import encode_file
from xrep.inference.index_parts import BLOCK_BYTES, MANIFEST, VECTORS, Manifest, PartFacts
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import work_folder
from xrep.models.directory import Described, describe, digest_of
from xrep.models.plain import from_plain
from xrep.store import lines as text_files
from xrep.store.vectors import Vectors
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_text

FLAT_ROWS = 100_000
"""A part with more sentences is not searched exactly, unless the user wants it."""
_CELLS = 4096
_TRAINING_BYTES, _INDEX_BYTES = 1 << 28, 1 << 31
"""Bytes of the float32 vectors that train an index, and that are in one file of faiss."""
_OWN_FILE = re.compile(r"lock|text|part|new|(planned|manifest)\.json|vectors-[0-9a-f]{16}\.npy(\.work)?|\..*\.tmp")
Sentences = str | Path | Iterable[str]
"""A file of sentences, one on each line, or the sentences themselves."""


def check_place(output: Path, *others: object) -> None:
    """Raise UserError if a new directory would replace the current one, or be in that of the encoder or the text."""
    path, here = Path(os.path.realpath(output)), Path.cwd()
    if path == here or path in here.parents:
        raise UserError("the current folder, or one that it is in", path=output, cure="name a new directory")
    for other in (Path(os.path.realpath(other)) for other in others if isinstance(other, str | Path) and other):
        if other.exists() and (path == other or other in path.parents):
            raise UserError(f"an index inside {other}", path=output, cure="choose another place")


def write_part(
    output: str | Path,
    encoder: SentenceEncoder,
    new: Manifest | None,
    sentences: Sentences,
    lang: str | None,
    **how: Any,
) -> None:
    """Write a new directory with one part, or a further part of the one that is there.

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
    if new is not None and not (work / "planned.json").exists():
        check_new_directory(path)
        if new.index not in ("auto", "flat"):
            new_index(new.size, new.index)  # to report a mistake in it before the text is encoded
    encoder.model.tower(lang)
    with work_folder(work, _OWN_FILE, "writing this index", "vectors-*"):
        text, digest = _copy(sentences, lang, work / "text")
        current = Manifest.read(path) if (path / MANIFEST).exists() else None
        plan = _planned(work, digest)
        before = replace(plan, parts=plan.parts[:-1]) if plan and new is None else None
        if plan is None or current not in (plan, before):
            if new is not None:
                check_new_directory(path)
            base = current if new is None else new
            assert base is not None
            made_of = hashlib.sha256(f"{base.fingerprint} {lang} {digest} {base.prompt}".encode()).hexdigest()
            vectors = work / f"vectors-{made_of[:16]}.npy"
            if not vectors.exists():
                how |= {"prompt": base.prompt, "lang": lang, "dtype": "float16"}
                encode_file(encoder, work / "text" / text_files.LINES, vectors, **how)
            plan = _prepare(work, vectors, base, text, path)
            write_json(work / "planned.json", {"text": digest, "manifest": asdict(plan)})
        if current != plan:
            with naming(path):
                _put_in_place(work, plan, path)
        for done in sorted(work.iterdir(), key=lambda each: each.name in ("planned.json", "lock")):
            shutil.rmtree(done) if done.is_dir() else done.unlink()
        work.rmdir()


def _planned(work: Path, digest: str) -> Manifest | None:
    """Return the manifest that an interrupted command would have written next, if it had this text."""
    try:
        planned = json.loads((work / "planned.json").read_bytes())
    except FileNotFoundError:
        return None
    return from_plain(Manifest, planned["manifest"], "the manifest") if planned["text"] == digest else None


def _copy(sentences: Sentences, lang: str | None, folder: Path) -> tuple[dict[str, Any], str]:
    """Write the lines that are not empty, with their numbers, and return what they are and a digest of them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    from_file, count = isinstance(sentences, str | Path), 0

    def filled() -> Iterator[tuple[int, str]]:
        nonlocal count
        for count, line in read_text(sentences, lang) if from_file else enumerate(sentences, 1):  # type: ignore[arg-type]
            if text := " ".join(line.split()):
                yield count, text

    name = str(sentences) if from_file else None
    if not len(text_files.Lines.write(folder, filled())):
        raise UserError("no sentence in it", path=name, cure="give a text with sentences")
    digests = {each: describe(folder / each)["sha256"] for each in text_files.FILES}
    text = {"source": name, "language": lang, "lines": count}
    return text, digest_of({**digests, **text})


def _prepare(work: Path, vectors: Path, base: Manifest, text: dict[str, Any], path: Path) -> Manifest:
    """Write the folder of a part beside the index, and return the manifest with it."""
    part = work / "part"
    shutil.rmtree(part, ignore_errors=True)
    os.replace(work / "text", part)
    try:
        os.link(vectors, part / VECTORS)  # it stays where it was, too, until all is done
    except OSError:  # some file systems have no hard links
        shutil.copyfile(vectors, part / VECTORS)
    rows = len(Vectors(vectors))
    index = base.index
    if index == "auto" or (base.parts and rows <= FLAT_ROWS):
        index = f"IVF{min(_CELLS, int(4 * math.sqrt(rows)))},SQ8" if rows > FLAT_ROWS else "flat"
    index_rows = 0 if index == "flat" else write_indexes(part, index)
    for file in (*part.iterdir(), part):
        flush_to_disk(file)
    files = {file.name: Described(**describe(file)) for file in sorted(part.iterdir())}
    folder = _free_folder(path, base)
    facts = PartFacts(folder=folder, rows=rows, index=index, index_rows=index_rows, files=files, **text)
    return replace(base, parts=[*base.parts, facts])


def _free_folder(path: Path, manifest: Manifest) -> str:
    """Return a name for the next part. Parts that no manifest lists are from commands that will not be repeated."""
    listed, number = {part.folder for part in manifest.parts}, len(manifest.parts)
    for left in path.glob("part-[0-9][0-9][0-9][0-9][0-9]") if path.is_dir() else ():
        if left.name not in listed:
            own = [file.name for file in left.glob("*.faiss")]
            remove_files(left, [*text_files.FILES, VECTORS, *own])
    while (path / f"part-{number:05d}").exists():
        number += 1
    return f"part-{number:05d}"


def _put_in_place(work: Path, plan: Manifest, path: Path) -> None:
    """Move the part that is ready to where the manifest says, and write the manifest; each step is done once."""
    is_new = len(plan.parts) == 1
    target = work / "new" if is_new else path
    target.mkdir(exist_ok=True)
    if (work / "part").exists():
        os.replace(work / "part", target / plan.parts[-1].folder)
    write_json(work / MANIFEST, asdict(plan))  # not beside the old one, where a killed command would leave a file
    for each in (target, work / MANIFEST):
        flush_to_disk(each)
    replace_file(work / MANIFEST, target / MANIFEST)
    flush_to_disk(target)
    if is_new:
        check_new_directory(path)
        replace_file(target, path)
        flush_to_disk(path.parent)


def new_index(size: int, description: str) -> Any:
    """Return a new index of faiss for vectors of a size; a UserError says that it knows no such description."""
    import faiss

    with _possible(description):
        index = faiss.index_factory(size, description, faiss.METRIC_INNER_PRODUCT)
    lists = faiss.try_extract_index_ivf(index)
    for trained in (lists, getattr(lists, "pq", None)):
        if trained is not None:
            trained.cp.min_points_per_centroid = 1  # or faiss warns on stderr
    return index


@contextmanager
def _possible(description: str) -> Iterator[None]:
    """Context manager in which an error of faiss is one of the user, who chose this index."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].rsplit(": ", 1)[-1]
        problem = f"`index` {description} is not possible: {reason}"
        raise UserError(problem, cure="choose another `index`, such as auto") from None


def write_indexes(part: Path, description: str) -> int:
    """Write the indexes of the vectors of a part, and return the number of rows in each file but the last one.

    They are trained once, with rows that are drawn with a fixed seed. One at a time is in memory, where it takes as
    much as 2 GB of float32 vectors do at most, and less if it compresses them.
    """
    import faiss

    vectors = Vectors(part / VECTORS)
    rows, size = len(vectors), vectors.size
    trained = new_index(size, description)
    lists = faiss.try_extract_index_ivf(trained)
    few = min(rows, max(48 * lists.nlist if lists else 0, 10_000), _TRAINING_BYTES // (4 * size))
    drawn = np.sort(np.random.default_rng(0).choice(rows, few, replace=False, shuffle=False))
    index_rows, step = max(1, _INDEX_BYTES // (4 * size)), max(1, BLOCK_BYTES // (4 * size))
    with _possible(description):
        trained.train(vectors.read(drawn))
        for number, first in enumerate(range(0, rows, index_rows)):
            index, last = faiss.clone_index(trained), min(first + index_rows, rows)
            for start in range(first, last, step):
                index.add(vectors.read(slice(start, min(start + step, last))))
            faiss.write_index(index, str(part / f"{number:05d}.faiss"))
    return index_rows

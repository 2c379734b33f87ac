"""The directory of a search index: its files, how they are checked, and how they are built in constant memory.

Layout::

    manifest.json    what made the vectors, the options, the files of text, and sha256 and size of every other file
    index.faiss      the index that faiss searches; its numbers of vectors are rows, from 0
    ids.npy          int64 [N, 2]: for each row the number of its file in the manifest, from 0, and its line, from 1
    lines.txt        the text of each row
    offsets.npy      int64 [N + 1]: the places in lines.txt where rows begin, and the end of the last one
    vectors.npy      float16 [N, D], with which what the index finds is compared again; rows are added from here

Everything is written into ``{directory}.work`` and takes the place of the directory at once. A command that was
interrupted goes on from there.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import xrep
from xrep.config import still_known
from xrep.errors import UserError
from xrep.files import check_new_directory, check_output, exchange, flush_to_disk, naming, write_json
from xrep.inference.encoding import encode_file
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import work_folder
from xrep.models.directory import Described, describe, digest_of
from xrep.models.plain import from_plain
from xrep.precision import Precision
from xrep.retrieval.faiss_files import Quantize, Shape, open_index, shape_for, write_index
from xrep.retrieval.faiss_search import Recall, recall_of
from xrep.retrieval.vectors import VectorFile, open_array, raw_blocks, write_npy
from xrep.text.languages import canonical, refuse_pair
from xrep.text.readers import read_text

SCHEMA = 1
MANIFEST, INDEX, IDS, LINES, OFFSETS, VECTORS = (
    "manifest.json", "index.faiss", "ids.npy", "lines.txt", "offsets.npy", "vectors.npy",
)  # fmt: skip
FLAT_ROWS = 100_000
"""An index of more rows has inverted files, unless the user wants another."""
_OWN_FILE = re.compile(
    r"lock|added\.(txt|ids)|result\.json|vectors-[0-9a-f]{16}\.npy(\.work)?|new|\..*\.tmp"
)
_INT64, _FLOAT16 = np.dtype(np.int64), np.dtype(np.float16)
Lines = str | Path | Iterable[str]
"""A file of sentences, one on each line, or the sentences themselves."""


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """How an index is searched."""

    index: Literal["auto", "flat", "ivf"] = "auto"
    """flat is exact search; ivf is faiss's inverted files, which may miss neighbours and are faster for many sentences;
    auto is flat up to 100,000 sentences, and ivf beyond."""
    quantize: Quantize = "none"
    """Size of the numbers that are searched: int8 has a byte for each, binary a bit, none 4 bytes (flat) or 2 (ivf).
    What is found is compared again with vectors of 2 bytes a number, so that the directory has, beside the text, about
    0.53 (binary), 0.75 (int8), 1.0 (none, ivf) or 1.5 (none, flat) times the bytes of float32 vectors."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text that was added: its name (null for sentences that were in no file), its language and its lines."""

    name: str | None
    language: str | None
    lines: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The entries of a manifest, apart from the sha256 of all others."""

    schema: int
    xrep: str
    encoder: str
    fingerprint: str
    precision: Precision
    prompt: str
    options: IndexOptions
    rows: int
    size: int
    cells: int
    recall: Recall | None
    sources: list[Source]
    files: dict[str, Described] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        return Shape(self.size, self.rows, self.cells, self.options.quantize)


@dataclass(frozen=True)
class Opened:
    """The files of an index, which were compared with their checksums."""

    path: Path
    manifest: Manifest
    vectors: VectorFile
    ids: np.ndarray
    offsets: np.ndarray

    @functools.cached_property
    def index(self) -> Any:
        """The index of faiss, as ``open_index`` opens it."""
        return open_index(self.path / INDEX, self.manifest.shape)


def open_files(path: str | Path) -> Opened:
    """Open the directory of an index after comparing every file with its checksum.

    Raises:
        UserError: This is not an index, it has another schema, or a file is damaged.
    """
    path = Path(path)
    manifest = _read_manifest(path)[0]
    for name, described in manifest.files.items():
        if not (path / name).is_file() or describe(path / name) != asdict(described):
            raise UserError("damaged: the file differs from its checksum", path=path / name, cure="build it again")
    arrays = IDS, OFFSETS
    opened = {name: open_array(path / name, "numbers", "build it again") for name in arrays}
    return Opened(path, manifest, VectorFile(path / VECTORS), opened[IDS], opened[OFFSETS])


def _read_manifest(path: Path) -> tuple[Manifest, str]:
    if not path.exists():
        raise UserError("no such index", path=path, cure="build it with xrep-search build")
    file = path / MANIFEST
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        schema, digest, _ = values["schema"], values.pop("sha256"), values["cells"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        cure = "name a directory that xrep-search build wrote"
        raise UserError(f"not an index (no valid {MANIFEST})", path=path, cure=cure) from None
    if schema != SCHEMA:
        problem = f"an index of schema {schema!r:.20}, this version reads {SCHEMA}"
        raise UserError(problem, path=path, cure="use the version that wrote it, or build it again")
    if digest != digest_of(values):
        raise UserError("damaged: the file differs from its checksum", path=file, cure="build it again")
    if isinstance(values.get("options"), dict):
        values["options"] = still_known(IndexOptions, values["options"], file, "options")
    try:
        manifest: Manifest = from_plain(Manifest, values, "the manifest")
    except UserError as error:
        raise UserError(error.problem, path=file, cure="build it again") from None
    return manifest, digest


def build(
    output: str | Path,
    encoder: SentenceEncoder,
    facts: dict[str, Any],
    lines: Lines,
    lang: str | None,
    *,
    base: Opened | None = None,
    batch_tokens: int = 4096,
    show_progress: bool = False,
) -> None:
    """Write the directory of an index, or the one that an index becomes when lines are added to it.

    Args:
        facts: What the manifest says of the encoder and of the options: those entries of ``Manifest``.
        base: The index that is at ``output``; None for a new one.

    Raises:
        UserError: As ``encode_file``; and if something else is at ``output``, or the text is empty.
    """
    path = Path(os.path.realpath(output))
    work = path.with_name(f"{path.name}.work")
    refuse_pair(lang or "", "lang")
    lang = lang and canonical(lang)
    check_output(path, folder=True)
    if base is None and not (work / "result.json").exists():
        check_new_directory(path)
    encoder.model.tower(lang)
    with work_folder(work, _OWN_FILE, "writing this index", "*.np*"):
        digest, source = _copy(lines, lang, work)
        if not _is_done(path, work, digest):
            made_of = f"{facts['fingerprint']} {lang} {digest} {facts['prompt']}"
            vectors = work / f"vectors-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.npy"
            if not vectors.exists():
                options = {"dtype": "float16", "batch_tokens": batch_tokens, "show_progress": show_progress}
                options |= {"prompt": facts["prompt"]}
                encode_file(encoder, work / "added.txt", vectors, lang=lang, **options)
            shutil.rmtree(work / "new", ignore_errors=True)
            (work / "new").mkdir()
            with naming(path):
                result = _assemble(work, vectors, base, facts, source)
                write_json(work / "result.json", {"text": digest, "index": result})
                if base is None:
                    check_new_directory(path)
                    os.replace(work / "new", path)
                else:
                    exchange(work / "new", path)
                flush_to_disk(path.parent)
        shutil.rmtree(work)


def _is_done(path: Path, work: Path, text: str) -> bool:
    """Return whether an earlier command was interrupted only after it had put the index with this text in place."""
    try:
        return json.loads((work / "result.json").read_bytes()) == {"text": text, "index": _read_manifest(path)[1]}
    except (FileNotFoundError, ValueError, UserError):
        return False


def _copy(lines: Lines, lang: str | None, work: Path) -> tuple[str, Source]:
    """Write the lines that are not empty, and their numbers, and return a digest of them."""
    digest, count, numbers = hashlib.sha256(), 0, list[int]()
    if isinstance(lines, str | Path):
        numbered, name = read_text(lines, lang), str(lines)
    else:
        numbered, name = enumerate(lines, 1), None
    with open(work / "added.txt", "wb") as text, open(work / "added.ids", "wb") as ids:
        for count, line in numbered:
            if data := " ".join(line.split()).encode("utf-8", "replace"):
                digest.update(b"%d %b\n" % (count, data))
                text.write(data + b"\n")
                numbers.append(count)
            if len(numbers) == 1 << 16:
                np.array(numbers, _INT64).tofile(ids)
                numbers.clear()
        np.array(numbers, _INT64).tofile(ids)
        if not text.tell():
            raise UserError("no sentence in it", path=name, cure="give a text with sentences")
    return digest.hexdigest(), Source(name=name, language=lang, lines=count)


def _assemble(work: Path, vectors: Path, base: Opened | None, facts: dict[str, Any], source: Source) -> str:
    """Write all files of the directory, and return the digest of the manifest."""
    new, olds = work / "new", [base.path] if base else []
    sources = [*(base.manifest.sources if base else []), source]
    with open(new / LINES, "wb") as text:
        for path in (*(old / LINES for old in olds), work / "added.txt"):
            with open(path, "rb") as part:
                shutil.copyfileobj(part, text)
    write_npy(new / OFFSETS, _INT64, (), _offsets(new / LINES))
    old_ids = (block for old in olds for block in raw_blocks(old / IDS, _INT64, (2,)))
    write_npy(new / IDS, _INT64, (2,), itertools.chain(old_ids, _new_ids(work / "added.ids", len(sources) - 1)))
    size = VectorFile(vectors).size
    parts = (*(old / VECTORS for old in olds), vectors)
    rows = write_npy(
        new / VECTORS, _FLOAT16, (size,), (b for part in parts for b in raw_blocks(part, _FLOAT16, (size,)))
    )
    file, options = VectorFile(new / VECTORS), facts["options"]
    if base is not None and base.manifest.shape.suits(rows):
        shape = replace(base.manifest.shape, rows=rows)
        write_index(new / INDEX, shape, file, (base.path / INDEX, base.manifest.shape))
    else:
        kind = options.index if options.index != "auto" else "ivf" if rows > FLAT_ROWS else "flat"
        shape = shape_for(file, rows, kind, options.quantize)
        write_index(new / INDEX, shape, file)
    recall = None if shape.exact else recall_of(new / INDEX, shape, file)
    manifest = asdict(
        Manifest(schema=SCHEMA, xrep=xrep.__version__, **facts, rows=rows, size=size, cells=shape.cells, recall=recall,
                 sources=sources)
    )  # fmt: skip
    manifest["files"] = {name: describe(new / name) for name in (IDS, INDEX, LINES, OFFSETS, VECTORS)}
    manifest["sha256"] = digest_of(manifest)
    write_json(new / MANIFEST, manifest)
    for path in (*new.iterdir(), new):
        flush_to_disk(path)
    return manifest["sha256"]


def _offsets(lines: Path) -> Iterator[np.ndarray]:
    """Yield the places where lines begin, and where the last one ends, some at a time."""
    yield np.zeros(1, _INT64)
    place = 0
    with open(lines, "rb") as file:
        while block := file.read(1 << 20):
            yield place + 1 + np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
            place += len(block)


def _new_ids(numbers: Path, source: int) -> Iterator[np.ndarray]:
    with open(numbers, "rb") as file:
        while len(block := np.fromfile(file, _INT64, 1 << 16)):
            yield np.stack((np.full_like(block, source), block), axis=1)

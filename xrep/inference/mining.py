"""Find translations in two texts of any size, in bounded memory and resumable after an interruption."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

import xrep
from xrep.data.hash_runs import HashRuns
from xrep.errors import UserError
from xrep.files import naming, replace_file, write_json
from xrep.hashing import hash_bytes
from xrep.inference.encoding import encode_file
from xrep.inference.nearest import Found, Side, found_in, merge_found, search_flat, search_index
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import work_folder
from xrep.retrieval.ivf import PROBES, make_index
from xrep.retrieval.margins import Margin, Retrieval, check_neighbours, choose_in_blocks, first_of_each
from xrep.store.arrays import ArrayFile
from xrep.store.lines import LINES, Lines
from xrep.store.vectors import Vectors
from xrep.text.readers import read_text

_FACTS, _PAIRS, _MERGED = "facts.json", "pairs.tsv", "merged.npy"
_RESULT = re.compile(r"facts\.json|[xy]-\d{8}\.\d{8}\.npy")
"""Names of files in the folder of a search that are the result of a shard."""
_OWN_FILE = re.compile(
    rf"{_RESULT.pattern}(\.partial)?|\.facts\.json\.\d+\.tmp|lock|source|target|pairs\.tsv|merged\.npy"
)
"""Names of all files there, which may be removed."""
_RESUMABLE = "**/*-*.npy"
"""Pattern of those that are worth keeping: vectors and neighbours."""
_BLOCK = 1 << 14
"""Number of lines that are read at a time."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """One side of the search: a text, or vectors, or both. Row i of the vectors belongs to line i of the text. Its
    language is needed if the encoder has a tower for each side."""

    name: Literal["source", "target"]
    text: Path | None = None
    vectors: Path | None = None
    lang: str | None = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of every search for neighbours."""

    index: str = "flat"
    """flat is exact search. Others may miss neighbours and are faster for millions of sentences: ivf, an inverted file
    of faiss for the number of sentences, or a string of faiss's own factory, such as IVF4096,SQ8 or
    IVF4096,PQ192x4fs."""
    probes: int = PROBES
    """Number of cells of an inverted file that are searched for each sentence."""
    batch_tokens: int = 4096
    """Number of subwords per batch of the encoder."""
    device: str = "cpu"
    """Device on which the exact search computes its products."""


@dataclass(frozen=True, kw_only=True)
class MiningOptions(SearchOptions):
    """Options of ``mine``."""

    margin: Margin = "ratio"
    """Score of a pair: its cosine; its cosine minus the mean cosine of both sides with their neighbours; or divided by
    it."""
    neighbours: int = 4
    """Number of neighbours in each direction, which the margin averages and among which translations are searched."""
    retrieval: Retrieval = "max"
    """Candidates: the best target of each source; the best source of each target; pairs that are both; pairs that are
    either."""
    threshold: float | None = None
    """Leave out pairs with a lower score; none: keep all."""
    one_to_one: bool = False
    """Use each target only once, in its best pair. (Each source is in at most one pair anyway.)"""


@dataclass(frozen=True)
class Mined:
    """The result of ``mine``.

    ``sources`` and ``targets`` count the sentences compared; ``empty`` and ``duplicates`` count the lines of (source,
    target) that were left out.
    """

    path: str
    pairs: int | None
    """None for a shard, because pairs are known only after all shards are merged."""
    sources: int
    targets: int
    empty: tuple[int, int]
    duplicates: tuple[int, int]
    search: dict[str, Any]
    """The facts that the neighbours depend on: checksums of texts and vectors, number of neighbours, index, version."""
    settings: dict[str, Any]
    version: str
    seconds: float


@dataclass(frozen=True)
class Opened:
    """A side that was read: the sentences to compare, its lines, and the facts that distinguish it from another."""

    side: Side
    lines: Lines | None
    empty: int
    duplicates: int
    facts: dict[str, Any]


def mine(
    source: Text,
    target: Text,
    output: Path,
    options: MiningOptions,
    *,
    encoder: SentenceEncoder | None = None,
    shard: tuple[int, int] | None = None,
    merged: int | None = None,
    show_progress: bool = False,
) -> Mined:
    """Write pairs that may be translations as lines ``score<TAB>source<TAB>target``, sorted by score, best first.

    Empty lines are left out, and of equal lines only the first is used. For a side without a text, line numbers (from
    1) are written. Texts, vectors and neighbours are in files: some have no names and vanish with this process; others
    are kept in ``{output}.work`` until the pairs are written, and a second call with the same arguments continues from
    there and gives the same output. Memory holds about 10 bytes for each sentence.

    Args:
        encoder: Encoder for the sides that have no vectors.
        shard: (i, n), with i from 1: search only the i-th of n parts of the source. The result is the folder
            ``{output}.shard-i-of-n`` and no pairs are written.
        merged: Number n of shards whose results are merged instead of searching; None searches.

    Raises:
        UserError: If a side is invalid, there are fewer sentences than neighbours, or there is an unfinished search or
            a shard with other inputs or options.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    began = time.monotonic()
    k = options.neighbours
    with search_folder(output, shard) as work:
        one, other = sides = [open_text(side, work, encoder, options, show_progress) for side in (source, target)]
        x, y = one.side, other.side
        _check_alike(x.vectors, y.vectors)
        check_neighbours(k, len(x), len(y))
        facts: dict[str, Any] = {"source": one.facts, "target": other.facts}
        facts |= {"neighbours": k, "index": options.index, "version": xrep.__version__}
        facts |= {"probes": options.probes} if options.index != "flat" else {}
        if merged:
            found = _merge_shards(output, merged, x, y, k, facts, work)
        else:
            x, facts = (x.part(*shard), {**facts, "shard": list(shard)}) if shard else (x, facts)
            found = search_texts(x, y, k, k, work, options, facts, show_progress)
        if shard:
            write_json(work / _FACTS, {**facts, "complete": True})
        pairs = None if shard else _write(output, work, *found, sides, options)
    return Mined(
        path=str(work if shard else output),
        pairs=pairs,
        sources=len(x),
        targets=len(y),
        empty=(one.empty, other.empty),
        duplicates=(one.duplicates, other.duplicates),
        search=facts,
        settings=asdict(options),
        version=xrep.__version__,
        seconds=time.monotonic() - began,
    )


@contextmanager
def search_folder(output: Path, shard: tuple[int, int] | None = None) -> Iterator[Path]:
    """Context manager that yields the folder of a search, which is on the disk of the output and only this process's.
    If the block succeeds, the folder is removed; that of a shard keeps what was found, and has no lock any more."""
    real = Path(os.path.realpath(output)) if output.is_symlink() else output
    work = _shard_folder(output, *shard) if shard else real.with_name(f"{real.name}.work")
    with work_folder(work, _OWN_FILE, "mining into this file", _RESUMABLE):
        yield work
        for path in list(work.iterdir()) if shard else ():
            if _OWN_FILE.fullmatch(path.name) and not _RESULT.fullmatch(path.name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _shard_folder(output: Path, part: int, parts: int) -> Path:
    return output.with_name(f"{output.name}.shard-{part}-of-{parts}")


def _check_alike(x: Vectors, y: Vectors) -> None:
    """Raise a UserError unless one encoder can have made both."""
    problem = f"vectors of {x.size} numbers, but {y.path} has {y.size}" if x.size != y.size else ""
    if x.manifest and y.manifest and x.manifest.origin.encoder != y.manifest.origin.encoder:
        problem = f"vectors of another encoder or precision than those of {y.path}"
    if problem:
        raise UserError(problem, path=x.path, cure="encode both sides with one encoder")


def open_text(
    text: Text, work: Path, encoder: SentenceEncoder | None, options: SearchOptions, show_progress: bool
) -> Opened:
    """Read a text, read or compute its vectors, and leave out empty and repeated lines. ``work`` is for intermediate
    files."""
    folder, lines = work / text.name, None
    folder.mkdir(exist_ok=True)
    if text.text:
        lines = Lines.write(folder, ((number, line.strip()) for number, line in read_text(text.text, text.lang)))
    if text.vectors:
        vectors = Vectors(text.vectors)
        if lines is not None and text.text:
            vectors.check_text(lines, text.text)
    elif lines is None or encoder is None:
        raise UserError(f"no vectors of the {text.name}", cure="give them, or a text and an encoder")
    else:
        vectors = embed(lines, text.lang, encoder, options, show_progress)
    first, filled = np.zeros(len(vectors), bool), 0
    keys = HashRuns(work.parent, width=2)
    for start, rows in _contents(lines, vectors):
        numbers = [number for number, row in enumerate(rows) if len(row)]
        hashes = np.array([hash_bytes(rows[number]) for number in numbers], np.uint64)
        keys.add(np.column_stack((hashes, start + np.array(numbers, np.uint64))))
        filled += len(numbers)
    for part_N2 in keys.parts():
        first[part_N2[first_of_each(part_N2[:, 0]), 1].astype(np.int64)] = True
    chosen = None
    if not first.all():
        chosen = ArrayFile.temporary(work.parent, np.int64)
        for start in range(0, len(first), _BLOCK):
            chosen.append(start + np.flatnonzero(first[start : start + _BLOCK]))
    count = int(first.sum())
    facts = {} if lines is None else {"text": lines.digest()}
    # The names of parts have digests of what made them. ``embed`` makes no vectors that need a check.
    digest = hashlib.sha256(repr(vectors.manifest).encode() if vectors.manifest else b"")
    for start, block in vectors.blocks() if text.vectors else ():
        if not vectors.manifest:
            digest.update(block.data)
        zero = vectors.check_finite(block, start)
        if lines is not None:
            zero &= lines.filled(start, start + len(block))
        if zero.any():
            raise vectors.unusable("is zero", start + int(np.argmax(zero)))
    facts["vectors"] = digest.hexdigest()
    return Opened(Side(vectors, chosen, 0, count), lines, len(first) - filled, filled - count, facts)


def _contents(lines: Lines | None, vectors: Vectors) -> Iterator[tuple[int, Sequence[bytes | memoryview]]]:
    """Yield the number of the first row and what is not to be repeated, some rows at a time: lines, or else vectors."""
    if lines is None:
        for start, block in vectors.blocks():
            yield start, [row.data for row in block]
    else:
        for start in range(0, len(lines), _BLOCK):
            yield start, [line.encode() for line in lines.read(start, start + _BLOCK)]


def embed(
    lines: Lines, lang: str | None, encoder: SentenceEncoder, options: SearchOptions, show_progress: bool
) -> Vectors:
    """Return the vectors of lines, which are written to a folder beside them. Those that an earlier call has written
    are used again if the same encoder made them from the same lines. A UserError says if there is no such index."""
    if options.index != "flat":
        make_index(options.index, encoder.output_size)
    folder = lines.folder / "vectors"
    how: dict[str, Any] = {"lang": lang, "dtype": "float16", "batch_tokens": options.batch_tokens, "parts": True}
    encode_file(encoder, lines.folder / LINES, folder, show_progress=show_progress, **how)
    return Vectors(folder)


def search_texts(
    x: Side, y: Side, k_x: int, k_y: int, work: Path, options: SearchOptions, facts: dict[str, Any], show_progress: bool
) -> tuple[Found, Found]:
    """Find neighbours of x and of y (0: none), or go on with an unfinished search of the same ``facts`` in ``work``."""
    if not (work / _FACTS).exists():
        write_json(work / _FACTS, facts)
    elif differing := _differing({**_facts_of(work), "complete": None}, facts):
        problem = f"an unfinished search is there, which differs in {differing}"
        raise UserError(problem, path=work, cure="remove it to begin anew, or write elsewhere")
    if not len(x):
        raise UserError("a part without sentences", cure="cut the source into fewer parts with `shard`")
    if options.index == "flat":
        search_flat(x, y, k_x, k_y, work, device=options.device, show_progress=show_progress)
    else:
        search_index(x, y, k_x, k_y, work, options.index, options.probes, show_progress=show_progress)
    return found_in([work], "x", k_x), found_in([work], "y", k_y)


def _facts_of(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / _FACTS).read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise UserError("a damaged file", path=folder / _FACTS, cure="remove the folder to begin anew") from None


def _differing(known: dict[str, Any], facts: dict[str, Any]) -> str:
    return ", ".join(sorted(name for name in {*known, *facts} if known.get(name) != facts.get(name)))


def _merge_shards(
    output: Path, shards: int, x: Side, y: Side, k: int, facts: dict[str, Any], work: Path
) -> tuple[Found, Found]:
    """Merge what was found for all parts of x."""
    folders = [_shard_folder(output, part, shards) for part in range(1, shards + 1)]
    for part, folder in enumerate(folders, 1):
        if not (folder / _FACTS).exists():
            raise UserError("no such shard", path=folder, cure="search that part first, with `shard`")
        known = _facts_of(folder)
        complete, (number, of) = known.pop("complete", False), known.pop("shard", (0, 0))
        if differing := _differing(known, facts):
            cure = "search it again with the same arguments as the others"
            raise UserError(f"a shard that differs in {differing}", path=folder, cure=cure)
        if (number, of) != (part, shards):
            raise UserError(f"this is shard {number} of {of}", path=folder, cure="give it its own name again")
        if not complete:
            raise UserError("the search of this shard has not ended", path=folder, cure="run it to its end first")
        for side, rows in (("x", len(x.part(part, shards))), ("y", len(y))):
            if (found := len(found_in([folder], side, k))) != rows:
                problem = f"neighbours of {found:,} sentences in {side}-*.npy, not of {rows:,}"
                raise UserError(problem, path=folder, cure="copy the whole folder, or search that part again")
    return found_in(folders, "x", k), merge_found(folders, k, work / _MERGED)


def _write(output: Path, work: Path, x: Found, y: Found, sides: list[Opened], options: MiningOptions) -> int:
    """Write the pairs to ``output`` and return their number."""
    written = 0
    how = {"one_to_one": options.one_to_one, "folder": work.parent}
    with writing(output, work) as file:
        for pairs in choose_in_blocks(x, y, options.margin, options.retrieval, **how):
            if options.threshold is not None:
                with np.errstate(over="ignore"):  # a threshold that float32 cannot hold
                    pairs = pairs.take(pairs.score >= options.threshold)
            columns: list[Iterable[object]] = []
            for opened, chosen in zip(sides, (pairs.source, pairs.target), strict=True):
                rows = opened.side.numbers(chosen)
                columns.append(rows + 1 if opened.lines is None else fields(opened.lines, rows))
            for score, source, target in zip(pairs.score.tolist(), *columns, strict=True):
                file.write(f"{score:.6f}\t{source}\t{target}\n")
            written += len(pairs)
    return written


@contextmanager
def writing(output: Path, work: Path) -> Iterator[IO[str]]:
    """Context manager that yields a file in the folder of a search, which becomes the output if the block succeeds."""
    with naming(output):
        with open(work / _PAIRS, "w", encoding="utf-8", newline="\n") as file:
            yield file
        replace_file(work / _PAIRS, Path(os.path.realpath(output)))


def fields(lines: Lines, rows: np.ndarray) -> list[str]:
    """Return some lines as fields of a TSV file, so without tabs."""
    return [line.replace("\t", " ") for line in lines.take(rows)]

"""Find translations in two texts of any size, in bounded memory and resumable after an interruption."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

import xrep
from xrep.data.hash_runs import HashRuns
from xrep.errors import UserError
from xrep.files import write_aside, write_json
from xrep.hashing import hash_bytes
from xrep.inference.encoding import differing_names, encode_file
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import work_folder
from xrep.retrieval.ivf import search_ivf
from xrep.retrieval.mapped import allocate, put, release, take
from xrep.retrieval.margins import Margin, Retrieval, check_neighbours, choose_in_blocks, first_of_each
from xrep.retrieval.search import Neighbours, SearchState, Side, load_neighbours, merge, search_flat
from xrep.retrieval.vectors import VectorFile
from xrep.text.readers import read_text

Index = Literal["flat", "ivf", "ivf-pq"]
OWN_FILE = re.compile(
    r"lock|facts\.json|neighbours\.npz|(source|target)(\.txt|\.lines|-[0-9a-f]{16}\.npy(\.work)?)|\..*\.tmp"
)
"""Names of files in the folder of a search, which may be removed."""
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
class MiningOptions:
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
    index: Index = "flat"
    """flat is exact search; the others are faiss's inverted files, which may miss neighbours and are faster for
    millions of sentences."""
    probes: int = 32
    """Number of cells of an inverted file that are searched for each sentence."""
    batch_tokens: int = 4096
    """Number of subwords per batch of the encoder."""
    device: str = "cpu"
    """Device on which the exact search computes its products."""


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


class Lines:
    """Random access to the lines of a text, which are copied to a file.

    Args:
        keys: To this the hash and the number of each line that is not empty are added.
    """

    def __init__(self, text: Path, lang: str | None, copy: Path, keys: HashRuns) -> None:
        digest, self._count, self._copy = hashlib.sha256(), 0, copy
        self._ends = tempfile.TemporaryFile(dir=copy.parent.parent)  # 0, then where each line of the copy ends, int64
        self._ends.write(bytes(8))
        lines = (line.strip().encode() + b"\n" for _, line in read_text(text, lang))
        with copy.open("wb") as file:
            while some := list(itertools.islice(lines, _BLOCK)):
                sizes = np.array([len(line) for line in some])
                self._ends.write((file.tell() + sizes.cumsum()).tobytes())
                file.write(data := b"".join(some))
                digest.update(data)
                keys.add(_keys(self._count, [hash_bytes(line[:-1]) for line in some])[sizes > 1])
                self._count += len(some)
        self._ends.flush()
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return self._count

    def filled(self, start: int, stop: int) -> np.ndarray:
        """Return which of some lines are not empty, bool [n]."""
        ends = os.pread(self._ends.fileno(), 8 * (stop - start + 1), 8 * start)
        return np.diff(np.frombuffer(ends, np.int64)) > 1

    def fields(self, rows: list[int]) -> Iterator[str]:
        """Yield some lines as fields of a TSV file, so without tabs."""
        with self._copy.open("rb") as file:
            for row in rows:
                start, stop = struct.unpack("=qq", os.pread(self._ends.fileno(), 16, 8 * row))
                yield os.pread(file.fileno(), stop - start - 1, start).decode().replace("\t", " ")


def _keys(first: int, hashes: list[int]) -> np.ndarray:
    """Return hashes with the numbers of their rows: uint64 [n, 2]."""
    rows = np.arange(first, first + len(hashes), dtype=np.uint64)
    return np.column_stack((np.array(hashes, dtype=np.uint64), rows))


def _distinct(keys: HashRuns, rows: int, folder: Path) -> np.ndarray:
    """Return the rows whose hashes occur for the first time, int64 in ascending order, in a file of a folder."""
    first, count = allocate(folder, rows, dtype=np.bool_), 0
    for part_N2 in keys.parts():
        numbers = part_N2[first_of_each(part_N2[:, 0]), 1].astype(np.int64)
        put(first, numbers, True)
        count += len(numbers)
    distinct, filled = allocate(folder, count, dtype=np.int64), 0
    for start in range(0, rows, _BLOCK):
        numbers = start + np.flatnonzero(first[start : start + _BLOCK])
        distinct[filled : filled + len(numbers)] = numbers
        filled += len(numbers)
        release(first, distinct)
    return distinct


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
    1) are written. What grows with the sentences is in files beside the output. Some have no names and vanish with this
    process; others are kept in ``{output}.work`` until the pairs are written, and a second call with
    the same arguments continues from there and gives the same output.

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
    work = shard_folder(output, *shard) if shard else output.with_name(f"{output.name}.work")
    with work_folder(work, OWN_FILE, "mining into this file", "*.np[yz]*"):
        sides = [open_text(side, work, encoder, options) for side in (source, target)]
        x, y = (opened.side for opened in sides)
        _check(x, y, options)
        facts: dict[str, Any] = {"source": sides[0].facts, "target": sides[1].facts}
        facts |= {"neighbours": options.neighbours, "index": options.index, "version": xrep.__version__}
        facts |= {"probes": options.probes} if options.index != "flat" else {}
        if shard:
            facts["shard"] = list(shard)
            x = _part(x, *shard)
        if merged:
            nearest = _merge_shards(output, merged, x, y, facts)
        else:
            nearest = search_texts(x, y, work, options, facts, show_progress)
        pairs = None if shard else _write(output, nearest, sides, options)
        clear(work, keep=("neighbours.npz", "facts.json") if shard else ())
    return Mined(
        path=str(work if shard else output),
        pairs=pairs,
        sources=len(x),
        targets=len(y),
        empty=(sides[0].empty, sides[1].empty),
        duplicates=(sides[0].duplicates, sides[1].duplicates),
        search=facts,
        settings=asdict(options),
        version=xrep.__version__,
        seconds=time.monotonic() - began,
    )


def shard_folder(output: Path, part: int, parts: int) -> Path:
    """Return the folder in which the search of one of several parts saves its results."""
    return output.with_name(f"{output.name}.shard-{part}-of-{parts}")


def _part(side: Side, part: int, parts: int) -> Side:
    return replace(side, rows=side.rows[len(side) * (part - 1) // parts : len(side) * part // parts])


def open_text(text: Text, work: Path, encoder: SentenceEncoder | None, options: MiningOptions) -> Opened:
    """Read a text, read or compute its vectors, and leave out empty and repeated lines. ``work`` is for intermediate
    files."""
    copy, keys = work / f"{text.name}.txt", HashRuns(work.parent, width=2)
    lines = Lines(text.text, text.lang, copy, keys) if text.text else None
    vectors = text.vectors
    if vectors is None:
        if encoder is None or text.text is None or lines is None:
            raise UserError(f"neither vectors of the {text.name} nor a text and an encoder", cure="give one or other")
        # Vectors of an interrupted run are used again only if the same encoder made them from the same lines.
        made_of = f"{encoder.fingerprint()} {text.lang} {lines.sha256}"
        vectors = work / f"{text.name}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.npy"
        if not vectors.exists():
            size = options.batch_tokens
            encode_file(encoder, copy, vectors, lang=text.lang, dtype="float16", batch_tokens=size)
    file = VectorFile(vectors)
    if lines is not None and len(lines) != len(file):
        problem = f"{len(lines):,} lines, but {vectors} has {len(file):,} vectors"
        line = min(len(lines), len(file)) + 1
        raise UserError(problem, path=text.text, line=line, cure="row i must be the vector of line i")
    digest, filled = hashlib.sha256(), 0
    for start, block, zero in file.survey():
        digest.update(block.data)
        there = np.ones(len(block), bool) if lines is None else lines.filled(start, start + len(block))
        if (zero & there).any():
            raise file.unusable("is zero", start + int(np.argmax(zero & there)))
        if lines is None:
            keys.add(_keys(start, [hash_bytes(row.data) for row in block]))
        filled += int(there.sum())
    rows = _distinct(keys, len(file), work.parent)
    facts = {} if lines is None else {"text": lines.sha256}
    facts["vectors"] = digest.hexdigest()
    return Opened(Side(file, rows), lines, len(file) - filled, filled - len(rows), facts)


def _check(x: Side, y: Side, options: MiningOptions) -> None:
    if x.vectors.size != y.vectors.size:
        problem = f"vectors of {x.vectors.size} numbers, but {y.vectors.path} has {y.vectors.size}"
        raise UserError(problem, path=x.vectors.path, cure="encode both sides with one encoder")
    check_neighbours(options.neighbours, len(x), len(y))


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError("no such shard", path=path.parent, cure="search that part first, with `shard`") from None
    except (ValueError, TypeError, RecursionError):
        raise UserError("a damaged file", path=path, cure=f"remove {path.parent} to begin anew") from None


def search_texts(
    x: Side,
    y: Side,
    work: Path,
    options: MiningOptions,
    facts: dict[str, Any],
    show_progress: bool,
    backward: int | None = None,
) -> Neighbours:
    """Find neighbours in both directions, or go on with an unfinished search of the same ``facts`` in ``work``.

    Args:
        backward: Number of neighbours of each sentence of y, if it is another one than of x.
    """
    if not (work / "facts.json").exists():
        write_json(work / "facts.json", facts)
    elif differing := differing_names(_read_facts(work / "facts.json"), facts):
        problem = f"an unfinished search is there, with another {', '.join(differing)}"
        raise UserError(problem, path=work, cure="remove it to begin anew, or write elsewhere")
    if not len(x):
        raise UserError("a part without sentences", cure="cut the source into fewer parts with `shard`")
    device = options.device if options.index == "flat" else "cpu"
    path, k = work / "neighbours.npz", options.neighbours
    state = SearchState.begin(path, len(x), len(y), k, device, backward, folder=work.parent)
    if options.index == "flat":
        search_flat(x, y, state, device=device, show_progress=show_progress)
    else:
        quantized = options.index == "ivf-pq"
        search_ivf(x, y, state, probes=options.probes, quantized=quantized, show_progress=show_progress)
    return state.nearest


def _merge_shards(output: Path, count: int, x: Side, y: Side, facts: dict[str, Any]) -> Neighbours:
    parts, k = list[tuple[Path, int]](), facts["neighbours"]
    for part in range(1, count + 1):
        folder = shard_folder(output, part, count)
        theirs = _read_facts(folder / "facts.json")
        if differing := differing_names({**theirs, "shard": None}, facts):
            cure = "search it again with the same arguments as the others"
            raise UserError(f"a shard with another {', '.join(differing)}", path=folder, cure=cure)
        if (folder / "lock").exists():
            raise UserError("the search of this shard has not ended", path=folder, cure="run it to its end first")
        parts.append((folder / "neighbours.npz", len(_part(x, part, count))))
    loaded = (load_neighbours(path, rows, len(y), k, folder=output.parent)[0] for path, rows in parts)
    return merge(loaded, output.parent, len(x), len(y), k)


def _write(output: Path, nearest: Neighbours, sides: list[Opened], options: MiningOptions) -> int:
    """Write the pairs to ``output`` and return their number."""
    written = 0
    how = {"one_to_one": options.one_to_one, "folder": output.parent}
    with write_aside(output) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
        for pairs in choose_in_blocks(*nearest.both(), options.margin, options.retrieval, **how):
            if options.threshold is not None:
                with np.errstate(over="ignore"):  # a threshold that float32 cannot hold
                    pairs = pairs.take(pairs.score >= options.threshold)
            columns: list[Iterable[object]] = []
            for opened, chosen in zip(sides, (pairs.source, pairs.target), strict=True):
                rows = take(opened.side.rows, chosen).tolist()
                columns.append((row + 1 for row in rows) if opened.lines is None else opened.lines.fields(rows))
            for score, source, target in zip(pairs.score.tolist(), *columns, strict=True):
                file.write(f"{score:.6f}\t{source}\t{target}\n")
            written += len(pairs)
    return written


def clear(work: Path, keep: tuple[str, ...]) -> None:
    """Remove all files except ``keep``. The lock is removed last: a folder without one is of a completed search."""
    for path in work.iterdir():
        if path.name not in (*keep, "lock"):
            path.unlink()
    (work / "lock").unlink()
    if not keep:
        work.rmdir()

"""Find translations in two texts of any size, in bounded memory, as a job of units that any engine does."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from xrep.data.disk_sort import DiskSort
from xrep.errors import UserError
from xrep.hashing import hash_bytes
from xrep.inference.choosing import PAIRS, ChoosePairs
from xrep.inference.encoding import HASHES, Encode, HeldEncoder, Read, origin_of
from xrep.inference.nearest import Side, SideSource, search_stages
from xrep.inference.planted import TrustedPairs
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.settings import MiningOptions, SearchOptions
from xrep.jobs.engines import LOCAL, Engine, run_job
from xrep.jobs.outputs import job_address, repeatable, states_of
from xrep.jobs.plan import Advance, Job, Stage
from xrep.retrieval.ivf import make_index
from xrep.retrieval.margins import check_neighbours, first_of_each
from xrep.store import addresses
from xrep.store.arrays import READ_BYTES, ArrayFile, block_bounds
from xrep.store.texts import Texts
from xrep.store.vectors import Origin, Vectors, text_digest
from xrep.text.find import Bitext
from xrep.text.languages import canonical
from xrep.version import __version__

_ROWS = "rows.npy"
_CHECKED_ROWS = 1 << 18
"""Number of vectors that are checked as a unit."""
_HASHED_BYTES = 1 << 20
"""Bytes of hashes that are sorted at a time."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """One side of the search: a text, or vectors, or both. Row i of the vectors belongs to line i of the text, which
    may be several files, ``part*.txt``. Its language is needed if the encoder has a tower for each side."""

    name: Literal["source", "target"]
    text: str | Path | None = None
    vectors: str | Path | None = None
    lang: str | None = None


@dataclass(frozen=True)
class Mined:
    """The result of ``mine``.

    ``sources`` and ``targets`` count the sentences compared; ``empty`` and ``duplicates`` count the lines of (source,
    target) that were left out. ``threshold`` is the lowest score that was written (None: any), and ``judged`` tells of
    the pairs that were written, in percent: the ``precision``, and the ``recall`` of translations that the text has;
    and the share of sources which have one, ``translated``. Trusted pairs add the 95% interval ``precision_low`` to
    ``precision_high``; the numbers of those that were used, ``trusted``, and of those that are in the text,
    ``trusted_in_text``; how many are ``found`` from the threshold on; and how many are ``mistaken``, that is, in a
    pair from the threshold on if their translation is not there. Without trusted pairs it is a rough judgement of the
    scores alone, and None if there are too few sentences.
    """

    path: str
    pairs: int
    threshold: float | None
    judged: dict[str, float] | None
    sources: int
    targets: int
    empty: tuple[int, int]
    duplicates: tuple[int, int]
    inputs: dict[str, Any]
    """The texts and vectors of both sides, with what changes when a file does, and the fingerprint of the encoder."""
    settings: dict[str, Any]
    version: str
    seconds: float


def mine(
    source: Text,
    target: Text,
    output: str | Path,
    options: MiningOptions,
    *,
    encoder: SentenceEncoder | None = None,
    trusted: Bitext | None = None,
    engine: Engine = LOCAL,
    show_progress: bool = False,
) -> Mined | None:
    """Write pairs that may be translations as lines ``score<TAB>source<TAB>target``, sorted by score, best first; or as
    a translation memory if the output is called ``*.tmx``.

    Empty lines are left out, and of equal lines only the first is used. For a side without a text, line numbers (from
    1) are written. Texts, vectors and neighbours are kept in ``{output}.job`` until the pairs are written, and a second
    call with the same arguments continues from there and gives the same output. Memory holds about 10 bytes for each
    sentence.

    Args:
        encoder: Encoder for the sides that have no vectors, and for the trusted pairs.
        trusted: Pairs of the languages of source and target that are right, of the kind of the text, but not in it. It
            is tried whether each is found in the text and, without its target, what its source is paired with. So it is
            known how many pairs are right from a threshold on; if none is given, the one with the best F1 is chosen.
        engine: What does the units. None is returned by processes that share the work and had nothing left to do.

    Raises:
        UserError: If a side is invalid or, for a memory, without its text or language, there are fewer sentences than
            neighbours, fewer than 30 trusted pairs, no threshold is as precise as is wanted, or there is an unfinished
            job with other inputs or options.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    began = time.monotonic()
    held = HeldEncoder(encoder) if encoder else None
    # One more neighbour tells what a source would be paired with if its best candidate were not there.
    k = options.neighbours + (trusted is None)
    x, y = sides = [TextSide(text, output, held, options, k) for text in (source, target)]
    _check_vectors(x.made_by, y.made_by)
    found, merge = search_stages(x, y, options.index, options.probes, options.index_gigabytes, options.device)
    pairs = _trusted_pairs(trusted, (x, y), held, options) if trusted else None
    choose = ChoosePairs(x, y, merge, options, pairs)
    if _is_memory(output):
        choose.languages = _memory_languages(source, target)
    stages = [*(stage for side in sides for stage in side.stages), *(pairs.stages if pairs else [])]
    inputs = {"source": x.facts, "target": y.facts, "encoder": held and held.fingerprint}
    inputs["trusted"] = trusted and {**asdict(trusted), "files": states_of(trusted.paths)}
    facts = {name: value for name, value in asdict(options).items() if name != "device"} | inputs
    job = Job(job_address(output), "mine", facts, [*stages, *found, choose])

    def finish() -> dict[str, Any]:
        (chosen,) = choose.results
        addresses.publish(chosen.files[PAIRS], output)
        counts = [side.counts for side in sides]
        return {
            "path": str(output),
            **chosen.facts,
            "sources": counts[0]["sentences"],
            "targets": counts[1]["sentences"],
            "empty": tuple(count["empty"] for count in counts),
            "duplicates": tuple(count["duplicates"] for count in counts),
            "inputs": inputs,
            "settings": asdict(options),
            "version": __version__,
            "seconds": time.monotonic() - began,
        }

    mined = run_job(job, engine, finish, str(output), show_progress=show_progress)
    return Mined(**mined) if mined else None


def _is_memory(output: str | Path) -> bool:
    return str(output).lower().endswith(".tmx")


def _memory_languages(source: Text, target: Text) -> tuple[str, str]:
    for side in (source, target):
        if side.text is None or side.lang is None:
            cure = f"give `{side.name}` and `{side.name}_lang`, or an output FILE.tsv"
            raise UserError(f"a translation memory needs the text and the language of the {side.name}", cure=cure)
    return canonical(str(source.lang)), canonical(str(target.lang))


def _trusted_pairs(
    trusted: Bitext, sides: tuple[TextSide, TextSide], encoder: HeldEncoder | None, options: MiningOptions
) -> TrustedPairs:
    if encoder is None:
        raise UserError("trusted pairs need an encoder", path=trusted.paths[0], cure="give the one of the vectors")
    x, y = (search_origin(encoder.encoder, side.facts["lang"], options) for side in sides)
    for side in sides:
        _check_vectors(side.made_by, (encoder.path, x.size, encoder.fingerprint))
    return TrustedPairs(trusted, sides, encoder, options, (x, y))


class TextSide(SideSource):
    """One side of the search as stages: its text is read, its vectors are computed or checked, and sentences that are
    empty or repeated are left out."""

    def __init__(
        self, text: Text, output: str | Path, encoder: HeldEncoder | None, options: MiningOptions, k: int
    ) -> None:
        """``k`` neighbours are searched of each sentence, of which the margin uses some."""
        self.name, self._k, self._neighbours = text.name, k, options.neighbours
        files = [repeatable(file, output) for file in (addresses.matching_files(str(text.text)) if text.text else ())]
        lang = text.lang and canonical(text.lang)
        self._read = Read(text.name, files, lang, "stripped") if files else None
        self.facts: dict[str, Any] = {"text": states_of(files), "lang": lang}
        if text.vectors:
            self._origin = CheckVectors(text, self._read)
            self.facts["vectors"] = states_of([text.vectors])
        elif self._read is None or encoder is None:
            raise UserError(f"no vectors of the {text.name}", cure="give them, or a text and an encoder")
        else:
            self._origin = Encode(text.name, self._read, encoder, search_origin(encoder.encoder, lang, options))
        self._distinct = Distinct(text.name, self._read or self._origin)
        self.stages: list[Stage] = [stage for stage in (self._read, self._origin, self._distinct) if stage]

    @property
    def made_by(self) -> tuple[str, int, str | None]:
        """The path of the vectors or of the encoder, the size of the vectors, and the encoder's fingerprint."""
        if isinstance(self._origin, Encode):
            return self._origin.encoder.path, self._origin.origin.size, self._origin.origin.encoder
        vectors = self._origin.vectors
        return vectors.path, vectors.size, vectors.manifest and vectors.manifest.origin.encoder

    @cached_property
    def k(self) -> int:
        return self._k

    @cached_property
    def side(self) -> Side:
        """The sentences to compare; a UserError says that they are fewer than the neighbours of the margin."""
        (distinct,) = self._distinct.results
        check_neighbours(self._neighbours, distinct.facts["sentences"])
        return Side(self._origin.vectors, distinct.array(_ROWS) if _ROWS in distinct.files else None)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of sentences to compare, and of empty and repeated ones."""
        return self._distinct.results[0].facts

    def has(self, hashes: np.ndarray) -> np.ndarray:
        """Return which hashes of sentences are those of lines of the text, bool [n]; none if there is no text."""
        there = np.zeros(len(hashes), bool)
        for result in self._read.results if self._read else ():
            for _, known in result.array(HASHES).blocks(_HASHED_BYTES):
                there |= np.isin(hashes, known[:, 0])
        return there

    def columns(self, chosen: np.ndarray) -> Iterable[object]:
        """Return what is written of some sentences: their lines or, if there is no text, their numbers from 1."""
        rows = self.side.numbers(chosen)
        return fields(self._read.texts, rows) if self._read else (rows + 1).tolist()


def _check_vectors(one: tuple[str, int, str | None], another: tuple[str, int, str | None]) -> None:
    """Raise a UserError unless vectors can be compared, of which path, size and encoder are given."""
    (path, size, encoder), (other, other_size, other_encoder) = one, another
    problem = f"vectors of {size} numbers, but {other} has {other_size}" if size != other_size else ""
    if encoder and other_encoder and encoder != other_encoder:
        problem = f"vectors of another encoder or precision than those of {other}"
    if problem:
        raise UserError(problem, path=path, cure="encode both sides with one encoder")


def search_origin(
    encoder: SentenceEncoder, lang: str | None, options: SearchOptions, usual: Iterable[str] = ()
) -> Origin:
    """Return what the vectors of a search depend on, in which numbers have 16 bits. Sentences get the first of the
    ``usual`` prompts that the encoder has, or else its default. A UserError says that there is no such index of them.
    """
    if options.index != "flat":
        make_index(options.index, encoder.output_size)
    prompt = encoder.find_prompt(None, usual) if usual else None
    return origin_of(encoder, lang, dtype="float16", batch_tokens=options.batch_tokens, normalize=True, prompt=prompt)


class CheckVectors(Stage):
    """Check vectors that were given: those of a folder by the checksums of the lines, others by their numbers. A unit
    is a part of a folder, or some rows."""

    unit = "vectors"

    def __init__(self, text: Text, read: Read | None) -> None:
        self.name, self._text, self._read = f"check-{text.name}", text, read

    @cached_property
    def vectors(self) -> Vectors:
        assert self._text.vectors
        return Vectors(self._text.vectors)

    @cached_property
    def units(self) -> Sequence[tuple[int, int]]:
        if self._read and self._text.text:
            self.vectors.check_count(len(self._read.texts), self._text.text)
        return list(
            pairwise(self.vectors.starts) if self.vectors.manifest else block_bounds(len(self.vectors), _CHECKED_ROWS)
        )

    def weight(self, unit: tuple[int, int]) -> int:
        return unit[1] - unit[0]

    def run(self, unit: tuple[int, int], folder: Path, advance: Advance) -> dict[str, Any]:
        """Without a text, write hashes of the rows with their places among these rows."""
        (start, stop), vectors = unit, self.vectors
        texts = self._read.texts if self._read else None
        if vectors.manifest and texts:
            assert self._text.text
            vectors.check_text(self.units.index(unit), text_digest(texts.read(start, stop)), self._text.text)
            return {"rows": stop - start}
        hashes = np.empty((0 if texts else stop - start, 2), np.uint64)
        for first, last in block_bounds(stop - start, READ_BYTES // (vectors.size * vectors.dtype.itemsize)):
            rows = vectors.stored(slice(start + first, start + last))
            lines = texts.read(start + first, start + last) if texts else ["-"] * len(rows)
            vectors.check_rows(rows, start + first, np.array([not line for line in lines]))
            if texts is None:
                hashes[first:last] = [(hash_bytes(row.data), place) for place, row in enumerate(rows, first)]
            advance(len(rows))
        if texts is None:
            np.save(folder / HASHES, hashes)
        return {"rows": stop - start}


class Distinct(Stage):
    """Choose the first of equal sentences, of which another stage has written the hashes. Memory holds a byte for each
    sentence."""

    unit = "texts"

    def __init__(self, name: str, hashed: Stage) -> None:
        self.name, self._hashed = f"distinct-{name}", hashed

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        keys, rows, filled = sorted_hashes(self._hashed, folder)
        first = np.zeros(rows, bool)
        for part_N2 in keys.parts():
            first[part_N2[first_of_each(part_N2[:, 0]), 1].astype(np.int64)] = True
        count = int(first.sum())
        if count < rows:
            chosen = ArrayFile.create(folder / _ROWS, np.int64)
            for start, stop in block_bounds(rows, _CHECKED_ROWS):
                chosen.append(start + np.flatnonzero(first[start:stop]))
            chosen.close()
        return {"sentences": count, "empty": rows - filled, "duplicates": filled - count}


def sorted_hashes(hashed: Stage, folder: Path) -> tuple[DiskSort, int, int]:
    """Return the hashes that a stage has written, each with its row among all rows; the number of rows; and of those
    that have a hash."""
    keys, rows, filled = DiskSort(folder, width=2), 0, 0
    for result in hashed.results:
        for _, hashes in result.array(HASHES).blocks(_HASHED_BYTES):
            keys.add(hashes + np.array([0, rows], np.uint64))
            filled += len(hashes)
        rows += result.facts["rows"]
    return keys, rows, filled


def fields(lines: Texts, rows: np.ndarray) -> list[str]:
    """Return some lines as fields of a TSV file, so without tabs."""
    return [line.replace("\t", " ") for line in lines.take(rows)]

"""Find translations in two texts of any size, in bounded memory, as a job of units that any engine does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

import xrep
from xrep.data.hash_runs import HashRuns
from xrep.errors import UserError
from xrep.files import naming
from xrep.hashing import hash_bytes
from xrep.inference.encoding import Encode, HeldEncoder, Read, origin_of
from xrep.inference.nearest import Merge, Side, searching
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.jobs.engines import LOCAL, Engine, run
from xrep.jobs.outputs import job_address, repeatable, states_of
from xrep.jobs.plan import Advance, Job, Stage
from xrep.retrieval.ivf import PROBES, make_index
from xrep.retrieval.margins import Margin, Retrieval, check_neighbours, choose_in_blocks, first_of_each
from xrep.store import addresses
from xrep.store.arrays import READ_BYTES, ArrayFile
from xrep.store.lines import Texts
from xrep.store.vectors import Origin, Vectors
from xrep.text.languages import canonical

_PAIRS, _ROWS, _HASHES = "pairs.tsv", "rows.npy", "hashes.npy"
_CHECKED_ROWS = 1 << 18
"""Number of vectors that are checked as a unit."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """One side of the search: a text, or vectors, or both. Row i of the vectors belongs to line i of the text, which
    may be several files, ``part*.txt``. Its language is needed if the encoder has a tower for each side."""

    name: Literal["source", "target"]
    text: str | Path | None = None
    vectors: str | Path | None = None
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
    pairs: int
    sources: int
    targets: int
    empty: tuple[int, int]
    duplicates: tuple[int, int]
    search: dict[str, Any]
    """The facts that the neighbours depend on: checksums of texts and vectors, number of neighbours, index, version."""
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
    engine: Engine = LOCAL,
    show_progress: bool = False,
) -> Mined | None:
    """Write pairs that may be translations as lines ``score<TAB>source<TAB>target``, sorted by score, best first.

    Empty lines are left out, and of equal lines only the first is used. For a side without a text, line numbers (from
    1) are written. Texts, vectors and neighbours are kept in ``{output}.job`` until the pairs are written, and a second
    call with the same arguments continues from there and gives the same output. Memory holds about 10 bytes for each
    sentence.

    Args:
        encoder: Encoder for the sides that have no vectors.
        engine: What does the units. None is returned by processes that share the work and had nothing left to do.

    Raises:
        UserError: If a side is invalid, there are fewer sentences than neighbours, or there is an unfinished job
            with other inputs or options.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    began, k, place = time.monotonic(), options.neighbours, job_address(output)
    held = HeldEncoder(encoder) if encoder else None
    x, y = sides = [Sentences(text, output, held, options, k) for text in (source, target)]
    found, merge = searching(x, y, options.index, options.probes, options.device)
    choose = Choose(x, y, merge, options)
    stages = [stage for side in sides for stage in side.stages]
    facts = {**asdict(options), "source": x.facts, "target": y.facts, "encoder": held and held.fingerprint}
    facts.pop("device")
    job = Job(place, "mine", facts, [*stages, Compare(x, y, k), *found, choose])

    def finish() -> dict[str, Any]:
        (chosen,) = job.results(choose)
        addresses.publish(chosen.files[_PAIRS], output)
        counts = [side.counts(job) for side in sides]
        search = {side.name: side.digests(job) for side in sides}
        return {
            "path": str(output),
            "pairs": chosen.facts["pairs"],
            "sources": counts[0]["sentences"],
            "targets": counts[1]["sentences"],
            "empty": tuple(count["empty"] for count in counts),
            "duplicates": tuple(count["duplicates"] for count in counts),
            "search": {**search, "neighbours": k, "index": options.index, "probes": options.probes},
        }

    mined = run(job, engine, finish, str(output), show_progress=show_progress)
    seconds = time.monotonic() - began
    return Mined(**mined, settings=asdict(options), version=xrep.__version__, seconds=seconds) if mined else None


class Sentences:
    """One side of the search as stages: its text is read, its vectors are computed or checked, and sentences that are
    empty or repeated are left out."""

    def __init__(
        self, text: Text, output: str | Path, encoder: HeldEncoder | None, options: SearchOptions, k: int
    ) -> None:
        self._k = k
        self.name, files = text.name, addresses.matching(str(text.text)) if text.text else []
        self._files = [repeatable(file, output) for file in files]
        lang = text.lang and canonical(text.lang)
        self._read = Read(text.name, self._files, lang, stripped=True) if self._files else None
        self._encode: Encode | None = None
        self._check: Check | None = None
        self.facts: dict[str, Any] = {"text": states_of(self._files), "lang": lang}
        if text.vectors:
            self._check = Check(text, self._read)
            self.facts["vectors"] = states_of([text.vectors])
        elif self._read is None or encoder is None:
            raise UserError(f"no vectors of the {text.name}", cure="give them, or a text and an encoder")
        else:
            origin = half_origin(encoder.encoder, lang, options)
            self._encode = Encode(text.name, self._read, encoder, origin)
        self._distinct = Distinct(self)

    @property
    def stages(self) -> list[Stage]:
        return [stage for stage in (self._read, self._check, self._encode, self._distinct) if stage]

    def hashes(self, job: Job) -> Iterator[np.ndarray]:
        """Yield what is not to be repeated, lines or else vectors, as hashes with the numbers of their rows."""
        stage = self._read or self._check
        assert stage
        return stage.hashes(job)

    def vectors(self, job: Job) -> Vectors:
        if self._check:
            return self._check.vectors
        assert self._encode
        return self._encode.vectors(job)

    def side(self, job: Job) -> Side:
        """Return the sentences to compare."""
        return job.once((self.name, "side"), lambda: self._side(job))

    def _side(self, job: Job) -> Side:
        files = job.results(self._distinct)[0].files
        rows = ArrayFile.open(files[_ROWS], "rows", "make it again") if _ROWS in files else None
        return Side(self.vectors(job), rows)

    def neighbours(self, job: Job) -> int:
        return self._k

    def counts(self, job: Job) -> dict[str, int]:
        """Return the numbers of sentences to compare, and of empty and repeated ones."""
        return job.results(self._distinct)[0].facts

    def digests(self, job: Job) -> dict[str, Any]:
        """Return checksums of the text and of the vectors that were given, or what made them."""
        texts = {"text": [result.facts["text"] for result in job.results(self._read)]} if self._read else {}
        given = self._check and self._check.digests(job)
        return {**texts, "vectors": given or vars(self.vectors(job).manifest.origin)}  # type: ignore[union-attr]

    def columns(self, job: Job, side: Side, chosen: np.ndarray) -> Iterable[object]:
        """Return what is written of some sentences: their lines or, if there is no text, their numbers from 1."""
        rows = side.numbers(chosen)
        return fields(self._read.texts(job), rows) if self._read else (rows + 1).tolist()


def half_origin(encoder: SentenceEncoder, lang: str | None, options: SearchOptions) -> Origin:
    """Return what the vectors of a search depend on, in which numbers have 16 bits. A UserError says that there is no
    such index of them."""
    if options.index != "flat":
        make_index(options.index, encoder.output_size)
    return origin_of(encoder, lang, dtype="float16", batch_tokens=options.batch_tokens, normalize=True, prompt=None)


class Check(Stage):
    """Check vectors that were given: those of a folder by the checksums of the lines, others by their numbers. A unit
    is a part of a folder, or some rows."""

    unit = "vectors"

    def __init__(self, text: Text, read: Read | None) -> None:
        self.name, self._text, self._read = f"check-{text.name}", text, read

    @cached_property
    def vectors(self) -> Vectors:
        assert self._text.vectors
        return Vectors(self._text.vectors)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "vectors"}

    def _units(self) -> list[tuple[int, int]]:
        vectors = self.vectors
        if vectors.manifest:
            return list(pairwise(vectors.starts))
        return [(start, min(start + _CHECKED_ROWS, len(vectors))) for start in range(0, len(vectors), _CHECKED_ROWS)]

    def count(self, job: Job) -> int:
        if self._read and self._text.text:
            self.vectors.check_count(len(self._read.texts(job)), self._text.text)
        return len(self._units())

    def weights(self, job: Job) -> list[int]:
        return [stop - start for start, stop in self._units()]

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        (start, stop), vectors = self._units()[number], self.vectors
        texts = self._read.texts(job) if self._read else None
        if vectors.manifest and texts:
            assert self._text.text
            vectors.check_text(number, texts.digest(start, stop), self._text.text)
            return {"vectors": vectors.manifest.parts[number].file}
        digest, step = hashlib.sha256(), max(1, READ_BYTES // (vectors.size * vectors.dtype.itemsize))
        hashes = np.empty((0 if texts else stop - start, 2), np.uint64)
        for first in range(start, stop, step):
            rows = vectors.stored(slice(first, min(first + step, stop)))
            digest.update(rows.data)
            zero = vectors.check_finite(rows, first)
            if texts is not None:
                zero &= texts.filled(first, first + len(rows))
            else:
                some = slice(first - start, first - start + len(rows))
                hashes[some] = [(hash_bytes(row.data), number) for number, row in enumerate(rows, first)]
            if zero.any():
                raise vectors.unusable("is zero", first + int(np.argmax(zero)))
            advance(len(rows))
        if texts is None:
            np.save(folder / _HASHES, hashes)
        return {"vectors": digest.hexdigest()}

    def hashes(self, job: Job) -> Iterator[np.ndarray]:
        """Yield the hash and the number of each row, uint64 [n, 2], some at a time."""
        for result in job.results(self):
            yield ArrayFile.open(result.files[_HASHES], "hashes", "make it again").read(slice(None))

    def digests(self, job: Job) -> list[str]:
        """Return the checksums of the rows of the units, or the names of the parts of a folder, which have them."""
        return [result.facts["vectors"] for result in job.results(self)]


class Distinct(Stage):
    """Choose the first of equal sentences. Memory holds a byte for each sentence."""

    unit = "texts"

    def __init__(self, sentences: Sentences) -> None:
        self.name, self._sentences = f"distinct-{sentences.name}", sentences

    def count(self, job: Job) -> int:
        return 1

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        first, filled = np.zeros(len(self._sentences.vectors(job)), bool), 0
        keys = HashRuns(folder, width=2)
        for hashes in self._sentences.hashes(job):
            keys.add(hashes)
            filled += len(hashes)
        for part_N2 in keys.parts():
            first[part_N2[first_of_each(part_N2[:, 0]), 1].astype(np.int64)] = True
        count = int(first.sum())
        if count < len(first):
            rows = ArrayFile.create(folder / _ROWS, np.int64)
            for start in range(0, len(first), _CHECKED_ROWS):
                rows.append(start + np.flatnonzero(first[start : start + _CHECKED_ROWS]))
            rows.close()
        return {"sentences": count, "empty": len(first) - filled, "duplicates": filled - count}


class Compare(Stage):
    """Check that both sides go together, before they are searched."""

    name = "compare"

    def __init__(self, x: Sentences, y: Sentences, k: int) -> None:
        self._x, self._y, self._k = x, y, k

    def count(self, job: Job) -> int:
        return 1

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        x, y = self._x.vectors(job), self._y.vectors(job)
        problem = f"vectors of {x.size} numbers, but {y.path} has {y.size}" if x.size != y.size else ""
        if x.manifest and y.manifest and x.manifest.origin.encoder != y.manifest.origin.encoder:
            problem = f"vectors of another encoder or precision than those of {y.path}"
        if problem:
            raise UserError(problem, path=x.path, cure="encode both sides with one encoder")
        check_neighbours(self._k, *(side.counts(job)["sentences"] for side in (self._x, self._y)))
        return {}


class Choose(Stage):
    """Choose the pairs and write them."""

    name, unit = "choose", "files"

    def __init__(self, x: Sentences, y: Sentences, merge: Merge, options: MiningOptions) -> None:
        self._sides, self._merge, self._options = (x, y), merge, options

    def count(self, job: Job) -> int:
        return 1

    def run(self, job: Job, number: int, folder: Path, advance: Advance) -> dict[str, Any]:
        options, written = self._options, 0
        found = self._merge.found(job, "x"), self._merge.found(job, "y")
        sides = [(sentences, sentences.side(job)) for sentences in self._sides]
        how = {"one_to_one": options.one_to_one, "folder": folder}
        with naming(folder), open(folder / _PAIRS, "w", encoding="utf-8", newline="\n") as file:
            for pairs in choose_in_blocks(*found, options.margin, options.retrieval, **how):
                if options.threshold is not None:
                    with np.errstate(over="ignore"):  # a threshold that float32 cannot hold
                        pairs = pairs.take(pairs.score >= options.threshold)
                chosen = zip(sides, (pairs.source, pairs.target), strict=True)
                columns = [sentences.columns(job, side, rows) for (sentences, side), rows in chosen]
                for score, source, target in zip(pairs.score.tolist(), *columns, strict=True):
                    file.write(f"{score:.6f}\t{source}\t{target}\n")
                written += len(pairs)
        return {"pairs": written}


def fields(lines: Texts, rows: np.ndarray) -> list[str]:
    """Return some lines as fields of a TSV file, so without tabs."""
    return [line.replace("\t", " ") for line in lines.take(rows)]

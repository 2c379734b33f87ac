"""Mining of hard negatives: for each pair, sentences near to its source that do not translate it."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from xrep.errors import UserError
from xrep.files import naming
from xrep.hashing import find_sorted
from xrep.inference.encoding import Encode, HeldEncoder, TextSource
from xrep.inference.nearest import FoundNeighbours, Merge, Side, SideSource, search_stages
from xrep.inference.pair_files import check_format
from xrep.inference.sentence_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder
from xrep.inference.settings import NegativeOptions
from xrep.inference.text_sides import search_origin
from xrep.jobs.engines import LOCAL, Engine, run_job
from xrep.jobs.outputs import job_address, repeatable, states_of
from xrep.jobs.plan import Advance, Job, Stage
from xrep.retrieval.margins import first_of_each
from xrep.retrieval.topk import pair_similarities
from xrep.store import addresses
from xrep.store.texts import TEXT_FILES, Texts, write_lines
from xrep.text.cleaning import NO_KEY, sentence_hash
from xrep.text.examples import read_pairs, read_text
from xrep.text.find import Bitext
from xrep.version import __version__

_KEYS, _PAIRS, _NEGATIVES = "keys.npy", "pairs.npy", "negatives.tsv"
_BLOCK = 1 << 13
"""Number of pairs whose candidates are compared at a time."""


@dataclass(frozen=True)
class MinedNegatives:
    """The result of ``mine_negatives``.

    ``pairs`` counts the different pairs that were read, of which ``pairs_with_negatives`` were written; ``empty`` and
    ``duplicates`` the others. ``dropped`` counts candidates by the first rule that left them out. ``scores`` has mean
    and median of the cosines of the true translations and of the negatives.
    """

    path: str
    pairs: int
    pairs_with_negatives: int
    negatives: int
    sources: int
    candidates: int
    empty: int
    duplicates: int
    dropped: dict[str, int]
    scores: dict[str, dict[str, float]]
    settings: dict[str, Any]
    version: str
    seconds: float


def mine_negatives(
    bitext: Bitext,
    output: str | Path,
    options: NegativeOptions,
    *,
    encoder: SentenceEncoder,
    candidates: str | Path | None = None,
    engine: Engine = LOCAL,
    show_progress: bool = False,
) -> MinedNegatives | None:
    """Write pairs with hard negatives as lines ``source<TAB>target<TAB>negative...``, the nearest negative first.

    The candidates are the targets of all pairs and the lines of ``candidates``. Known translations of a source, and
    sentences equal to one or to the source itself, are never its negatives; case and punctuation do not count. A
    candidate is scored by its cosine with the source. Of equal pairs the first is written, and pairs without a negative
    are left out. An interrupted call goes on in ``{output}.job``, as ``mine`` does. The pairs are read twice. Memory
    grows by some 300 bytes for each different sentence.

    Raises:
        UserError: A text is invalid, the encoder does not know a language, or no negative is left.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    began = time.monotonic()
    check_format(output, records=())
    candidates = candidates and repeatable(candidates, output)
    files = [*bitext.paths, *([candidates] if candidates else [])]
    held, read = HeldEncoder(encoder), ReadPairs(bitext, candidates)
    sides = [PairSide(side, read, lang, held, options) for side, lang in enumerate(bitext.languages)]
    x, y = sides
    found, merge = search_stages(x, y, options.index, options.probes, options.index_gigabytes, options.device)
    choose = ChooseNegatives(read, x, y, merge, options)
    stages = [read, *(side.encode for side in sides), *found, choose]
    facts = {**asdict(options), "input": states_of(files), "bitext": asdict(bitext), "encoder": held.fingerprint}
    facts.pop("device")
    job = Job(job_address(output), "negatives", facts, stages)

    def finish() -> dict[str, Any]:
        (chosen,), (pairs,) = choose.results, read.results
        addresses.publish(chosen.files[_NEGATIVES], output)
        made = {"path": str(output), "settings": asdict(options), "version": __version__}
        return {**made, **pairs.facts["counts"], **chosen.facts, "seconds": time.monotonic() - began}

    mined = run_job(job, engine, finish, str(output), show_progress=show_progress)
    return MinedNegatives(**mined) if mined else None


def _summary(scores: np.ndarray) -> dict[str, float]:
    return {"mean": float(scores.mean(dtype=np.float64)), "median": float(np.median(scores))}


class _Sentences:
    """The different sentences among some texts, which are numbered from 0 by their hashes."""

    def __init__(self) -> None:
        self._rows = dict[int, int]()

    def new(self, texts: Iterable[str], rows: array[int]) -> Iterator[tuple[int, str]]:
        """Yield the sentences that are new, with their numbers from 1; the row of each text is added to ``rows``, -1
        for one without a word."""
        for text in texts:
            key = sentence_hash(text)
            if key != NO_KEY and key not in self._rows:
                self._rows[key] = len(self._rows)
                yield len(self._rows), " ".join(text.split())
            rows.append(self._rows.get(key, -1))

    def keys(self) -> np.ndarray:
        return np.fromiter(self._rows, np.uint64, len(self._rows))


class ReadPairs(Stage):
    """Read the pairs and further candidates, and write the different sentences of both sides, their hashes, and the
    different pairs as rows of these sentences. It is one unit."""

    name, unit = "read-pairs", "files"

    def __init__(self, bitext: Bitext, candidates: str | Path | None) -> None:
        self.bitext, self._candidates = bitext, candidates

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        bitext, sides, rows_of = self.bitext, (_Sentences(), _Sentences()), (array("q"), array("q"))
        for side, (sentences, rows) in enumerate(zip(sides, rows_of, strict=True)):
            new = sentences.new((pair[side] for _, *pair in read_pairs(bitext)), rows)
            if side and self._candidates is not None:
                further = (text for _, text in read_text(self._candidates, bitext.languages[1]))
                new = chain(new, sentences.new(further, array("q")))
            write_lines(folder, new)
            np.save(folder / _KEYS, sentences.keys())
            for name in (*TEXT_FILES, _KEYS):
                (folder / name).rename(folder / f"{side}-{name}")
        source, target = (np.frombuffer(rows, np.int64) for rows in rows_of)
        worded = (source >= 0) & (target >= 0)
        if not worded.any():
            raise UserError("no pair with words on both sides", path=bitext.paths[0], cure="give parallel text")
        source, target = source[worded], target[worded]
        candidates = len(sides[1].keys())
        kept = first_of_each(source * candidates + target)
        np.save(folder / _PAIRS, np.stack((source[kept], target[kept]), axis=1))
        counts = {
            "pairs": len(kept),
            "sources": len(sides[0].keys()),
            "candidates": candidates,
            "empty": int(np.count_nonzero(~worded)),
            "duplicates": len(source) - len(kept),
        }
        return {"counts": counts, "most": int(np.unique(source[kept], return_counts=True)[1].max())}

    def array(self, name: str) -> np.ndarray:
        """Return one of the arrays."""
        return self.results[0].array(name).read(slice(None))


class PairSide(TextSource, SideSource):
    """The different sentences of a side: a source of lines for ``Encode``, and a side of the search."""

    def __init__(self, side: int, read: ReadPairs, lang: str, encoder: HeldEncoder, options: NegativeOptions) -> None:
        self._side, self._read, self._options, self.files = side, read, options, [read.bitext.paths[side and -1]]
        origin = search_origin(encoder.encoder, lang, options, (QUERY_PROMPTS, DOCUMENT_PROMPTS)[side])
        self.encode = Encode(("source", "target")[side], self, encoder, origin)

    @cached_property
    def texts(self) -> Texts:
        (result,) = self._read.results
        count = result.facts["counts"][("sources", "candidates")[self._side]]
        return Texts([[result.files[f"{self._side}-{name}"] for name in TEXT_FILES]], [count])

    @property
    def keys(self) -> np.ndarray:
        """The hashes of the sentences, uint64 [N]."""
        return self._read.array(f"{self._side}-{_KEYS}")

    @cached_property
    def side(self) -> Side:
        return Side(self.encode.vectors, None)

    @cached_property
    def k(self) -> int:
        if self._side:
            return 0
        facts, furthest = self._read.results[0].facts, self._options.range_max
        return min(facts["counts"]["candidates"], furthest + min(facts["most"] + 1, furthest))


class ChooseNegatives(Stage):
    """Choose the negatives and write them. It is one unit."""

    name, unit = "choose", "files"

    def __init__(self, read: ReadPairs, x: PairSide, y: PairSide, merge: Merge, options: NegativeOptions) -> None:
        self._read, self._x, self._y, self._merge, self._options = read, x, y, merge, options

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        source, target = self._read.array(_PAIRS).T
        pairs, texts = _Pairs(source, target, self._x.keys, self._y.keys), (self._x.texts, self._y.texts)
        translations, dropped = _translations(pairs, self._x.side, self._y.side), Counter[str]()
        written, scores = 0, list[np.ndarray]()
        found = self._merge.found("x")
        with naming(folder), open(folder / _NEGATIVES, "w", encoding="utf-8", newline="\n") as file:
            for start, negatives, of_negatives in _choose(pairs, translations, found, self._options, dropped):
                written += _write(file, pairs, texts, start, negatives)
                scores.append(of_negatives[negatives >= 0])
        if not written:
            left_out = ", ".join(f"{count:,} by {rule}" for rule, count in dropped.items() if count)
            problem = f"no negative is left ({left_out or 'there are no candidates'})"
            raise UserError(problem, cure="add `candidates`, or choose weaker margins")
        return {
            "pairs_with_negatives": written,
            "negatives": sum(map(len, scores)),
            "dropped": dict(dropped),
            "scores": {"translations": _summary(translations), "negatives": _summary(np.concatenate(scores))},
        }


@dataclass(frozen=True)
class _Pairs:
    """Different pairs, as rows of the different sentences of both sides, int64 [P] each, and the hashes of these
    sentences, uint64 [S] and [C]."""

    source: np.ndarray
    target: np.ndarray
    source_keys: np.ndarray
    target_keys: np.ndarray


def _translations(pairs: _Pairs, x: Side, y: Side) -> np.ndarray:
    """Return the cosines of the pairs, float32 [P]."""
    scores = []
    for start in range(0, len(pairs.source), _BLOCK):
        some = slice(start, start + _BLOCK)
        one, other = (torch.from_numpy(s.read(rows[some])) for s, rows in ((x, pairs.source), (y, pairs.target)))
        rows = torch.arange(len(one))
        scores.append(pair_similarities(one, other, rows, rows).numpy())
    return np.concatenate(scores)


def _choose(
    pairs: _Pairs, translations: np.ndarray, nearest: FoundNeighbours, options: NegativeOptions, dropped: Counter[str]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the negatives of some pairs at a time: the number of the first pair, the rows of the negatives, the nearest
    first, and their scores, [n, N] each; a row is -1 if there are fewer. ``dropped`` counts candidates by rule."""
    known_pairs = np.sort(pairs.source * len(pairs.target_keys) + pairs.target)
    highest_scores = {
        "absolute_margin": lambda margin: translations - margin,
        "relative_margin": lambda margin: translations - np.abs(translations) * margin,
        "max_percentile": lambda percentile: np.percentile(translations, percentile),
        "max_score": lambda score: score,
    }
    limits = {
        rule: np.broadcast_to(np.float32(highest(value)), translations.shape)
        for rule, highest in highest_scores.items()
        if (value := vars(options)[rule]) is not None
    }
    random = np.random.default_rng(options.seed)
    for start in range(0, len(pairs.source), _BLOCK):
        some = slice(start, start + _BLOCK)
        source = pairs.source[some]
        found = nearest.take(source)
        candidate, score = found.index.numpy(), found.similarity.numpy()
        known = find_sorted(known_pairs, source[:, None] * len(pairs.target_keys) + candidate) >= 0
        known |= pairs.target_keys[candidate] == pairs.source_keys[source][:, None]
        rank = ((candidate >= 0) & ~known).cumsum(axis=1) - 1
        usable = (candidate >= 0) & (known | (rank < options.range_max))
        rules = {"translation": known, "range_min": rank < options.range_min}
        rules |= {rule: score > limit[some, None] for rule, limit in limits.items()}
        rules |= {} if options.min_score is None else {"min_score": score < options.min_score}
        for rule, unwanted in rules.items():
            dropped[rule] += int(np.count_nonzero(usable & unwanted))
            usable &= ~unwanted
        drawn = random.random(usable.shape) if options.sampling_strategy == "random" else np.zeros(usable.shape)
        first = np.argsort(np.where(usable, drawn, 2), axis=1, kind="stable")[:, : options.num_negatives]
        places = np.sort(first, axis=1)
        taken, negatives, scores = (np.take_along_axis(each, places, axis=1) for each in (usable, candidate, score))
        yield start, np.where(taken, negatives, -1), scores


def _write(file: IO[str], pairs: _Pairs, texts: Sequence[Texts], start: int, negatives: np.ndarray) -> int:
    """Write the pairs from ``start`` on that have negatives, and return their number."""
    some = np.flatnonzero((negatives >= 0).any(axis=1))
    rows = np.column_stack((pairs.target[start + some], negatives[some]))
    others = iter(texts[1].take(rows[rows >= 0]))
    counts = (rows >= 0).sum(axis=1).tolist()
    for source, count in zip(texts[0].take(pairs.source[start + some]), counts, strict=True):
        file.write("\t".join([source, *islice(others, count)]) + "\n")
    return len(some)

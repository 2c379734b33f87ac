"""Mining of hard negatives: for each pair, sentences near to its source that do not translate it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from xrep.errors import UserError
from xrep.files import naming
from xrep.hashing import find_sorted
from xrep.inference.aligned import PairedSide, ReadAligned
from xrep.inference.encoding import HeldEncoder
from xrep.inference.nearest import FoundNeighbours, Merge, Side, SideSource, search_stages
from xrep.inference.pair_files import PAIRS_FILE, run_pairs_job
from xrep.inference.sentence_encoder import DOCUMENT_PROMPTS, QUERY_PROMPTS, SentenceEncoder
from xrep.inference.settings import NegativeOptions
from xrep.inference.text_sides import search_origin
from xrep.jobs.engines import LOCAL, Engine
from xrep.jobs.outputs import repeatable, states_of
from xrep.jobs.plan import Advance, Stage
from xrep.retrieval.topk import pair_similarities
from xrep.text.find import Bitext
from xrep.text.lines import packed
from xrep.text.records import check_format

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
    grows by some 100 bytes for each pair.

    Raises:
        UserError: A text is invalid, the encoder does not know a language, or no negative is left.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    check_format(output, ())
    candidates = candidates and repeatable(candidates, output)
    files = [*bitext.paths, *([candidates] if candidates else [])]
    held, further = HeldEncoder(encoder), ((), [candidates] if candidates else ())
    read = [ReadAligned(side, [bitext], some, rules=None) for side, some in enumerate(further)]
    x, y = sides = [
        PairedSide(one, held, search_origin(encoder, one.lang, options, usual), 0)
        for one, usual in zip(read, (QUERY_PROMPTS, DOCUMENT_PROMPTS), strict=True)
    ]
    pairs = Pairs(x, y, options.range_max)
    found, merge = search_stages(pairs, y, options)
    choose = ChooseNegatives(pairs, merge, options, str(output))
    stages = [*(stage for side in sides for stage in side.stages), *found, choose]
    facts = {"input": states_of(files), "bitext": asdict(bitext), "encoder": held.fingerprint}
    mined = run_pairs_job("negatives", output, options, facts, stages, engine, show_progress)
    return MinedNegatives(**mined) if mined else None


def _summary(scores: np.ndarray) -> dict[str, float]:
    return {"mean": float(scores.mean(dtype=np.float64)), "median": float(np.median(scores))}


class Pairs(SideSource):
    """The different pairs, as rows of the different sentences of both sides; as a side of the search, the sources."""

    def __init__(self, x: PairedSide, y: PairedSide, furthest: int) -> None:
        self.x, self.y, self._furthest = x, y, furthest

    @cached_property
    def lines(self) -> np.ndarray:
        """The first line that has each pair, int64 [P]."""
        count = self.x.read.results[0].facts["rows"]
        source, target = (side.distinct.numbers.read(slice(0, count)) for side in (self.x, self.y))
        known = np.flatnonzero(source >= 0)  # lines without a pair have no target either
        pair = source[known] * self.y.distinct.counts["sentences"] + target[known]
        return known[np.sort(np.unique(pair, return_index=True)[1])]

    @cached_property
    def source(self) -> np.ndarray:
        return self.x.distinct.numbers.read(self.lines)

    @cached_property
    def target(self) -> np.ndarray:
        return self.y.distinct.numbers.read(self.lines)

    @cached_property
    def side(self) -> Side:
        return self.x.side

    @cached_property
    def k(self) -> int:
        most = int(np.unique(self.source, return_counts=True)[1].max())
        return min(self.y.distinct.counts["sentences"], self._furthest + min(most + 1, self._furthest))

    @property
    def counts(self) -> dict[str, int]:
        read = self.x.read.results[0].facts
        empty = sum(read["dropped"].values())
        return {
            "pairs": len(self.lines),
            "sources": self.x.distinct.counts["sentences"],
            "candidates": self.y.distinct.counts["sentences"],
            "empty": empty,
            "duplicates": read["rows"] - empty - len(self.lines),
        }


class ChooseNegatives(Stage):
    """Choose the negatives and write them. It is one unit."""

    name, unit = "choose", "files"

    def __init__(self, pairs: Pairs, merge: Merge, options: NegativeOptions, output: str) -> None:
        self._pairs, self._merge, self._options, self._output = pairs, merge, options, output

    def run(self, unit: None, folder: Path, advance: Advance) -> dict[str, Any]:
        pairs, written, scores, dropped = self._pairs, 0, list[np.ndarray](), Counter[str]()
        translations = _translations(pairs)
        with naming(folder), packed(folder / PAIRS_FILE, self._output) as file:
            chosen = _choose(pairs, translations, self._merge.found("x"), self._options, dropped)
            for start, negatives, of_negatives in chosen:
                written += _write(file, pairs, start, negatives)
                scores.append(of_negatives[negatives >= 0])
        if not written:
            left_out = ", ".join(f"{count:,} by {rule}" for rule, count in dropped.items() if count)
            problem = f"no negative is left ({left_out or 'there are no candidates'})"
            raise UserError(problem, cure="add `candidates`, or choose weaker margins")
        return {
            **pairs.counts,
            "pairs_with_negatives": written,
            "negatives": sum(map(len, scores)),
            "dropped": dict(dropped),
            "scores": {"translations": _summary(translations), "negatives": _summary(np.concatenate(scores))},
        }


def _translations(pairs: Pairs) -> np.ndarray:
    """Return the cosines of the pairs, float32 [P]."""
    scores = []
    for start in range(0, len(pairs.lines), _BLOCK):
        some = slice(start, start + _BLOCK)
        one, other = pairs.x.side.read(pairs.source[some]), pairs.y.side.read(pairs.target[some])
        rows = torch.arange(len(one))
        scores.append(pair_similarities(torch.from_numpy(one), torch.from_numpy(other), rows, rows).numpy())
    return np.concatenate(scores)


def _choose(
    pairs: Pairs, translations: np.ndarray, nearest: FoundNeighbours, options: NegativeOptions, dropped: Counter[str]
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the negatives of some pairs at a time: the number of the first pair, the rows of the negatives, the nearest
    first, and their scores, [n, N] each; a row is -1 if there are fewer. ``dropped`` counts candidates by rule."""
    source_hashes, hashes = pairs.x.distinct.hashes, pairs.y.distinct.hashes
    known_pairs = np.sort(pairs.source * len(hashes) + pairs.target)
    highest_scores = {
        "absolute_margin": lambda margin: translations - margin,
        "relative_margin": lambda margin: translations - np.abs(translations) * margin,
        "max_score": lambda score: score,
    }
    limits = {
        rule: np.broadcast_to(np.float32(highest(value)), translations.shape)
        for rule, highest in highest_scores.items()
        if (value := vars(options)[rule]) is not None
    }
    random = np.random.default_rng(options.seed)
    for start in range(0, len(pairs.lines), _BLOCK):
        some = slice(start, start + _BLOCK)
        source = pairs.source[some]
        found = nearest.take(source)
        candidate, score = found.index.numpy(), found.similarity.numpy()
        known = find_sorted(known_pairs, source[:, None] * len(hashes) + candidate) >= 0
        known |= hashes[candidate] == source_hashes[source][:, None]
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


def _write(file: IO[str], pairs: Pairs, start: int, negatives: np.ndarray) -> int:
    """Write the pairs from ``start`` on that have negatives, and return their number."""
    some = np.flatnonzero((negatives >= 0).any(axis=1))
    lines, negatives = pairs.lines[start + some], negatives[some]
    columns = [side.read.texts.take(lines) for side in (pairs.x, pairs.y)]
    others = iter(pairs.y.distinct.texts.take(negatives[negatives >= 0]))
    for *pair, count in zip(*columns, (negatives >= 0).sum(axis=1).tolist(), strict=True):
        file.write("\t".join(text.replace("\t", " ") for text in (*pair, *islice(others, count))) + "\n")
    return len(some)

"""Mining of hard negatives: for each pair, sentences near to its source that do not translate it."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch

import xrep
from xrep.config.ranges import out_of_range
from xrep.errors import UserError
from xrep.files import write_aside
from xrep.hashing import find_sorted
from xrep.inference.mining import OWN_FILE, RESUMABLE, MiningOptions, embed, fields, search_texts
from xrep.inference.nearest import Found, Side, found_in
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.work import work_folder
from xrep.retrieval.ivf import make_index
from xrep.retrieval.margins import first_of_each
from xrep.retrieval.topk import pair_similarities
from xrep.store.lines import Lines
from xrep.store.vectors import Vectors
from xrep.text.cleaning import NO_KEY, sentence_hash
from xrep.text.readers import Bitext, read_pairs, read_text

_BLOCK = 1 << 13
"""Number of pairs whose candidates are compared at a time."""


@dataclass(frozen=True, kw_only=True)
class NegativeOptions:
    """Options of ``mine_negatives``; most have the names of sentence-transformers' ``mine_hard_negatives``.

    Raises:
        UserError: A value is out of range.
    """

    num_negatives: int = 3
    """Maximum number of negatives of each pair."""
    range_min: int = 0
    """Skip this number of candidates, the nearest to the source that do not translate it."""
    range_max: int = 50
    """Take none beyond this rank."""
    absolute_margin: float | None = None
    """Leave out candidates whose score is above that of the true translation minus this value."""
    relative_margin: float | None = 0.05
    """Leave out candidates whose score is above (1 - relative_margin) times that of the true translation: they may be
    translations, too. A negative value allows higher scores than that of the true translation."""
    max_score: float | None = None
    """Leave out candidates whose score is above this value."""
    min_score: float | None = None
    """Leave out candidates whose score is below this value: they would be too easy."""
    max_percentile: float | None = None
    """Leave out candidates whose score is above this percentile of the scores of all true translations, in [0, 100]."""
    sampling_strategy: Literal["top", "random"] = "top"
    """Which of the remaining candidates are taken: the nearest, or any of them at random."""
    seed: int = 1
    """Random seed of the sampling strategy random."""
    index: str = "flat"
    """flat is exact search. Others may miss neighbours and are faster for millions of sentences: ivf, an inverted file
    of faiss for the number of sentences, or a string of faiss's own factory, such as IVF4096,SQ8 or
    IVF4096,PQ192x4fs."""
    probes: int = 32
    """Number of cells of an inverted file that are searched for each sentence."""
    batch_tokens: int = 4096
    """Number of subwords per batch of the encoder."""
    device: str = "cpu"
    """Device on which the exact search computes its products."""

    def __post_init__(self) -> None:
        ranges = dict.fromkeys(("num_negatives", "range_max", "probes", "batch_tokens"), "[1, 2147483647]")
        ranges |= {name: "[-1e9, 1e9]" for name in ("absolute_margin", "relative_margin", "max_score", "min_score")}
        ranges |= {"range_min": "[0, 2147483647]", "seed": "[0, inf)", "max_percentile": "[0, 100]"}
        for problem in out_of_range(self, **ranges):
            name, _, rest = problem.partition(" ")
            raise UserError(f"`{name}` {rest}")
        if self.range_min >= self.range_max:
            raise UserError(f"`range_min` {self.range_min} is not below `range_max` {self.range_max}")


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
    output: Path,
    options: NegativeOptions,
    *,
    encoder: SentenceEncoder,
    candidates: Path | None = None,
    show_progress: bool = False,
) -> MinedNegatives:
    """Write pairs with hard negatives as lines ``source<TAB>target<TAB>negative...``, the nearest negative first.

    The candidates are the targets of all pairs and the lines of ``candidates``. Known translations of a source, and
    sentences equal to one or to the source itself, are never its negatives; case and punctuation do not count. A
    candidate is scored by its cosine with the source. Of equal pairs the first is written, and pairs without a negative
    are left out. An interrupted call goes on in ``{output}.work``, as ``mine`` does. The pairs are read twice. Memory
    grows by some 300 bytes for each different sentence.

    Raises:
        UserError: A text is invalid, the encoder does not know a language, or no negative is left.
        Interrupted: Ctrl-C was pressed, and what was being worked on is saved.
    """
    began = time.monotonic()
    work = output.with_name(f"{output.name}.work")
    shared = {name: vars(options)[name] for name in ("index", "probes", "batch_tokens", "device")}
    if options.index != "flat":
        make_index(options.index, encoder.output_size)
    with work_folder(work, OWN_FILE, "mining into this file", RESUMABLE):
        pairs = _read(bitext, candidates, work)
        source, target = (
            embed(lines, lang, encoder, options.batch_tokens)
            for lines, lang in zip((pairs.sources, pairs.targets), bitext.languages, strict=True)
        )
        x, y = (Side(vectors, None, 0, len(vectors)) for vectors in (source, target))
        most = int(np.unique(pairs.source, return_counts=True)[1].max())
        k = min(len(y), options.range_max + min(most + 1, options.range_max))
        facts: dict[str, Any] = {"source": pairs.sources.digest(), "target": pairs.targets.digest(), "neighbours": k}
        facts |= {"encoder": encoder.fingerprint(), "languages": list(bitext.languages), "version": xrep.__version__}
        facts |= {"index": options.index, "probes": options.probes}
        search_texts(x, y, k, 0, work, MiningOptions(**shared), facts, show_progress)
        choice = _Choice(pairs, source, target, found_in([work], "x", k), options)
        with write_aside(output) as aside, aside.open("w", encoding="utf-8", newline="\n") as file:
            written, scores = _write(file, pairs, choice)
    return MinedNegatives(
        path=str(output),
        pairs=len(pairs.source),
        pairs_with_negatives=written,
        negatives=len(scores),
        sources=len(pairs.source_keys),
        candidates=len(pairs.target_keys),
        empty=pairs.empty,
        duplicates=pairs.duplicates,
        dropped=dict(choice.dropped),
        scores={"translations": _summary(choice.translations), "negatives": _summary(scores)},
        settings=asdict(options),
        version=xrep.__version__,
        seconds=time.monotonic() - began,
    )


def _summary(scores: np.ndarray) -> dict[str, float]:
    return {"mean": float(scores.mean(dtype=np.float64)), "median": float(np.median(scores))}


@dataclass(frozen=True)
class _Pairs:
    """Different pairs, as rows of the different sentences of both sides, int64 [P] each; these sentences, and their
    hashes, uint64 [S] and [C]."""

    source: np.ndarray
    target: np.ndarray
    sources: Lines
    targets: Lines
    source_keys: np.ndarray
    target_keys: np.ndarray
    empty: int
    duplicates: int


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


def _read(bitext: Bitext, candidates: Path | None, work: Path) -> _Pairs:
    """Read the pairs and further candidates, and write the different sentences of each side to a folder."""
    both, rows, lines = (_Sentences(), _Sentences()), (array("q"), array("q")), list[Lines]()
    for side, name in enumerate(("source", "target")):
        (work / name).mkdir(exist_ok=True)
        new = both[side].new((texts[side] for _, *texts in read_pairs(bitext)), rows[side])
        if side == 1 and candidates is not None:
            more = (text for _, text in read_text(candidates, bitext.languages[1]))
            new = chain(new, both[side].new(more, array("q")))
        lines.append(Lines.write(work / name, new))
    source, target = (np.frombuffer(each, np.int64) for each in rows)
    worded = (source >= 0) & (target >= 0)
    if not worded.any():
        raise UserError("no pair with words on both sides", path=bitext.paths[0], cure="give parallel text")
    source, target = source[worded], target[worded]
    kept = first_of_each(source * len(lines[1]) + target)
    return _Pairs(
        source=source[kept],
        target=target[kept],
        sources=lines[0],
        targets=lines[1],
        source_keys=both[0].keys(),
        target_keys=both[1].keys(),
        empty=int(np.count_nonzero(~worded)),
        duplicates=len(source) - len(kept),
    )


class _Choice:
    """Chooses the negatives of pairs among the neighbours of their sources, block by block.

    Attributes:
        translations: Scores of the true translations, float32 [P].
        dropped: How many candidates each rule has left out so far.
    """

    def __init__(self, pairs: _Pairs, x: Vectors, y: Vectors, nearest: Found, options: NegativeOptions) -> None:
        self._pairs, self._nearest, self._options = pairs, nearest, options
        self._known = np.sort(pairs.source * len(pairs.targets) + pairs.target)
        self._random = np.random.default_rng(options.seed)
        scores = []
        for start in range(0, len(pairs.source), _BLOCK):
            some = slice(start, start + _BLOCK)
            one, other = (torch.from_numpy(s.read(rows[some])) for s, rows in ((x, pairs.source), (y, pairs.target)))
            rows = torch.arange(len(one))
            scores.append(pair_similarities(one, other, rows, rows).numpy())
        self.translations = np.concatenate(scores)
        limit = options.max_percentile
        self._percentile = None if limit is None else float(np.percentile(self.translations, limit))
        self.dropped = Counter[str]()

    def __call__(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return rows of the negatives of pairs ``start`` to ``stop`` - 1, the nearest first, and their scores: [n, N]
        each; a row is -1 if there are fewer."""
        options, pairs, some = self._options, self._pairs, slice(start, stop)
        source = pairs.source[some]
        nearest = self._nearest.take(source)
        candidate, score = nearest.index.numpy(), nearest.similarity.numpy()
        true = self.translations[some, None]
        known = find_sorted(self._known, source[:, None] * len(pairs.targets) + candidate) >= 0
        same = pairs.target_keys[candidate] == pairs.source_keys[source][:, None]
        usable = candidate >= 0
        usable = self._drop("translation", usable, known | same)
        rank = usable.cumsum(axis=1) - 1
        usable &= rank < options.range_max
        usable = self._drop("range_min", usable, rank < options.range_min)
        if options.absolute_margin is not None:
            usable = self._drop("absolute_margin", usable, score > true - options.absolute_margin)
        if options.relative_margin is not None:
            usable = self._drop("relative_margin", usable, score > true - np.abs(true) * options.relative_margin)
        if self._percentile is not None:
            usable = self._drop("max_percentile", usable, score > self._percentile)
        if options.max_score is not None:
            usable = self._drop("max_score", usable, score > options.max_score)
        if options.min_score is not None:
            usable = self._drop("min_score", usable, score < options.min_score)
        drawn = self._random.random(usable.shape) if options.sampling_strategy == "random" else np.zeros(usable.shape)
        first = np.argsort(np.where(usable, drawn, 2), axis=1, kind="stable")[:, : options.num_negatives]
        places = np.sort(first, axis=1)
        taken = np.take_along_axis(usable, places, axis=1)
        negatives, scores = (np.take_along_axis(each, places, axis=1) for each in (candidate, score))
        return np.where(taken, negatives, -1), scores

    def _drop(self, rule: str, usable: np.ndarray, unwanted: np.ndarray) -> np.ndarray:
        """Return the candidates that a rule leaves, bool [n, k], and count the others."""
        self.dropped[rule] += int(np.count_nonzero(usable & unwanted))
        return usable & ~unwanted


def _write(file: IO[str], pairs: _Pairs, choice: _Choice) -> tuple[int, np.ndarray]:
    """Write the pairs with their negatives; return the number of pairs, and the scores of the negatives."""
    written, of_negatives = 0, list[np.ndarray]()
    for start in range(0, len(pairs.source), _BLOCK):
        negatives, scores = choice(start, start + _BLOCK)
        taken = negatives >= 0
        of_negatives.append(scores[taken])
        some = np.flatnonzero(taken.any(axis=1))
        rows = np.column_stack((pairs.target[start + some], negatives[some]))
        sources = fields(pairs.sources, pairs.source[start + some])
        targets = iter(fields(pairs.targets, rows[rows >= 0]))
        for source, count in zip(sources, (rows >= 0).sum(axis=1).tolist(), strict=True):
            file.write("\t".join([source, *islice(targets, count)]) + "\n")
        written += len(some)
    if not written:
        dropped = ", ".join(f"{count:,} by {rule}" for rule, count in choice.dropped.items() if count)
        problem = f"no negative is left ({dropped or 'there are no candidates'})"
        raise UserError(problem, cure="add `candidates`, or choose weaker margins")
    return written, np.concatenate(of_negatives)

"""Mining of planted translations with our margins, beside LASER's rule on the same vectors.

  scripts/mining_set.py --pair de-en --removed 0.5 --removed-source 0.3 --output mining/ \\
      training=newstest2011.de,newstest2011.en test=newstest2012.de,newstest2012.en
  python benchmarks/mining_study.py --path run1/best --data mining/

Each side is encoded once. A threshold is the best one of the training split, and the figures are those of the test
split (the protocol of BUCC). LASER's rule, that of its mine_bitexts.py, is written here with faiss and numpy. Its `max`
uses each target once, as ours does with one_to_one; its `backward` may use a source several times, ours uses it once.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from harness import make_parser, progress, write_json

from xrep_cli.command import console_script

if TYPE_CHECKING:
    import numpy as np

    from xrep.evaluation.bucc import BuccSplit
    from xrep.evaluation.encoders import MeasuredEncoder
    from xrep.retrieval.margins import Candidates, Margin, Retrieval

Pair = tuple[int, int]
Vectors = tuple["np.ndarray", "np.ndarray"]
RETRIEVALS = ("forward", "backward", "intersection", "max", "max, one to one")
"""Ways of choosing pairs; LASER's rule has all but the plain ``max``."""


def laser(x: np.ndarray, y: np.ndarray, k: int, margin: str, retrieval: str) -> Candidates:
    """Return the pairs that LASER's ``mine_bitexts.py`` finds in unit vectors [N, D] and [M, D], best first.

    Args:
        retrieval: ``forward``, ``backward``, ``intersection`` or ``max, one to one``, its fwd, bwd, intersect and max.
    """
    import faiss
    import numpy as np

    from xrep.retrieval.margins import Candidates

    found = []
    for queries, side in ((x, y), (y, x)):
        index = faiss.IndexFlatIP(side.shape[1])
        index.add(side)
        found.append(index.search(queries, k))
    means = [similarity.mean(axis=1) for similarity, _ in found]

    def best(direction: int) -> Vectors:
        """Return the best neighbour of each row of one side by margin, and its score."""
        similarity, rows = found[direction]
        around = (means[direction][:, None] + means[1 - direction][rows]) / 2
        scores = {"absolute": similarity, "distance": similarity - around, "ratio": similarity / around}[margin]
        every, chosen = np.arange(len(rows)), scores.argmax(axis=1)
        return rows[every, chosen], scores[every, chosen]

    (targets, forward), (sources, backward) = best(0), best(1)
    source = np.concatenate((np.arange(len(x)), sources))
    target = np.concatenate((targets, np.arange(len(y))))
    score = np.concatenate((forward, backward))
    if retrieval == "forward":
        kept = np.arange(len(x))
    elif retrieval == "backward":
        kept = len(x) + np.arange(len(y))
    elif retrieval == "intersection":
        kept = np.flatnonzero(sources[targets] == np.arange(len(x)))
    else:
        kept, used = [], (set[int](), set[int]())
        for place in np.argsort(-score, kind="stable"):
            pair = int(source[place]), int(target[place])
            if pair[0] not in used[0] and pair[1] not in used[1]:
                kept.append(place)
                used[0].add(pair[0])
                used[1].add(pair[1])
    pairs = Candidates(source, target, score).take(np.asarray(kept))
    return pairs.take(np.argsort(-pairs.score, kind="stable"))


def ours(x: np.ndarray, y: np.ndarray, k: int, margin: Margin, retrieval: str) -> Candidates:
    """Return the pairs that xrep finds with one of the ``RETRIEVALS``, best first."""
    from xrep.retrieval.in_memory import neighbours
    from xrep.retrieval.margins import choose

    name, _, once = retrieval.partition(", ")
    return choose(*neighbours(x, y, k, k), margin, cast("Retrieval", name), one_to_one=bool(once))


def measure(
    rule: Callable[..., Candidates], splits: dict[str, BuccSplit], vectors: dict[str, Vectors], *how: Any
) -> tuple[set[Pair], dict[str, Any]]:
    """Return the pairs that a rule extracts from the test split with the threshold of the training split, and their
    precision, recall and F1."""
    import numpy as np

    from xrep.metrics.extraction import best_threshold, mining_scores

    threshold, taken, right, gold = -np.inf, set[Pair](), 0, set[Pair]()
    for name, split in splits.items():
        mined, gold = rule(*vectors[name], *how), {(int(source), int(target)) for source, target in split.pairs.gold}
        pairs = list(zip(mined.source.tolist(), mined.target.tolist(), strict=True))
        correct = np.array([pair in gold for pair in pairs])
        if name == "training":
            threshold, _ = best_threshold(mined.score, correct, len(gold))
        above = mined.score.astype(np.float64) >= threshold
        taken = {pair for pair, is_taken in zip(pairs, above.tolist(), strict=True) if is_taken}
        right = int(correct[above].sum())
    return taken, vars(mining_scores(right, len(taken), len(gold)))


def study(encoder: MeasuredEncoder, splits: dict[str, BuccSplit], k: int) -> list[dict[str, Any]]:
    """Return the scores of each margin and retrieval, and in how many pairs ours and LASER's differ."""
    from xrep.retrieval.margins import MARGINS, check_neighbours

    vectors: dict[str, Vectors] = {}
    for name, split in splits.items():
        sides = split.source, split.target
        progress(f"{split.pairs.name} {name}: {' and '.join(str(len(side)) for side in sides)} sentences")
        check_neighbours(k, *(len(side) for side in sides))
        x, y = (encoder.encode(side.columns[0], side.languages[0]) for side in sides)
        vectors[name] = x, y
    results = []
    for how in itertools.product([k], MARGINS, RETRIEVALS):
        found, scores = measure(ours, splits, vectors, *how)
        result: dict[str, Any] = {"margin": how[1], "retrieval": how[2], "ours": scores}
        if how[2] != "max":
            theirs, scores = measure(laser, splits, vectors, *how)
            result |= {"laser": scores, "differing": len(found ^ theirs)}
        results.append(result)
    return results


def main_script(argv: Sequence[str]) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--path", required=True, metavar="ENCODER", help="a checkpoint, or a directory of another library")
    add("--data", required=True, metavar="FOLDER", help="what scripts/mining_set.py wrote: splits training and test")
    add("--langs", default="all", metavar="PAIR", help="the language pair, if there are several")
    add("--neighbours", type=int, default=4, metavar="K", help="neighbours in each direction")
    options = parser.parse_args(argv)

    from xrep.errors import UserError
    from xrep.evaluation.bucc import find_gold, read_split
    from xrep.evaluation.encoders import open_encoder

    (pair, gold), *others = find_gold(options.langs, options.data).items()
    if others or not {"training", "test"} <= {*gold}:
        problem = f"{len(others) + 1} language pairs" if others else f"{pair} has only the splits {' '.join(gold)}"
        raise UserError(problem, path=options.data, cure="give --langs one pair with training and test")
    splits = {name: read_split(gold[name]) for name in ("training", "test")}
    results = study(open_encoder(options.path), splits, options.neighbours)
    print("| margin | retrieval | precision | recall | F1 | LASER: precision | recall | F1 | pairs that differ |")
    print("| --- " * 9 + "|")
    for result in results:
        figures = []
        for name in ("ours", "laser"):
            own = result.get(name)
            figures += [f"{own[column]:.1f}" for column in ("precision", "recall", "f1")] if own else [""] * 3
        print(f"| {result['margin']} | {result['retrieval']} | {' | '.join(figures)} | {result.get('differing', '')} |")
    write_json(options.json, {"neighbours": options.neighbours, "results": results})


main = console_script("benchmarks/mining_study.py")(main_script)

if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Choose pairs of which every fifth repeats another one in other words, for the effect mask_margin.

  examples/practice/other_wordings.py deu-eng.tsv pairs.tsv --pairs 20000

The input has lines of English, a tab and a translation, with several wordings on either side, as those of Tatoeba. Half
of the repetitions have the same English sentence and another translation. In the other half both sides differ: two
English sentences that have a translation in common say the same, and the second one has another translation, too.
Otherwise no sentence occurs twice. The same --seed makes the same file.
"""

import argparse
import random
from collections import defaultdict
from pathlib import Path

from xrep.text.cleaning import sentence_hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--pairs", type=int, default=20000, help="number of pairs (default: 20000)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    options = parser.parse_args()
    lines = options.input.read_text(encoding="utf-8").splitlines()
    pairs = [(english, other) for english, other, *_ in (line.split("\t") for line in lines)]
    random.Random(options.seed).shuffle(pairs)
    written = choose(pairs, options.pairs)
    options.output.write_text("".join(f"{other}\t{english}\n" for english, other in written), encoding="utf-8")
    print(f"{len(written)} pairs in {options.output}")


def choose(pairs: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    """Return ``count`` pairs, a fifth of which says the same as another one."""
    hashes = (sentence_hashes(side).tolist() for side in zip(*pairs, strict=True))
    keys = dict(zip(pairs, zip(*hashes, strict=True), strict=True))
    by_side = defaultdict[int, list[tuple[str, str]]](list)
    for pair in pairs:
        for key in keys[pair]:
            by_side[key].append(pair)
    used, chosen = set[int](), list[tuple[str, str]]()

    def take(*some: tuple[str, str], different: int = 2) -> bool:
        """Take the pairs if all of their sentences are new, and so many of them differ."""
        new = {key for pair in some for key in keys[pair]}
        if used & new or len(new) != different:
            return False
        used.update(new)
        chosen.extend(some)
        return True

    for pair in pairs:  # the twins first
        if len(chosen) < count // 5:
            any(take(pair, twin, different=3) for twin in by_side[keys[pair][0]])
        elif len(chosen) < 2 * count // 5:
            same = by_side[keys[pair][1]]
            any(take(pair, twin, different=4) for other in same for twin in by_side[keys[other][0]])
    for pair in chosen[:]:  # nothing else shares a sentence with a group
        used.update(key for side in keys[pair] for near in by_side[side] for key in keys[near])
    for pair in pairs:
        if len(chosen) >= count:
            break
        take(pair)
    random.Random(len(chosen)).shuffle(chosen)
    return chosen


if __name__ == "__main__":
    main()

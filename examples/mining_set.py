#!/usr/bin/env python3
"""Make a mining task for `xrep-eval bucc` from parallel text, for the effects of DAP and HiCTL.

  examples/mining_set.py --pair de-en --output mining/ training=newstest2011.de,newstest2011.en \\
      test=newstest2012.de,newstest2012.en

Both sides are shuffled, and half of the sentences of the second side are left out, so that as many sentences of the
first side have no translation, as in real text. The same --seed makes the same files.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from xrep.errors import UserError
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("splits", nargs="+", metavar="SPLIT=SOURCE,TARGET", help="two parallel files, or one TSV file")
    parser.add_argument("--pair", required=True, help="languages of the two files, such as de-en")
    parser.add_argument("--output", required=True, type=Path, help="folder of the task")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    options = parser.parse_args(arguments)
    try:
        for given in options.splits:
            print(make(given, options.pair, options.output, options.seed))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def make(given: str, pair: str, output: Path, seed: int) -> str:
    """Write the three files of one split and return a line that describes them. Raises UserError as its readers do."""
    split, _, files = given.partition("=")
    bitext = parse_bitext(f"{pair}={files}")
    sides = list(zip(*((source, target) for _, source, target in read_pairs(bitext)), strict=True))
    draw, count = random.Random(f"{seed} {split}"), len(sides[0])
    left_out: tuple[set[int], set[int]] = set(), set(draw.sample(range(count), round(count / 2)))
    places: list[dict[int, str]] = []
    output.mkdir(parents=True, exist_ok=True)
    for language, sentences, gone in zip(bitext.languages, sides, left_out, strict=True):
        rows = [row for row in range(count) if row not in gone]
        draw.shuffle(rows)
        places.append({row: f"{language}-{number:09d}" for number, row in enumerate(rows, start=1)})
        write(
            output / f"{'-'.join(bitext.languages)}.{split}.{language}",
            [(places[-1][row], sentences[row]) for row in rows],
        )
    gold = sorted((places[0][row], places[1][row]) for row in places[1])
    write(output / f"{'-'.join(bitext.languages)}.{split}.gold", gold)
    return f"{split}: {len(places[0])} and {len(places[1])} sentences, {len(gold)} translations"


def write(path: Path, rows: list[tuple[str, str]]) -> None:
    path.write_text("".join(f"{first}\t{second}\n" for first, second in rows), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

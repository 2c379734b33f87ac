#!/usr/bin/env python3
"""Make a mining task for `xrep-eval bucc` from parallel text.

  scripts/mining_set.py --pair de-en --output mining/ training=newstest2011.de,newstest2011.en \\
      test=newstest2012.de,newstest2012.en

Both sides are shuffled. Half of the sentences of the second side (--removed) are left out, so that as many sentences of
the first side have no translation, as in real text; --removed-source does the same to the first side, of other pairs.
The same --seed makes the same files.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("splits", nargs="+", metavar="SPLIT=SOURCE,TARGET", help="two parallel files, or one TSV file")
    parser.add_argument("--pair", required=True, help="languages of the two files, such as de-en")
    parser.add_argument("--output", required=True, type=Path, help="folder of the task")
    parser.add_argument("--removed", type=float, default=0.5, help="share of the second side left out (default: 0.5)")
    parser.add_argument("--removed-source", type=float, default=0.0, help="the same of the first side (default: 0)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    options = parser.parse_args(arguments)
    try:
        for given in options.splits:
            print(make(given, options.pair, options.output, (options.removed_source, options.removed), options.seed))
    except UserError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    return 0


def make(given: str, pair: str, output: Path, removed: tuple[float, float], seed: int) -> str:
    """Write the three files of one split and return a line that describes them.

    Args:
        removed: Share of the sentences of the first and of the second side that are left out, of different pairs.

    Raises:
        UserError: An argument or a file is not valid.
    """
    split, equals, files = given.partition("=")
    bitext = parse_bitext(f"{pair}={files}")
    if not equals or not split or not (min(removed) >= 0 and sum(removed) <= 1):
        cure = "write test=FILE.de,FILE.en, and shares in [0, 1] that add up to 1 at most"
        raise UserError(f"{given!r}, removed {removed[1]}, removed from the source {removed[0]}", cure=cure)
    sides = list(zip(*((source, target) for _, source, target in read_pairs(bitext)), strict=True))
    if not sides:
        raise UserError("no pairs", path=bitext.paths[0])
    draw = random.Random(f"{seed} {split}")
    count = len(sides[0])
    of_target, of_source = round(removed[1] * count), int(removed[0] * count)
    drawn = draw.sample(range(count), of_target + of_source)
    missing = set(drawn[of_target:]), set(drawn[:of_target])
    places: list[dict[int, str]] = []
    stem = output / f"{bitext.languages[0]}-{bitext.languages[1]}.{split}"
    output.mkdir(parents=True, exist_ok=True)
    for language, sentences, gone in zip(bitext.languages, sides, missing, strict=True):
        rows = [row for row in range(len(sentences)) if row not in gone]
        draw.shuffle(rows)
        places.append({row: f"{language}-{number:09d}" for number, row in enumerate(rows, start=1)})
        lines = "".join(f"{places[-1][row]}\t{sentences[row]}\n" for row in rows)
        _write(stem.with_name(f"{stem.name}.{language}"), lines)
    gold = sorted((places[0][row], places[1][row]) for row in places[0].keys() & places[1].keys())
    _write(stem.with_name(f"{stem.name}.gold"), "".join(f"{source}\t{target}\n" for source, target in gold))
    return f"{split}: {len(places[0])} and {len(places[1])} sentences, {len(gold)} translations"


def _write(path: Path, text: str) -> None:
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Plant wrong pairs in parallel text, and measure how well scores find them.

  examples/practice/filtering.py plant --bitext de-en=train.de,train.en --output noisy/
  examples/practice/filtering.py measure --path run1/best --noisy noisy/ --pair de-en --seed 1 --output filtering.csv

`plant` writes text.de, text.en and labels.txt, in which each line says whether the pair is right, misaligned (the
target is that of another line) or untranslated (the target is the source). A share of 0.15 is made wrong in each way.
`measure` scores the pairs by `xrep-score` and by simpler scores, and writes a line for each: the area under the ROC
curve (AUC), also of the right pairs beside the wrong ones of each kind alone, and the best F1 of any threshold, for
which the right pairs count as what is to be found. Lines that xrep-score leaves out by its rules come last. The lines
of other seeds stay in the file.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from xrep.metrics import best_threshold
from xrep.text.cleaning import sentence_length
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext

Pair = tuple[str, str]
RULES = "--keep-identical --min-length 0 --max-length 1000000 --max-length-ratio 1000000".split()
"""Options with which xrep-score leaves out only empty lines."""
WRONG = ("misaligned", "untranslated")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    planting, measuring = commands.add_parser("plant"), commands.add_parser("measure")
    planting.add_argument("--bitext", action="append", required=True, metavar="PAIR=FILES", help="text (repeatable)")
    planting.add_argument("--output", required=True, type=Path, help="folder to write")
    planting.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    measuring.add_argument("--path", required=True, help="the encoder")
    measuring.add_argument("--noisy", required=True, type=Path, help="folder that `plant` wrote")
    measuring.add_argument("--pair", required=True, help="languages, such as de-en")
    measuring.add_argument("--seed", required=True, help="that of the noise and the encoder, for the first column")
    measuring.add_argument("--output", required=True, type=Path, help="table of figures (CSV)")
    options = parser.parse_args(arguments)
    if options.command == "plant":
        plant(options.bitext, options.output, options.seed)
    else:
        measure(options.path, options.noisy, options.pair, options.seed, options.output)


def plant(specs: Iterable[str], output: Path, seed: int) -> None:
    bitexts = [parse_bitext(spec) for spec in specs]
    rows = [pair for bitext in bitexts for _, *pair in read_pairs(bitext) if all(map(str.strip, pair))]
    draw, labels = random.Random(seed), ["right"] * len(rows)
    chosen = draw.sample(range(len(rows)), round(0.3 * len(rows)))
    misaligned, untranslated = chosen[::2], chosen[1::2]
    targets = [rows[row][1] for row in misaligned]
    for row, target in zip(misaligned, [*targets[1:], *targets[:1]], strict=True):
        if target != rows[row][1]:
            rows[row][1], labels[row] = target, "misaligned"
    for row in untranslated:
        rows[row][1], labels[row] = rows[row][0], "untranslated"
    output.mkdir(parents=True, exist_ok=True)
    for side, language in enumerate(bitexts[0].languages):
        write(output / f"text.{language}", (row[side] for row in rows))
    write(output / "labels.txt", labels)


def write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def measure(encoder: str, noisy: Path, pair: str, seed: str, output: Path) -> None:
    bitext = f"{pair}={','.join(str(noisy / f'text.{language}') for language in pair.split('-'))}"
    rows = [(source.strip(), target.strip()) for _, source, target in read_pairs(parse_bitext(bitext))]
    labels = np.array((noisy / "labels.txt").read_text(encoding="utf-8").split())
    lengths = np.array([[sentence_length(side) for side in row] for row in rows]) + 2
    scored = {"length ratio": -np.abs(np.log(lengths[:, 0] / lengths[:, 1]))}
    for name, options in (("ratio margin, as LASER", RULES), ("xrep-score", [])):
        place = output.with_suffix(f".{len(options)}.tsv")
        given = ["--path", encoder, "--bitext", bitext, "--output", str(place), *options]
        subprocess.run(["xrep-score", *given], check=True)
        scored[name], cosines = np.array([*scores_of(rows, place)]).T
        scored.setdefault("cosine", cosines)
    header = ["seed", "score", "AUC", *(f"AUC, {kind}" for kind in WRONG), "best F1", "precision", "recall"]
    known = list(csv.reader(output.open(encoding="utf-8"))) if output.exists() else []
    lines = [header, *(line for line in known[1:] if line[0] != seed)]
    for name, scores in scored.items():
        areas = [100 * area(scores, labels, kinds) for kinds in (WRONG, *((kind,) for kind in WRONG))]
        found = best_threshold(np.maximum(scores, -1e9), labels == "right", int((labels == "right").sum()))[1]
        figures = *areas, found.f1, found.precision, found.recall
        lines.append([seed, name, *(f"{figure:.2f}" for figure in figures)])
    with output.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


def scores_of(rows: Iterable[Pair], scored: Path) -> Iterator[tuple[float, float]]:
    """Yield score and cosine of each pair, in the order of which they were written; -inf for one that was left out."""
    with scored.open(encoding="utf-8") as lines:
        written = itertools.chain((line.rstrip("\n").split("\t") for line in lines), [["", "", "", ""]])
        score, cosine, *pair = next(written)
        for row in rows:
            if [side.replace("\t", " ") for side in row] == pair:
                yield float(score), float(cosine)
                score, cosine, *pair = next(written)
            else:
                yield -np.inf, -np.inf


def area(scores: np.ndarray, labels: np.ndarray, kinds: Iterable[str]) -> float:
    """Return the share of all right and wrong pairs, of some kinds, in which the right one has the higher score; equal
    scores count half."""
    right, wrong = scores[labels == "right"], scores[np.isin(labels, [*kinds])]
    ranks = rankdata(np.concatenate((right, wrong)))[: len(right)]
    return float((ranks.sum() - len(right) * (len(right) + 1) / 2) / (len(right) * len(wrong)))


if __name__ == "__main__":
    sys.exit(main())

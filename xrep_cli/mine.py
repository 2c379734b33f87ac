"""xrep-mine: find pairs of lines of two texts that may translate each other."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from xrep_cli.common import (
    add_shared_options,
    check_outputs,
    choose_device,
    command_parser,
    command_script,
    write_summary,
)

DESCRIPTION = """\
Find translations in two texts that are not aligned. The output has lines score<TAB>source<TAB>target, best first.

  xrep-mine --path run1/best --source de.txt --source-lang de --target en.txt --target-lang en --output mined.tsv
  xrep-mine --source-vectors de.npy --target-vectors en.npy --source de.txt --target en.txt --output mined.tsv \\
      --margin ratio --neighbours 4 --threshold 1.06 --one-to-one

The texts may have any number of lines: vectors stay on disk, and memory grows by about 200 bytes per sentence. Empty
and repeated lines are left out. Without texts, the output has row numbers, counted from 1. If the command is
interrupted, repeat it: it continues where it stopped.

To use several machines, encode both texts once with xrep-encode, run the same command with --shard 1/8 to --shard 8/8,
copy the folders mined.tsv.shard-i-of-8 to one machine, and run the command there with --merge 8."""


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-mine", DESCRIPTION)
    add = parser.add_argument
    add("--path", metavar="ENCODER", help="a checkpoint, or a directory of Hugging Face or sentence-transformers")
    for side in ("source", "target"):
        add(f"--{side}", metavar="FILE", help=f"the {side} text: UTF-8 (also .gz and .xz), one sentence per line")
        add(f"--{side}-lang", metavar="CODE", help=f"language of the {side}; needed if the encoder has two towers")
        add(f"--{side}-vectors", metavar="FILE.npy", help=f"the vectors of the {side}, [lines, size], to use instead "
            "of an encoder")  # fmt: skip
    add("--output", required=True, metavar="FILE.tsv", help="the file to write the pairs to")
    add("--margin", choices=("absolute", "distance", "ratio"), default="ratio", help="score of a pair: its cosine; its "
        "cosine minus the mean cosine of both sides with their neighbours; or divided by it")  # fmt: skip
    add("--neighbours", type=int, default=4, metavar="K", help="number of neighbours in each direction, which the "
        "margin averages and among which translations are searched")  # fmt: skip
    add("--retrieval", choices=("forward", "backward", "intersection", "max"), default="max", help="candidates: the "
        "best target of each source; the best source of each target; pairs that are both; pairs that are "
        "either")  # fmt: skip
    add("--threshold", type=float, metavar="SCORE", help="leave out pairs with a lower score")
    add("--one-to-one", action="store_true", help="use each target only once, in its best pair")
    add("--index", choices=("flat", "ivf", "ivf-pq"), default="flat", help="flat is exact search; the others are "
        "faiss's inverted files, which may miss neighbours and are faster for millions of sentences")  # fmt: skip
    add("--probes", type=int, default=32, metavar="N", help="number of cells of an inverted file searched per sentence")
    add("--shard", metavar="I/N", help="search only part I of N parts of the source")
    add("--merge", type=int, metavar="N", help="merge the results of N shards")
    add_shared_options(parser, "--batch-tokens", "--device", "--plugin")
    add("--json", metavar="FILE", help="write a summary as JSON; - prints it on standard output")
    return parser


def _shard(given: str | None) -> tuple[int, int] | None:
    from xrep.errors import UserError

    if given is None:
        return None
    part, _, parts = given.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise UserError(f"--shard {given}", cure="write --shard 1/8, the parts being counted from 1")
    return int(part), int(parts)


def _check(options: argparse.Namespace) -> None:
    """Raise UserError if an option is invalid, before anything is read."""
    from xrep.errors import UserError

    for name in ("neighbours", "probes", "batch_tokens", "merge"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} {value}", cure="give at least 1")
    for side in ("source", "target"):
        if getattr(options, f"{side}_vectors") is not None:
            continue
        if getattr(options, side) is None:
            raise UserError(f"no {side}", cure=f"give --{side} FILE with --path, or --{side}-vectors FILE.npy")
        if options.path is None:
            raise UserError(f"no encoder for {getattr(options, side)}", cure=f"give --path or --{side}-vectors")
        if options.shard or options.merge:
            cure = f"encode it once with xrep-encode, and give --{side}-vectors"
            raise UserError("each shard would encode the texts anew", cure=cure)
    if options.shard and options.merge:
        raise UserError("--shard and --merge", cure="merge when all shards are there")
    sides = ("source", "target", "source_vectors", "target_vectors")
    inputs = {f"--{name.replace('_', '-')}": getattr(options, name) for name in sides}
    check_outputs({"--output": options.output, "--json": options.json}, inputs)


def _main(options: argparse.Namespace) -> None:
    _check(options)
    shard = _shard(options.shard)

    from dataclasses import asdict

    from xrep.inference.mining import MiningOptions, Text, mine
    from xrep.inference.sentence_encoder import SentenceEncoder
    from xrep.registry import import_plugin

    for plugin in options.plugin:
        import_plugin(plugin)
    device = choose_device(options.device)
    sides: list[Text] = []
    for side in ("source", "target"):
        text, vectors = (getattr(options, name) for name in (side, f"{side}_vectors"))
        files = {"text": text and Path(text), "vectors": vectors and Path(vectors)}
        sides.append(Text(name=side, lang=getattr(options, f"{side}_lang"), **files))
    source, target = sides
    needed = any(side.vectors is None for side in sides)
    encoder = SentenceEncoder.load(options.path, device=device) if needed else None
    names = ("margin", "neighbours", "retrieval", "threshold", "one_to_one", "index", "probes", "batch_tokens")
    mining = MiningOptions(device=device, **{name: getattr(options, name) for name in names})
    output = Path(options.output)
    mined = mine(source, target, output, mining, encoder=encoder, shard=shard, merged=options.merge, show_progress=True)
    write_summary(asdict(mined), options.json)
    if options.json != "-":
        result = "searched" if mined.pairs is None else f"{mined.pairs:,} pairs"
        left_out = f"{sum(mined.empty):,} empty and {sum(mined.duplicates):,} repeated lines left out"
        print(f"{result}: {mined.sources:,} x {mined.targets:,} sentences, {left_out}: {mined.path}")


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

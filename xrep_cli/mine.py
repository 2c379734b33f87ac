"""xrep-mine: two texts in, pairs of lines that may translate each other out."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from xrep_cli.common import choose_device, command_parser, console_script

DESCRIPTION = """\
Find translations in two texts that are not aligned. The output has lines score<TAB>source<TAB>target, best first.

  xrep-mine --path run1/best --source de.txt --source-lang de --target en.txt --target-lang en --output mined.tsv
  xrep-mine --source-vectors de.npy --target-vectors en.npy --source de.txt --target en.txt --output mined.tsv \\
      --margin ratio --neighbours 4 --threshold 1.06 --one-to-one

Any number of lines: vectors stay on disk, and memory grows by some 200 bytes a sentence. Empty and repeated lines take
no part. Without texts the output has numbers of rows, from 1. The same command goes on where a killed one stopped.

Many machines: encode once with xrep-encode, run the same command with --shard 1/8 .. --shard 8/8 on each, bring the
folders mined.tsv.shard-i-of-8 together, and run it with --merge 8."""

_SECONDS_BETWEEN_LINES = 15.0


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-mine", DESCRIPTION)
    add = parser.add_argument
    add("--path", metavar="ENCODER", help="a checkpoint, or a directory of Hugging Face or sentence-transformers")
    for side in ("source", "target"):
        add(f"--{side}", metavar="FILE", help=f"the {side} text: UTF-8, gzip or not, one sentence a line")
        add(f"--{side}-lang", metavar="CODE", help=f"language of the {side}; needed where an encoder has two towers")
        add(f"--{side}-vectors", metavar="FILE.npy", help=f"[lines, size]: vectors of the {side}, instead of --path")
    add("--output", required=True, metavar="FILE.tsv", help="the pairs")
    add("--margin", choices=("absolute", "distance", "ratio"), default="ratio", help="what a score is: the cosine; "
        "less half the sum of the two mean cosines with neighbours; or divided by it")  # fmt: skip
    add(
        "--neighbours", type=int, default=4, metavar="K", help="neighbours in each direction, for margin and candidates"
    )
    add("--retrieval", choices=("forward", "backward", "intersection", "max"), default="max", help="candidates: the "
        "best target of each source, the best source of each target, both, or either")  # fmt: skip
    add("--threshold", type=float, metavar="SCORE", help="leave out pairs with a lower score")
    add("--one-to-one", action="store_true", help="use each target once, too, for its best pair")
    add("--index", choices=("flat", "ivf", "ivf-pq"), default="flat", help="exact, or faiss's inverted files, which "
        "may miss neighbours and pay with millions of sentences")  # fmt: skip
    add("--probes", type=int, default=32, metavar="N", help="cells of an inverted file searched for each sentence")
    add("--shard", metavar="I/N", help="search with one of N parts of the source only")
    add("--merge", type=int, metavar="N", help="join what N shards found")
    add("--batch-tokens", type=int, default=4096, metavar="N", help="subwords that go through the encoder at once")
    add("--device", help="cpu, cuda or cuda:1 and so on (default: a GPU if there is one)")
    add("--plugin", metavar="MODULE", action="append", default=[], help="import a module that has the encoder's model")
    add("--json", metavar="FILE", help="write a summary as JSON; - prints it on stdout")
    return parser


class _ProgressLine:
    """How far the search is and the time left, on stderr: a line that changes on a terminal, elsewhere now and then."""

    def __init__(self) -> None:
        self._began = self._said = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        self._first = done - 1 if self._first is None else self._first
        if not sys.stderr.isatty() and now - self._said < _SECONDS_BETWEEN_LINES:
            return
        self._said = now
        left = (now - self._began) / (done - self._first) * (total - done)
        hours, minutes = divmod(int(left) // 60, 60)
        line = f"search: {done:,} of {total:,} blocks, {hours}:{minutes:02d}:{int(left) % 60:02d} left"
        end = "\r" if sys.stderr.isatty() and done < total else "\n"
        print(line.ljust(60) if end == "\r" else line, end=end, file=sys.stderr, flush=True)


def _shard(given: str | None) -> tuple[int, int] | None:
    from xrep.errors import UserError

    if given is None:
        return None
    part, _, parts = given.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise UserError(f"--shard {given}", cure="write --shard 1/8, the parts being counted from 1")
    return int(part), int(parts)


def _check(options: argparse.Namespace) -> None:
    """Say what is wrong with the options before anything is read.

    Raises:
        UserError: one of them makes no sense.
    """
    from xrep.errors import UserError
    from xrep.files import check_output

    for name, least in (("neighbours", 1), ("probes", 1), ("batch_tokens", 1), ("merge", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise UserError(f"--{name.replace('_', '-')} {value}", cure=f"give at least {least}")
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
    for file in (options.output, options.json):
        if file not in (None, "-"):
            check_output(file)


def _main(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)
    _check(options)
    shard = _shard(options.shard)

    from dataclasses import asdict

    from xrep.files import write_aside
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
    needed = any(side.vectors is None for side in sides)
    encoder = SentenceEncoder.load(options.path, device=device) if needed else None
    names = ("margin", "neighbours", "retrieval", "threshold", "one_to_one", "index", "probes", "batch_tokens")
    mining = MiningOptions(device=device, **{name: getattr(options, name) for name in names})
    output = Path(options.output)
    (source, target), progress = sides, _ProgressLine()
    mined = mine(source, target, output, mining, encoder=encoder, shard=shard, merged=options.merge, progress=progress)
    values = json.dumps(asdict(mined), indent=2, ensure_ascii=False) + "\n"
    if options.json == "-":
        print(values, end="")
    elif options.json is not None:
        with write_aside(options.json) as temporary:
            temporary.write_text(values, encoding="utf-8")
    if options.json != "-":
        what = "searched" if mined.pairs is None else f"{mined.pairs:,} pairs"
        left_out = f"{sum(mined.empty):,} empty and {sum(mined.duplicates):,} repeated lines left out"
        print(f"{what}: {mined.sources:,} x {mined.targets:,} sentences, {left_out}: {mined.path}")


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())

"""xrep-mine: find pairs of lines of two texts that may translate each other."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from xrep.config.fields import read_fields
from xrep.errors import UserError
from xrep_cli.common import (
    SHARE_DONE,
    TEXT_HELP,
    HelpFormatter,
    add_engine_options,
    add_field,
    add_shared_options,
    check_outputs,
    check_shared,
    choose_device,
    command_parser,
    command_script,
    is_streamed,
    output_file,
    print_result,
    say_if_slow,
    values_of,
    write_summary,
)

DESCRIPTION = """\
Find translations in two texts that are not aligned. The output has lines score<TAB>source<TAB>target, best first.

  xrep-mine --path run1/best --source de.txt --source-lang de --target en.txt --target-lang en --output mined.tsv
  xrep-mine --source-vectors de.npy --target-vectors en.npy --source de.txt --target en.txt --output mined.tsv \\
      --margin ratio --neighbours 4 --threshold 1.06 --one-to-one

The texts may have any number of lines: what grows with them is on disk, beside the output, except for about 10 bytes
of memory for each sentence.
Empty and repeated lines are left out. Without texts, the output has row numbers, counted from 1. If the command is
interrupted, repeat it: it continues where it stopped.

Several processes share the work with --engine: a Slurm array, or Ray on this machine or a cluster. Files and folders
may be in an object store (s3://, gs://).

xrep-mine negatives finds hard negatives of pairs, to train on."""
NEGATIVES = """\
Find hard negatives of sentence pairs: sentences near to the source that do not translate it. The output has lines
source<TAB>target<TAB>negative<TAB>negative..., which xrep-train reads with --negatives.

  xrep-mine negatives --path run1/best --bitext de-en=train.de-en.tsv --output negatives.tsv
  xrep-mine negatives --path run1/best --bitext de-en=train.de,train.en --candidates more.en --num-negatives 1 \\
      --range-min 5 --max-percentile 50 --output negatives.tsv
  xrep-train corpus/ --task bitext --criterion translation_ranking --negatives negatives.tsv --save-dir run2

The negatives of a source are searched among the targets of all pairs and the lines of --candidates, and are of the
language of the targets. Known translations of the source are left out, and by --relative-margin whatever scores about
as high as they do, because it may translate the source, too. Parallel text is written as for xrep-preprocess. If the
command is interrupted, repeat it: it continues where it stopped."""


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-mine", DESCRIPTION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    summary = "find hard negatives of sentence pairs, instead of translations"
    negatives = commands.add_parser("negatives", help=summary, description=NEGATIVES, formatter_class=HelpFormatter)
    path = "a checkpoint, or a directory of Hugging Face or sentence-transformers"
    add = parser.add_argument
    add("--path", metavar="ENCODER", help=path)
    for side in ("source", "target"):
        add(f"--{side}", metavar="FILE", help=f"the {side}: {TEXT_HELP}")
        add(f"--{side}-lang", metavar="CODE", help=f"language of the {side}; needed if the encoder has two towers")
        add(f"--{side}-vectors", metavar="VECTORS", help=f"the vectors of the {side}, to use instead of an encoder: a "
            "folder or a file that xrep-encode wrote, or a .npy file [lines, size]")  # fmt: skip
    add("--output", metavar="FILE.tsv", help="the file to write the pairs to; - is standard output")
    _add_fields(parser, "xrep.inference.mining:MiningOptions")
    add = negatives.add_argument
    add("--path", required=True, metavar="ENCODER", help=path)
    add("--bitext", required=True, metavar="PAIR=FILES", help="the pairs")
    add("--candidates", metavar="FILE", help=f"further sentences of the language of the targets: {TEXT_HELP}")
    add("--output", required=True, metavar="FILE.tsv", help="the file to write to; - is standard output")
    _add_fields(negatives, "xrep.inference.hard_negatives:NegativeOptions")
    for each in (parser, negatives):
        add_shared_options(each, "--batch-tokens", "--precision", "--device", "--plugin")
        add_engine_options(each)
        each.add_argument("--json", metavar="FILE", help="write a summary as JSON; - prints it on standard output")
    return parser


def _add_fields(parser: argparse.ArgumentParser, options: str) -> None:
    for spec in sorted(read_fields("", options), key=lambda spec: spec.owner.__name__ == "SearchOptions"):
        if spec.name not in ("batch_tokens", "device"):
            add_field(parser, spec)


def _check(options: argparse.Namespace) -> None:
    """Raise UserError if an option is invalid, before anything is read."""
    values = vars(options)
    if options.output is None:
        raise UserError("no `output`", cure="name the file to write the pairs to, or - for standard output")
    for side in ("source", "target"):
        if values[f"{side}_vectors"] is not None:
            continue
        if values[side] is None:
            raise UserError(f"no {side}", cure=f"give `{side}` FILE with `path`, or `{side}_vectors` FILE.npy")
        if options.path is None:
            raise UserError(f"no encoder for {values[side]}", cure=f"give `path` or `{side}_vectors`")
    if values["source"] == values["target"] == "-":
        raise UserError("both texts are standard input", cure="name a file for one of them")
    sides = ("source", "target", "source_vectors", "target_vectors")
    _check_outputs(options, {f"`{name}`": values[name] for name in sides})


def _check_outputs(options: argparse.Namespace, inputs: dict[str, Any]) -> None:
    if options.output == options.json == "-":
        raise UserError("the pairs and `json` both go to standard output", cure="name a file for one of them")
    check_outputs({"`output`": options.output, "`json`": options.json}, inputs, anywhere=True)


def _main(options: argparse.Namespace) -> None:
    if options.command == "negatives":
        _mine_negatives(options)
        return
    _check(options)

    from xrep.inference.mining import MiningOptions, Text, mine
    from xrep.jobs.engines import Engine

    values, engine = vars(options), Engine(**values_of(options, Engine))
    check_shared(engine, {"`output`": options.output}, [options.source, options.target])
    options.device = choose_device(options.device)
    sides: list[Text] = []
    for side in ("source", "target"):
        text, vectors = values[side], values[f"{side}_vectors"]
        sides.append(Text(name=side, lang=values[f"{side}_lang"], text=text, vectors=vectors))
    encoder = _load_encoder(options) if any(side.vectors is None for side in sides) else None
    mining = MiningOptions(**values_of(options, MiningOptions))
    with output_file(options.output) as output:
        mined = mine(sides[0], sides[1], output, mining, encoder=encoder, engine=engine, show_progress=True)
    if mined is None:
        print(SHARE_DONE, file=sys.stderr)
        return
    left_out = f"{sum(mined.empty):,} empty and {sum(mined.duplicates):,} repeated lines left out"
    _tell(options, mined, f"{mined.pairs:,} pairs: {mined.sources:,} x {mined.targets:,} sentences, {left_out}")


def _load_encoder(options: argparse.Namespace) -> Any:
    from xrep.inference.sentence_encoder import SentenceEncoder

    encoder = SentenceEncoder.load(options.path, device=options.device, dtype=options.precision)
    say_if_slow("xrep-mine", options.precision, options.device)
    return encoder


def _tell(options: argparse.Namespace, mined: Any, said: str) -> None:
    """Write the summary and print a line about what was found."""
    path = options.output if is_streamed(options.output) else mined.path
    write_summary({**asdict(mined), "path": path}, options.json)
    if options.json != "-":
        print_result(said, options.output, mined.path)


def _mine_negatives(options: argparse.Namespace) -> None:
    from xrep.text.readers import orient, parse_bitext, read_text

    bitext = parse_bitext(options.bitext)
    if bitext.sample is not None:
        raise UserError("pairs are not sampled here", path=bitext.paths[0], cure=f"leave out @{bitext.sample}")
    _check_outputs(options, {"`bitext`": bitext.paths, "`candidates`": options.candidates})
    for path in bitext.paths:
        if is_streamed(path):
            raise UserError("pairs are read several times", path=path, cure="give a file, not a pipe")
    bitext, note = orient(bitext)
    if note:
        print(note, file=sys.stderr)
    if options.candidates is not None and not is_streamed(options.candidates):
        next(read_text(options.candidates, bitext.languages[1]))  # errors come before the encoder is loaded

    from xrep.inference.hard_negatives import NegativeOptions, mine_negatives
    from xrep.jobs.engines import Engine

    engine = Engine(**values_of(options, Engine))
    check_shared(engine, {"`output`": options.output}, [options.candidates])
    options.device = choose_device(options.device)
    mining = NegativeOptions(**values_of(options, NegativeOptions))
    more = {"encoder": _load_encoder(options), "candidates": options.candidates, "engine": engine}
    with output_file(options.output) as output:
        mined = mine_negatives(bitext, output, mining, **more, show_progress=True)
    if mined is None:
        print(SHARE_DONE, file=sys.stderr)
        return
    found = f"{mined.negatives:,} negatives of {mined.pairs_with_negatives:,} of {mined.pairs:,} pairs"
    dropped = ", ".join(f"{count:,} by {rule}" for rule, count in mined.dropped.items() if count) or "none"
    said = f"{found}, from {mined.candidates:,} candidates; left out: {dropped}; mean cosine of translations "
    said += f"{mined.scores['translations']['mean']:.3f}, of negatives {mined.scores['negatives']['mean']:.3f}"
    _tell(options, mined, said)


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

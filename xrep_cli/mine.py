"""xrep-mine: find pairs of lines of two texts that may translate each other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from xrep.errors import UserError
from xrep.inference.settings import MiningOptions, NegativeOptions
from xrep_cli import common
from xrep_cli.command import Command

PairsFile = Annotated[str, common.Option(metavar="FILE", writes=common.check_anywhere)]
VectorsFile = Annotated[
    str,
    common.Option(
        metavar="VECTORS",
        reads=common.itself,
        help="They are used instead of an encoder: a folder or a file that xrep-encode wrote, or a .npy file [lines, "
        "size].",
    ),
]


@dataclass(kw_only=True)
class Mining(common.Computing, common.Batches, common.PromptOptions, common.JsonOption):
    """Find translations in two texts that are not aligned. The output has lines score<TAB>source<TAB>target, best
    first; an output FILE.tmx is a translation memory with the scores as properties.

      # Mine two texts
      xrep-mine --path run1/best --source de.txt --source-lang de --target en.txt --target-lang en --output mined.tsv
      # Mine vectors that xrep-encode wrote, and keep each sentence in one pair
      xrep-mine --source-vectors de.npy --target-vectors en.npy --output mined.tsv --threshold 1.06 --one-to-one
      # Find hard negatives of pairs, to train on
      xrep-mine negatives --path run1/best --bitext de-en=train.de,train.en --output negatives.tsv

    The texts may have any number of lines: what grows with them is on disk, beside the output, except for about 10
    bytes of memory for each sentence.
    Empty and repeated lines are left out. Without texts, the output has row numbers, counted from 1. If the command is
    interrupted, repeat it: it continues where it stopped.

    Several processes share the work with --engine: a Slurm array, or Ray on this machine or a cluster. Files and
    folders may be in an object store (s3://, gs://)."""

    path: common.EncoderPath | None = None
    source: common.TextInput | None = None
    """The source."""
    source_lang: common.Language | None = None
    """Language of the source; needed if the encoder has two towers."""
    source_vectors: VectorsFile | None = None
    """The vectors of the source."""
    target: common.TextInput | None = None
    """The target."""
    target_lang: common.Language | None = None
    """Language of the target; needed if the encoder has two towers."""
    target_vectors: VectorsFile | None = None
    """The vectors of the target."""
    output: PairsFile
    """The file to write the pairs to; - is standard output."""
    mining: MiningOptions
    processes: common.Jobs


def mine_pairs(options: Mining) -> None:
    from xrep.inference.mining import Mined, Text, mine

    if options.source == options.target == "-":
        raise UserError("both texts are standard input", cure="name a file for one of them")
    sides = dict[str, Text]()
    for side in ("source", "target"):
        text, vectors, lang = (getattr(options, name) for name in (side, f"{side}_vectors", f"{side}_lang"))
        if vectors is None and text is None:
            raise UserError(f"no {side}", cure=f"give `{side}` FILE with `path`, or `{side}_vectors` FILE.npy")
        if vectors is None and options.path is None:
            raise UserError(f"no encoder for {text}", cure=f"give `path` or `{side}_vectors`")
        sides[side] = Text(name=side, lang=lang, text=text, vectors=vectors)
    needed = any(side.vectors is None for side in sides.values())
    encoder = _encoder(options).use_prompt(options.prompt, options.prompt_name) if needed else None
    how: dict[str, Any] = {"encoder": encoder, "engine": options.processes, "show_progress": True}

    def said(mined: Mined) -> str:
        left_out = f"{sum(mined.empty):,} empty and {sum(mined.duplicates):,} repeated lines left out"
        return f"{mined.pairs:,} pairs: {mined.sources:,} x {mined.targets:,} sentences, {left_out}"

    common.write_output(options, lambda output: mine(**sides, output=output, options=options.mining, **how), said)


def _encoder(options: Mining | MiningOfNegatives) -> Any:
    from xrep.inference.sentence_encoder import SentenceEncoder

    return SentenceEncoder.load(str(options.path), device=options.device, dtype=options.precision)


@dataclass(kw_only=True)
class MiningOfNegatives(common.Computing, common.Batches, common.JsonOption):
    """Find hard negatives of sentence pairs: sentences near to the source that do not translate it. The output has
    lines source<TAB>target<TAB>negative<TAB>negative..., which xrep-train reads with --negatives.

      xrep-mine negatives --path run1/best --bitext de-en=train.de-en.tsv --output negatives.tsv
      xrep-mine negatives --path run1/best --bitext de-en=train.de,train.en --candidates more.en --num-negatives 1 \\
          --range-min 5 --max-percentile 50 --output negatives.tsv
      xrep-train corpus/ --task bitext --criterion translation_ranking --negatives negatives.tsv --save-dir run2

    The negatives of a source are searched among the targets of all pairs and the lines of --candidates, and are of the
    language of the targets. Known translations of the source are left out, and by --relative-margin whatever scores
    about as high as they do, because it may translate the source, too. The encoder's prompts query and document, if it
    has them, are put in front of sources and targets. Parallel text is written as for xrep-preprocess.
    If the command is interrupted, repeat it: it continues where it stopped."""

    path: common.EncoderPath
    bitext: Annotated[str, common.Option(metavar="PAIR=FILES", reads=common.bitext_files)]
    """The pairs."""
    candidates: common.TextInput | None = None
    """Further sentences of the language of the targets."""
    output: PairsFile
    """The file to write to; - is standard output."""
    mining: NegativeOptions
    processes: common.Jobs


def write_negatives(options: MiningOfNegatives) -> None:
    from xrep.inference.hard_negatives import MinedNegatives, mine_negatives

    bitext = common.aligned_text(options.bitext)
    common.check_text([options.candidates] if options.candidates else [], bitext.languages[1])
    how = {"encoder": _encoder(options), "candidates": options.candidates, "engine": options.processes}

    def said(mined: MinedNegatives) -> str:
        found = f"{mined.negatives:,} negatives of {mined.pairs_with_negatives:,} of {mined.pairs:,} pairs"
        dropped = ", ".join(f"{count:,} by {rule}" for rule, count in mined.dropped.items() if count) or "none"
        means = [mined.scores[kind]["mean"] for kind in ("translations", "negatives")]
        cosines = "mean cosine of translations {:.3f}, of negatives {:.3f}".format(*means)
        return f"{found}, from {mined.candidates:,} candidates; left out: {dropped}; {cosines}"

    def write(output: str) -> MinedNegatives | None:
        return mine_negatives(bitext, output, options.mining, **how, show_progress=True)

    common.write_output(options, write, said)


NEGATIVES = Command("xrep-mine", MiningOfNegatives, write_negatives)
main = Command("xrep-mine", Mining, mine_pairs, below=lambda: {"negatives": NEGATIVES})

if __name__ == "__main__":
    sys.exit(main())

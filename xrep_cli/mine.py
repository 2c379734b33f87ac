"""xrep-mine: find pairs of lines of two texts that may translate each other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from xrep.errors import UserError
from xrep.inference.settings import MiningOptions, NegativeOptions
from xrep.text.languages import canonical
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    from xrep.inference.mining import Mined
    from xrep.text.find import Bitext

_FEW = 10.0
"""Share of translated sentences, in percent, below which a judgement by the scores alone may be entirely wrong."""
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
    first; an output FILE.tmx or FILE.xlf is a translation memory with the scores; FILE.jsonl, FILE.csv or
    FILE.parquet has a record for each pair.

      # Mine two texts, and learn from some hundred pairs that are right how good the output is
      xrep-mine --path run1/best --source de.txt --target en.txt --trusted de-en=checked.tsv --output mined.tsv
      # Mine vectors that xrep-encode wrote, and keep each sentence in one pair
      xrep-mine --source-vectors de.npy --target-vectors en.npy --output mined.tsv --threshold 1.06 --one-to-one
      # Find hard negatives of pairs, to train on
      xrep-mine negatives --path run1/best --bitext de-en=train.de,train.en --output negatives.tsv

    Pairs below a threshold are left out. Trusted pairs choose it and tell the precision and the recall of the output:
    each is planted into the texts, once with its target and once without it. Without trusted pairs, the scores alone
    are judged, roughly: what a source would be paired with if its best candidate were missing shows what wrong pairs
    look like.

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
    trusted: Annotated[str, common.Option(metavar="PAIR=FILES", reads=common.bitext_files)] | None = None
    """Pairs that are right, and of the kind of the texts, but not in them: 30 or more, better some hundred. They are
    written as for xrep-preprocess, the source's language first, and need --path."""
    output: PairsFile
    """The file to write the pairs to; - is standard output."""
    mining: MiningOptions
    processes: common.Jobs


def mine_pairs(options: Mining) -> None:
    from xrep.inference.mining import mine
    from xrep.inference.text_sides import Text
    from xrep.store.addresses import matching_files

    if options.source == options.target == "-":
        raise UserError("both texts are standard input", cure="name a file for one of them")
    sides = dict[str, Text]()
    for side in ("source", "target"):
        text, vectors, lang = (getattr(options, name) for name in (side, f"{side}_vectors", f"{side}_lang"))
        if vectors is None and text is None:
            raise UserError(f"no {side}", cure=f"give `{side}` FILE with `path`, or `{side}_vectors` FILE.npy")
        if vectors is None and options.path is None:
            raise UserError(f"no encoder for {text}", cure=f"give `path` or `{side}_vectors`")
        common.check_text(matching_files(text) if text else [], lang)
        sides[side] = Text(name=side, lang=lang, text=text, vectors=vectors)
    trusted = _trusted(options) if options.trusted else None
    if trusted and options.path is None:
        raise UserError("no encoder for the trusted pairs", cure="give `path`, the encoder of the vectors")
    needed = trusted or any(side.vectors is None for side in sides.values())
    encoder = common.load_encoder(options) if needed else None
    how: dict[str, Any] = {"encoder": encoder, "trusted": trusted, "engine": options.processes, "show_progress": True}

    def said(mined: Mined) -> str:
        left_out = f"{sum(mined.empty):,} empty and {sum(mined.duplicates):,} repeated lines left out"
        counts = f"{mined.pairs:,} pairs: {mined.sources:,} x {mined.targets:,} sentences, {left_out}"
        return "\n".join([*_judged(mined), counts])

    common.write_output(options, lambda output: mine(**sides, output=output, options=options.mining, **how), said)


def _trusted(options: Mining) -> Bitext:
    """Return the trusted pairs with their sides as those of the texts."""
    assert options.trusted
    trusted = common.aligned_text(options.trusted)
    first = options.source_lang or options.trusted.partition("=")[0].partition("-")[0]
    trusted = trusted.turned() if canonical(first) == trusted.languages[1] else trusted
    for side, language in zip(("source", "target"), trusted.languages, strict=True):
        wanted = getattr(options, f"{side}_lang")
        if wanted and canonical(wanted) != language:
            raise UserError(f"trusted pairs of {trusted.name}", path=trusted.paths[0], cure=f"the {side} is {wanted}")
    return trusted


def _judged(mined: Mined) -> list[str]:
    """Return lines that say how good the pairs are."""
    if mined.judged is None:
        return ["too few sentences to judge the scores: all pairs are written"] if mined.threshold is None else []
    judged = {name: f"{value:.0f}" for name, value in mined.judged.items()}
    limit = "all scores" if mined.threshold is None else f"a score of {mined.threshold:g} or more"
    if "trusted" not in judged:
        rough = (
            "with {limit}, about {precision}% of the pairs are right, judged roughly by the scores alone; trusted "
            "pairs (--trusted) measure it"
        )
        few = "; few pairs differ from the others, and if no sentence has a translation, all of these are wrong"
        return [rough.format(limit=limit, **judged) + (few if mined.judged["translated"] < _FEW else "")]
    of_text = (
        "with {limit}, about {precision}% of the pairs are right (95% interval {precision_low} to {precision_high}), "
        "and they are about {recall}% of the translations that are there"
    )
    of_trusted = (
        "{trusted} trusted pairs: {found}% are found; without their targets, {mistaken}% of the sources are in a pair"
    )
    known = f" ({judged['trusted_in_text']} more are not used, because they are in the texts)"
    lines = [of_text, of_trusted + (known if mined.judged["trusted_in_text"] else "")]
    if mined.judged["misfit"] > 1:
        lines.append(
            "the scores of the texts are unlike those of the trusted pairs, so these figures may be far off: give "
            "trusted pairs of the kind of the texts"
        )
    return [line.format(limit=limit, **judged) for line in lines]


@dataclass(kw_only=True)
class MiningOfNegatives(common.Computing, common.Batches, common.JsonOption):
    """Find hard negatives of sentence pairs: sentences near to the source that do not translate it. The output has
    lines source<TAB>target<TAB>negative<TAB>negative..., which xrep-train reads with --negatives.

      xrep-mine negatives --path run1/best --bitext de-en=train.de-en.tsv --output negatives.tsv
      xrep-mine negatives --path run1/best --bitext de-en=train.de,train.en --candidates more.en --num-negatives 1 \\
          --range-min 5 --max-score 0.8 --output negatives.tsv
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
    how = {"encoder": common.load_encoder(options), "candidates": options.candidates, "engine": options.processes}

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

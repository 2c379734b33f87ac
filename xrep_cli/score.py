"""xrep-score: filter aligned text, by how well the pairs translate each other."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from xrep.errors import UserError
from xrep.inference.settings import ScoringOptions
from xrep.text.cleaning import CleaningOptions
from xrep.text.find import find_text
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    from xrep.inference.scoring import ScoredPairs


def _background(text: str | None) -> list[tuple[str, str]]:
    """Return language and file of each part of ``de=FILE,en=FILE``, or of each file in a folder."""
    return [(file.language, str(file.path)) for file in find_text(text)["train"]] if text else []


def background_files(text: str) -> list[str]:
    return [file for _, file in _background(text)]


@dataclass(kw_only=True)
class Options(common.Computing, common.Batches, common.PromptOptions, common.JsonOption):
    """Score pairs of sentences by how well they translate each other, and keep the good ones. The output has lines
    score<TAB>cosine<TAB>source<TAB>target in the order of the text; English is the target.

      # Keep the best 80% of a noisy text, as pairs that xrep-preprocess reads by --bitext de-en=kept.tsv:3,4
      xrep-score --path run1/best --bitext de-en=crawl.de,crawl.en --keep 0.8 --output kept.tsv
      # Clean a translation memory by a threshold that some hundred units which are known to be right choose
      xrep-score --path run1/best --bitext de-en=memory.tmx --trusted de-en=checked.tsv --output clean.tmx
      # Score all pairs, and look at the scores before a threshold is chosen
      xrep-score --path run1/best --bitext de-en=crawl.tsv --output scored.tsv --plot scores.png

    The score is the cosine of both sentences divided by the mean cosine with their nearest neighbours on the other
    side, so that a sentence which is near to many needs a higher cosine (--margin). First the rules of xrep-preprocess
    leave out pairs: empty ones, untranslated ones (both sides are equal), and lengths that do not fit together.

    An output FILE.tmx or FILE.xlf is a translation memory with the scores, without the markup and the other properties
    of a memory that was read; FILE.jsonl, FILE.csv or FILE.parquet has a record for each pair. Memory does not grow
    with the text. If the command is interrupted, repeat it: it continues where it stopped. Several processes share the
    work with --engine. Parallel text is written as for xrep-preprocess."""

    path: common.EncoderPath
    bitext: Annotated[str, common.Option(metavar="PAIR=FILES", reads=common.bitext_files)]
    """The pairs."""
    output: Annotated[str, common.Option(metavar="FILE", writes=common.check_anywhere)]
    """The file to write the pairs to; - is standard output."""
    background: Annotated[str, common.Option(metavar="de=FILE,en=FILE", reads=background_files)] | None = None
    """Further text of one or both languages, among which neighbours are searched, too: for a text of less than some
    thousand pairs."""
    trusted: Annotated[str, common.Option(metavar="PAIR=FILES", reads=common.bitext_files)] | None = None
    """Pairs that are right, and of the kind of the text. They choose the threshold that best tells them from the wrong
    pairs that are made of them, each of which has the target of the next one."""
    plot: Annotated[str, common.Option(metavar="FILE", writes=common.check_output)] | None = None
    """Draw a histogram of the scores (.png, .svg or .pdf; pip install 'xrep[plot]')."""
    scoring: ScoringOptions
    cleaning: Annotated[CleaningOptions, replace(common.CLEANING, without=("deduplicate", "sample"))]
    drop_identical: Annotated[bool, common.Option(flag="--keep-identical")] = True
    """Keep pairs whose sides are equal."""
    processes: common.Jobs


def run(options: Options) -> None:
    from xrep.evaluation.plots import Picture, plot_scores
    from xrep.inference.scoring import score_pairs

    picture = Picture(options.plot) if options.plot else None
    bitext = common.aligned_text(options.bitext)
    trusted = common.aligned_text(options.trusted) if options.trusted else None
    if trusted and trusted.languages != bitext.languages:
        raise UserError(f"trusted pairs of {trusted.name}", path=trusted.paths[0], cure=f"give pairs of {bitext.name}")
    background = {language: list[str]() for language in bitext.languages}
    for language, file in _background(options.background):
        if language not in background:
            raise UserError(f"text of {language}", path=file, cure=f"give text of {' or '.join(background)}")
        common.check_text([file], language)
        background[language].append(file)
    encoder = common.load_encoder(options)
    sources, targets = background.values()

    def write(output: str) -> ScoredPairs | None:
        how: dict[str, Any] = {"cleaning": options.cleaning, "background": (sources, targets), "trusted": trusted}
        how |= {"encoder": encoder, "engine": options.processes, "show_progress": True}
        scored = score_pairs(bitext, output, options.scoring, **how)
        if scored and picture:
            plot_scores(scored.histogram, scored.threshold, picture)
        return scored

    common.write_output(options, write, _said)


def _said(scored: ScoredPairs) -> str:
    rules = ", ".join(f"{count:,} {rule}" for rule, count in scored.dropped.items()) or "none"
    limit = "" if scored.threshold is None else f", those with a score of {scored.threshold:.4f} or more"
    written = f"{scored.written:,} of {scored.pairs:,} pairs{limit}; left out by rules: {rules}"
    if not scored.trusted:
        return written
    right, wrong = (int(scored.trusted[name]) for name in ("right", "wrong"))
    shares = {name: f"{value:.1f}%" for name, value in scored.trusted.items()}
    of_trusted = (
        f"of {right:,} trusted pairs and {wrong:,} wrong ones, this keeps {shares['recall']} of the right ones,"
    )
    of_text = "the scores of the text are unlike those of the trusted pairs, which say nothing about it"
    if "estimated_right" in shares:
        of_text = f"so, if the text is wrong in the same way, {shares['estimated_right']} of the pairs that the rules "
        of_text += f"left are right, and {shares['estimated_precision']} of those written"
    return "\n".join((f"{of_trusted} and {shares['precision']} of what it keeps is right", of_text, written))


main = Command("xrep-score", Options, run)

if __name__ == "__main__":
    sys.exit(main())

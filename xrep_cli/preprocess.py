"""xrep-preprocess: turn raw parallel text into a data directory for xrep-train."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from xrep.config.fields import Count
from xrep.data.preprocess import PreprocessOptions, PreprocessReport, default_workers, preprocess
from xrep.data.table import TOKENIZER_DIRECTORY
from xrep.errors import UserError
from xrep.interrupts import Interrupted
from xrep.jobs.engines import Engine
from xrep.store.addresses import is_local
from xrep.text.cleaning import CleaningOptions, cleaning_table
from xrep.text.find import parse_bitext
from xrep_cli import common
from xrep_cli.command import Command

BitextOption = Annotated[list[str], common.Option(metavar="PAIR=FILES", nargs=1, reads=common.bitext_files)]
TokenizerOption = Annotated[str, common.Option(metavar="PATH")]


@dataclass(kw_only=True)
class Options(common.JsonOption):
    """Clean parallel text, train a SentencePiece vocabulary on it and write the tokens that xrep-train reads.

      # Two languages in one file
      xrep-preprocess --bitext de-en=deu-eng.tsv --destdir data-bin
      # Several pairs of languages, without the sentences of a test
      xrep-preprocess --bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en --exclude tatoeba/ --destdir data-bin
      # A sample of a large corpus, with validation text
      xrep-preprocess --bitext zh-en=un.zh.gz,un.en.gz --sample 1000000 --valid zh-en=dev.zh,dev.en --destdir data-bin

    Parallel text is written PAIR=FILES:
      de-en=x.tsv          one file with columns separated by tabs; the English column is recognised by its words
      de-en=x.tsv:2,1      the same, with the numbers of the columns of de and en, counted from 1
      de-en=x.de,x.en      two files that translate each other line by line
      de-en=x.tmx          a translation memory (TMX, XLIFF), or .jsonl, .csv or .parquet with the fields de and en
      de-en=x.jsonl:q,a    the same, with the names of the fields of de and en
      de-en=hf:NAME:SPLIT:translation.de,translation.en   a data set of the Hugging Face Hub (NAME or NAME/CONFIG) or a
                           folder of the library datasets, streamed; SPLIT may be train+test or train[0:1000]
      de-en=x.zip          an archive with one of these, or with two files as OPUS and WMT have them (x.de and x.en)
      de-en=x.tsv@5000     at most 5000 of its pairs, drawn at random (only training text)
    Every file is UTF-8, optionally compressed with gzip, bzip2, xz or zstd. Codes may have two or three letters
    (deu-eng is de-en).

    At the end, a table says how many pairs each cleaning rule dropped. Nothing is written to --destdir if a step fails.
    If the command is interrupted, repeat it: it goes on with the text that it has cleaned and the vocabulary that it
    has trained. Several machines share the work with --engine:
      sbatch --array=0-7 --wrap "xrep-preprocess --bitext de-en=1.tsv --bitext de-en=2.tsv --engine slurm ..."
    """

    bitext: BitextOption = field(default_factory=list)
    """Training text (repeatable)."""
    valid: BitextOption = field(default_factory=list)
    """Validation text (repeatable); without it, some training pairs are held out."""
    test: BitextOption = field(default_factory=list)
    """Test text (repeatable)."""
    exclude: Annotated[list[str], common.Option(metavar="PATH", nargs=1)] = field(default_factory=list)
    """File or folder of an evaluation set: training pairs with a sentence that occurs there, in any case and
    punctuation, are dropped (repeatable)."""
    destdir: Annotated[str, common.Option(metavar="DIR")]
    """The data directory to write."""
    workers: Count | None = None
    """Processes that clean and tokenise; the result does not depend on their number (default: one for each processor,
    at most 16, or as many as Ray has processors for)."""
    vocabulary: Annotated[
        PreprocessOptions,
        common.OptionGroup(
            title="vocabulary and held-out pairs",
            flags={"vocabulary_size": "--vocab-size"},
            without=("tokenizers", "cleaning"),
        ),
    ]
    tokenizer: TokenizerOption | None = None
    """Use this tokenizer instead of training one (a folder, a .model file, a directory of a pretrained encoder,
    RUN/best, or another data directory)."""
    source_tokenizer: TokenizerOption | None = None
    """The same, only for the source of each pair."""
    target_tokenizer: TokenizerOption | None = None
    """The same, only for the target of each pair."""
    cleaning: Annotated[CleaningOptions, common.CLEANING]
    deduplicate: Annotated[bool, common.Option(flag="--keep-duplicates")] = True
    """Keep repeated pairs."""
    drop_identical: Annotated[bool, common.Option(flag="--keep-identical")] = True
    """Keep pairs whose sides are equal."""
    processes: Annotated[Engine, replace(common.PROCESSES, without=("workers", "gpus_per_worker"))]


def run(options: Options) -> None:
    named = {"train": options.bitext, "valid": options.valid, "test": options.test}
    splits = {split: [parse_bitext(spec) for spec in specs] for split, specs in named.items()}
    engine = replace(options.processes, workers=options.workers if options.processes.engine == "ray" else None)
    if not is_local(options.destdir):
        raise UserError("`destdir` is in an object store", path=options.destdir, cure="write to a folder and copy it")
    log = functools.partial(print, file=sys.stderr if options.json == "-" else sys.stdout, flush=True)
    paths = {"shared": options.tokenizer, "source": options.source_tokenizer, "target": options.target_tokenizer}
    tokenizers = {side: _tokenizer_path(side, path) for side, path in paths.items() if path}
    if options.vocabulary.vocabulary_size and ("shared" in tokenizers or len(tokenizers) == 2):
        raise UserError("no vocabulary is trained, but `vocab_size` is given", cure="leave it or the `tokenizer` out")
    how = replace(options.vocabulary, tokenizers=tokenizers, cleaning=options.cleaning)
    workers = options.workers or default_workers()
    try:
        report = preprocess(splits, options.destdir, how, log, workers=workers, engine=engine)
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"nothing is written to {options.destdir}; the same command begins again") from None
    if report is None:
        common.say_share_done(options)
        return
    log(f"\n{cleaning_table(report.cleaning)}\n")
    log(_summary(report))
    common.write_summary(report.as_dict(), options.json)
    log(f"next: xrep-train {options.destdir} --task bitext --criterion dual_moco --save-dir run1")


def _tokenizer_path(side: str, path: str) -> str:
    """Return the path of a tokenizer, given its path, a checkpoint, a data directory or a pretrained encoder's name."""
    inner = Path(path) / TOKENIZER_DIRECTORY
    if inner.is_dir():
        return str(inner / side if (inner / side).is_dir() else inner)
    if Path(path).exists():
        return path
    from xrep.interop.pretrained import find_pretrained

    return str(find_pretrained(path))


def _summary(report: PreprocessReport) -> str:
    lines = []
    for split, rows in report.manifest["splits"].items():
        counts = ", ".join(f"{'-'.join(row['languages'])} {row['rows']:,}" for row in rows)
        tokens = sum(sum(row["tokens"].values()) for row in rows)
        lines.append(f"{split}: {counts} pairs, {tokens:,} tokens")
    for side, size in report.manifest["vocabularies"].items():
        lines.append(f"vocabulary{'' if side == 'shared' else f' ({side})'}: {size:,} pieces")
    lines.append(f"written to {report.path}")
    return "\n".join(lines)


main = Command("xrep-preprocess", Options, run)

if __name__ == "__main__":
    sys.exit(main())

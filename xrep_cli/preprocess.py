"""xrep-preprocess: turn raw parallel text into a data directory for xrep-train."""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xrep.config.fields import fields_of_class
from xrep.data.preprocess import PreprocessOptions, PreprocessReport, default_workers, merge, preprocess
from xrep.data.store import TOKENIZER_DIRECTORY
from xrep.errors import UserError
from xrep.files import check_new_directory, naming
from xrep.inference.work import work_folder
from xrep.interrupts import Interrupted
from xrep.text.cleaning import CleaningOptions
from xrep.text.readers import parse_bitext
from xrep_cli.common import (
    Parser,
    add_field,
    check_outputs,
    command_parser,
    command_script,
    parse_shard,
    values_of,
    write_summary,
)

DESCRIPTION = """\
Clean parallel text, train a SentencePiece vocabulary on it and write the tokens that xrep-train reads.

examples:
  xrep-preprocess --bitext de-en=deu-eng.tsv --destdir data-bin
  xrep-preprocess --bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en \\
      --vocab-size 16000 --exclude tatoeba/ --destdir data-bin
  xrep-preprocess --bitext zh-en=un.zh.gz,un.en.gz --sample 1000000 --valid zh-en=dev.zh,dev.en --destdir data-bin
  xrep-preprocess --bitext de-en=1.tsv --bitext de-en=2.tsv --shard 1/2 --destdir shard1  # the same with 2/2, then
  xrep-preprocess --merge shard1 shard2 --destdir data-bin

Parallel text is written PAIR=FILES:
  de-en=x.tsv          one file with columns separated by tabs; the English column is recognised by its words
  de-en=x.tsv:2,1      the same, with the numbers of the columns of de and en, counted from 1
  de-en=x.de,x.en      two files that translate each other line by line
  de-en=x.tmx          a translation memory (TMX, XLIFF), or .jsonl, .csv or .parquet with the fields de and en
  de-en=x.jsonl:q,a    the same, with the names of the fields of de and en
  de-en=x.zip          an archive with one of these, or with two files as OPUS and WMT have them (x.de and x.en)
  de-en=x.tsv@5000     at most 5000 of its pairs, drawn at random (only training text)
Every file is UTF-8, optionally compressed with gzip, bzip2, xz or zstd. Codes may have two or three letters (deu-eng is
de-en).
"""
EPILOG = """\
At the end, a table says how many pairs each cleaning rule dropped. Nothing is written to --destdir if a step fails. If
the command is interrupted, repeat it: it goes on with the text that it has cleaned and the vocabulary that it has
trained."""

_OWN_FILE, _STEPS = re.compile(r"lock|(cleaned|tokenizer)-[0-9a-f]{24}|\..*\.(partial|old)"), "[ct]*-*"
"""Names in the folder of unfinished work, and the pattern of those that are worth keeping."""

NAMES = {
    "vocabulary_size": "vocab-size",
    "minimum_length": "min-length",
    "maximum_length": "max-length",
    "maximum_length_ratio": "max-length-ratio",
}
"""Options that have another name than their fields."""


def build_parser() -> Parser:
    specs = {spec.name: spec for cls in (PreprocessOptions, CleaningOptions) for spec in fields_of_class("", cls)}
    parser = command_parser("xrep-preprocess", DESCRIPTION, EPILOG)
    add = parser.add_argument_group("files").add_argument
    pairs = {"action": "append", "default": [], "metavar": "PAIR=FILES"}
    add("--bitext", **pairs, help="training text (repeatable)")
    add("--valid", **pairs, help="validation text (repeatable); without it, some training pairs are held out")
    add("--test", **pairs, help="test text (repeatable)")
    add("--exclude", action="append", default=[], metavar="PATH", help="file or folder of an evaluation set: training "
        "pairs with a sentence that occurs there, in any case and punctuation, are dropped (repeatable)")  # fmt: skip
    add("--destdir", required=True, metavar="DIR", help="the data directory to write")
    add("--shard", metavar="K/N", help="write only part K of N, as --merge reads it: the cleaned text of every N-th "
        "file of training text (on each of several machines, with otherwise the same command)")  # fmt: skip
    add("--merge", nargs="+", default=[], metavar="DIR", help="make the data directory of all parts that --shard "
        "wrote, with their options; it equals that of the whole text")  # fmt: skip
    add("--workers", type=int, metavar="N", help="processes that clean and tokenise; the result does not depend on "
        "their number (default: one for each processor, at most 16)")  # fmt: skip
    add("--json", metavar="FILE", help="also write the report to this file; - is standard output")

    group = parser.add_argument_group("vocabulary")
    for name in ("vocabulary_size", "sampling_exponent"):
        add_field(group, specs[name], NAMES.get(name))
    group.add_argument("--tokenizer", metavar="PATH", help="use this tokenizer instead of training one (a folder, a "
        ".model file, a directory of a pretrained encoder, RUN/best, or another data directory)")  # fmt: skip
    for side in ("source", "target"):
        group.add_argument(f"--{side}-tokenizer", metavar="PATH", help=f"the same, only for the {side} of each pair")

    rules = "lengths are in words; a Chinese, Japanese or Thai character counts as half a word"
    group = parser.add_argument_group("cleaning", rules)
    for name in ("minimum_length", "maximum_length", "maximum_length_ratio", "sample", "valid_size", "seed"):
        add_field(group, specs[name], NAMES.get(name))
    group.add_argument("--keep-duplicates", action="store_true", help="keep repeated pairs")
    group.add_argument("--keep-identical", action="store_true", help="keep pairs whose sides are equal")
    return parser


def _main(options: argparse.Namespace) -> None:
    named = {"train": options.bitext, "valid": options.valid, "test": options.test}
    splits = {split: [parse_bitext(spec) for spec in specs] for split, specs in named.items()}
    shard, workers = parse_shard(options.shard), default_workers() if options.workers is None else options.workers
    if options.merge:
        _check_merge(options)
    inputs = [path for bitexts in splits.values() for bitext in bitexts for path in bitext.paths]
    texts = {"a training, validation or test text": inputs, "--destdir": options.destdir}
    check_outputs({"--json": options.json}, texts)
    log = functools.partial(print, file=sys.stderr if options.json == "-" else sys.stdout, flush=True)
    try:
        if options.merge:
            report = merge(options.merge, options.destdir, log, workers=workers)
        elif shard:
            report = preprocess(splits, options.destdir, _options(options), log, workers=workers, shard=shard)
        else:
            with _work_folder(options.destdir) as work:
                report = preprocess(splits, options.destdir, _options(options), log, workers=workers, work=work)
    except Interrupted:
        raise
    except KeyboardInterrupt:
        raise Interrupted(f"nothing is written to {options.destdir}; the same command begins again") from None
    log(f"\n{report.cleaning.table()}\n")
    log(_summary(report))
    write_summary(report.as_dict(), options.json)
    if shard:
        log(f"next: xrep-preprocess --merge DIR... with the directories of all {shard[1]} parts")
    else:
        log(f"next: xrep-train {options.destdir} --task bitext --criterion dual_moco --save-dir run1")


@contextmanager
def _work_folder(directory: str) -> Iterator[Path]:
    """Context manager that yields the folder beside a data directory that keeps finished steps. They are removed if the
    block raises UserError, because what is wrong will be changed."""
    place = Path(os.path.realpath(directory))
    check_new_directory(place)
    work = place.with_name(f"{place.name}.work")
    if not work.exists():
        with naming(directory):
            work.mkdir(parents=True)
    with work_folder(work, _OWN_FILE, "writing this data directory", _STEPS):
        try:
            yield work
        except UserError:
            for step in work.glob(_STEPS):
                shutil.rmtree(step)
            raise


def _check_merge(options: argparse.Namespace) -> None:
    """Raise UserError if an option is given that the parts already have."""
    own = ("merge", "destdir", "workers", "json")
    unused = [action for action in build_parser()._actions if action.dest not in own and action.dest in options]
    for action in unused:
        if vars(options)[action.dest] != action.default:
            cure = "leave it out, or make the parts with it"
            raise UserError(f"{action.option_strings[0]} has no effect on --merge", cure=cure)


def _options(options: argparse.Namespace) -> PreprocessOptions:
    kept = {"deduplicate": not options.keep_duplicates, "drop_identical": not options.keep_identical}
    paths = {"shared": options.tokenizer, "source": options.source_tokenizer, "target": options.target_tokenizer}
    return PreprocessOptions(
        tokenizers={side: _tokenizer_path(side, path) for side, path in paths.items() if path},
        cleaning=CleaningOptions(**kept, **values_of(options, CleaningOptions)),
        **values_of(options, PreprocessOptions),
    )


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
    for split, rows in report.manifest.get("splits", {}).items():
        counts = ", ".join(f"{'-'.join(row['languages'])} {row['rows']:,}" for row in rows)
        tokens = sum(sum(row["tokens"].values()) for row in rows)
        lines.append(f"{split}: {counts} pairs, {tokens:,} tokens")
    for side, size in report.manifest.get("vocabularies", {}).items():
        lines.append(f"vocabulary{'' if side == 'shared' else f' ({side})'}: {size:,} pieces")
    lines.append(f"written to {report.path}")
    return "\n".join(lines)


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

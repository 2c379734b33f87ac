"""xrep-preprocess: turn raw parallel text into a data directory for xrep-train."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from xrep.data.preprocess import PreprocessOptions, PreprocessReport, preprocess
from xrep.data.store import TOKENIZER_DIRECTORY
from xrep.text.cleaning import CleaningOptions
from xrep.text.readers import parse_bitext
from xrep_cli.common import check_outputs, command_parser, command_script, write_summary

DESCRIPTION = """\
Clean parallel text, train a SentencePiece vocabulary on it and write the tokens that xrep-train reads.

examples:
  xrep-preprocess --bitext de-en=deu-eng.tsv --destdir data-bin
  xrep-preprocess --bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en \\
      --vocab-size 16000 --exclude tatoeba/ --destdir data-bin
  xrep-preprocess --bitext zh-en=un.zh.gz,un.en.gz --sample 1000000 --valid zh-en=dev.zh,dev.en --destdir data-bin

Parallel text is written PAIR=FILES:
  de-en=x.tsv          one file with columns separated by tabs; the English column is recognised by its words
  de-en=x.tsv:2,1      the same, with the numbers of the columns of de and en, counted from 1
  de-en=x.de,x.en      two files that translate each other line by line
  de-en=x.tsv@5000     at most 5000 of its pairs, drawn at random (only training text)
Every file is UTF-8, optionally compressed with gzip or xz. Codes may have two or three letters (deu-eng is de-en).
"""
EPILOG = "At the end, a table says how many pairs each cleaning rule dropped. Nothing is written if a step fails."


def build_parser() -> argparse.ArgumentParser:
    options = PreprocessOptions()
    cleaning = options.cleaning
    parser = command_parser("xrep-preprocess", DESCRIPTION, EPILOG)
    add = parser.add_argument_group("files").add_argument
    pairs = {"action": "append", "default": [], "metavar": "PAIR=FILES"}
    add("--bitext", **pairs, required=True, help="training text (repeatable)")
    add("--valid", **pairs, help="validation text (repeatable); without it, some training pairs are held out")
    add("--test", **pairs, help="test text (repeatable)")
    add("--exclude", action="append", default=[], metavar="PATH", help="file or folder of an evaluation set: training "
        "pairs with a sentence that occurs there, in any case and punctuation, are dropped (repeatable)")  # fmt: skip
    add("--destdir", required=True, metavar="DIR", help="the data directory to write")
    add("--json", metavar="FILE", help="also write the report to this file; - is standard output")

    add = parser.add_argument_group("vocabulary").add_argument
    add("--vocab-size", type=int, default=options.vocabulary_size, help="number of pieces of the vocabulary")
    add("--tokenizer", metavar="PATH", help="use this tokenizer instead of training one (a folder, a .model file, a "
        "directory of a pretrained encoder, RUN/best, or another data directory)")  # fmt: skip
    add("--source-tokenizer", metavar="PATH", help="the same, only for the first side of each pair")
    add("--target-tokenizer", metavar="PATH", help="the same, only for the second side of each pair")
    add("--sampling-exponent", type=float, default=options.sampling_exponent, help="a language with n sentences has "
        "the weight n ** this in the text used to train the vocabulary")  # fmt: skip

    rules = "lengths are in words; a Chinese, Japanese or Thai character counts as half a word"
    add = parser.add_argument_group("cleaning", rules).add_argument
    add("--min-length", type=float, default=cleaning.minimum_length, help="smallest length of each side")
    add("--max-length", type=float, default=cleaning.maximum_length, help="largest length of each side")
    add("--max-length-ratio", type=float, default=cleaning.maximum_length_ratio, help="drop pairs with a side that is "
        "more than this many times as long as the other, after adding two words to both")  # fmt: skip
    add("--keep-duplicates", action="store_true", help="keep repeated pairs")
    add("--keep-identical", action="store_true", help="keep pairs whose sides are equal")
    add("--sample", type=int, metavar="N", help="keep at most N pairs of each corpus, drawn at random")
    add("--valid-size", type=int, default=options.valid_size, help="without --valid, number of pairs of each language "
        "pair to hold out, at most 5 %% of them")  # fmt: skip
    add("--seed", type=int, default=options.seed, help="random seed for sampling and holding out")
    return parser


def _main(arguments: argparse.Namespace) -> None:
    named = {"train": arguments.bitext, "valid": arguments.valid, "test": arguments.test}
    splits = {split: [parse_bitext(spec) for spec in specs] for split, specs in named.items()}
    inputs = [path for bitexts in splits.values() for bitext in bitexts for path in bitext.paths]
    check_outputs({"--json": arguments.json}, {"a training, validation or test text": inputs})
    log = functools.partial(print, file=sys.stderr if arguments.json == "-" else sys.stdout, flush=True)
    report = preprocess(splits, arguments.destdir, _options(arguments), log)
    log(f"\n{report.cleaning.table()}\n")
    log(_summary(report))
    write_summary(report.as_dict(), arguments.json)
    log(f"next: xrep-train {arguments.destdir} --task bitext --criterion dual_moco --save-dir run1")


def _options(arguments: argparse.Namespace) -> PreprocessOptions:
    cleaning = CleaningOptions(
        deduplicate=not arguments.keep_duplicates,
        minimum_length=arguments.min_length,
        maximum_length=arguments.max_length,
        maximum_length_ratio=arguments.max_length_ratio,
        drop_identical=not arguments.keep_identical,
        sample=arguments.sample,
    )
    tokenizers = {
        "shared": arguments.tokenizer,
        "source": arguments.source_tokenizer,
        "target": arguments.target_tokenizer,
    }
    return PreprocessOptions(
        vocabulary_size=arguments.vocab_size,
        tokenizers={side: _tokenizer_path(side, path) for side, path in tokenizers.items() if path},
        exclude=arguments.exclude,
        cleaning=cleaning,
        valid_size=arguments.valid_size,
        sampling_exponent=arguments.sampling_exponent,
        seed=arguments.seed,
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
    for split, rows in report.manifest["splits"].items():
        counts = ", ".join(f"{'-'.join(row['languages'])} {row['rows']:,}" for row in rows)
        tokens = sum(sum(row["tokens"].values()) for row in rows)
        lines.append(f"{split}: {counts} pairs, {tokens:,} tokens")
    for side, size in report.manifest["vocabularies"].items():
        lines.append(f"vocabulary{'' if side == 'shared' else f' ({side})'}: {size:,} pieces")
    lines.append(f"written to {report.path}")
    return "\n".join(lines)


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

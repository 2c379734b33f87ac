"""xrep-preprocess: raw parallel text in, a data directory for xrep-train out."""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from xrep.data.preprocess import PreprocessOptions, PreprocessReport, preprocess
from xrep.data.store import TOKENIZER_DIRECTORY
from xrep.errors import UserError
from xrep.files import write_aside
from xrep.text.cleaning import CleaningOptions
from xrep.text.readers import parse_bitext
from xrep_cli.common import command_parser, console_script

DESCRIPTION = """\
Clean parallel text, train a SentencePiece vocabulary on it and write the tokens that xrep-train reads.

examples:
  xrep-preprocess --bitext de-en=deu-eng.tsv --destdir data-bin
  xrep-preprocess --bitext de-en=deu-eng.tsv --bitext fr-en=train.fr,train.en \\
      --vocab-size 16000 --exclude tatoeba/ --destdir data-bin
  xrep-preprocess --bitext zh-en=un.zh.gz,un.en.gz --sample 1000000 --valid zh-en=dev.zh,dev.en --destdir data-bin

parallel text is written PAIR=FILES:
  de-en=x.tsv          one file with tab-separated columns; which column is English is seen from the text
  de-en=x.tsv:2,1      the same, with the columns of de and en, counted from 1
  de-en=x.de,x.en      two files, line by line translations of each other
  de-en=x.tsv@5000     at most 5000 of its pairs, drawn at random (training text alone)
Every file is UTF-8 and may be packed by gzip or xz. Codes may be two or three letters (deu-eng is de-en).
"""
EPILOG = "A report of what was dropped and why is printed at the end. Nothing is written unless all of it is."


def build_parser() -> argparse.ArgumentParser:
    options = PreprocessOptions()
    cleaning = options.cleaning
    parser = command_parser("xrep-preprocess", DESCRIPTION, EPILOG)
    files = parser.add_argument_group("files")
    pairs = {"action": "append", "default": [], "metavar": "PAIR=FILES"}
    files.add_argument("--bitext", **pairs, required=True, help="training text (repeatable)")
    files.add_argument("--valid", **pairs, help="validation text (repeatable); without it some is held out")
    files.add_argument("--test", **pairs, help="test text (repeatable)")
    files.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATH",
        help="file or folder of an evaluation set: drop training pairs with a sentence that occurs there, case and "
        "punctuation aside (repeatable)",
    )
    files.add_argument("--destdir", required=True, metavar="DIR", help="the data directory to write")
    files.add_argument("--json", metavar="FILE", help="write the report there too (- for standard output)")

    words = parser.add_argument_group("vocabulary")
    words.add_argument("--vocab-size", type=int, default=options.vocabulary_size, help="pieces of the vocabulary")
    words.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="use this tokenizer (folder, .model file, directory of a pretrained encoder, RUN/best, another data "
        "directory), train none",
    )
    words.add_argument("--source-tokenizer", metavar="PATH", help="the same for the first side of each pair alone")
    words.add_argument("--target-tokenizer", metavar="PATH", help="the same for the second side alone")
    words.add_argument(
        "--sampling-exponent",
        type=float,
        default=options.sampling_exponent,
        help="languages of n sentences weigh n ** this in the vocabulary's training text",
    )

    rules = parser.add_argument_group("cleaning", "lengths in words; a Chinese, Japanese or Thai character is half one")
    rules.add_argument("--min-length", type=float, default=cleaning.minimum_length, help="least words on each side")
    rules.add_argument("--max-length", type=float, default=cleaning.maximum_length, help="most words on each side")
    rules.add_argument(
        "--max-length-ratio",
        type=float,
        default=cleaning.maximum_length_ratio,
        help="drop pairs with a side this many times longer than the other, two words added to both",
    )
    rules.add_argument("--keep-duplicates", action="store_true", help="keep repeated pairs")
    rules.add_argument("--keep-identical", action="store_true", help="keep pairs whose sides are equal")
    rules.add_argument("--sample", type=int, metavar="N", help="keep at most N pairs of each corpus, drawn at random")
    rules.add_argument(
        "--valid-size",
        type=int,
        default=options.valid_size,
        help="without --valid: pairs of each language pair to hold out, at most 5 %% of it",
    )
    rules.add_argument("--seed", type=int, default=options.seed, help="of sampling and holding out")
    return parser


def _main(argv: Sequence[str]) -> None:
    arguments = build_parser().parse_args(argv)
    named = {"train": arguments.bitext, "valid": arguments.valid, "test": arguments.test}
    splits = {split: [parse_bitext(spec) for spec in specs] for split, specs in named.items()}
    _check_folder(arguments.json)
    alone = arguments.json == "-"
    log = functools.partial(print, file=sys.stderr if alone else sys.stdout, flush=True)
    report = preprocess(splits, arguments.destdir, _options(arguments), log)
    log(f"\n{report.cleaning.table()}\n")
    log(_summary(report))
    if alone:
        print(json.dumps(report.as_dict(), indent=2, ensure_ascii=False))
    elif arguments.json:
        _write_json(Path(arguments.json), report)
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
    """A path, or the tokenizer (of the side) that lies in a checkpoint or data directory; what is no path may be the
    name of a pretrained encoder."""
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


def _check_folder(path: str | None) -> None:
    if path and path != "-" and not Path(path).absolute().parent.is_dir():
        raise UserError("no such folder", path=Path(path).parent, cure="make it, or name another file for --json")


def _write_json(path: Path, report: PreprocessReport) -> None:
    with write_aside(path) as temporary:
        temporary.write_text(json.dumps(report.as_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())

"""xrep-export: an encoder as a directory for other libraries."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from xrep_cli.common import HelpFormatter, console_script

DESCRIPTION = """\
Write an encoder as a directory that sentence-transformers or transformers load, tokenizer included.

  xrep-export --path run1/best --format sentence-transformers --output my-encoder
  python -c "from sentence_transformers import SentenceTransformer as S; print(S('my-encoder').encode(['Hallo']).shape)"

An encoder with a tower for each side of its pairs becomes two directories, my-encoder/source and my-encoder/target,
and a README that says which is which. Reading one back into xrep gives the same weights, bit by bit."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("xrep-export", description=DESCRIPTION, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--path", required=True, metavar="ENCODER", help="a checkpoint such as run1/best, or a pretrained directory")
    add("--output", required=True, metavar="DIR", help="a new directory")
    add(
        "--format",
        choices=("sentence-transformers", "hf"),
        default="sentence-transformers",
        help="hf: the transformer alone, without pooling and projection",
    )
    add("--plugin", metavar="MODULE", action="append", default=[], help="import a module that has the encoder's model")
    return parser


def _main(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)

    from xrep.export import export
    from xrep.registry import import_plugin
    from xrep.sentence_encoder import SentenceEncoder

    for plugin in options.plugin:
        import_plugin(plugin)
    for path in export(SentenceEncoder.load(options.path, device="cpu"), options.output, options.format):
        print(path)


main = console_script(_main)

if __name__ == "__main__":
    sys.exit(main())

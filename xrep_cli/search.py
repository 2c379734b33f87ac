"""xrep-search: find the sentences of a text that are nearest in meaning to a query, in any language of an encoder."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrep.config.fields import read_fields
from xrep.errors import UserError
from xrep.files import is_stream, same_file
from xrep_cli.common import (
    TEXT_HELP,
    HelpFormatter,
    Parser,
    add_field,
    add_shared_options,
    choose_device,
    command_parser,
    command_script,
    say_if_slow,
)

if TYPE_CHECKING:
    from xrep.inference.search_index import SearchIndex

DESCRIPTION = """\
Search the lines of a text by their meaning, with queries in any language of the encoder.

  xrep-search build --path run1/best --input corpus.txt --lang en --output index/
  xrep-search query index/ "Wo ist der Bahnhof?" -k 5 --lang de
  xrep-search add index/ --input more.txt --lang en

A query prints lines number of the query<TAB>cosine<TAB>file:line<TAB>text, the nearest first."""
BUILD = """\
Encode each line of a text and write an index of them.

  xrep-search build --path run1/best --input corpus.txt.gz --lang en --output index/
  xrep-search build --path run1/best --input corpus.txt --output index/ --quantize int8

The text may have any number of lines; memory does not grow with it. If the command is interrupted, repeat it: it goes
on where it stopped. Blank lines are left out.

Other programs can read the index: faiss index.faiss (with binary codes by faiss.read_index_binary), whose rows are
those of lines.txt (the texts), ids.npy (number of the file, line) and vectors.npy (16-bit vectors, length 1)."""
ADD = """\
Encode each line of a text and add them to an index, which is replaced at once by one with them.

  xrep-search add index/ --input more.txt --lang de"""
QUERY = """\
Print the sentences nearest to each query: number of the query<TAB>cosine<TAB>file:line<TAB>text, the nearest first.

  xrep-search query index/ "Wo ist der Bahnhof?" -k 5
  xrep-search query index/ < questions.txt > answers.tsv         one query per line
  xrep-search query index/ --json < questions.txt                {"query": ..., "hits": [{"score", "row", "file",
                                                                 "line", "text"}]} for each query"""
MOST_QUERIES = 1024
"""Number of queries that are answered at once."""


class _CommandParser(Parser):
    """Parser of one command, which takes queries also behind options: argparse gives all to the first run of words."""

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride] (it is overloaded by the namespace)
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        if "queries" not in found:
            return found, rest
        end = rest.index("--") if "--" in rest else len(rest)
        found.queries = [*found.queries, *(word for word in rest[:end] if word[:1] != "-"), *rest[end + 1 :]]
        return found, [word for word in rest[:end] if word[:1] == "-"]


def build_parser() -> argparse.ArgumentParser:
    parser = command_parser("xrep-search", DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser)
    for name, text in (("build", BUILD), ("add", ADD), ("query", QUERY)):
        summary = text.partition("\n")[0].rstrip(".")
        command = commands.add_parser(
            name, help=summary.partition(":")[0], description=text, formatter_class=HelpFormatter
        )
        add = command.add_argument
        if name != "build":
            add("index", metavar="INDEX", help="the directory of an index")
        where = "" if name == "build" else " (default: where it was when the index was built)"
        add("--path", required=name == "build", metavar="ENCODER", help="the encoder: a checkpoint, a directory of "
            f"Hugging Face or sentence-transformers, or a name in the local Hugging Face cache{where}")  # fmt: skip
        if name == "query":
            add("queries", nargs="*", metavar="QUERY", help="a query; without any, standard input has one per line")
            add("-k", type=int, default=10, metavar="N", help="number of sentences for each query")
            add("--probes", type=int, default=32, metavar="N", help="number of inverted files that are searched for "
                "each query; more find more and take longer")  # fmt: skip
        else:
            add("--input", required=True, metavar="FILE", help=TEXT_HELP)
        if name == "build":
            add("--output", required=True, metavar="DIR", help="a new directory for the index")
            for spec in read_fields("", "xrep.inference.index_files:IndexOptions"):
                add_field(command, spec)
        whose = "queries" if name == "query" else "lines"
        if name != "add":
            usual = "query, if there is one" if name == "query" else "the first of document, passage and corpus"
            add("--prompt-name", metavar="NAME", help=f"the encoder's prompt that is put in front of the {whose} "
                f"(default: {usual}; or else the encoder's default)")  # fmt: skip
        add("--lang", metavar="CODE", help=f"language of the {whose}; needed if the encoder has a tower for each side")
        add("--json", action="store_true", help="print JSON" if name == "query" else "print a summary as JSON")
        shared = {"build": ("--batch-tokens", "--precision"), "add": ("--batch-tokens",), "query": ()}[name]
        add_shared_options(command, *shared, "--device", "--plugin")
    return parser


def _main(options: argparse.Namespace) -> None:
    if options.command == "query":
        _query(options)
        return
    directory = Path(options.output if options.command == "build" else options.index)
    if str(directory) == "-" or is_stream(directory):
        raise UserError("an index is a directory", path=directory, cure="name a directory")
    if options.input != "-" and same_file(directory, options.input):
        raise UserError("`output` is the same file as `input`", path=directory, cure="choose another name")

    from xrep.inference.search_index import SearchIndex
    from xrep.text.readers import read_text

    if options.input != "-" and not is_stream(options.input):
        next(read_text(options.input, options.lang))  # to report errors in the file before the encoder is loaded
    device = choose_device(options.device)
    how: dict[str, Any] = {"lang": options.lang, "batch_tokens": options.batch_tokens, "show_progress": True}
    if options.command == "build":
        say_if_slow("xrep-search", options.precision, device)
        how |= {
            "prompt_name": options.prompt_name,
            "index": options.index,
            "quantize": options.quantize,
            "precision": options.precision,
            "device": device,
        }
        index = SearchIndex.build(options.path, options.input, directory, **how)
    else:
        index = SearchIndex(directory, options.path, device=device)
        index.add(options.input, **how)
    print(_summary(index, options.json))


def _summary(index: SearchIndex, as_json: bool) -> str:
    manifest = index.manifest
    searched = manifest.files["index.faiss"].bytes
    size = sum(file.stat().st_size for file in index.path.iterdir())
    if as_json:
        facts = {name: value for name, value in asdict(manifest).items() if name != "files"}
        return json.dumps({"path": str(index.path), **facts, "index_bytes": searched, "bytes": size})
    kind = f"inverted files of {manifest.cells:,} cells" if manifest.cells else "exact search"
    quantized = "" if manifest.options.quantize == "none" else f", {manifest.options.quantize}"
    plain = 4 * manifest.rows * manifest.size
    sizes = f"{size / plain:.2f} times the bytes of float32 vectors (index.faiss {searched / plain:.2f})"
    recall = ""
    if found := manifest.recall:
        recall = f"; recall@{found.k} {found.recall:.3f} ({found.not_rescored:.3f} without rescoring)"
    lines = f"{manifest.rows:,} sentences of {sum(source.lines for source in manifest.sources):,} lines"
    return f"{lines}, {kind}{quantized}, {sizes}{recall}: {index.path}"


def _query(options: argparse.Namespace) -> None:
    from xrep.inference.search_index import SearchIndex
    from xrep.text.chunks import read_chunks

    if any(not query.strip() for query in options.queries):
        raise UserError("an empty query", cure="give a sentence")
    index = SearchIndex(options.index, options.path, device=choose_device(options.device))
    if not options.queries and sys.stdin.isatty():
        print("type one query per line; Ctrl-D ends", file=sys.stderr)
    chunks = iter([options.queries]) if options.queries else read_chunks("/dev/stdin", MOST_QUERIES)
    before = 0
    for queries in chunks:
        found = index.search(queries, options.k, options.lang, probes=options.probes, prompt_name=options.prompt_name)
        for number, (query, hits) in enumerate(zip(queries, found, strict=True), before + 1):
            if options.json:
                print(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
            for hit in () if options.json else hits:
                place = f"{hit.file}:{hit.line}" if hit.file is not None else hit.line
                print(f"{number}\t{hit.score:.4f}\t{place}\t{hit.text}")
        before += len(queries)
        sys.stdout.flush()


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

"""xrep-search: find the sentences of a text that are nearest in meaning to a query, in any language of an encoder."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.files import is_stream
from xrep_cli.common import (
    SHARED_OPTIONS,
    TEXT_HELP,
    HelpFormatter,
    Parser,
    choose_device,
    command_parser,
    command_script,
    say_if_slow,
)

DESCRIPTION = """\
Search the lines of a text by their meaning, with queries in any language of the encoder.

  xrep-search build --path run1/best --input corpus.txt --lang en --output index/
  xrep-search query index/ "Wo ist der Bahnhof?" -k 5 --lang de
  xrep-search add index/ --input more.txt
  xrep-search check index/"""
BUILD = """\
Encode each line of a text and write an index of them.

  xrep-search build --path run1/best --input corpus.txt.gz --lang en --output index/
  xrep-search build --path run1/best --input corpus.txt --output index/ --index IVF4096,PQ48

The text may have any number of lines. If the command is interrupted, repeat it: it goes on where it stopped. Blank
lines are left out. While faiss builds an index, it holds up to 2 GB of float32 vectors in memory, compressed as it is.

Other programs can read each part of the index: lines.txt (the sentences), numbers.npy (their lines in the text),
vectors.npy (16-bit vectors, length 1) and, unless the search is exact, 00000.faiss, 00001.faiss, ... (faiss)."""
ADD = """\
Encode each line of a text and add them to an index.

  xrep-search add index/ --input more.txt

A query meanwhile finds all of the new lines or none. If the command is interrupted, repeat it: it goes on where it
stopped. The same lines in the same language are not added twice. At most 100,000 lines are searched exactly; for more
there is an index like the one that was built."""
QUERY = """\
Print the sentences nearest to each query.

  xrep-search query index/ "Wo ist der Bahnhof?" -k 5
  xrep-search query index/ < questions.txt > answers.tsv         one query per line
  xrep-search query index/ --json < questions.txt                {"query": ..., "hits": [{"score", "row", "file",
                                                                 "line", "text"}]} for each query

The columns are the number of the query, the cosine, file:line and the text, the nearest first. On a terminal, a line
above them has their names."""
CHECK = """\
Compare all files of an index with their checksums, and measure its recall.

  xrep-search check index/ --json

The recall is the share of the 10 nearest lines, by exact search, that a query finds. 100 lines of the index, drawn with
a fixed seed, are the queries."""
COMMANDS = {"build": BUILD, "add": ADD, "query": QUERY, "check": CHECK}
ENCODER = ("the encoder: a checkpoint, a directory of Hugging Face or sentence-transformers, or a name in the local "
    "Hugging Face cache")  # fmt: skip
PROMPT = "the encoder's prompt that is put in front of the {} (default: {}; or else the encoder's default)"
LANGUAGE = "language of the {}; needed if the encoder has a tower for each side"
OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("index", "add query check", {"metavar": "INDEX", "help": "the directory of an index"}),
    ("--path", "build", {"required": True, "metavar": "ENCODER", "help": ENCODER}),
    ("--path", "add query", {"metavar": "ENCODER", "help": f"{ENCODER} (default: where it was when the index was "
        "built)"}),
    ("queries", "query", {"nargs": "*", "metavar": "QUERY", "help": "a query; without any, standard input has one per "
        "line"}),
    ("-k", "query", {"type": int, "default": 10, "metavar": "N", "help": "number of sentences for each query"}),
    ("--probes", "query", {"type": int, "default": 32, "metavar": "N", "help": "number of inverted lists that are "
        "searched for each query; more find more and take longer"}),
    ("--input", "build add", {"required": True, "metavar": "FILE", "help": TEXT_HELP}),
    ("--output", "build", {"required": True, "metavar": "DIR", "help": "a new directory for the index"}),
    ("--index", "build", {"default": "auto", "metavar": "STRING", "help": "flat: exact search; a description of "
        "faiss's index_factory, such as IVF4096,SQ8 or IVF4096,PQ48: faiss proposes lines, whose vectors are then "
        "compared; auto: flat up to 100,000 lines, and inverted lists (IVFn,SQ8) beyond"}),
    ("--prompt-name", "build", {"metavar": "NAME", "help": PROMPT.format("lines", "the first of document, passage and "
        "corpus")}),
    ("--prompt-name", "query", {"metavar": "NAME", "help": PROMPT.format("queries", "query, if there is one")}),
    ("--lang", "build", {"metavar": "CODE", "help": LANGUAGE.format("lines")}),
    ("--lang", "add", {"metavar": "CODE", "help": LANGUAGE.format("lines") + " (default: that with which the index was "
        "built)"}),
    ("--lang", "query", {"metavar": "CODE", "help": LANGUAGE.format("queries")}),
    ("--json", "query check", {"action": "store_true", "help": "print JSON"}),
    ("--json", "build add", {"action": "store_true", "help": "print a summary as JSON"}),
    ("--batch-tokens", "build add", SHARED_OPTIONS["--batch-tokens"]),
    ("--precision", "build", SHARED_OPTIONS["--precision"]),
    ("--device", "build add query", SHARED_OPTIONS["--device"]),
    ("--plugin", "build add query", SHARED_OPTIONS["--plugin"]),
)  # fmt: skip
"""Each option, the commands that have it, and the arguments of ``add_argument``."""
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
    for name, text in COMMANDS.items():
        summary = text.partition("\n")[0].rstrip(".").partition(":")[0]
        command = commands.add_parser(name, help=summary, description=text, formatter_class=HelpFormatter)
        for option, having, given in OPTIONS:
            if name in having.split():
                command.add_argument(option, **given)
    return parser


def _main(options: argparse.Namespace) -> None:
    {"build": _write, "add": _write, "query": _query, "check": _check}[options.command](options)


def _write(options: argparse.Namespace) -> None:
    directory = Path(options.output if options.command == "build" else options.index)
    if str(directory) == "-" or is_stream(directory):
        raise UserError("an index is a directory", path=directory, cure="name a directory")

    from xrep.inference.search_index import SearchIndex
    from xrep.text.readers import read_text

    if options.input != "-" and not is_stream(options.input):
        next(read_text(options.input, options.lang))  # to report errors in the file before the encoder is loaded
    device = choose_device(options.device)
    how: dict[str, Any] = {"lang": options.lang, "batch_tokens": options.batch_tokens, "show_progress": True}
    if options.command == "build":
        say_if_slow("xrep-search", options.precision, device)
        how |= {name: vars(options)[name] for name in ("prompt_name", "index", "precision")}
        index = SearchIndex.build(options.path, options.input, directory, device=device, **how)
    else:
        index = SearchIndex(directory, options.path, device=device)
        before = len(index)
        index.add(options.input, **how)
        if len(index) == before:
            print(f"xrep-search: the sentences of {options.input} are there already", file=sys.stderr)
    size, parts = sum(file["bytes"] for file in _files(index)), index.manifest["parts"]
    if options.json:
        parts = [{name: value for name, value in part.items() if name != "files"} for part in parts]
        facts = index.manifest | {"rows": len(index), "bytes": size, "parts": parts}
        print(json.dumps({"path": str(directory), **facts}))
        return
    lines, among = sum(part["lines"] for part in parts), f" in {len(parts)} parts" if len(parts) > 1 else ""
    kinds = " and ".join(dict.fromkeys(part["index"] for part in parts)).replace("flat", "exact search")
    print(f"{len(index):,} sentences of {lines:,} lines{among}, {kinds}, {size / 1e6:,.1f} MB: {directory}")


def _files(index: Any) -> list[dict[str, Any]]:
    return [file for part in index.manifest["parts"] for file in part["files"].values()]


def _check(options: argparse.Namespace) -> None:
    from xrep.inference.search_index import SearchIndex

    index, k = SearchIndex(options.index), 10
    queries, files = min(100, len(index)), _files(index)
    recall, size = index.check(k, queries), sum(file["bytes"] for file in files)
    if options.json:
        facts = {"files": len(files), "bytes": size, "k": k, "queries": queries, "recall": recall}
        print(json.dumps({"path": options.index, **facts}))
    else:
        whole = f"all {len(files)} files ({size / 1e6:,.1f} MB) are as they were written"
        print(f"{whole}; recall@{k} of {queries} queries {recall:.3f}: {options.index}")


def _query(options: argparse.Namespace) -> None:
    from xrep.inference.search_index import SearchIndex
    from xrep.text.chunks import read_chunks

    for query in options.queries:
        if not query.strip():
            raise UserError("an empty query", cure="give a sentence")
        if any("\ud800" <= character <= "\udfff" for character in query):  # as Python reads other bytes
            raise UserError(f"a query that is not UTF-8: {query!a}", cure="give it on standard input, in UTF-8")
    index = SearchIndex(options.index, options.path, device=choose_device(options.device))
    if not options.queries and sys.stdin.isatty():
        print("type one query per line; Ctrl-D ends", file=sys.stderr)
    answered = 0
    for queries in [options.queries] if options.queries else read_chunks("/dev/stdin", MOST_QUERIES):
        found = index.search(queries, options.k, options.lang, probes=options.probes, prompt_name=options.prompt_name)
        if not answered and not options.json and sys.stdout.isatty():
            print("query\tcosine\tplace\ttext")
        for number, (query, hits) in enumerate(zip(queries, found, strict=True), answered + 1):
            if options.json:
                print(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
                continue
            for hit in hits:
                place = hit.line if hit.file is None else f"{hit.file}:{hit.line}"
                print(f"{number}\t{hit.score:.4f}\t{place}\t{hit.text}")
        answered += len(queries)
        sys.stdout.flush()
    if not answered:
        raise UserError("no query", path="standard input", cure="give a sentence on each line")


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

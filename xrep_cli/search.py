"""xrep-search: find the sentences of a text that are nearest in meaning to a query, in any language of an encoder."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrep.errors import UserError
from xrep.files import is_stream
from xrep_cli.common import (
    TEXT_HELP,
    HelpFormatter,
    Parser,
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
stopped. At most 100,000 lines are searched exactly; for more there is an index like the one that was built."""
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
COLUMNS = "query\tcosine\tplace\ttext"
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
    for name, text in (("build", BUILD), ("add", ADD), ("query", QUERY), ("check", CHECK)):
        summary = text.partition("\n")[0].rstrip(".")
        command = commands.add_parser(
            name, help=summary.partition(":")[0], description=text, formatter_class=HelpFormatter
        )
        add = command.add_argument
        if name != "build":
            add("index", metavar="INDEX", help="the directory of an index")
        if name == "check":
            add("--json", action="store_true", help="print JSON")
            continue
        where = "" if name == "build" else " (default: where it was when the index was built)"
        add("--path", required=name == "build", metavar="ENCODER", help="the encoder: a checkpoint, a directory of "
            f"Hugging Face or sentence-transformers, or a name in the local Hugging Face cache{where}")  # fmt: skip
        if name == "query":
            add("queries", nargs="*", metavar="QUERY", help="a query; without any, standard input has one per line")
            add("-k", type=int, default=10, metavar="N", help="number of sentences for each query")
            add("--probes", type=int, default=32, metavar="N", help="number of inverted lists that are searched for "
                "each query; more find more and take longer")  # fmt: skip
        else:
            add("--input", required=True, metavar="FILE", help=TEXT_HELP)
        if name == "build":
            add("--output", required=True, metavar="DIR", help="a new directory for the index")
            add("--index", default="auto", metavar="STRING", help="flat: exact search; a description of faiss's "
                "index_factory, such as IVF4096,SQ8 or IVF4096,PQ48: faiss proposes lines, whose vectors are then "
                "compared; auto: flat up to 100,000 lines, and inverted lists (IVFn,SQ8) beyond")  # fmt: skip
        whose = "queries" if name == "query" else "lines"
        if name != "add":
            usual = "query, if there is one" if name == "query" else "the first of document, passage and corpus"
            add("--prompt-name", metavar="NAME", help=f"the encoder's prompt that is put in front of the {whose} "
                f"(default: {usual}; or else the encoder's default)")  # fmt: skip
        usual = " (default: that with which the index was built)" if name == "add" else ""
        add("--lang", metavar="CODE", help=f"language of the {whose}; needed if the encoder has a tower for each "
            f"side{usual}")  # fmt: skip
        add("--json", action="store_true", help="print JSON" if name == "query" else "print a summary as JSON")
        shared = {"build": ("--batch-tokens", "--precision"), "add": ("--batch-tokens",), "query": ()}[name]
        add_shared_options(command, *shared, "--device", "--plugin")
    return parser


def _main(options: argparse.Namespace) -> None:
    if options.command == "query":
        _query(options)
        return
    if options.command == "check":
        _check(options)
        return
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
        index.add(options.input, **how)
    print(_summary(index, options.json))


def _summary(index: SearchIndex, as_json: bool) -> str:
    facts = asdict(index.manifest)
    size = sum(one["bytes"] for part in facts["parts"] for one in part.pop("files").values())
    if as_json:
        return json.dumps({"path": str(index.path), "rows": len(index), "bytes": size, **facts})
    lines = sum(part["lines"] for part in facts["parts"])
    kinds = " and ".join(dict.fromkeys(part["index"] for part in facts["parts"])).replace("flat", "exact search")
    parts = f" in {len(facts['parts'])} parts" if len(facts["parts"]) > 1 else ""
    return f"{len(index):,} sentences of {lines:,} lines{parts}, {kinds}, {size / 1e6:,.1f} MB: {index.path}"


def _check(options: argparse.Namespace) -> None:
    from xrep.inference.search_index import SearchIndex

    found = SearchIndex(options.index).check()
    if options.json:
        print(json.dumps({"path": options.index, **asdict(found)}))
    else:
        whole = f"all {found.files} files ({found.bytes / 1e6:,.1f} MB) are as they were written"
        print(f"{whole}; recall@{found.k} of {found.queries} queries {found.recall:.3f}: {options.index}")


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
    chunks = iter([options.queries]) if options.queries else read_chunks("/dev/stdin", MOST_QUERIES)
    before = 0
    for queries in chunks:
        found = index.search(queries, options.k, options.lang, probes=options.probes, prompt_name=options.prompt_name)
        if not before and not options.json and sys.stdout.isatty():
            print(COLUMNS)
        for number, (query, hits) in enumerate(zip(queries, found, strict=True), before + 1):
            if options.json:
                print(json.dumps({"query": query, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
            for hit in () if options.json else hits:
                place = f"{hit.file}:{hit.line}" if hit.file is not None else hit.line
                print(f"{number}\t{hit.score:.4f}\t{place}\t{hit.text}")
        before += len(queries)
        sys.stdout.flush()
    if not before:
        raise UserError("no query", path="standard input", cure="give a sentence on each line")


main = command_script(build_parser, _main)

if __name__ == "__main__":
    sys.exit(main())

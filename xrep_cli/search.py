"""xrep-search: find the sentences of a text that are nearest in meaning to a query, in any language of an encoder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from xrep.config.fields import Count
from xrep.errors import UserError
from xrep_cli import common
from xrep_cli.command import Command

MOST_QUERIES = 1024
"""Number of queries that are answered at once."""
Index = Annotated[str, common.Option(positional=True, metavar="INDEX", help="the directory of an index")]
Queries = Annotated[list[str], common.Option(positional=True, metavar="QUERY", nargs="*")]
Prompt = Annotated[str, common.Option(metavar="NAME")]


@dataclass(kw_only=True)
class SearchCommands:
    """Search the lines of a text by their meaning, with queries in any language of the encoder.

      # Write an index of a text
      xrep-search build --path run1/best --input corpus.txt --lang en --output index/
      # Ask in another language
      xrep-search query index/ "Wo ist der Bahnhof?" -k 5 --lang de
      # Keep the encoder loaded, and answer in a browser and to programs
      xrep-search serve index/

    xrep-search COMMAND --help lists the options of a command."""


@dataclass(kw_only=True)
class Build(common.Computing, common.Batches, common.JsonOption):
    """Encode each line of a text and write an index of them.

      xrep-search build --path run1/best --input corpus.txt.gz --lang en --output index/
      xrep-search build --path run1/best --input corpus.txt --output index/ --index IVF4096,PQ48

    The text may have any number of lines. If the command is interrupted, repeat it: it goes on where it stopped. Blank
    lines are left out. While faiss builds an index, it holds up to 2 GB of vectors in memory, in float32 even if the
    index compresses them.

    Other programs can read each part of the index: lines.txt (the sentences), numbers.npy (their lines in the text),
    vectors.npy (16-bit vectors, length 1) and, unless the search is exact, 00000.faiss, 00001.faiss, ... (faiss)."""

    path: common.EncoderPath
    input: common.TextInput
    output: Annotated[str, common.Option(metavar="DIR", writes=common.check_here)]
    """A new directory for the index."""
    index: Annotated[str, common.Option(metavar="STRING")] = "auto"
    """flat: exact search; a description of faiss's index_factory, such as IVF4096,SQ8 or IVF4096,PQ48: faiss proposes
    lines, whose vectors are then compared; auto: flat up to 100,000 lines, and inverted lists (IVFn,SQ8) beyond."""
    prompt_name: Prompt | None = None
    """The encoder's prompt that is put in front of the lines (default: the first of document, passage and corpus; or
    else the encoder's default)."""
    lang: common.Language | None = None
    """Language of the lines; needed if the encoder has a tower for each side."""


def build_index(options: Build) -> None:
    from xrep.inference.search_index import SearchIndex

    common.check_text([options.input], options.lang)
    how = {"device": options.device, "lang": options.lang, "precision": options.precision, "show_progress": True}
    how |= {"batch_tokens": options.batch_tokens, "prompt_name": options.prompt_name, "index": options.index}
    _tell(SearchIndex.build(options.path, options.input, options.output, **how), options.output, options.json)


@dataclass(kw_only=True)
class Add(common.Device, common.Batches, common.JsonOption):
    """Encode each line of a text and add them to an index.

      xrep-search add index/ --input more.txt

    A query meanwhile finds all of the new lines or none. If the command is interrupted, repeat it: it goes on where it
    stopped. The same lines in the same language are not added twice. At most 100,000 lines are searched exactly; for
    more there is an index like the one that was built."""

    index: Index
    path: common.EncoderPath | None = None
    """The encoder, if it is no longer where it was when the index was built."""
    input: common.TextInput
    lang: common.Language | None = None
    """Language of the lines; needed if the encoder has a tower for each side (default: that with which the index was
    built)."""


def add_lines(options: Add) -> None:
    from xrep.inference.search_index import SearchIndex

    common.check_text([options.input], options.lang)
    index = SearchIndex.load(options.index, options.path, device=options.device)
    before = len(index)
    index.add(options.input, lang=options.lang, batch_tokens=options.batch_tokens, show_progress=True)
    if len(index) == before:
        print(f"xrep-search: the sentences of {options.input} are there already", file=sys.stderr)
    _tell(index, options.index, options.json)


def _tell(index: Any, directory: str, json: str | None) -> None:
    """Print a line about an index that was written, or a summary of it."""
    parts, size, directory = index.manifest["parts"], sum(file["bytes"] for file in _files(index)), str(Path(directory))
    files_apart = [{name: value for name, value in part.items() if name != "files"} for part in parts]
    facts = index.manifest | {"rows": len(index), "bytes": size, "parts": files_apart}
    lines, among = sum(part["lines"] for part in parts), f" in {len(parts)} parts" if len(parts) > 1 else ""
    shown = " and ".join(dict.fromkeys(part["index"] for part in parts)).replace("flat", "exact search")
    said = f"{len(index):,} sentences of {lines:,} lines{among}, {shown}, {size / 1e6:,.1f} MB: {directory}"
    common.write_summary({"path": directory, **facts}, json, said)


def _files(index: Any) -> list[dict[str, Any]]:
    return [file for part in index.manifest["parts"] for file in part["files"].values()]


@dataclass(kw_only=True)
class Query(common.Device):
    """Print the sentences nearest to each query.

      xrep-search query index/ "Wo ist der Bahnhof?" -k 5
      xrep-search query index/ < questions.txt > answers.tsv         one query per line
      xrep-search query index/ --json < questions.txt                {"query": ..., "hits": [{"score", "row", "file",
                                                                     "line", "text"}]} for each query

    The columns are the number of the query, the cosine, file:line and the text, the nearest first. On a terminal, a
    line above them has their names."""

    index: Index
    queries: Queries = field(default_factory=list)
    """A query; without any, standard input has one per line."""
    path: common.EncoderPath | None = None
    """The encoder, if it is no longer where it was when the index was built."""
    k: Annotated[Count, common.Option(flag="-k")] = 10
    """Number of sentences for each query."""
    probes: Count = 32
    """Number of inverted lists that are searched for each query; more find more and take longer."""
    prompt_name: Prompt | None = None
    """The encoder's prompt that is put in front of the queries (default: query, if there is one; or else the encoder's
    default)."""
    lang: common.Language | None = None
    """Language of the queries; needed if the encoder has a tower for each side."""
    json: bool = False
    """Print the answers as JSON, an object per line."""


def query(options: Query) -> None:
    from xrep.inference.search_index import SearchIndex
    from xrep.text.chunks import read_chunks

    for asked in options.queries:
        if not asked.strip():
            raise UserError("an empty query", cure="give a sentence")
    index = SearchIndex.load(options.index, options.path, device=options.device)
    if not options.queries and sys.stdin.isatty():
        print("type one query per line; Ctrl-D ends", file=sys.stderr)
    answered, how = 0, {"probes": options.probes, "prompt_name": options.prompt_name}
    with common.text_writer("-") as write:
        for queries in [options.queries] if options.queries else read_chunks("/dev/stdin", MOST_QUERIES):
            found = index.search(queries, options.k, options.lang, **how)
            if not answered and not options.json and sys.stdout.isatty():
                write("query\tcosine\tplace\ttext\n")
            for number, (asked, hits) in enumerate(zip(queries, found, strict=True), answered + 1):
                if options.json:
                    answer = {"query": asked, "hits": [asdict(hit) for hit in hits]}
                    write(f"{json.dumps(answer, ensure_ascii=False)}\n")
                    continue
                for hit in hits:
                    place = hit.line if hit.file is None else f"{hit.file}:{hit.line}"
                    write(f"{number}\t{hit.score:.4f}\t{place}\t{hit.text}\n")
            answered += len(queries)
        if not answered:
            raise UserError(
                "no query", path="standard input", cure="give a sentence on each line, or a query before `json`"
            )


@dataclass(kw_only=True)
class CheckIndex(common.JsonOption):
    """Compare all files of an index with their checksums, and measure its recall.

      xrep-search check index/ --json

    The recall is the share of the 10 nearest lines, by exact search, that a query finds. 100 lines of the index, drawn
    with a fixed seed, are the queries."""

    index: Index


def check_index(options: CheckIndex) -> None:
    from xrep.inference.search_index import SearchIndex

    index, k = SearchIndex.load(options.index), 10
    queries, files = min(100, len(index)), _files(index)
    recall, size = index.check(k, queries), sum(file["bytes"] for file in files)
    facts = {"files": len(files), "bytes": size, "k": k, "queries": queries, "recall": recall}
    whole = f"all {len(files)} files ({size / 1e6:,.1f} MB) are as they were written"
    said = f"{whole}; recall@{k} of {queries} queries {recall:.3f}: {options.index}"
    common.write_summary({"path": options.index, **facts}, options.json, said)


@dataclass(kw_only=True)
class Serve(common.Device):
    """Answer queries over HTTP, with the encoder loaded: a page for a browser, and JSON for programs.

      xrep-search serve index/ --pairs mined.tsv
      curl 'http://127.0.0.1:8000/search?query=Wo+ist+der+Bahnhof%3F&k=5'

    /search?query=...&k=10&lang=de finds sentences, /similar?row=3&k=10 those near a sentence of the index, /pairs shows
    mined pairs, and /openapi.json describes the answers. A request that is wrong is answered by {"error": ...} and a
    status of 400 or more. Lines that are added later are found when it is started again. By default only this machine
    can ask; it has no passwords, so put it behind a proxy that has them before others may. It needs the extra serve."""

    index: Index
    path: common.EncoderPath | None = None
    """The encoder, if it is no longer where it was when the index was built."""
    pairs: common.InputFile | None = None
    """Pairs that xrep-mine or xrep-score wrote, of which the best 100,000 are shown side by side."""
    host: Annotated[str, common.Option(metavar="HOST")] = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every one of this machine."""
    port: Annotated[int, "[0, 65535]"] = 8000
    """Port to listen on; 0 is any that is free."""


def serve_index(options: Serve) -> None:
    from xrep.inference.search_index import SearchIndex

    try:
        from xrep.inference.search_server import HOSTS, application, read_mined, serve
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed", cure="pip install 'xrep[serve]'") from None

    index = SearchIndex.load(options.index, options.path, device=options.device)
    pairs = [] if options.pairs is None else read_mined(options.pairs)
    app = application(index, pairs, hosts=HOSTS if options.host in HOSTS else ())
    serve(app, options.host, options.port)


VERBS = {
    "build": (Build, build_index),
    "add": (Add, add_lines),
    "query": (Query, query),
    "check": (CheckIndex, check_index),
    "serve": (Serve, serve_index),
}
main = Command(
    "xrep-search", SearchCommands, below=lambda: {name: Command("xrep-search", *verb) for name, verb in VERBS.items()}
)

if __name__ == "__main__":
    sys.exit(main())

"""Search and mining beside faiss and beside what users of sentence-transformers write.

- Exact neighbours in both directions of two sets of vectors, beside IndexFlatIP of faiss, which is searched both ways.
- From two texts to mined pairs: xrep-mine beside the script in ``mining_peer.py``. Each is a process of its own, from
  its start to its last pair.
- The answer of a search index to one query, beside encoding the query and ``semantic_search`` of sentence-transformers.

  python benchmarks/mining.py                                                            # the first part alone
  python benchmarks/mining.py --path $(xrep-data get minilm --print-path) --lines 4000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import make_parser, progress, read_pairs, take_turns, texts_of
from results import Row, compare, report

from xrep.inference.search_index import SearchIndex
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.topk import TopK
from xrep.store.vectors import normalize_rows

PEER = Path(__file__).with_name("mining_peer.py")
CLOSE = 1e-6
"""Similarities that differ by less count as equal, because rounding decides between two such neighbours."""
NEIGHBOURS, QUERIES = 4, 100

Both = tuple[TopK, TopK]


def drawn(rows: int, width: int, seed: int) -> np.ndarray:
    """Return random vectors of length 1, float32 [rows, width]."""
    return normalize_rows(np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32))


def faiss_both_ways(x: np.ndarray, y: np.ndarray) -> Both:
    import faiss

    found = []
    for queries, side in ((x, y), (y, x)):
        index = faiss.IndexFlatIP(side.shape[1])
        index.add(side)
        similarity, rows = index.search(queries, NEIGHBOURS)
        found.append(TopK(torch.from_numpy(similarity), torch.from_numpy(rows)))
    return found[0], found[1]


def differing(x: np.ndarray, y: np.ndarray, ours: Both, theirs: Both) -> int:
    """Return the number of neighbours that differ and are not equally near."""
    wrong = 0
    for queries, side, *both in zip((x, y), (y, x), ours, theirs, strict=True):
        mine, other = (found.index.numpy() for found in both)
        rows, places = np.nonzero(mine != other)
        pairs = (side[found[rows, places]].astype(np.float64) for found in (mine, other))
        exact = [np.einsum("nd,nd->n", queries[rows].astype(np.float64), found) for found in pairs]
        wrong += int((np.abs(exact[0] - exact[1]) > CLOSE).sum())
    return wrong


def exact_search(options: argparse.Namespace) -> list[Row]:
    rows = list[Row]()
    for size in options.sizes:
        x, y = drawn(size, options.width, 0), drawn(size, options.width, 1)
        contestants: dict[str, Callable[[Any], Both]] = {
            "xrep": lambda _, x=x, y=y: neighbours(x, y, NEIGHBOURS, NEIGHBOURS),
            "faiss": lambda _, x=x, y=y: faiss_both_ways(x, y),
        }
        turns = take_turns(contestants, range(options.repeats + 1), title=f"search, {size} vectors")
        progress(f"{size} vectors: {differing(x, y, turns.results['xrep'], turns.results['faiss'])} neighbours differ")
        name = f"{size} random vectors of {options.width}"
        rows += compare("mining, exact search both ways", name, turns.seconds, [("xrep", "faiss")])
    return rows


def text_to_pairs(options: argparse.Namespace, kind: str, pairs: list[tuple[str, str]]) -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            (folder / side).write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")
        source, target = str(folder / "source"), str(folder / "target")

        def run(*words: str | Path) -> set[str]:
            output = folder / f"{len([*folder.iterdir()])}.tsv"
            line = [sys.executable, *map(str, words), str(output)]
            done = subprocess.run(line, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            return {line.partition("\t")[2] for line in output.read_text(encoding="utf-8").splitlines()}

        def ours(precision: str) -> set[str]:
            given = ["--path", options.path, "--source", source, "--target", target, "--one-to-one"]
            return run("-m", "xrep_cli.mine", *given, "--precision", precision, "--device", "cpu", "--output")

        peer, precisions = "sentence-transformers and faiss", ("float32", "int8")
        contestants: dict[str, Callable[[Any], set[str]]] = {peer: lambda _: run(PEER, options.path, source, target)}
        for precision in precisions:
            contestants[f"xrep-mine, {precision}"] = lambda _, precision=precision: ours(precision)
        turns = take_turns(contestants, range(options.repeats + 1), title=f"mining, {kind} text")
    for name, found in turns.results.items():
        progress(f"{name}: {len(found)} pairs, of which {len(found & turns.results[peer])} are those of {peer}")
    chosen = [(f"xrep-mine, {precision}", peer) for precision in precisions]
    return compare("mining, two texts to pairs", kind, turns.seconds, chosen)


def answers(options: argparse.Namespace, kind: str, pairs: list[tuple[str, str]]) -> list[Row]:
    from sentence_transformers import SentenceTransformer, util

    lines = [english for _, english in pairs]
    queries = [lines[number % len(lines)] for number in range(QUERIES)]
    model = SentenceTransformer(options.path, device="cpu")
    corpus = model.encode(lines, convert_to_tensor=True, show_progress_bar=False)

    def theirs(query: str) -> list[int]:
        vector = model.encode(query, convert_to_tensor=True, show_progress_bar=False)
        return [hit["corpus_id"] for hit in util.semantic_search(vector, corpus, top_k=10)[0]]

    with tempfile.TemporaryDirectory() as folder:
        index = SearchIndex.build(options.path, lines, Path(folder) / "index", device="cpu")
        contestants = {"SearchIndex": index.search, "semantic_search": theirs}
        turns = take_turns(contestants, queries, warm_up=10)
    return compare("mining, answer to a query", kind, turns.seconds, [("SearchIndex", "semantic_search")])


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--sizes", type=int, nargs="*", default=[20000], metavar="N", help="vectors a side of the exact search")
    add("--width", type=int, default=768, help="numbers of a vector")
    add("--path", help="a sentence-transformers directory, such as minilm's; without it only vectors are searched")
    add("--lines", type=int, default=4000, help="short lines of each text; a fifth of that if long")
    options = parser.parse_args()
    report(exact_search(options), options.csv)
    for kind, count in texts_of(options, options.lines):
        if options.path:
            pairs = read_pairs(kind, count, options.data)
            report(text_to_pairs(options, kind, pairs), options.csv)
            report(answers(options, kind, pairs), options.csv)


if __name__ == "__main__":
    main()

"""Search and mining beside faiss and beside what users of sentence-transformers write.

- Exact neighbours in both directions of two sets of vectors, beside IndexFlatIP of faiss, which is searched both ways.
- From two texts to mined pairs: xrep-mine beside the script in ``mining_peer.py``. Each is a process of its own, from
  its start to its last pair.
- The answer of a search index to one query, beside encoding the query and ``semantic_search`` of sentence-transformers.

  python benchmarks/mining.py                                                            # the first part alone
  python benchmarks/mining.py --path $(xrep-data get minilm --print-path) --lines 4000
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import contest, make_parser, progress, read_pairs, texts_of

from xrep.inference.search_index import SearchIndex
from xrep.retrieval.in_memory import neighbours
from xrep.retrieval.topk import TopK
from xrep.store.vectors import normalize_rows

PEER = Path(__file__).with_name("mining_peer.py")
NEIGHBOURS, QUERIES = 4, 100

Both = tuple[TopK, TopK]


def drawn(rows: int, width: int, seed: int) -> np.ndarray:
    """Return random vectors of length 1, float32 [rows, width]."""
    return normalize_rows(np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32))


def faiss_both_ways(x: np.ndarray, y: np.ndarray, place: Callable[[Any], Any] = lambda index: index) -> Both:
    """Search both ways with an index that ``place`` may put on GPUs."""
    import faiss

    found = []
    for queries, side in ((x, y), (y, x)):
        index = place(faiss.IndexFlatIP(side.shape[1]))
        index.add(side)
        similarity, rows = index.search(queries, NEIGHBOURS)
        found.append(TopK(torch.from_numpy(similarity), torch.from_numpy(rows)))
    return found[0], found[1]


def same_neighbours(one: Both, other: Both) -> float:
    """Return the share of equal neighbours; of two that are almost equally near, rounding decides which is nearer."""
    return statistics.fmean((a.index == b.index).float().mean().item() for a, b in zip(one, other, strict=True))


def exact_search(options: argparse.Namespace, size: int) -> None:
    x, y = (drawn(size, options.width, seed) for seed in range(2))
    text = f"{size} random vectors of {options.width}"
    ours = partial(neighbours, x, y, NEIGHBOURS, NEIGHBOURS)
    contestants = {"xrep": lambda _: ours(), "faiss": lambda _: faiss_both_ways(x, y)}
    found = contest(options, "mining, exact search both ways", text, contestants, {"xrep": ["faiss"]}).results
    progress(f"{100 * same_neighbours(found['xrep'], found['faiss']):.2f}% of the neighbours are the same")


def text_to_pairs(options: argparse.Namespace, kind: str, pairs: list[tuple[str, str]], folder: Path) -> None:
    source, target, output = (str(folder / name) for name in ("source", "target", "mined"))
    for path, lines in zip((source, target), zip(*pairs, strict=True), strict=True):
        Path(path).write_text("\n".join(sorted(lines)) + "\n", encoding="utf-8")

    def run(words: list[str], _: Any) -> set[str]:
        Path(output).unlink(missing_ok=True)
        subprocess.run([sys.executable, *words, output], stdout=subprocess.DEVNULL, check=True)
        return {line.partition("\t")[2] for line in Path(output).read_text(encoding="utf-8").splitlines()}

    peer = "sentence-transformers and faiss"
    contestants = {peer: partial(run, [str(PEER), options.path, source, target])}
    for precision in ("float32", "int8"):
        words = ["-m", "xrep_cli.mine", "--path", options.path, "--source", source, "--target", target]
        words += ["--one-to-one", "--precision", precision, "--device", "cpu", "--output"]
        contestants[f"xrep-mine, {precision}"] = partial(run, words)
    chosen = {name: [peer] for name in contestants if name != peer}
    turns = contest(options, "mining, two texts to pairs", kind, contestants, chosen)
    for name, found in turns.results.items():
        progress(f"{name}: {len(found)} pairs, of which {len(found & turns.results[peer])} are those of {peer}")


def answers(options: argparse.Namespace, kind: str, pairs: list[tuple[str, str]], folder: Path) -> None:
    from sentence_transformers import SentenceTransformer, util

    lines = [english for _, english in pairs]
    queries = [lines[number % len(lines)] for number in range(QUERIES)]
    model = SentenceTransformer(options.path, device="cpu")
    corpus = model.encode(lines, convert_to_tensor=True, show_progress_bar=False)

    def theirs(query: str) -> list[int]:
        vector = model.encode(query, convert_to_tensor=True, show_progress_bar=False)
        return [hit["corpus_id"] for hit in util.semantic_search(vector, corpus, top_k=10)[0]]

    index = SearchIndex.build(options.path, lines, folder / "index", device="cpu")
    contestants, chosen = {"SearchIndex": index.search, "semantic_search": theirs}, {"SearchIndex": ["semantic_search"]}
    contest(options, "mining, answer to a query", kind, contestants, chosen, queries, warm_up=10)


def main() -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--sizes", type=int, nargs="*", default=[20000], metavar="N", help="vectors a side of the exact search")
    add("--width", type=int, default=768, help="numbers of a vector")
    add("--path", help="a sentence-transformers directory, such as minilm's; without it only vectors are searched")
    add("--lines", type=int, default=4000, help="short lines of each text; a fifth of that if long")
    options = parser.parse_args()
    for size in options.sizes:
        exact_search(options, size)
    for kind, count, folder in texts_of(options, options.lines) if options.path else ():
        pairs = read_pairs(kind, count, options.data)
        text_to_pairs(options, kind, pairs, folder)
        answers(options, kind, pairs, folder)


if __name__ == "__main__":
    main()

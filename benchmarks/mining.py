"""The cost of nearest neighbours in both directions, beside faiss: exact search, its growth, and inverted files.

  python benchmarks/mining.py                                    # two sides of 50,000 x 768, half an hour
  python benchmarks/mining.py --sizes 5000 --repeats 1          # a quick look
  python benchmarks/mining.py --vectors de.npy en.npy --sizes 50000 --ivf-sizes 50000,100000    # real vectors

Exact search: ours needs one product for both directions, IndexFlatIP of faiss is searched both ways. They take turns on
the same vectors, and a figure is the median. With --precision default ours uses torch's own float32 product instead of
the faster one that it uses where that is as exact. Neighbours whose indices differ are compared by their similarities
in float64, which must be equal to 1e-6.

Inverted files: the time of building the index and searching both directions, the share of true neighbours found, and
the time of our exact search at the same size. Memory: the peak of a process that mines two files of float16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import make_parser, progress, take_turns, write_json

from xrep.errors import UserError
from xrep_cli.command import console_script

if TYPE_CHECKING:
    import numpy as np

    from xrep.inference.nearest import Side
    from xrep.retrieval.topk import TopK
    from xrep.store.arrays import ArrayFile
    from xrep.store.vectors import Vectors

    Both = tuple[TopK, TopK]

PRECISIONS = ("fast", "default")
CLOSE = 1e-6
"""Similarities that differ by less count as equal, because rounding decides between two such neighbours."""


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def drawn(rows: int, width: int, seed: int) -> np.ndarray:
    """Return random unit vectors, float32 [rows, width]."""
    import numpy as np

    from xrep.store.vectors import normalize_rows

    return normalize_rows(np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32))


def faiss_both_ways(x: np.ndarray, y: np.ndarray, k: int) -> Both:
    import faiss
    import torch

    from xrep.retrieval.topk import TopK

    found = []
    for queries, side in ((x, y), (y, x)):
        index = faiss.IndexFlatIP(side.shape[1])
        index.add(side)
        similarity, rows = index.search(queries, k)
        found.append(TopK(torch.from_numpy(similarity), torch.from_numpy(rows)))
    return found[0], found[1]


def differing(x: np.ndarray, y: np.ndarray, ours: Both, theirs: Both) -> int:
    """Return the number of neighbours that differ and are not equally near."""
    import numpy as np

    wrong = 0
    for queries, side, *both in zip((x, y), (y, x), ours, theirs, strict=True):
        mine, other = (found.index.numpy() for found in both)
        rows, places = np.nonzero(mine != other)
        pairs = (side[found[rows, places]].astype(np.float64) for found in (mine, other))
        exact = [np.einsum("nd,nd->n", queries[rows].astype(np.float64), found) for found in pairs]
        wrong += int((np.abs(exact[0] - exact[1]) > CLOSE).sum())
    return wrong


def exact(options: argparse.Namespace, size: int, precision: str) -> dict[str, Any]:
    """Time ours and faiss by turns, after a round on a tenth of the rows, which warms both up."""
    from xrep.kernels.precision import exact_products
    from xrep.retrieval.in_memory import neighbours

    k = options.neighbours
    if options.vectors:
        x, y = (file.read(slice(0, size)) for file in opened(options.vectors, size))
    else:
        x, y = drawn(size, options.width, 0), drawn(size, options.width, 1)

    def ours(rows: int) -> Both:
        with exact_products() if precision == "default" else nullcontext():
            return neighbours(x[:rows], y[:rows], k, k)

    contestants = {"ours": ours, "faiss": lambda rows: faiss_both_ways(x[:rows], y[:rows], k)}
    progress(f"{size:,} x {x.shape[1]}, {precision}")
    turns = take_turns(
        contestants, [max(k, size // 10)] + [size] * options.repeats, verbose=True, title=f"{size}, {precision}"
    )
    medians = turns.medians()
    return {
        "size": size,
        "width": x.shape[1],
        "neighbours": k,
        "precision": precision,
        "seconds": medians,
        "rounds": turns.seconds,
        "faiss/ours": medians["faiss"] / medians["ours"],
        "tflops": 2 * size * size * x.shape[1] / medians["ours"] / 1e12,
        "differing": differing(x, y, turns.results["ours"], turns.results["faiss"]),
    }


def opened(paths: Sequence[str], rows: int) -> list[Vectors]:
    from xrep.store.vectors import Vectors

    files = [Vectors(path) for path in paths]
    if (fewest := min(len(file) for file in files)) < rows:
        raise UserError(f"--vectors have {fewest} rows, fewer than {rows}", cure="give smaller sizes")
    return files


def inverted(options: argparse.Namespace, size: int, folder: Path) -> list[dict[str, Any]]:
    """Return time and recall of each index beside the exact search, on rows of ``--vectors`` or on planted pairs."""
    import numpy as np

    from xrep.inference.nearest import Side
    from xrep.store.vectors import Vectors

    files = opened(options.vectors, size) if options.vectors else map(Vectors, planted(folder, size, options.width))
    rows = written_rows(folder, size)
    sides = [Side(file, rows) for file in files]
    k, results = options.neighbours, []

    def search(index: str, probes: int) -> tuple[float, list[np.ndarray]]:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            taken, found = timed(lambda: searched(sides, k, index, probes, name))
            return taken, found

    flat, true = search("flat", 1)
    progress(f"{size:,}: exact {flat:.1f} s")
    for index in options.indexes:
        for probes in options.probes:
            taken, found = search(index, probes)
            pairs = list(zip(found, true, strict=True))
            hits = [np.mean([len(set(a) & set(b)) / k for a, b in zip(*pair, strict=True)]) for pair in pairs]
            first = [np.mean(mine[:, 0] == best[:, 0]) for mine, best in pairs]
            results.append(
                {"size": size, "index": index, "probes": probes, "seconds": taken,
                 "exact_seconds": flat, "recall": float(np.mean(hits)), "nearest": float(np.mean(first))}
            )  # fmt: skip
            progress(json.dumps(results[-1]))
    return results


def written_rows(folder: Path, size: int) -> ArrayFile:
    """Return the rows 0 to ``size`` - 1, of which a search is."""
    import numpy as np

    from xrep.store.arrays import ArrayFile

    np.save(folder / "rows.npy", np.arange(size))
    return ArrayFile.open(folder / "rows.npy", "rows", "")


def searched(sides: Sequence[Side], k: int, index: str, probes: int, folder: str) -> list[np.ndarray]:
    """Return the neighbours of both sides, int64 [N, k] each, which are the result of a job in a folder."""
    from xrep.inference.nearest import SideSource, search_stages
    from xrep.inference.settings import PART_GIGABYTES
    from xrep.jobs.engines import WorkerShare, work
    from xrep.jobs.plan import Job

    x, y = (SideSource() for _ in sides)
    (x.side, y.side), x.k, y.k = sides, k, k
    stages, merge = search_stages(x, y, index, probes, PART_GIGABYTES, "cpu")
    job = Job(folder, "search", {}, stages)
    job.begin()
    work(job, WorkerShare(), False)
    return [found.slice(0, len(found)).index.numpy() for found in (merge.found("x"), merge.found("y"))]


def planted(folder: Path, size: int, width: int) -> list[Path]:
    """Write two files of float16 in which a tenth of the rows are pairs, and return their paths."""
    import numpy as np

    paths = [folder / f"{name}-{size}.npy" for name in "xy"]
    files = [np.lib.format.open_memmap(path, "w+", np.float16, (size, width)) for path in paths]
    draw = np.random.default_rng(0)
    for start in range(0, size, 100_000):
        stop = min(start + 100_000, size)
        block = draw.standard_normal((stop - start, width), dtype=np.float32)
        other = draw.standard_normal((stop - start, width), dtype=np.float32)
        other[::10] = block[::10] + 0.8 * other[::10]
        files[0][start:stop] = block
        files[1][size - stop : size - start] = other[::-1]
    return paths


def memory(size: int, width: int, index: str, folder: Path) -> dict[str, Any]:
    """Return the peak resident size of xrep-mine on planted pairs, and the share of the pairs that it finds."""
    x, y = planted(folder, size, width)
    output = folder / "mined.tsv"
    script = (
        # Not ru_maxrss, in which Linux includes the memory of the parent process.
        "import re, sys; from xrep_cli.mine import main; code = main(sys.argv[1:]);"
        r"print(re.search(r'VmHWM:\s*(\d+)', open('/proc/self/status').read())[1]); sys.exit(code)"
    )
    line = [sys.executable, "-c", script, "--source-vectors", str(x), "--target-vectors", str(y), "--index", index]
    taken, done = timed(
        lambda: subprocess.run(
            [*line, "--output", str(output), "--device", "cpu"], stdout=subprocess.PIPE, text=True, check=True
        )
    )
    with output.open() as file:
        rows = [line.split("\t")[1:] for line in file]
    right = sum(int(source) % 10 == 1 and int(source) + int(target) == size + 1 for source, target in rows)
    peak = int(done.stdout.splitlines()[-1]) / 1024
    return {"size": size, "width": width, "index": index, "seconds": taken, "peak_mb": peak,
            "planted_found": right / len(range(0, size, 10))}  # fmt: skip


def numbers(given: str) -> list[int]:
    return [int(part) for part in given.split(",") if part]


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--sizes", type=numbers, default=[20000, 50000, 100000], metavar="N,N", help="sentences a side, exact")
    add("--width", type=int, default=768, help="numbers of a vector")
    add("--neighbours", type=int, default=4, metavar="K", help="neighbours in each direction")
    add("--precision", default="fast,default", help="fast, default or both")
    add("--repeats", type=int, default=3, help="rounds")
    add("--threads", type=int, help="threads of both (default: one for each core)")
    add("--ivf-sizes", type=numbers, default=[], metavar="N,N", help="sentences a side, inverted files")
    add("--probes", type=numbers, default=[16, 32, 64], metavar="N,N", help="cells searched")
    add("--indexes", nargs="+", default=["ivf"], metavar="STRING", help="ivf, or strings of faiss's factory")
    add("--vectors", nargs=2, metavar="FILE.npy", help="take rows of these instead of random vectors")
    add("--memory-sizes", type=numbers, default=[], metavar="N,N", help="sentences a side of xrep-mine, float16")
    add("--memory-width", type=int, default=384, help="their width")
    add("--memory-index", default="flat", metavar="STRING", help="their index")
    return parser


def main_script(argv: Sequence[str]) -> None:
    options = build_parser().parse_args(argv)
    unknown = [name for name in options.precision.split(",") if name not in PRECISIONS]
    if unknown:
        raise UserError(f"unknown precision {unknown[0]!r}", cure="give fast, default or both")
    import torch

    if options.threads:
        import faiss

        torch.set_num_threads(options.threads)
        faiss.omp_set_num_threads(options.threads)
    figures: dict[str, Any] = {"exact": [], "inverted": [], "memory": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in options.sizes:
            for precision in options.precision.split(","):
                result = exact(options, size, precision)
                figures["exact"].append(result)
                seconds = result["seconds"]
                print(
                    f"| {size} x {result['width']} | {precision} | {seconds['ours']:.1f} | {seconds['faiss']:.1f} | "
                    f"{result['faiss/ours']:.2f} | {result['differing']} |",
                    flush=True,
                )
        for size in options.ivf_sizes:
            for result in inverted(options, size, folder):
                figures["inverted"].append(result)
                print(
                    f"| {size} | {result['index']} | {result['probes']} | {result['seconds']:.1f} | "
                    f"{result['exact_seconds']:.1f} | {result['recall']:.3f} | {result['nearest']:.3f} |",
                    flush=True,
                )
        for size in options.memory_sizes:
            result = memory(size, options.memory_width, options.memory_index, folder)
            figures["memory"].append(result)
            print(
                f"| {size} x {options.memory_width} | {result['index']} | {result['seconds']:.0f} | "
                f"{result['peak_mb']:.0f} | {result['planted_found']:.3f} |",
                flush=True,
            )
    write_json(options.json, figures)


main = console_script("benchmarks/mining.py")(main_script)

if __name__ == "__main__":
    sys.exit(main())

"""A search index of a million vectors: the first answer of a new process, what it reads, and adding one line.

The vectors are random, around random centres, instead of those of sentences, because encoding a million sentences would
take hours; queries and the added line are encoded by a small encoder with random weights.

  python benchmarks/search_index.py --rows 1000000 --size 384
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from xrep.inference.search_index import SearchIndex
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.store.vectors import normalize_rows


def invented(size: int) -> Callable[..., np.ndarray]:
    """Return what gives vectors of length 1 around 10,000 centres, in the place of ``SentenceEncoder.encode``."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((10_000, size), dtype=np.float32)

    def encode(encoder: object, lines: list[str], *_: object, **__: object) -> np.ndarray:
        noise = draw.standard_normal((len(lines), size), dtype=np.float32)
        return normalize_rows(centres[draw.integers(len(centres), size=len(lines))] + 0.5 * noise)

    return encode


def measure(*words: str | Path) -> dict[str, float]:
    """Run xrep-search in a new process; return its seconds, the bytes that it read and wrote, and its peak memory."""
    code = "import sys; from xrep_cli.search import main; code = main(sys.argv[1:]); print(open('/proc/self/io').read()"
    code += " + open('/proc/self/status').read(), file=sys.stderr); sys.exit(code)"
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = dict(re.findall(r"^(\w+):\s+(\d+)", done.stderr, flags=re.MULTILINE))
    print(f"  {done.stdout.splitlines()[0][:100]}")
    return {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "from_disk_MB": round(int(counts["read_bytes"]) / 1e6, 1),
        "read_MB": round(int(counts["rchar"]) / 1e6, 1),
        "written_MB": round(int(counts["wchar"]) / 1e6, 3),
        "peak_MB": round(int(counts["VmHWM"]) / 1e3),
    }


def forget(folder: Path) -> None:
    """Ask the system to drop the pages of all files of a folder from memory, as after a cold start."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--index", default="auto")
    parser.add_argument("--path", required=True, help="an encoder whose vectors have this size")
    parser.add_argument("--lang", help="language of the lines and of the query")
    options = parser.parse_args()
    lang = ["--lang", options.lang] if options.lang else []
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder, text = Path(name), Path(name) / "lines.txt"
        text.write_text("".join(f"sentence number {number}\n" for number in range(options.rows)))
        (folder / "one.txt").write_text("where is the station\n")

        started = time.perf_counter()
        with patch.object(SentenceEncoder, "encode", invented(options.size)):
            index = SearchIndex.build(
                options.path, text, folder / "index", index=options.index, lang=options.lang, device="cpu"
            )
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in (folder / "index").rglob("*") if path.is_file())
        figures: dict[str, object] = {
            "index": index.manifest["parts"][0]["index"], "MB": round(size / 1e6), "build_seconds": round(seconds, 1)
        }  # fmt: skip
        query = ("query", folder / "index", "where is the station", "--device", "cpu", *lang)
        for name in ("query", "query again"):
            if name == "query":
                forget(folder / "index")
            figures[name] = measure(*query)
        forget(folder / "index")
        figures["add"] = measure("add", folder / "index", "--input", folder / "one.txt", "--device", "cpu")
        figures["query of both parts"] = measure(*query)
        figures["check"] = measure("check", folder / "index")
        print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

"""Memory does not grow with the text: peaks after a small and after a large one, in a process of its own."""

import json
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.runs import environment
from tests.text.test_formats import FORMATS
from xrep.data.table import MANIFEST_FILE

WORDS = " ".join(german for german, _ in sentence_pairs(60)).split()
BEGIN = """
import re, sys
import numpy as np
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
encoder, translator, data = sys.argv[3:]
"""


@dataclass(frozen=True)
class Row:
    """After each turn of ``script``, a loop over ``count`` behind the lines of ``setup``, ``peak()`` is the most memory
    so far in KB. It may grow by ``limit``. ``write`` writes the text of ``count`` lines into a folder."""

    script: str
    small: int
    large: int
    limit: int
    write: Callable[[Path, int], object] = lambda folder, count: None
    setup: str = ""
    size: int = 32


def write_words(folder: Path, count: int, width: int = 0) -> None:
    """Write lines of one to four words, so that batches have many sizes."""
    draw = random.Random(0)
    chosen = (draw.choices(WORDS, k=draw.randint(1, 4)) for _ in range(count))
    write_lines(folder / f"{count}.txt", [" ".join(f"{word:<{width}}" for word in words) for words in chosen])


def write_numbers(folder: Path, count: int) -> None:
    """Write lines of which three quarters differ."""
    write_lines(folder / f"{count}.txt", [f"{n % (count * 3 // 4) or ''}" for n in range(count)])


def write_pairs(folder: Path, count: int) -> None:
    write_lines(folder / f"{count}.tsv", [f"Hund {n} im Wald\tdog {n} in the forest {n * n}" for n in range(count)])


def write_labels(folder: Path, count: int) -> None:
    lines = [f"{n % 3}\tHund {n} im Wald" for n in range(count)]
    write_lines(folder / f"{count}" / "train-de.tsv", [*lines, *reversed(lines)])


def write_format(name: str, folder: Path, count: int) -> None:
    """Write pairs, of which 100,000 are 20 MB, in a format of parallel text."""
    pairs = [(f"das Haus mit der Nummer {n} " * 3, f"the house number {n} " * 3) for n in range(count)]
    (folder / f"{count}.{name}").write_bytes(FORMATS[name](pairs))


def write_dataset(name: str, folder: Path, count: int) -> None:
    """Write pairs as the library ``datasets`` keeps them."""
    (folder / f"{count}").mkdir()
    write_format("a.parquet", folder, count)
    file = (folder / f"{count}.a.parquet").rename(folder / f"{count}" / "train.parquet")
    if name != "parquet":
        from tests.text.test_hf_datasets import WRITE  # without datasets, it is skipped

        WRITE[name](pytest.importorskip("datasets").Dataset.from_parquet(str(file)), folder / f"{count}")
        file.unlink()


ENCODE = """
assert main(["--path", encoder, "--device", "cpu", "--input", f"{count}.txt", "--output", f"{count}.npy"]) == 0
assert np.load(f"{count}.npy", mmap_mode="r").shape == (count, 32)
"""
GENERATE = """
files = ["--input", f"{count}.txt", "--output", f"{count}.en", "--jsonl", "--buffer-lines", "200"]
assert main(["--path", translator, "--device", "cpu", "--beam", "1", "--max-length-b", "1", *files]) == 0
assert sum(1 for _ in open(f"{count}.en")) == count
"""
MINE = """
options = ["--device", "cpu", "--output", "mined.tsv"]
for side in ("source", "target"):
    draw = np.random.default_rng(0)
    vectors = arrays.ArrayFile.create(Path("vectors.npy"), np.float16, (4,))
    for _ in range(count // 1000):
        vectors.append(draw.standard_normal((1000, 4)).astype(np.float16))
    vectors.close()
    options += [f"--{side}-vectors", "vectors.npy", f"--{side}", f"{count}.txt"]
assert main([*options, *OPTIONS]) == 0
"""
# A search would take minutes. The lists of 150,000 sentences would take 14 MB, and what chooses among them 20 MB, of
# which the means and what is used, 6 to 13 bytes for each sentence, are in memory.
INVENTED = """
from pathlib import Path
import torch
from xrep.data import disk_sort
from xrep.inference import mining, nearest
from xrep.retrieval import margins
from xrep.store import arrays
from xrep_cli.mine import main
disk_sort._RUN = nearest.MOST_ROWS = 20_000
mining._CHECKED_ROWS, margins._SCORED, margins._SORTED = 2000, 1 << 15, 1 << 13
arrays.READ_BYTES = 1 << 17
def invent(x, y, best_x, best_y, first_x, first_y):
    for best, first in ((best_x, first_x), (best_y, first_y)):
        rows = torch.arange(first, first + len(best.index))[:, None]
        best.index[:] = (rows * 7919 + torch.arange(4) * 977) % (count // 2)
        best.similarity[:] = 0.9 - 0.1 * torch.arange(4) + rows % 1009 * 1e-5
nearest.search_tile = invent
"""
# Places of 100,000 more pairs would take 1.6 MB, scores 0.8, and neighbours 10. Encoding is measured above.
SCORE = """
options = ["--device", "cpu", "--path", encoder, "--output", "scored.tsv", "--keep", "0.5", "--max-length-ratio", "9"]
assert main([*options, "--bitext", f"de-en={count}.tsv:1,2"]) == 0
assert sum(1 for _ in open("scored.tsv")) >= count // 2
"""
INVENTED_VECTORS = """
from xrep.inference import scoring
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep_cli.score import main
scoring._BLOCK = 2000
draw = np.random.default_rng(0).standard_normal((4096, 32), dtype=np.float32)
SentenceEncoder.encode = lambda self, lines, *_, **__: draw[:len(lines)]
"""
# 80,000 vectors are 164 MB in 32 bits, 123 MB more than 20,000.
INDEX = """
import zlib
from xrep.inference import index_files
from xrep.inference.search_index import SearchIndex
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.retrieval import ivf
from xrep.store import texts
index_files._INDEX_BYTES = ivf._TRAINING_BYTES = 4 * 512 * 4000
ivf._BLOCK, texts.CHUNK_LINES = 512, 500
draw = np.random.default_rng(0).standard_normal((1000, 512), dtype=np.float32)
def encode(self, lines, *_, **__):
    return draw[[zlib.crc32(line.encode()) % 1000 for line in lines]] + len(lines) / 1e5
SentenceEncoder.encode, SentenceEncoder.fingerprint = encode, lambda self: "x"
model = SentenceEncoder.load(encoder, device="cpu")
"""
# Pages of mapped files are no memory of a process.
ANONYMOUS = """
most = 0
def anonymous(process):
    try:
        return int(re.search(r"RssAnon:\\s*(\\d+)", open(f"/proc/{process}/status").read())[1])
    except (OSError, TypeError):  # it has ended
        return 0
def peak():
    return most
"""
PREPROCESS = """
import threading, time
from xrep.data import build, cleaned_text, disk_sort
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.text.find import parse_bitext
disk_sort._RUN, build._CHUNK, cleaned_text._BLOCK_ROWS = 4096, 512, 4096
options = PreprocessOptions(tokenizers={"shared": f"{data}/tokenizer"}, valid_size=0)
def watch():
    global most
    while True:
        children = open(f"/proc/self/task/{threading.main_thread().native_id}/children").read().split()
        most = max(most, sum(map(anonymous, ["self", *children])))
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
"""
LABELS = """
from xrep.data import build, disk_sort
from xrep.understanding.labels import ClassificationTask
disk_sort._RUN, build._CHUNK = 4096, 512
"""
BUILD = """
options = {"data": f"{count}", "languages": ["de"], "dev_share": 0.1, "tokenizer": data}
task = ClassificationTask(ClassificationTask.Config(**options), seed=1)
"""
# The peak is that of all workers, into the second window.
TASK = """
import itertools, multiprocessing
from tests.support.planning import streamed
from xrep.tasks.bitext import BitextTask
"""
READ = """
task = BitextTask(BitextTask.Config(data=str(count), batch_size=64), seed=1)
for number, _ in enumerate(itertools.islice(streamed(task, workers=1), 1100)):
    if number % 10 == 0:
        most = max(most, sum(map(anonymous, ["self", *(x.pid for x in multiprocessing.active_children())])))
"""
ORDER = """
order = ExampleOrder([count, 1000], 0.9, 1, lambda corpus, rows: (rows * 7919 + corpus * 31) % 50 + 1)
for start in (0, 3 * count // 2, 10 * count):
    order.take(start, start + 256)
"""


def write_data(folder: Path, rows: int) -> None:
    """Write a data directory of pairs of random tokens; the tokenizer and other pairs are those of ``data``."""
    shutil.copytree(folder / "data", folder / f"{rows}")
    manifest = json.loads((folder / "data" / MANIFEST_FILE).read_text())
    pair = next(pair for pair in manifest["splits"]["train"] if pair["languages"] == ["de", "en"])
    draw = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(draw.integers(3, 20, rows))]).astype("<i8")
    arrays = {"train.de-en.hashes": draw.integers(1, 2**63, (rows, 2)).astype("<u8")}
    for side in ("source", "target"):
        arrays[f"train.de-en.{side}.offsets"] = offsets
        arrays[f"train.de-en.{side}"] = draw.integers(5, 100, offsets[-1]).astype(pair["columns"][side][0])
        pair["tokens"][side] = int(offsets[-1])
    pair["rows"] = rows
    for name, array in arrays.items():
        array.tofile(folder / f"{rows}" / name)
        manifest["files"][name]["bytes"] = array.nbytes
    (folder / f"{rows}" / MANIFEST_FILE).write_text(json.dumps(manifest))


def of_index(index: str) -> Row:
    build = f"SearchIndex.build(model, f'{{count}}.txt', f'{{count}}', index={index!r})"
    return Row(build, 20_000, 80_000, 40_000, write_words, INDEX, size=512)


def of_mining(*options: str) -> Row:
    return Row(MINE.replace("OPTIONS", repr(options)), 100_000, 300_000, 8_000, write_numbers, INVENTED)


READING = "from xrep.text.examples import read_pairs; from xrep.text.find import parse_bitext"
DATASET = "assert sum(1 for _ in read_pairs(parse_bitext(f'de-en=hf:./{count}:train'))) == count"
COUNT = "assert sum(1 for _ in read_pairs(parse_bitext(f'de-en={count}.NAME'))) == count"
PREPARE = (
    'preprocess({"train": [parse_bitext(f"de-en={count}.tsv:1,2")]}, f"{count}", options, print, False, workers=2)'
)
ENCODING = "from xrep_cli.encode import main\nimport xrep.store.texts as texts\ntexts.CHUNK_LINES = 2000"
TRANSLATING = "from xrep_cli.generate import main"
ROWS = {
    "encode": Row(ENCODE, 10_000, 100_000, 5_000, write_words, ENCODING),
    "generate": Row(GENERATE, 4_000, 8_000, 4_000, partial(write_words, width=400), TRANSLATING),
    "mine one to one": of_mining("--one-to-one"),
    "mine the intersection": of_mining("--retrieval", "intersection"),
    "score": Row(SCORE, 50_000, 150_000, 6_000, write_pairs, INVENTED + INVENTED_VECTORS),
    "search, flat": of_index("flat"),
    "search, inverted lists": of_index("IVF64,SQ8"),
    # The hashes of 150,000 pairs would need 3,600 KB, and 7,200 while they are sorted.
    "preprocess": Row(PREPARE, 20_000, 170_000, 5_000, write_pairs, ANONYMOUS + PREPROCESS),
    "labels": Row(BUILD, 10_000, 80_000, 4_000, write_labels, LABELS),
    "task": Row(READ, 70_000, 2_000_000, 10_000, write_data, ANONYMOUS + TASK),
    "order": Row(ORDER, 10**6, 10**9, 1_000, setup="from xrep.data.order import ExampleOrder"),
    **{
        f"datasets, {name}": Row(DATASET, 50_000, 200_000, 8_000, partial(write_dataset, name), READING)
        for name in ("parquet", "saved")
    },
    **{
        name: Row(COUNT.replace("NAME", name), 5_000, 100_000, 8_000, partial(write_format, name), READING)
        for name in ("a.tmx", "a.jsonl", "a.csv", "tmx.zip", "a.parquet", "a.jsonl.zst")
    },
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", ROWS)
def test_memory_does_not_grow(name: str, data_directory: Path, translator: Path, tmp_path: Path) -> None:
    row, counts = ROWS[name], (ROWS[name].small, ROWS[name].large)
    encoder = write_encoder(tmp_path / "best", size=row.size)
    (tmp_path / "data").symlink_to(data_directory)
    for count in counts:
        row.write(tmp_path, count)
    loop = textwrap.indent(f"{row.script}\nprint('peak', peak())", "    ")
    script = f"{BEGIN}{row.setup}\nfor count in map(int, sys.argv[1:3]):\n{loop}"
    line = [sys.executable, "-c", script, *map(str, (*counts, encoder, translator, data_directory))]
    # With a fixed threshold glibc frees every tensor, so the waste of its heap is not measured.
    given = {**environment(threads=1), "MALLOC_MMAP_THRESHOLD_": "131072"}
    finished = subprocess.run(line, env=given, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    few, many = (int(line.split()[1]) for line in finished.stdout.splitlines() if line.startswith("peak "))
    assert many - few < row.limit, f"{few} KB after {row.small:,}, {many} KB after {row.large:,}"

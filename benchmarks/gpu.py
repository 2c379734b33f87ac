"""One page about one GPU: its tests, kernels, training steps, encoding and mining, each measured beside a model.

  python benchmarks/gpu.py                     # at most eight minutes; writes benchmarks/gpu.md and benchmarks/gpu.json
  python benchmarks/gpu.py --small --device cpu --page /tmp/cpu.md     # tries everything without a GPU

Each section runs in a process of its own. One that fails, takes too long or has no time left becomes a line of the
page. A modelled figure is a roofline: the longer of operations / peak and bytes / bandwidth, with the peaks of the
card's data sheet (of a card that is not in the table, those that the first section measures). It is a bound that no
program reaches, with these formulas for vectors of width D:

- a loss of R x C similarities: 2 R C D operations and (R + C) D numbers a product; memory: its gradients
- a training step: 2 operations for each weight of a layer and each token, and attention, forward (1), backward (2) and
  through the momentum encoder (1); the products with the queue; 28 bytes for AdamW and 12 for the momentum encoder for
  each parameter. Memory: 20 bytes for each parameter, the queues, and 34 bytes a token for each number of a layer
- encoding: the forward pass. Mining: one product of all pairs for both directions

MFU is the share of the peak of bfloat16 that those operations are in the time measured.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from harness import make_parser, markdown_table, progress, say_absent, take_turns, write_json

from xrep.errors import UserError
from xrep_cli.command import console_script

HERE = Path(__file__).resolve().parent
CARDS = {
    "B200": (2250, 1125, 8.0), "H200": (989, 495, 4.8), "H100 NVL": (835, 417, 3.9), "H100 PCIe": (756, 378, 2.0),
    "H100": (989, 495, 3.35), "A100-SXM4-80GB": (312, 156, 2.04), "A100 80GB": (312, 156, 1.94),
    "A100": (312, 156, 1.56), "L40S": (362, 183, 0.86), "L4": (121, 60, 0.3), "RTX 4090": (165, 83, 1.01),
}  # fmt: skip
"""Dense TFLOP/s in bfloat16 and in TF32, and TB/s of the memory, by a part of the card's name, as in data sheets."""
LEAST = 15
"""Seconds without which a section is not begun."""
Row = dict[str, Any]


def row(what: str, unit: str, measured: float | None, modelled: float | None = None) -> Row:
    return {"what": what, "unit": unit, "measured": measured, "modelled": modelled}


def reached(options: Namespace) -> tuple[float, float, float]:
    """Return what a large product in bfloat16, one in TF32 and a copy reach: operations and bytes a second."""
    import torch

    from xrep.kernels.precision import allow_tf32

    size, device = 256 if options.small else 8192, torch.device(options.device)
    half = torch.randn(size, size, device=device).to(torch.bfloat16)
    single, other = half.float(), half.float()
    work = {"bf16": lambda _: half @ half, "tf32": lambda _: single @ single, "copy": lambda _: other.copy_(single)}
    with allow_tf32(device):
        best = {name: min(taken) for name, taken in take_turns(work, range(9), device=options.device).seconds.items()}
    return 2 * size**3 / best["bf16"], 2 * size**3 / best["tf32"], 8 * size**2 / best["copy"]


def peaks(options: Namespace) -> tuple[float, float, float]:
    """Return the card's peaks by its data sheet or, if it is not known, what it reaches."""
    import torch

    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    known = next((card for card in CARDS if card in name), None)
    return reached(options) if known is None else tuple(peak * 1e12 for peak in CARDS[known])


def roofline(operations: float, size: float, peak: float, bandwidth: float) -> float:
    """Return the seconds that operations and the bytes of ``size`` take at least."""
    return max(operations / peak, size / bandwidth)


def card(options: Namespace) -> Iterator[Row]:
    units = ("TFLOP/s, product in bfloat16", "TFLOP/s, product in TF32", "TB/s, copy")
    for unit, found, sheet in zip(units, reached(options), peaks(options), strict=True):
        yield row("the card", unit, found / 1e12, sheet / 1e12)


def tests(options: Namespace) -> Iterator[Row]:
    chosen = "tests/cuda/test_real.py" if options.small else "tests/cuda"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen]
    said = subprocess.run(line, cwd=HERE.parent, capture_output=True, text=True)
    counts = re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", (said.stdout.splitlines() or [""])[-1])
    if not counts:
        raise RuntimeError((said.stderr or said.stdout).strip().splitlines()[-1])
    yield from (row(chosen, outcome, int(count)) for count, outcome in counts)
    yield from (row(line[:160], "", None) for line in said.stdout.splitlines() if line.startswith(("FAILED", "ERROR")))


def kernel(case: str, options: Namespace) -> Iterator[Row]:
    import kernels

    size, (peak, _, bandwidth) = "tiny" if options.small else "paper", peaks(options)
    (rows, columns, width), products = kernels.CASES[case][1][size], 2 if case == "queue" else 3
    each = (4 if options.device == "cpu" else 2) * width
    operations, sides = 2 * products * rows * columns * width, products * (rows + columns) * each
    gradients = (2 * rows if case == "queue" else rows + columns) * each / 1e6
    for found in kernels.measure(case, size, options.device, rounds=5):
        what = f"{case} {found['size']}, {found['contestant']}"
        yield row(what, "ms", found["ms"], 1000 * roofline(operations, sides, peak, bandwidth))
        if "MB" in found:
            yield row(what, "MB", found["MB"], gradients)


def sentences(count: int, words: tuple[int, int], seed: int = 0) -> list[str]:
    """Return random sentences of random words, of which few are frequent, as in a language."""
    draw = random.Random(seed)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 8))) for _ in range(4000)]
    return [" ".join(draw.choices(known, [1 / (n + 9) for n in range(4000)], k=draw.randint(*words))) for _ in range(count)]


def step(pairs: int, compiled: bool, options: Namespace) -> Iterator[Row]:
    """Measure steps of dual momentum contrast as xrep-train makes them, with two towers and bfloat16 queues."""
    import torch

    from xrep.config import runs_of
    from xrep.training.checkpoint import Checkpoints
    from xrep.training.distributed import alone
    from xrep.training.log import Quiet
    from xrep.training.trainer import Trainer
    from xrep_cli.train_options import parse

    class Unsaved(Checkpoints):
        def save(self, *_: Any, **__: Any) -> None:
            pass

    class Watch(Quiet):
        def record(self, step: int, values: dict[str, float], kind: str) -> None:
            records.append(values)

    records, raw = list[dict[str, float]](), options.work / "raw"
    raw.mkdir(exist_ok=True)
    for seed, side in enumerate(("de", "en")):
        text = "\n".join(sentences(200 if options.small else 4096, (3, 40), seed))
        (raw / f"train.de-en.{side}").write_text(text + "\n", encoding="utf-8")
    queue, pairs, steps = (64, 8, 1) if options.small else (409600, pairs, 10)
    shape = "--layers 1 --hidden-size 32 --heads 2 --feedforward-size 64" if options.small else "--size base"
    line = f"{raw} --task bitext --criterion dual_moco --towers separate {shape} --queue-size {queue} --queue-dtype bfloat16"
    line += f" --batch-size {pairs} --max-length 64 --precision bf16 --device {options.device} --log-every {steps}"
    line += f" --max-steps {5 * steps} --validate-every 0 --save-every 0 --no-tensorboard --save-dir {options.work}/run"
    parsed = parse(line.split() + ["--compile"] * compiled)
    run = runs_of(parsed.layers, parsed.problems)[0]
    torch.manual_seed(run.seed)
    task = run.classes["task"](run.configs["task"], run.seed)
    model = run.classes["model"](run.configs["model"], task.text)
    criterion = run.classes["criterion"](run.configs["criterion"], model, task.text)
    criterion.prepare(task)
    place = torch.device(options.device, 0 if options.device == "cuda" else None)
    Trainer(run, task, model, criterion, Unsaved(run.configs["checkpoint"], raw), Watch(), None, alone(place)).train()
    each, all_tokens = (
        statistics.median(record[name] for record in records[2:]) for name in ("pairs_per_second", "tokens_per_second")
    )
    seconds, tokens, width, (peak, _, bandwidth) = pairs / each, all_tokens / each * pairs, model.output_size, peaks(options)
    parameters, layers = sum(one.numel() for one in model.parameters()), run.configs["model"].layers
    in_layers = 4 * (products_of(model) / 2 * tokens + 4 * layers * width * tokens**2 / (2 * pairs))
    with_queue, rows = 8 * pairs * queue * width, 8 * queue * width
    modelled = roofline(in_layers, 0, peak, bandwidth) + roofline(with_queue, rows, peak, bandwidth)
    modelled += 40 * parameters / bandwidth
    what = f"{pairs:,} pairs, {tokens / (2 * pairs):.0f} tokens a sentence, queue {queue:,}{', --compile' * compiled}"
    kept = 20 * parameters + 4 * queue * width + 34 * tokens * layers * width
    yield row(what, "ms", 1000 * seconds, 1000 * modelled)
    yield row(what, "tokens/s", tokens / seconds, tokens / modelled)
    yield row(what, "MFU, %", *(100 * (in_layers + with_queue) / (time * peak) for time in (seconds, modelled)))
    yield row(what, "MB", records[-1]["memory_megabytes"], kept / 1e6)


def products_of(model: Any) -> int:
    """Return the operations of a forward pass of the layers for a token (two for each weight)."""
    import torch

    return sum(2 * part.weight.numel() for part in model.modules() if isinstance(part, torch.nn.Linear))


def encode(options: Namespace) -> Iterator[Row]:
    """Encode through BERT-base, with random weights unless an encoder is given, beside sentence-transformers."""
    import torch

    from xrep.data.batch import TextSpec, Vocabulary
    from xrep.inference.sentence_encoder import SentenceEncoder
    from xrep.models.dual_encoder import DualEncoder
    from xrep.text.train_tokenizer import train_tokenizer

    path = options.encoder or str(options.work / "encoder")
    if not options.encoder:
        tokenizer = train_tokenizer(sentences(1000, (3, 40)), None, options.work / "tokenizer")
        text = TextSpec({"shared": Vocabulary.of(tokenizer)}, 256, [], [])
        shape = {"layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64} if options.small else {}
        model = DualEncoder(DualEncoder.Config(towers="shared", max_positions=256, **shape), text)
        SentenceEncoder(model, {"shared": tokenizer}, text).save(path)
    kinds, (half, single, _) = ("bfloat16", "float32"), peaks(options)
    ours = {kind: SentenceEncoder.load(path, device=options.device, dtype=kind) for kind in kinds}
    work: dict[str, Callable[[list[str]], Any]] = {}
    for kind in kinds:
        work[f"ours, {kind}"] = partial(ours[kind].encode, batch_tokens=16384)
        try:
            from sentence_transformers import SentenceTransformer

            dtype = {"torch_dtype": getattr(torch, kind)}
            theirs = SentenceTransformer(path, device=options.device, model_kwargs=dtype)
            work[f"sentence-transformers, {kind}"] = partial(theirs.encode, batch_size=128, convert_to_tensor=True)
        except Exception as error:  # not installed, or a version that does not know this device
            say_absent("sentence-transformers", error)
    count = 16 if options.small else 4096
    for length, words in (("short", (5, 11)), ("long", (50, 70))):
        text = sentences(count, words)
        tokens = sum(len(ids) + 2 for ids in ours["float32"].tokenizers["shared"].encode(text))
        for name, seconds in take_turns(work, [text] * 4, device=options.device, title=length).medians().items():
            peak = half if name.endswith("bfloat16") else single
            yield row(f"{length} text, {name}", "sentences/s", count / seconds, count * peak / products_of(ours["float32"].model) / tokens)


def mine(options: Namespace) -> Iterator[Row]:
    """Find the four nearest neighbours of both sides beside faiss, which searches twice."""
    import faiss
    import torch

    from xrep.retrieval.tiles import Operand, search_tile
    from xrep.retrieval.topk import TopK

    size, width, k = (300, 32, 4) if options.small else (50_000, 768, 4)
    torch.manual_seed(0)
    x, y = (torch.nn.functional.normalize(torch.randn(size, width), dim=1) for _ in range(2))

    def ours(_: Any) -> Any:
        sides = [Operand.of(side.to(options.device)) for side in (x, y)]
        best = [TopK.none(size, k, device=options.device) for _ in sides]
        search_tile(*sides, *best, 0, 0)
        return [found.index.cpu().numpy() for found in best]

    def theirs(on_gpu: bool, _: Any) -> Any:
        found = []
        for queries, side in ((x, y), (y, x)):
            index = faiss.IndexFlatIP(width)
            index = faiss.index_cpu_to_all_gpus(index) if on_gpu else index
            index.add(side.numpy())
            found.append(index.search(queries.numpy(), k)[1])
        return found

    work: dict[str, Callable[[Any], Any]] = {"ours": ours, "faiss on the CPU": partial(theirs, False)}
    if getattr(faiss, "get_num_gpus", int)() and options.device == "cuda":
        work["faiss on the GPU"] = partial(theirs, True)
    turns, (peak, _, bandwidth) = take_turns(work, range(3), device=options.device), peaks(options)
    modelled = roofline(2 * size**2 * width, 4 * size * width, peak, bandwidth)
    for name, seconds in turns.medians().items():
        yield row(f"{size:,} x {width} on both sides, {name}", "ms", 1000 * seconds, 1000 * modelled)
    same = [(a == b).mean() for a, b in zip(*(turns.results[name] for name in list(work)[:2]), strict=True)]
    yield row("neighbours that are those of faiss", "%", 100 * float(sum(same)) / 2, 100.0)


SECTIONS: dict[str, tuple[str, int, Callable[[Namespace], Iterator[Row]]]] = {
    "card": ("What the card reaches", 40, card),
    "tests": ("Tests on the device", 130, tests),
    **{case: (f"The loss {case}, forward and backward", 60, partial(kernel, case))
       for case in ("queue", "inbatch", "inbatch-large", "vocabulary")},
    "step-256": ("A training step of BERT-base with 256 pairs", 70, partial(step, 256, False)),
    "step-1024": ("A training step of BERT-base with 1,024 pairs", 70, partial(step, 1024, False)),
    "encode": ("Encoding through BERT-base", 60, encode),
    "mine": ("Nearest neighbours in both directions", 60, mine),
    "step-1024-compiled": ("The step with 1,024 pairs and --compile", 100, partial(step, 1024, True)),
    "step-256-compiled": ("The step with 256 pairs and --compile", 100, partial(step, 256, True)),
}  # fmt: skip
"""The title of each section, its seconds of eight minutes at most, and what yields its rows."""


def apart(name: str, options: Namespace, seconds: float) -> dict[str, Any]:
    """Run a section in a process of its own; return its rows, and what went wrong."""
    rows, said, began = options.work / f"{name}.jsonl", options.work / f"{name}.txt", time.monotonic()
    rows.touch()
    line = [sys.executable, __file__, "--section", name, "--device", options.device, "--work", str(options.work)]
    line += ["--small"] * options.small + (["--encoder", options.encoder] if options.encoder else [])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    with said.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, env=environment, start_new_session=True)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:  # with what it has started
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    last = (said.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    note = "" if code == 0 else f"stopped after {seconds:.0f} s" if code is None else f"failed: {last[:300]}"
    found = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    return {"seconds": time.monotonic() - began, "rows": found, "note": note}

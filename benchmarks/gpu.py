"""One page about one GPU: its tests, losses, training steps, encoding and mining, measured beside a model.

  python benchmarks/gpu.py                                 # at most eight minutes; writes gpu.md, gpu.json
  python benchmarks/gpu.py --small --device cpu --page cpu.md     # tries everything without a GPU

Each section runs in a process of its own, so that one that fails or takes too long is a line of the page.

A modelled figure is a roofline: the longer of operations / peak and bytes / bandwidth, by the card's data sheet. It is
a bound that no program reaches. For vectors of width D:

- a loss of R x C similarities: 2 R C D operations and (R + C) D numbers for each product; memory: its gradients
- a training step: 8 operations for each weight of a layer and each token (forward, backward twice that, and through the
  momentum encoder), attention, and the products with the queues; then 40 bytes for each parameter (AdamW 28, momentum
  encoder 12). Memory: 20 bytes for each parameter, the queues, and 34 bytes for each token and number of each layer
- encoding: 2 operations for each weight of a layer and each token
- mining: one product of all pairs, for both directions

MFU is the share of the card's peak in bfloat16 at which these operations were done.
"""

import argparse
import math
import os
import random
import re
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

import faiss
import losses
import torch
from harness import progress, take_turns, write_corpus
from mining import NEIGHBOURS, drawn, faiss_both_ways, same_neighbours
from results import commit
from train import Clock, configured, trainer_of

from xrep.data.batch import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.files import write_aside, write_json
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.kernels.precision import allow_tf32
from xrep.models.dual_encoder import DualEncoder
from xrep.retrieval.tiles import Operand, search_tile
from xrep.retrieval.topk import TopK
from xrep.text.train_tokenizer import train_tokenizer
from xrep_cli.command import HelpFormatter, console_script

HERE = Path(__file__).resolve().parent
CARDS = {
    "B200": (2250, 1125, 8.0), "H200": (989, 495, 4.8), "H100 NVL": (835, 417, 3.9), "H100 PCIe": (756, 378, 2.0),
    "H100": (989, 495, 3.35), "A100-SXM4-80GB": (312, 156, 2.04), "A100 80GB": (312, 156, 1.94),
    "A100": (312, 156, 1.56), "L40S": (362, 183, 0.86), "L4": (121, 60, 0.3), "RTX 4090": (165, 83, 1.01),
}  # fmt: skip
"""Dense TFLOP/s in bfloat16 and in TF32, and TB/s of memory, in NVIDIA's data sheets, by a part of a card's name."""
LEAST = 15
"""Seconds without which a section is not begun."""
Row = tuple[str, str, float, float]
"""What was measured, its unit, the measured figure and the modelled one (nan: none)."""


def peaks(options: Namespace) -> tuple[float, float, float]:
    """Return operations a second in bfloat16 and in TF32, and bytes a second; nan for a card that is not known."""
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    return tuple(1e12 * peak for peak in next((CARDS[card] for card in CARDS if card in name), 3 * (math.nan,)))


def tests(file: str, options: Namespace) -> Iterator[Row]:
    chosen = f"tests/cuda/{file}" + "::test_every_criterion_has_a_case" * (options.small and file == "test_cuda.py")
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", chosen]
    done = subprocess.run(line, cwd=HERE.parent, stdout=subprocess.PIPE, text=True)
    *lines, last = done.stdout.strip().split("\n")
    for count, outcome in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
        yield chosen, outcome, int(count), math.nan
    if done.returncode:
        raise RuntimeError("; ".join([line for line in lines if line.startswith(("FAILED", "ERROR"))][:9]) or last)


def loss(case: str, options: Namespace) -> Iterator[Row]:
    given, (peak, _, bandwidth) = (case, "tiny" if options.small else "paper", options.device), peaks(options)
    contest = losses.make(*given)
    rows, columns, width = len(contest.sides[0]), *contest.sides[1].shape
    numbers = contest.products * (rows + columns) * width * contest.sides[0].element_size()
    bound = max(2 * contest.products * rows * columns * width / peak, numbers / bandwidth)
    gradients = sum(leaf.numel() * leaf.element_size() for leaf in contest.leaves) / 1e6
    del contest
    turns, memory = losses.measure(*given, 5)
    for name, seconds in turns.medians().items():
        what = f"{rows:,} x {columns:,} x {width}, {name}"
        yield what, "ms", 1000 * seconds, 1000 * bound
        if name in memory:
            yield what, "MB", memory[name], gradients


def sentences(count: int, words: tuple[int, int], seed: int = 0) -> list[str]:
    """Return random sentences of made-up words, few of which are frequent, as in a language."""
    draw, letters = random.Random(seed), "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(4000)]
    share = [1 / (number + 9) for number in range(4000)]
    return [" ".join(draw.choices(known, share, k=draw.randint(*words))) for _ in range(count)]


def step(pairs: int, compiled: bool, options: Namespace) -> Iterator[Row]:
    """Train by dual momentum contrast as xrep-train does, with two towers and queues in bfloat16."""
    folder = options.work / f"step-{pairs}-{compiled}"
    pairs, queue, steps = (8, 64, 1) if options.small else (pairs, 409600, 10)
    sides = (sentences(216 if options.small else 4112, (3, 40), seed) for seed in range(2))
    raw = write_corpus(list(zip(*sides, strict=True)), folder / "text")
    small = "--layers 1 --hidden-size 32 --heads 2 --feedforward-size 64 --dropout 0 --attention-dropout 0"
    line = f"{raw} --task bitext --criterion dual_moco --towers separate {small if options.small else '--size base'}"
    line += f" --queue-size {queue} --queue-dtype bfloat16 --batch-size {pairs} --max-length 64 --precision bf16"
    line += f" --device {options.device} --max-steps {5 * steps} --log-every {steps}"
    run, task = configured([*line.split(), *["--compile"] * compiled], folder / "run")
    trainer = trainer_of(run, task, clock := Clock())
    trainer.train()
    # The first steps allocate and compile.
    train = [record for record in clock.records if "pairs_per_second" in record][2:]
    seconds = pairs / statistics.median(record["pairs_per_second"] for record in train)
    tokens = seconds * statistics.median(record["tokens_per_second"] for record in train)
    width, layers = run.configs["model"].hidden_size, run.configs["model"].layers
    (peak, _, bandwidth), numbers = peaks(options), sum(each.numel() for each in trainer.pair.model.parameters())
    attention = 4 * layers * width * tokens / (2 * pairs)  # of a token with those of its sentence
    work = 4 * tokens * (operations(trainer.pair.model) / 2 + attention) + 8 * pairs * queue * width
    modelled = work / peak + 40 * numbers / bandwidth
    kept = 20 * numbers + 4 * queue * width + 34 * tokens * layers * width
    what = f"{pairs:,} pairs, {tokens / (2 * pairs):.0f} tokens a sentence, queues of {queue:,}"
    yield what, "ms", 1000 * seconds, 1000 * modelled
    yield what, "tokens/s", tokens / seconds, tokens / modelled
    if peak == peak:
        yield what, "MFU, %", 100 * work / seconds / peak, 100 * work / modelled / peak
    yield what, "MB", train[-1]["memory_megabytes"], kept / 1e6


def operations(model: Any) -> int:
    """Return the operations of the layers for a token, two for each weight, summed over the towers."""
    return sum(2 * part.weight.numel() for part in model.modules() if isinstance(part, torch.nn.Linear))


def encode(options: Namespace) -> Iterator[Row]:
    """Encode through BERT-base with random weights beside sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    path, (half, single, _) = str(options.work / "encoder"), peaks(options)
    tokenizer = train_tokenizer(sentences(2000, (3, 40)), None, options.work / "tokenizer")
    text = TextSpec(vocabularies={"shared": Vocabulary.of(tokenizer)}, max_length=256)
    small = {"layers": 1, "hidden_size": 32, "heads": 2, "feedforward_size": 64} if options.small else {}
    model = DualEncoder(DualEncoder.Config(towers="shared", max_positions=256, **small), text)
    SentenceEncoder(model, {"shared": tokenizer}, text).save(path)
    work: dict[str, Callable[[list[str]], Any]] = {}
    for kind in ("bfloat16", "float32"):
        ours = SentenceEncoder.load(path, device=options.device, dtype=kind)
        work[f"ours, {kind}"] = partial(ours.encode, batch_tokens=16384)
        theirs = SentenceTransformer(path, device=options.device, model_kwargs={"torch_dtype": getattr(torch, kind)})
        work[f"sentence-transformers, {kind}"] = partial(theirs.encode, batch_size=128, convert_to_tensor=True)
    for length, words in (("short", (5, 11)), ("long", (50, 70))):
        text = sentences(16 if options.small else 4096, words)
        tokens = sum(len(ids) + 2 for ids in ours.tokenizers["shared"].encode(text))
        with allow_tf32(torch.device(options.device)):  # for all of them
            turns = take_turns(work, [text] * 4, device=options.device)
        for name, seconds in turns.medians().items():
            bound = tokens * operations(ours.model) / (half if "bfloat16" in name else single)
            yield f"{length} sentences, {name}", "sentences/s", len(text) / seconds, len(text) / bound


def mine(options: Namespace) -> Iterator[Row]:
    """Find the nearest neighbours of both sides beside faiss, which searches twice."""
    size, width = (300, 32) if options.small else (50_000, 768)
    x, y = (drawn(size, width, seed) for seed in range(2))

    def ours(_: Any) -> Any:
        best = [TopK.none(size, NEIGHBOURS, device=options.device) for _ in range(2)]
        search_tile(*(Operand.of(torch.from_numpy(side).to(options.device)) for side in (x, y)), *best, 0, 0)
        return [TopK(found.similarity.cpu(), found.index.cpu()) for found in best]

    work: dict[str, Callable[[Any], Any]] = {"ours": ours, "faiss on the CPU": lambda _: faiss_both_ways(x, y)}
    if options.device == "cuda" and getattr(faiss, "get_num_gpus", int)():
        work["faiss on the GPU"] = lambda _: faiss_both_ways(x, y, faiss.index_cpu_to_all_gpus)
    turns = take_turns(work, range(3), device=options.device)
    bound = 2 * size**2 * width / peaks(options)[0]
    for name, seconds in turns.medians().items():
        yield f"{size:,} x {width} on both sides, {name}", "ms", 1000 * seconds, 1000 * bound
    same = same_neighbours(turns.results["ours"], turns.results["faiss on the CPU"])
    yield "neighbours that are those of faiss", "%", 100 * same, 100.0


SECTIONS: dict[str, tuple[str, int, Callable[[Namespace], Iterator[Row]]]] = {
    "kernels": ("Tests of the kernels", 80, partial(tests, "test_real.py")),
    "training": ("Tests of training and of the commands", 130, partial(tests, "test_cuda.py")),
    "queue": ("The loss of dual momentum contrast", 60, partial(loss, "queue")),
    "inbatch": ("The loss of translation ranking, 1,024 pairs", 60, partial(loss, "inbatch")),
    "inbatch-large": ("The loss of translation ranking, 8,192 pairs", 60, partial(loss, "inbatch-large")),
    "vocabulary": ("The cross-entropy of a large vocabulary", 60, partial(loss, "vocabulary")),
    "step-256": ("A training step of BERT-base, 256 pairs", 70, partial(step, 256, False)),
    "step-1024": ("A training step of BERT-base, 1,024 pairs", 70, partial(step, 1024, False)),
    "encode": ("Encoding through BERT-base", 60, encode),
    "mine": ("Nearest neighbours in both directions", 60, mine),
    "step-1024-compiled": ("The step with 1,024 pairs and --compile", 100, partial(step, 1024, True)),
    "step-256-compiled": ("The step with 256 pairs and --compile", 100, partial(step, 256, True)),
}
"""The title of each section, its seconds of eight minutes at most, and what yields its rows."""


def line_of(row: Row) -> str:
    """Return a row of a table in Markdown."""
    what, unit, *figures = row
    return f"| {what} | {unit} | {' | '.join('-' if math.isnan(each) else f'{each:,.4g}' for each in figures)} |"


def apart(name: str, options: Namespace, seconds: float) -> list[str]:
    """Run a section in a process of its own; return its lines of the page: its table, and what went wrong."""
    if seconds < LEAST:
        return ["- skipped: no time was left"]
    said = options.work / f"{name}.txt"
    line = ["timeout", "--signal", "KILL", f"{seconds:.0f}", sys.executable, __file__]  # ends all that it has started
    line += ["--section", name, "--work", str(options.work), "--device", options.device, *["--small"] * options.small]
    with said.open("w", encoding="utf-8") as output:
        environment = {**os.environ, "XREP_HOME": str(options.work / "home")}
        code = subprocess.run(line, stdout=output, stderr=output, env=environment).returncode
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    found = ["| what | unit | measured | modelled |", "| --- | --- | --- | --- |", *rows, ""] if rows else []
    found += dict.fromkeys(f"- {line}" for line in lines if line.startswith("without "))
    if code:
        found.append(f"- stopped after {seconds:.0f} seconds" if code in (137, -9) else f"- failed: {lines[-1][:500]}")
    return found


def page(facts: dict[str, str], sections: dict[str, list[str]]) -> str:
    """Return the page about the figures of a run, in Markdown."""
    about = __doc__ or ""
    lines = ["# One GPU, measured", "", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    lines += ["The measured figures are medians of this run.", about[about.index("A modelled") :]]
    for name, found in sections.items():
        lines += [f"## {SECTIONS[name][0]}", "", *found, ""]
    return "\n".join(lines)


def record(facts: dict[str, str], sections: dict[str, list[str]]) -> dict[str, object]:
    """Return the page as plain data for programs; a figure that is not known is None."""
    rows = []
    for name, lines in sections.items():
        for line in lines[2:]:
            if line.startswith("| "):
                what, unit, *figures = (cell.strip() for cell in line.strip("|").split(" | "))
                measured, modelled = (None if cell == "-" else float(cell.replace(",", "")) for cell in figures)
                rows.append({"section": name, "what": what, "unit": unit, "measured": measured, "modelled": modelled})
    notes = {name: [line for line in lines if line.startswith("- ")] for name, lines in sections.items()}
    return {**facts, "rows": rows, "notes": notes}


@console_script("benchmarks/gpu.py")
def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    add = parser.add_argument
    add("--minutes", type=float, default=8.0, help="after which nothing goes on")
    add(
        "--page",
        metavar="FILE",
        type=Path,
        default=HERE / "gpu.md",
        help="the page; a .json is beside it",
    )
    add("--device", choices=("cpu", "cuda"), default="cuda", help="where to measure")
    add("--small", action="store_true", help="tiny inputs, to try everything")
    add("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    add("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.section:
        for row in SECTIONS[options.section][2](options):
            print(line_of(row), flush=True)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError("there is no CUDA GPU", cure="give --small --device cpu to try the script without one")
    peak, single, bandwidth = (figure / 1e12 for figure in peaks(options))
    facts = {
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "date, commit, torch": f"{date.today()}, {commit()}, {torch.__version__} with CUDA {torch.version.cuda}",
        "command": " ".join(["python benchmarks/gpu.py", *argv]),
        "peaks (nan: not known)": f"{peak:g} TFLOP/s in bfloat16, {single:g} in TF32, {bandwidth:g} TB/s",
    }
    began, sections = time.monotonic(), dict[str, list[str]]()
    with tempfile.TemporaryDirectory() as folder:
        options.work = Path(folder)
        for name, (title, most, _) in SECTIONS.items():
            left = 60 * options.minutes - (time.monotonic() - began)
            sections[name] = apart(name, options, min(left, max(LEAST, most * options.minutes / 8)))
            progress(f"{title}: {sections[name][-1] or 'done'}, {time.monotonic() - began:.0f} s")
            with write_aside(options.page) as aside:  # at once, for a run that is cut short
                aside.write_text(page(facts, sections), encoding="utf-8")
            write_json(options.page.with_suffix(".json"), record(facts, sections))
    print(page(facts, sections))


if __name__ == "__main__":
    sys.exit(main())

"""The lines of xrep-doctor: what is installed, what the machine is, and whether it computes what it should."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from huggingface_hub.constants import HF_HOME
from packaging.requirements import Requirement
from torch.cuda import nccl

from xrep.data.batch import TokenBatch
from xrep.kernels import inbatch_infonce, linear_cross_entropy, queue_infonce
from xrep.kernels.fused import TOLERANCE, triton_problem
from xrep.kernels.precision import fast_float32_is_exact, multiplies_bfloat16
from xrep.memory import machine_memory
from xrep.nn.encoder import Encoder
from xrep.nn.shape import EncoderShape
from xrep.registry import ENTRY_POINT_GROUP, load_target
from xrep.text.resources import xrep_home
from xrep.version import __version__
from xrep.workers import processors

EXTRAS = {
    "plot": "pictures of xrep-eval and xrep-report",
    "senteval": "xrep-eval senteval",
    "hf": "encoders of any architecture (ModernBERT, T5 and others)",
    "parquet": "text in Parquet files",
    "zstd": "text in .zst files",
    "wandb": "xrep-train --logger wandb",
    "ray": "--engine ray on several machines",
    "s3": "files in s3://",
    "gcs": "files in gs://",
    "onnx": "xrep-export --format onnx",
    "openvino": "xrep-export --format openvino",
    "ctranslate2": "xrep-export --format ctranslate2",
    "datasets": "text named hf:NAME, of the library datasets",
}
"""What each extra is for. Others are for the development of xrep."""
LEAST = 2
"""Gigabytes of memory, or on a disk, below which a run is likely to fail."""
REPORT = "report it with this output"


class Finding(NamedTuple):
    """A line of the report; ``state`` is ok, absent (what is optional) or problem."""

    state: str
    name: str
    value: str
    cure: str = ""


def check(is_right: bool, name: str, value: str, cure: str = REPORT, otherwise: str = "problem") -> Finding:
    return Finding("ok", name, value) if is_right else Finding(otherwise, name, value, cure)


def rows() -> Iterator[tuple[str, Finding]]:
    """Yield all lines with their sections. An error, of whatever kind, is one of them and ends its section alone."""
    sections = {"Versions": of_versions, "Extras": of_extras, "Processor": of_processor, "Space": of_space}
    sections |= {"GPUs": of_gpus, "Plugins": of_plugins}
    for device in ("cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))):
        sections[f"Kernels on {device}"] = partial(of_kernels, device)
        sections[f"Training on {device}"] = partial(of_training, device)
    for section, part in sections.items():
        try:
            yield from ((section, row) for row in part())
        except Exception as error:
            yield section, Finding("problem", "error", repr(error), REPORT)


def of_versions() -> Iterator[Finding]:
    yield Finding("ok", "xrep", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("ok", "Python", f"{platform.python_version()} on {platform.platform()}")
    yield from packages("")


def of_extras() -> Iterator[Finding]:
    for extra, purpose in EXTRAS.items():
        needed = list(packages(extra))
        told = ", ".join(f"{package.name} {package.value}" for package in needed)
        is_there = all(package.state == "ok" for package in needed)
        yield check(is_there, extra, f"{purpose} ({told})", f"pip install 'xrep[{extra}]'", otherwise="absent")


def packages(extra: str) -> Iterator[Finding]:
    """Yield the packages that xrep itself, or an extra of it, needs on this machine."""
    for needed in map(Requirement, importlib.metadata.requires("xrep") or []):
        if needed.marker.evaluate({"extra": extra}) if needed.marker else not extra:
            cure = f"pip install '{needed.name}{needed.specifier}'"
            try:
                version = importlib.metadata.version(needed.name)
                yield check(needed.specifier.contains(version, prereleases=True), needed.name, version, cure)
            except importlib.metadata.PackageNotFoundError:
                yield Finding("problem", needed.name, "not installed", cure)


def of_processor() -> Iterator[Finding]:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    models = re.findall("^model name\\s*: (.*)", text, re.MULTILINE) or ["unknown"]  # ARM has no such line
    yield Finding("ok", "model", f"{models[0]} ({platform.machine()})")
    flags = sorted({*re.findall(r"\b(?:avx|amx|asimd|sve|bf16)\w*", text)})
    yield Finding("ok", "instructions", ", ".join(flags) or "none of AVX, AMX, ASIMD and SVE")
    yield Finding("ok", "fast float32", "exact" if fast_float32_is_exact() else "not used")
    yield Finding("ok", "bfloat16", "in hardware" if multiplies_bfloat16() else "emulated, slow")
    usable, threads = processors(), torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS", "unset")
    told = f"{usable} of {os.cpu_count()} usable, {threads} threads of torch, OMP_NUM_THREADS {given}"
    yield check(threads <= usable, "cores", told, f"set OMP_NUM_THREADS to {usable}")


def of_space() -> Iterator[Finding]:
    (available,) = re.findall("^MemAvailable: *(\\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    total = machine_memory() / 1e9
    free = min(total, int(available) * 1024 / 1e9)
    yield check(free >= LEAST, "memory", f"{total:.1f} GB, {free:.1f} GB available", "end other programs")
    folders = {"current folder": Path.cwd(), "cache of xrep": xrep_home(), "Hugging Face": Path(HF_HOME)}
    for name, folder in folders.items():
        place = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(place).free / 1e9
        told = f"{folder}{'' if place == folder else ' (not made yet)'}, {free:.1f} GB free"
        yield check(free >= LEAST, name, told, "remove files, or choose another folder")
    size = sum(path.stat().st_size for path in xrep_home().rglob("*") if path.is_file()) / 1e9
    yield Finding("ok", "XREP_HOME", f"{os.environ.get('XREP_HOME', 'unset')}; the cache of xrep has {size:.1f} GB")


def of_gpus() -> Iterator[Finding]:
    count, driver = torch.cuda.device_count(), ""
    if program := shutil.which("nvidia-smi"):
        command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.partition("\n")[0]
    told = f"{count or 'none'}, driver {driver or 'none'}, torch for CUDA {torch.version.cuda or 'none'}"
    cure = "install the build of torch for the CUDA of this driver" if driver else ""
    yield check(count > 0, "GPUs", told, cure, otherwise="problem" if driver else "absent")
    for number in range(count):
        own = torch.cuda.get_device_properties(number)
        free, total = (size / 1e9 for size in torch.cuda.mem_get_info(number))
        told = f"{own.name}, capability {own.major}.{own.minor}, {total:.1f} GB, {free:.1f} GB free"
        yield Finding("ok", f"cuda:{number}", told)
        problem = triton_problem(torch.device("cuda", number))
        told = problem or f"Triton {importlib.metadata.version('triton')}, NCCL {'.'.join(map(str, nccl.version()))}"
        yield check(problem is None, f"cuda:{number} libraries", told, "install the triton that this torch requires")


def of_plugins() -> Iterator[Finding]:
    entries = list(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
    for entry in entries:
        try:
            load_target(entry.value)
        except Exception as error:  # code of others can fail in any way
            yield Finding("problem", entry.name, repr(error), "mend or remove the package")
    others = [f"{entry.name} ({entry.value})" for entry in entries if not entry.value.startswith("xrep.")]
    yield Finding("ok", "parts", f"{len(entries) - len(others)} of xrep; of others: {', '.join(others) or 'none'}")


def of_kernels(device: str) -> Iterator[Finding]:
    """Compare the losses and gradients of each kernel in float32 on a device with those in float64 on the CPU."""
    sizes = 64, 64, 20_000  # a queue of this size is read in blocks
    x, y, queue = (torch.randn(rows, 64, dtype=torch.float64) / 8 for rows in sizes)
    kernels = {
        "queue InfoNCE": (lambda x, y: queue_infonce(x, y, queue.to(x), 0.05).loss, y),
        "in-batch InfoNCE": (lambda x, y: inbatch_infonce(x, y, 0.05).forward, y),
        "linear cross-entropy": (lambda x, y: linear_cross_entropy(x, y, torch.arange(64).to(x.device)).loss, queue),
    }
    for name, (kernel, other) in kernels.items():
        results = []
        for place, dtype in ((device, torch.float32), ("cpu", torch.float64)):
            inputs = [each.to(place, dtype, copy=True).requires_grad_() for each in (x, other)]
            loss = kernel(*inputs)
            results.append([loss.detach(), *torch.autograd.grad(loss.sum(), inputs)])
        pairs = zip(*results, strict=True)
        error = max(float((found.cpu() - exact).abs().max() / exact.abs().max()) for found, exact in pairs)
        yield check(error <= (1e-4 if device == "cpu" else TOLERANCE), name, f"differs from float64 by {error:.1e}")


def of_training(device: str) -> Iterator[Finding]:
    shape = EncoderShape(
        vocabulary_size=200, pad_id=0, hidden_size=64, layers=2, heads=4, feedforward_size=128, max_positions=16
    )
    encoder = Encoder.build(shape, dropout=0.0, attention_dropout=0.0).to(device)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    lengths = torch.arange(64) % 13 + 4
    tokens = torch.randint(1, 200, (64, 16)) * (torch.arange(16) < lengths.unsqueeze(1))
    batch, losses = TokenBatch(tokens, lengths, lengths.numpy()).to(device), list[float]()
    for _ in range(6):
        x, y = torch.nn.functional.normalize(encoder(batch)[:, 0], dim=-1).chunk(2)
        loss = inbatch_infonce(x, y, 0.1).forward.mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    yield check(losses[-1] < losses[0], "training", f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in 5 steps")

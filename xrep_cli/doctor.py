"""xrep-doctor: check the installation and the machine, and print what a bug report needs."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from xrep.memory import machine_memory
from xrep.registry import ENTRY_POINT_GROUP, load_target, one_line
from xrep.text.resources import xrep_home
from xrep.version import __version__
from xrep_cli import common
from xrep_cli.command import Command

if TYPE_CHECKING:
    import torch
    from packaging.requirements import Requirement

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
}
"""What each extra is for. Others are for the development of xrep."""
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16")
"""Instructions of processors (x86 and ARM) that decide how fast products are."""
GIGABYTE = 1e9
LEAST = {"memory": 2, "disk": 2}
"""Gigabytes below which a run is likely to fail."""


@dataclass(kw_only=True)
class Diagnosis(common.JsonOption):
    """Check the installation and the machine, and print what a bug report needs: versions, extras, processor, memory,
    GPUs, caches and plugins. The computation on every device is checked, too, in a few seconds.

      # Check an installation and a machine
      xrep-doctor                      # each line says ok, absent (what is optional) or problem, with what to do
      # Print only the problems
      xrep-doctor | grep problem
      # Write what a bug report needs
      xrep-doctor --json doctor.json

    The exit code is 1 if there is a problem."""


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    value: str
    state: Literal["ok", "absent", "problem"] = "ok"
    cure: str | None = None

    def __str__(self) -> str:
        return f"  {self.state:<8} {self.name}: {self.value}" + (f"; {self.cure}" if self.cure else "")


def run(options: Diagnosis) -> None:
    found, lines = list[Finding](), list[str]()
    for finding in findings():
        if not found or found[-1].section != finding.section:
            lines.append(finding.section)
        found.append(finding)
        lines.append(str(finding))
    problems = sum(finding.state == "problem" for finding in found)
    summary = {"problems": problems, "findings": [asdict(finding) for finding in found]}
    lines.append(f"{problems} problem{'s' * (problems != 1)}" if problems else "no problem")
    common.write_summary(summary, options.json, "\n".join(lines))
    if problems:
        raise SystemExit(1)


def findings() -> Iterator[Finding]:
    """Find out about one thing after another; an error, of whatever kind, is a problem and ends nothing else."""
    import torch

    devices = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    parts = {"Versions": of_packages, "Processor": of_processor, "Memory": of_memory, "GPUs": of_gpus}
    parts |= {"Folders": of_folders, "Plugins": of_plugins}
    parts |= {f"Computation on {device}": functools.partial(of_computation, device) for device in devices}
    for section, part in parts.items():
        try:
            yield from part()
        except Exception as error:
            cure = "report it with this output"
            yield Finding(section, "error", f"{type(error).__name__}: {one_line(error)}", "problem", cure)


# -- what is installed ------------------------------------------------------------------------------------------------


def of_packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    yield Finding("Versions", "xrep", f"{__version__} in {Path(__file__).parents[1]}")
    yield Finding("Versions", "Python", f"{platform.python_version()} on {platform.platform()}")
    try:
        required = [Requirement(text) for text in importlib.metadata.requires("xrep") or []]
    except importlib.metadata.PackageNotFoundError:
        yield Finding("Versions", "requirements", "xrep is not installed", "problem", "pip install xrep")
        return
    for requirement in required:
        if _is_for(requirement, ""):
            version, fits = _installed(requirement)
            cure = None if fits else f"pip install '{requirement.name}{requirement.specifier}'"
            yield Finding("Versions", requirement.name, version or "not installed", "ok" if fits else "problem", cure)
    for extra, purpose in EXTRAS.items():
        own = [each for each in required if _is_for(each, extra) and not _is_for(each, "")]
        versions = {requirement.name: _installed(requirement) for requirement in own}
        told = ", ".join(f"{name} {version or 'missing'}" for name, (version, _) in versions.items())
        fits = all(fits for _, fits in versions.values())
        cure = None if fits else f"pip install 'xrep[{extra}]'"
        yield Finding("Extras", extra, f"{purpose} ({told})", "ok" if fits else "absent", cure)


def _is_for(requirement: Requirement, extra: str) -> bool:
    """Return whether xrep with an extra, or without one, needs a package on this machine."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _installed(requirement: Requirement) -> tuple[str | None, bool]:
    """Return the version of a required package that is installed, and whether it is as required."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return None, False
    return version, requirement.specifier.contains(version, prereleases=True)


def of_plugins() -> Iterator[Finding]:
    counts = Counter[str]()
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        package = entry.dist.name if entry.dist else "unknown"
        counts[package] += 1
        if package == "xrep":
            continue
        try:
            load_target(entry.value)
            yield Finding("Plugins", entry.name, f"{entry.value} of {package}")
        except Exception as error:  # code of others can fail in any way
            told = f"{type(error).__name__}: {one_line(error)}"
            yield Finding("Plugins", entry.name, told, "problem", "mend or remove the package")
    told = ", ".join(f"{count} of {package}" for package, count in counts.items())
    yield Finding("Plugins", "registered parts", told or "none")


# -- the machine ------------------------------------------------------------------------------------------------------


def of_processor() -> Iterator[Finding]:
    import torch

    from xrep.kernels.precision import fast_float32_is_exact, multiplies_bfloat16

    text = _text_of("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = {*(re.search(r"^(?:flags|Features)\s*: (.*)$", text, re.MULTILINE) or ["", ""])[1].split()}
    has = ", ".join(flag for flag in FLAGS if flag in flags) or "none of " + ", ".join(FLAGS)
    yield Finding("Processor", "model", f"{model[1] if model else platform.processor()} ({platform.machine()})")
    yield Finding("Processor", "instructions", has)
    products = [f"fast float32 {'exact' if fast_float32_is_exact() else 'not used'}"]
    products.append(f"bfloat16 {'in hardware' if multiplies_bfloat16() else 'emulated, slow'}")
    yield Finding("Processor", "products", ", ".join(products))
    usable, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    given = os.environ.get("OMP_NUM_THREADS")
    told = (
        f"{os.cpu_count()}, {usable} of them usable; torch has {threads} threads, OMP_NUM_THREADS is {given or 'unset'}"
    )
    too_many = threads > usable
    cure = f"set OMP_NUM_THREADS to {usable}" if too_many else None
    yield Finding("Processor", "cores", told, "problem" if too_many else "ok", cure)


def of_memory() -> Iterator[Finding]:
    available = re.search(r"^MemAvailable:\s*(\d+) kB", _text_of("/proc/meminfo"), re.MULTILINE)
    free = min(machine_memory(), int(available[1]) * 1024 if available else machine_memory()) / GIGABYTE
    low = free < LEAST["memory"]
    told = f"{machine_memory() / GIGABYTE:.1f} GB, {free:.1f} GB available"
    yield Finding("Memory", "memory", told, "problem" if low else "ok", "end other programs" if low else None)


def of_gpus() -> Iterator[Finding]:
    import torch
    from torch.cuda import nccl

    from xrep.kernels.fused import triton_problem

    driver = _driver()
    if not torch.cuda.is_available():
        if driver is None:
            yield Finding("GPUs", "GPUs", "none", "absent")
        else:
            told = f"the driver {driver} is there, but torch {torch.__version__} does not find a GPU"
            cure = "install the build of torch for the CUDA of this driver"
            yield Finding("GPUs", "GPUs", told, "problem", cure)
        return
    has_nccl = torch.distributed.is_nccl_available()
    library = ".".join(map(str, nccl.version())) if has_nccl else "none"
    yield Finding("GPUs", "software", f"driver {driver or 'unknown'}, CUDA {torch.version.cuda}, NCCL {library}")
    for number in range(torch.cuda.device_count()):
        own = torch.cuda.get_device_properties(number)
        free, total = (size / GIGABYTE for size in torch.cuda.mem_get_info(number))
        told = f"{own.name}, capability {own.major}.{own.minor}, {total:.1f} GB, {free:.1f} GB free"
        yield Finding("GPUs", f"cuda:{number}", told)
        problem = triton_problem(torch.device("cuda", number))
        state, cure = ("problem", "install the triton that this torch requires") if problem else ("ok", None)
        yield Finding("GPUs", f"cuda:{number} kernels", problem or f"Triton {_version('triton')}", state, cure)


def _driver() -> str | None:
    if not (program := shutil.which("nvidia-smi")):
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def _version(package: str) -> str:
    return importlib.metadata.version(package) if importlib.util.find_spec(package) else "none"


def of_folders() -> Iterator[Finding]:
    from huggingface_hub.constants import HF_HOME

    home = xrep_home()
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) / GIGABYTE
    origin = "XREP_HOME" if os.environ.get("XREP_HOME") else "the default; XREP_HOME is unset"
    yield Finding("Folders", "cache of xrep", f"{home} ({origin}), {size:.1f} GB")
    there = "" if Path(HF_HOME).is_dir() else ", which does not exist"
    yield Finding("Folders", "cache of Hugging Face", f"{HF_HOME}{there}")
    for name, folder in {"current folder": Path.cwd(), "cache of xrep": home}.items():
        place = next(each for each in (folder, *folder.parents) if each.exists())
        free = shutil.disk_usage(place).free / GIGABYTE
        low = free < LEAST["disk"]
        cure = "remove files, or choose another folder" if low else None
        yield Finding("Folders", f"free disk, {name}", f"{free:.1f} GB", "problem" if low else "ok", cure)


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return ""


# -- the computation --------------------------------------------------------------------------------------------------


def of_computation(name: str) -> Iterator[Finding]:
    """Compare the kernels on a device with their formulas, and train a tiny encoder there."""
    import torch

    from xrep.kernels.self_check import kernel_errors, tolerance

    device, start = torch.device(name), time.perf_counter()
    section, cure = f"Computation on {name}", "report it with this output"
    for kernel, error in kernel_errors(device).items():
        good = error <= tolerance(device)
        told = f"differs from float64 by {error:.1e}"
        yield Finding(section, kernel, told, "ok" if good else "problem", None if good else cure)
    before, after = _train(device)
    good, seconds = after < before, time.perf_counter() - start
    told = f"loss {before:.2f} -> {after:.2f} in {_TINY_STEPS} steps, {seconds:.1f} s with the kernels"
    yield Finding(section, "training", told, "ok" if good else "problem", None if good else cure)


_TINY_STEPS = 5


def _train(device: torch.device) -> tuple[float, float]:
    """Return the loss of a tiny encoder on a batch of pairs before and after a few steps on this batch."""
    import numpy as np
    import torch

    from xrep.data.batch import TokenBatch
    from xrep.kernels import inbatch_infonce
    from xrep.nn.encoder import Encoder
    from xrep.nn.pooling import pool
    from xrep.nn.shape import EncoderShape

    with torch.random.fork_rng():
        torch.manual_seed(1)
        small = EncoderShape(
            vocabulary_size=200, pad_id=0, hidden_size=64, layers=2, heads=4, feedforward_size=128, max_positions=16
        )
        encoder = Encoder.build(small, dropout=0.0, attention_dropout=0.0).to(device)
        optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
        lengths = torch.arange(2, 34) % 12 + 4
        batches = []
        for _ in range(2):
            tokens = torch.randint(1, 200, (32, 16)) * (torch.arange(16) < lengths.unsqueeze(1))
            batches.append(TokenBatch(tokens.to(device), lengths.to(device), np.asarray(lengths)))
        losses = []
        for _ in range(_TINY_STEPS + 1):
            x, y = (torch.nn.functional.normalize(pool(encoder(each), each.mask, "mean"), dim=-1) for each in batches)
            loss = inbatch_infonce(x, y, 0.1).forward.mean()
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses[0], losses[-1]


main = Command("xrep-doctor", Diagnosis, run)

if __name__ == "__main__":
    sys.exit(main())

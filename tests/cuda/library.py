"""The compiled device.cpp."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def library() -> Path:
    """Return the compiled device.cpp; it is compiled if no earlier process has left it in the temporary folder."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    source, torch_folder = Path(__file__).with_name("device.cpp"), Path(spec.origin).parent
    version = (torch_folder / "version.py").read_bytes()
    name = hashlib.sha256(source.read_bytes() + version + str(torch_folder).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"xrep-tests-cuda-{os.getuid()}-{name}.so"
    if not path.exists():
        includes = [f"-I{torch_folder / 'include' / part}" for part in ("", "torch/csrc/api/include")]
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = ["g++", "-std=c++20", "-DUSE_DISTRIBUTED", "-w", "-shared", "-fPIC", *includes, str(source)]
            libraries = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
            subprocess.run([*command, "-o", str(made), *libraries], check=True)
            os.replace(made, path)
    return path


def load() -> None:
    """Tell torch, which must not be imported yet, of a CUDA device."""
    if "torch" in sys.modules:
        raise ImportError("the emulated device must be imported before torch")
    ctypes.CDLL(str(library()))

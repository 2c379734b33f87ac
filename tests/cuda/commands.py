"""Runs commands one after the other in a process with a GPU, or with the emulated one.

python -m tests.cuda.commands LINES    # JSON: [[PORT, MODULE, ARGUMENT...], ...], such as [[29500, "xrep_cli.train"]]

PORT is where the ranks of a command meet, if there are several. Modules of the tests emulate the GPU themselves.
``plain:`` before a module leaves Triton's kernels out, which take long to interpret, and have tests of their own.
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from unittest import mock

if os.path.exists("/dev/nvidiactl"):
    device = nullcontext
else:
    from tests.cuda.device import EmulatedDevice as device
import importlib
import json
from pathlib import Path


def choose_triton(used: bool):
    """Return a context in which Triton's kernels compute all tensors on GPUs, unchecked, or none."""
    return mock.patch("xrep.kernels.fused.uses_triton", lambda device: used and device.type == "cuda")


def main() -> None:
    for port, module, *arguments in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        os.environ["MASTER_PORT"] = str(port)
        plain, module = module.startswith("plain:"), module.removeprefix("plain:")
        with (
            nullcontext() if module.startswith("tests.") else device(),
            choose_triton(False) if plain else nullcontext(),
        ):
            code = importlib.import_module(module).main(arguments)
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()

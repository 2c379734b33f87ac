"""Runs commands one after the other in a process with a GPU, or with the emulated one.

python -m tests.cuda.commands LINES    # a JSON list of [MODULE, ARGUMENT...], such as ["xrep_cli.encode", "--help"]
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import sys

if os.path.exists("/dev/nvidiactl"):
    from contextlib import nullcontext as device
else:
    from tests.cuda.device import EmulatedDevice as device
import importlib
import json
from pathlib import Path


def main() -> None:
    for module, *arguments in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        with device():
            code = importlib.import_module(module).main(arguments)
        if code:
            sys.exit(code)


if __name__ == "__main__":
    main()

"""Runs a command as a process whose standard streams are closed or print ASCII alone, or whose folder was deleted.

  python -m tests.hostile.odd_process STATE[,STATE...] MODULE [ARGUMENT ...]

STATE is ``no-stdin``, ``no-stdout``, ``no-stderr``, ``ascii`` or ``no-folder``. The state is what Python finds when it
starts: a closed stream is None.
"""

from __future__ import annotations

import io
import os
import runpy
import sys
import tempfile


def main() -> None:
    states, module, *arguments = sys.argv[1:]
    for state in states.split(","):
        if state == "ascii":
            assert isinstance(sys.stdout, io.TextIOWrapper)
            sys.stdout.reconfigure(encoding="ascii", errors="strict")
        elif state == "no-folder":
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
        else:
            name = state.removeprefix("no-")
            setattr(sys, name, None)
            os.close(["stdin", "stdout", "stderr"].index(name))
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

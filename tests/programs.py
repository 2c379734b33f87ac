"""xrep's programs in processes of their own that start in a moment: they are forked from a process that has imported
torch once. What they print, how they end and what they do with signals is as in a process that a user starts.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRELOADED = ["torch._dynamo", "xrep.training.run", "xrep_cli.train", "tests.kernels.ranks"]
PATIENCE = 300.0
"""Seconds after which a program hangs, on a busy machine too."""

Finished = subprocess.CompletedProcess[str]


def warm_context() -> ForkServerContext:
    """Starts processes by forking one that has imported PRELOADED; it is started when it is first needed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    here = os.getcwd()
    os.chdir(ROOT)  # where it finds what it imports
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.chdir(here)
    return context


class Program:
    """``python -m module arguments`` with these environment variables, as ``subprocess.Popen`` has it."""

    def __init__(self, module: str, arguments: Sequence[object], environment: Mapping[str, str]) -> None:
        self.args = [module, *map(str, arguments)]
        self.folder = tempfile.TemporaryDirectory(prefix="xrep-program-")
        self.paths = [Path(self.folder.name) / name for name in ("out", "err")]
        given = (self.args, os.getcwd(), dict(environment), [str(path) for path in self.paths])
        self.process = warm_context().Process(target=_work, args=given)
        self.process.start()
        atexit.register(self.process.kill)  # a test that failed may have left it running

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.process.kill()

    def communicate(self, timeout: float = PATIENCE) -> tuple[str, str]:
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise subprocess.TimeoutExpired(self.args, timeout, *map(_read, self.paths))
        return _read(self.paths[0]), _read(self.paths[1])


def run_program(module: str, *arguments: object, environment: Mapping[str, str], timeout: float = PATIENCE) -> Finished:
    program = Program(module, arguments, environment)
    out, err = program.communicate(timeout)
    assert program.returncode is not None
    return Finished(program.args, program.returncode, out, err)


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def rank_environment(rank: int, size: int, port: int, address: str = "127.0.0.1") -> dict[str, str]:
    """What torchrun tells a rank."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in places.items()}


def run_on_ranks(size: int, module: str, *arguments: object, environment: Mapping[str, str]) -> Finished:
    """The same program as each of ``size`` ranks; what they printed, rank after rank, and the first code but 0."""
    port = free_port()
    places = [rank_environment(rank, size, port) for rank in range(size)]
    programs = [Program(module, arguments, {**environment, **place}) for place in places]
    try:
        outs, errs = zip(*(program.communicate() for program in programs), strict=True)
    finally:
        for program in programs:
            program.kill()
    codes = [program.returncode or 0 for program in programs]
    return Finished(programs[0].args, next(filter(None, codes), 0), "".join(outs), "".join(errs))


def _work(line: list[str], folder: str, environment: dict[str, str], paths: list[str]) -> None:
    """In the new process: put everything where a new interpreter would have it, then run the module."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(paths, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place not in sys.path]
    sys.path[:0] = filter(None, places)
    sys.argv = line
    sys.modules.pop(line[0], None)
    code = 1
    try:
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    sys.exit(code)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""

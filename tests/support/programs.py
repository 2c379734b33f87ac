"""Runs xrep's programs in separate processes that start quickly, because they are forked from a process that has
imported torch. Their output, exit codes and handling of signals are those of a process that a user starts.
"""

import atexit
import importlib
import json
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRELOADED = ["torch._dynamo", "torch.distributed.run", "xrep.training.run", "xrep_cli.train", "tests.kernels.ranks"]
PATIENCE = 300.0
"""Seconds after which a test gives up on a program. A busy machine needs less."""

Finished = subprocess.CompletedProcess[str]


def warm_context() -> ForkServerContext:
    """Return a context that starts processes by forking one that has imported PRELOADED."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    here = os.getcwd()
    os.chdir(ROOT)  # the server finds the preloaded modules here
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.chdir(here)
    return context


class Program:
    """A running ``python -m module arguments``, with the methods of ``subprocess.Popen``."""

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
    """Return the environment variables that torchrun sets for a rank."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in places.items()}


def run_on_ranks(size: int, module: str, *arguments: object, environment: Mapping[str, str]) -> Finished:
    """Run the program as each of ``size`` ranks; return all that they printed and the first exit code that is not 0."""
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


@contextmanager
def command_server() -> Iterator[Callable[[str, str, list[str]], str]]:
    """``command(module, function, extra)`` returns the text of a script that calls the function as a console script
    does, with ``extra`` after its arguments. Commands are forked from one warm process, one at a time.
    """
    with tempfile.TemporaryDirectory(prefix="xrep-commands-") as folder:
        address = f"{folder}/socket"
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            server = warm_context().Process(target=_serve, args=(listening,))
            server.start()
        atexit.register(server.kill)

        def command(module: str, function: str, extra: list[str]) -> str:
            lines = [
                f"#!{sys.executable} -S",
                "import json, os, socket, sys",
                "with socket.socket(socket.AF_UNIX) as server:",
                f"    server.connect({address!r})",
                f"    said = [{module!r}, {function!r}, [*sys.argv, *{extra!r}], os.getcwd(), dict(os.environ)]",
                "    socket.send_fds(server, [b' '], [0, 1, 2])",
                "    server.sendall(json.dumps(said).encode())",
                "    server.shutdown(socket.SHUT_WR)",
                "    code = int(server.recv(16))",
                "sys.exit(code)",
            ]
            return "\n".join(lines) + "\n"

        try:
            yield command
        finally:
            server.kill()
            server.join()


def _serve(listening: socket.socket) -> None:
    """Run each requested command in a fork of this process."""
    while True:
        connection, _ = listening.accept()
        with connection:
            _, files, _, _ = socket.recv_fds(connection, 1, 3)
            with connection.makefile("rb") as stream:
                module, function, line, folder, environment = json.loads(stream.read())
            child = os.fork()
            if not child:
                code = 1
                try:
                    _become(line, folder, environment, files)
                    code = _code_of(partial(_call, module, function))
                finally:
                    os._exit(code)
            for file in files:
                os.close(file)
            connection.sendall(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _call(module: str, function: str) -> None:
    sys.exit(getattr(importlib.import_module(module), function)())


def _work(line: list[str], folder: str, environment: dict[str, str], paths: list[str]) -> None:
    """Run the module of ``line`` in a new process."""
    files = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
    _become(line, folder, environment, [os.open(os.devnull, os.O_RDONLY), *files])
    sys.modules.pop(line[0], None)
    sys.exit(_code_of(partial(runpy.run_module, line[0], run_name="__main__", alter_sys=True)))


def _become(line: list[str], folder: str, environment: dict[str, str], files: list[int]) -> None:
    """Set up this process as a new interpreter. ``files`` are its standard input, output and error."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place not in sys.path]
    sys.path[:0] = filter(None, places)
    sys.argv = line


def _code_of(run: Callable[[], object]) -> int:
    """Run a function and return the exit code that Python would give the program."""
    code: object = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""

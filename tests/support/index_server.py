"""A package index on the loopback address, for tests of code that uses pip. It can imitate a bad network."""

from __future__ import annotations

import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def tiny_wheel(name: str, entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return a wheel that pip accepts: version 1.0 of a package with these files."""
    stream = io.BytesIO()
    information = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for path, content in entries.items():
            archive.writestr(path, content)
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return stream.getvalue()


class IndexServer:
    """The wheels of the index, the requests it got, and the faults in its answers.

    Attributes:
        wheels: The content of each file, by name.
        fault: The fault of every request for a page or a file whose path contains ``fault_in``: "503", "stall" (no
            answer), "stall half-way", "close half-way" (of the content) or "" (none).
        faults_left: The number of faults after which the index works.
        requests: The paths of the requests so far.
    """

    def __init__(self, wheels: dict[str, bytes]) -> None:
        self.wheels = wheels
        self.fault, self.fault_in, self.faults_left = "", "", 10**6
        self.requests: list[str] = []
        self.is_closing = threading.Event()
        self.url = ""

    def transfers(self, name: str = "") -> int:
        """Return how often a wheel whose file name contains ``name`` was requested."""
        return sum(path.endswith(".whl") and name in path for path in self.requests)

    def take_fault(self, path: str) -> str:
        if not self.fault or self.fault_in not in path or not self.faults_left:
            return ""
        self.faults_left -= 1
        return self.fault


@contextmanager
def serve(wheels: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    """Run an index that is the only one for pip, in this process and in those that it starts."""
    index = IndexServer(wheels)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            file_name = self.path.rpartition("/")[2]
            links = "".join(f'<a href="/files/{name}">{name}</a>' for name in index.wheels if self.is_of(name))
            body = index.wheels.get(file_name, links.encode())
            fault = index.take_fault(self.path)
            if fault == "stall":
                index.is_closing.wait(60)
            elif fault == "503" or not body:
                self.send_error(503 if fault == "503" else 404)
            else:
                self.send_response(200)
                is_wheel = file_name in index.wheels
                self.send_header("Content-Type", "application/octet-stream" if is_wheel else "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if fault.endswith("half-way") else body)
                if fault == "stall half-way":
                    self.wfile.flush()
                    index.is_closing.wait(60)

        def is_of(self, file_name: str) -> bool:
            return self.path.strip("/").rpartition("/")[2].replace("-", "_") == file_name.partition("-")[0]

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        index.url = f"http://127.0.0.1:{running.server_port}/simple"
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT"):
            monkeypatch.delenv(name, raising=False)
        given = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": index.url, "PIP_NO_CACHE_DIR": "1"}
        # A busy machine may answer late, so pip gives up only if no answer comes at all.
        given |= {"PIP_RETRIES": "1", "PIP_TIMEOUT": "60", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        yield index
        index.is_closing.set()
        running.shutdown()
        thread.join()

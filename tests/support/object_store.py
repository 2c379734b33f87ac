"""An object store on this machine: moto's server in a thread, which counts its requests and can be made to fail."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

moto, werkzeug = pytest.importorskip("moto.server"), pytest.importorskip("werkzeug.serving")
Fault = Callable[[str, str], str]
"""Function that tells for the method and the path of a request what goes wrong: one of ``FAULTS``, or nothing."""
FAULTS = "refused", "unanswered", "cut upload", "cut answer", "slow"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


class ObjectStore:
    """The server. ``requests`` counts what it was asked, as "GET /bucket/name"; ``fault`` makes requests fail."""

    def __init__(self) -> None:
        self.requests, self.faults = Counter[str](), Counter[str]()
        self.fault: Fault = lambda method, path: ""
        self._moto = moto.DomainDispatcherApplication(moto.create_backend_app)
        self._server = werkzeug.make_server("127.0.0.1", 0, self._answer, threaded=True)
        self.environment = {
            **KEYS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests[f"{method} {path}"] += 1
        fault = self.fault(method, path)
        if fault:
            self.faults[fault] += 1
        if fault == "slow":
            time.sleep(0.3)
        elif fault == "forbidden":
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            return [b"<Error><Code>AccessDenied</Code><Message>planned</Message></Error>"]
        elif fault == "refused":
            start_response("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>planned</Message></Error>"]
        elif fault == "cut upload" and method == "PUT":
            environ["wsgi.input"].read(max(1, int(environ.get("CONTENT_LENGTH") or 0) // 2))
            return _cut(environ)
        answer = b"".join(self._moto(environ, start_response))
        if fault == "unanswered":
            return _cut(environ)
        return _halved(answer, environ) if fault == "cut answer" else [answer]

    @contextmanager
    def failing(self, share: float, seed: int = 1) -> Iterator[Counter[str]]:
        """Context manager in which some of the requests fail in every way; it yields the numbers of these faults."""
        chosen, before = random.Random(seed), self.fault
        self.fault = lambda method, path: chosen.choice(FAULTS) if chosen.random() < share else ""
        self.faults.clear()
        try:
            yield self.faults
        finally:
            self.fault = before

    @contextmanager
    def running(self) -> Iterator[ObjectStore]:
        """Context manager in which the server answers."""
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()


def _cut(environ: dict[str, Any]) -> Iterator[bytes]:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    yield b""


def _halved(answer: bytes, environ: dict[str, Any]) -> Iterator[bytes]:
    """Yield half of an answer, and end the connection."""
    yield answer[: len(answer) // 2]
    yield from _cut(environ)

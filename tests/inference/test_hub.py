"""Models on the Hugging Face Hub, with the real library and a server that keeps what is uploaded."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants

from xrep import SentenceEncoder
from xrep.errors import UserError

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
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start the server, make it the Hub of the library, and yield its address."""
    Hub.files = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    own = {"HF_HUB_CACHE": str(tmp_path / "hf"), "HF_HUB_OFFLINE": False, "ENDPOINT": address}
    own["HUGGINGFACE_CO_URL_TEMPLATE"] = address + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in own.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.chdir(tmp_path)
    yield address
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_to_the_hub_and_back(hub: str, two_towers: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert two_towers.push_to_hub("team/encoder", license="apache-2.0") == f"{hub}/team/encoder"
    card = Hub.files["README.md"].decode()
    assert "license: apache-2.0" in card and 'SentenceTransformer("team/encoder").encode(["..."], task="de")' in card
    assert "training_state.pt" not in Hub.files and "source/model.safetensors" in Hub.files
    Hub.files["modeling_x.py"] = b"raise SystemExit"  # code in a model is not even fetched
    for endpoint in (hub, "http://127.0.0.1:9"):  # the second time from the cache
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        loaded = SentenceEncoder.load("team/encoder", device="cpu")
        np.testing.assert_array_equal(loaded.encode(["Haus"], "de"), two_towers.encode(["Haus"], "de"))
    assert not list(Path("hf").rglob("*.py"))


def test_what_the_hub_does_not_have(hub: str, encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="team/absent cannot be fetched from the Hugging Face Hub: "):
        SentenceEncoder.load("team/absent")
    monkeypatch.setattr(Hub, "do_POST", Hub.do_GET)
    with pytest.raises(UserError, match="team/encoder cannot be uploaded to the Hugging Face Hub: "):
        encoder.push_to_hub("team/encoder")
    Path("team").mkdir()  # now the name is rather a misspelt path, which nobody outside should see
    with pytest.raises(UserError, match="no such directory, and no such model in the Hugging Face cache"):
        SentenceEncoder.load("team/absent")


def test_nothing_is_asked_of_a_network_that_is_switched_off(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(Hub, "files", None)  # a request would fail
    with pytest.raises(UserError, match="no such directory, and no such model in the Hugging Face cache"):
        SentenceEncoder.load("team/encoder")

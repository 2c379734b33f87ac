"""Downloaded models and archives: no code in them runs, and nothing is written outside of the folder that they get."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.support.commands import Commands
from tests.support.once import made_once
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import CONFIG, MANIFEST, MODEL, STATE, digest_of, file_facts, open_checkpoint
from xrep.nn.weights import Weights, read_tensors
from xrep.text.examples import read_pairs
from xrep.text.find import parse_bitext


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def calls(canary: Path) -> dict[str, Any]:
    """Return objects whose pickles make the folder ``canary`` if they are trusted."""
    made = str(canary)
    return {
        "mkdir": Call(os.mkdir, made),
        "system": Call(os.system, f"touch {made}"),
        "eval": Call(eval, f"__import__('os').mkdir({made!r})"),
        "in a table": {"a": torch.ones(2), "b": Call(os.mkdir, made)},
        "torch's own loader": Call(torch.storage._load_from_bytes, pickle.dumps(Call(os.mkdir, made))),
    }


def stored(content: Any, form: str) -> bytes:
    """Return a file in which torch stores an object: a plain pickle, its zip or its format before torch 1.6."""
    if form == "pickle":
        return pickle.dumps(content)
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=form == "zip")
    return stream.getvalue()


@pytest.mark.parametrize("form", ["pickle", "zip", "old"])
@pytest.mark.parametrize("name", calls(Path()))
def test_pickles_of_weights(name: str, form: str, tmp_path: Path) -> None:
    canary, path = tmp_path / "executed", tmp_path / "pytorch_model.bin"
    path.write_bytes(stored(calls(canary)[name], form))
    for read in (read_tensors, lambda path: dict(Weights(path.parent))):
        with pytest.raises(UserError, match="damaged, or it holds more than tensors, which might run code"):
            read(path)
    assert not canary.exists()


@pytest.mark.parametrize("name", [MODEL, STATE, CONFIG])
def test_pickles_in_a_checkpoint(name: str, trained_run: Path, tmp_path: Path) -> None:
    """Its checksums are right, as somebody would make them who means harm."""
    canary = tmp_path / "executed"
    run = Path(shutil.copytree(trained_run / "last", tmp_path / "run", symlinks=True))
    content = stored(calls(canary)["in a table"], "zip")
    if name == CONFIG:
        content = yaml.dump({"model": {"name": Call(os.mkdir, str(canary))}}).encode()
    (run / name).write_bytes(content)
    manifest = json.loads((run / MANIFEST).read_text())
    manifest["files"][name] = file_facts(run / name)
    manifest["sha256"] = digest_of({key: value for key, value in manifest.items() if key != "sha256"})
    (run / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=name):
        SentenceEncoder.load(run, device="cpu")
        open_checkpoint(run).training_state()
    assert not canary.exists()


def test_a_checkpoint_of_links(shared_encoder: Path, tmp_path: Path) -> None:
    """Hugging Face's cache, DVC and git-annex keep files elsewhere and link to them."""
    for path in shared_encoder.rglob("*"):
        place = tmp_path / path.relative_to(shared_encoder)
        place.parent.mkdir(exist_ok=True)
        place.mkdir() if path.is_dir() else place.symlink_to(path)
    assert open_checkpoint(tmp_path).manifest == open_checkpoint(shared_encoder).manifest


@pytest.mark.slow
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "modules.json", "pytorch_model.bin"])
def test_code_in_a_directory(file: str, shared_encoder: Path, tmp_path: Path, cli: Commands) -> None:
    canary, foreign = tmp_path / "executed", tmp_path / "st"
    made = made_once("foreign", lambda folder: export_path(shared_encoder, folder / "st", "sentence-transformers"))
    shutil.copytree(made / "st", foreign)
    for name in ("modeling_evil.py", "evil.py", "sentence_transformers.py"):
        (foreign / name).write_text(f"import os\nos.mkdir({str(canary)!r})\nclass Evil: pass\n")
    if file == "pytorch_model.bin":
        (foreign / "model.safetensors").unlink()
        (foreign / file).write_bytes(stored(calls(canary)["in a table"], "zip"))
    else:
        content = json.loads((foreign / file).read_text())
        if isinstance(content, list):
            content[0]["type"] = "evil.Evil"
        else:
            content["auto_map"] = dict.fromkeys(("AutoModel", "AutoConfig", "AutoTokenizer"), "modeling_evil.Evil")
        (foreign / file).write_text(json.dumps(content))
    (tmp_path / "de.txt").write_text("ein Haus\n")
    result = cli("encode", "--path", foreign, "--input", "de.txt", "--output", "v.npy", "--device", "cpu")
    assert result.code == (0 if file == "tokenizer_config.json" else 2), result.err
    assert not canary.exists()


def test_archives_of_text_and_of_weights(tmp_path: Path) -> None:
    weights, folder = tmp_path / "in" / "pytorch_model.bin", tmp_path / "in"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("../escaped.tsv", "ein Haus\ta house\n")
    assert list(read_pairs(parse_bitext(f"de-en={folder}/a.zip"))) == [(1, "ein Haus", "a house")]
    with tarfile.open(weights, "w") as archive:
        archive.add(__file__, "../escaped")
    with pytest.raises(UserError, match="damaged, or it holds more than tensors"):
        read_tensors(weights)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["in", "a.zip", "pytorch_model.bin"]

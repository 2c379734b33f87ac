"""Weights in torch's own format, which are pickles: nothing in them is executed, and what is damaged is one line."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.hostile.fuzzing import Fuzz, files_like
from tests.support.encoders import write_encoder
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.interop.pretrained import read_pretrained
from xrep.nn.weights import Weights, read_tensors, read_torch

CANARY = "executed"


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def calls(folder: Path) -> dict[str, Any]:
    """Return objects whose pickles would make the file CANARY in the folder, or do other harm, if they were trusted."""
    made = str(folder / CANARY)
    inner = pickle.dumps(Call(os.mkdir, made))
    return {
        "system": Call(os.system, f"touch {made}"),
        "mkdir": Call(os.mkdir, made),
        "eval": Call(eval, f"__import__('os').mkdir({made!r})"),
        "open": Call(open, made, "w"),
        "in a table": {"a": torch.ones(2), "b": Call(os.mkdir, made)},
        "as a name": {Call(os.mkdir, made): torch.ones(2)},
        "a pickle in a pickle": Call(pickle.loads, inner),
        "torch's own loader": Call(torch.storage._load_from_bytes, inner),
        "an allowed function": Call(vars(torch)["_utils"]._rebuild_tensor_v2, 1, 2, (3,), (4,), False, None),
        "an allowed class": Call(collections.OrderedDict, Call(os.mkdir, made)),
        "memory": Call(bytearray, 10**15),
        "a module": torch.nn.Linear(2, 2),
    }


def forms(content: Any) -> dict[str, bytes]:
    """Return the files in which torch has stored objects: a plain pickle, its zip and its format before torch 1.6."""
    files = {"pickle": pickle.dumps(content)}
    for name, new in (("zip", True), ("old", False)):
        stream = io.BytesIO()
        torch.save(content, stream, _use_new_zipfile_serialization=new)
        files[name] = stream.getvalue()
    return files


@pytest.mark.parametrize("form", ["pickle", "zip", "old"])
@pytest.mark.parametrize("name", calls(Path()))
def test_nothing_is_executed(name: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(forms(calls(tmp_path)[name])[form])
    message = "damaged, or it holds more than tensors, which might run code"
    for read in (read_tensors, lambda path: dict(Weights(path.parent))):
        with pytest.raises(UserError, match=message):
            read(path)
    with pytest.raises(UserError, match="no state"):
        read_torch(path, "no state", "use another")
    assert os.listdir(tmp_path) == [path.name]


def test_other_archives(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "storages")
    with pytest.raises(UserError, match="damaged, or it holds more than tensors"):
        read_tensors(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": 1}))
        archive.writestr("../../escaped", b"x")
        archive.writestr("archive/version", b"3")
    with pytest.raises(
        UserError, match=r"damaged, or it holds more than tensors|not a table of names and dense tensors"
    ):
        read_tensors(path)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)
    with pytest.raises(UserError, match="damaged, or it holds more than tensors"):
        read_tensors(path)


@pytest.mark.parametrize("content", [[], 3, "x", {"a": 1}, {"a": {"b": torch.ones(1)}}, torch.ones(3), None])
def test_plain_data_that_is_no_table(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="not a table of names and dense tensors"):
        read_tensors(tmp_path / "pytorch_model.bin")


TENSORS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "quantised": lambda: torch.quantize_per_tensor(torch.eye(3), 0.1, 0, torch.qint8),
    "without values": lambda: torch.empty(3, device="meta"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_are_not_dense(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # To write the type of a quantised tensor, pickle asks every imported module for it, and transformers then imports
    # parts of itself that may miss their own requirements.
    for module in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, module)
    torch.save({"a": TENSORS[kind]()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="more than tensors|not a table of names and dense tensors"):
        read_tensors(tmp_path / "pytorch_model.bin")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    write_encoder(folder / "run")
    export_path(folder / "run", folder / "hf", "hf")
    return folder / "hf"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zip", "old"])
def test_fuzzed_torch_files(fuzz: Fuzz, exported: Path, form: str) -> None:
    shutil.copytree(exported, fuzz.folder / "model")
    valid = forms(load_file(fuzz.folder / "model" / "model.safetensors"))[form]
    (fuzz.folder / "model" / "model.safetensors").unlink()
    hostile = [forms(content)[form] for content in calls(fuzz.folder).values()]

    def read(path: Path) -> None:
        read_pretrained(path.parent).state()

    fuzz(f"pytorch_model.bin ({form})", "model/pytorch_model.bin", files_like(valid, *hostile), read)
    assert not (fuzz.folder / CANARY).exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_fuzzed_lists_of_shards(fuzz: Fuzz, exported: Path, name: str) -> None:
    shutil.copytree(exported, fuzz.folder / "model")
    tensors = load_file(fuzz.folder / "model" / "model.safetensors")
    (fuzz.folder / "model" / "model.safetensors").rename(fuzz.folder / "model" / "part.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "part.safetensors")}
    fuzz(
        name, f"model/{name}", files_like(json.dumps(index).encode()), lambda path: read_pretrained(path.parent).state()
    )

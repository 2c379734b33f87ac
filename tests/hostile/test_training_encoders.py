"""Forged and damaged directories that xrep-train should start from: one line, and nothing is built or written."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.hostile.refusals import Case, check_refused
from tests.support.encoders import write_encoder
from xrep.inference.export import export_path
from xrep.nn.encoder import Encoder
from xrep.nn.weights import read_json

TRAIN = (
    "raw --task bitext --criterion translation_ranking --towers shared --encoder {encoder} --encoder-type transformer "
    "--max-length 16 --max-steps 1 --batch-size 4 --warmup-steps 0 --device cpu --no-tensorboard --save-dir out"
)
TABLE = "embeddings.word_embeddings.weight"
Change = Callable[[Path], object]


def config(**changes: Any) -> Change:
    """Return a change of entries of ``config.json``; None removes one."""

    def change(directory: Path) -> None:
        values = read_json(directory / "config.json") | changes
        kept = {name: value for name, value in values.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(kept))

    return change


def file(name: str, content: bytes | None) -> Change:
    """Return a change of a file; None removes it."""
    return lambda path: (path / name).unlink() if content is None else (path / name).write_bytes(content)


def tensors(make: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    def change(directory: Path) -> None:
        path = directory / "model.safetensors"
        save_file(make(load_file(path)), path, metadata={"format": "pt"})

    return change


def header(shape: list[int], offsets: list[int], dtype: str = "F32") -> Change:
    text = json.dumps({TABLE: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()
    return file("model.safetensors", len(text).to_bytes(8, "little") + text)


def as_torch(content: bytes) -> Change:
    def change(directory: Path) -> None:
        (directory / "model.safetensors").unlink()
        (directory / "pytorch_model.bin").write_bytes(content)

    return change


def index(weight_map: object) -> Change:
    def change(directory: Path) -> None:
        (directory / "model.safetensors").rename(directory / "part.safetensors")
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


FORGED: dict[str, tuple[Change, str]] = {
    "no config": (file("config.json", None), "hf/config.json: no such file; fetch the whole directory"),
    "truncated config": (file("config.json", b'{"model_type": '), "config.json: damaged: not an object in JSON"),
    "list": (file("config.json", b"[]"), "config.json: damaged: not an object in JSON"),
    "not UTF-8": (file("config.json", b"\xff\xfe{}"), "config.json: damaged: not an object in JSON"),
    "another architecture": (config(model_type="gpt2"), "config.json: a model of type 'gpt2'; xrep's own"),
    "no type": (config(model_type=None, architectures=None), "config.json: a model of type 'None'"),
    "another activation": (config(hidden_act="sinh"), "config.json: hidden_act is 'sinh'"),
    "a decoder": (config(is_decoder=True), "config.json: is_decoder is True, which xrep's encoders cannot do"),
    "code": (config(auto_map={"AutoModel": "x.Y"}), "config.json: auto_map is {'AutoModel': 'x.Y'}"),
    "no width": (config(hidden_size=None), "config.json: hidden_size is None, not a whole number of at least 1"),
    "negative layers": (config(num_hidden_layers=-1), "config.json: num_hidden_layers is -1, not a whole number"),
    "layers as text": (config(num_hidden_layers="1"), "config.json: num_hidden_layers is '1', not a whole number"),
    "heads": (config(num_attention_heads=3), "num_attention_heads 3, layer_norm_eps"),
    "more layers": (config(num_hidden_layers=2), "model.safetensors: 16 tensors missing: encoder.layer.1."),
    "absurd layers": (config(num_hidden_layers=10**9), "model.safetensors: config.json describes"),
    "absurd width": (config(hidden_size=10**6, num_attention_heads=1), "model.safetensors: config.json describes"),
    "absurd vocabulary": (config(vocab_size=10**7), "model.safetensors: config.json describes 16"),
    "absurd positions": (config(max_position_embeddings=10**8), "model.safetensors: config.json describes 1,6"),
    "another width": (config(intermediate_size=8), "is float32 [16, 16], not floating-point [8, 16]"),
    "few words": (config(vocab_size=9), "the tokenizer of the shared tower has 120 subwords and pad id"),
    "few rows": (
        tensors(lambda all: {**all, TABLE: all[TABLE][:9].clone()}),
        f"model.safetensors: {TABLE} is float32 [9, 16], not floating-point [120, 16]",
    ),
    "NaN": (tensors(lambda all: {**all, TABLE: all[TABLE] * torch.nan}), "NaN or infinity in token_embedding.weight"),
    "integers": (tensors(lambda all: {**all, TABLE: all[TABLE].long()}), f"{TABLE} is int64 [120, 16], not floating"),
    "missing": (tensors(lambda all: {k: v for k, v in all.items() if "dense" not in k}), "tensors missing: "),
    "too many": (tensors(lambda all: {**all, "more": torch.ones(1)}), "1 tensor of no known use: more"),
    "no encoder": (tensors(lambda all: {"a": torch.ones(9000)}), "model.safetensors: no encoder in it"),
    "header overflows": (header([2**40, 2**40], [0, 0]), "model.safetensors: not a safetensors file"),
    "header beyond the file": (header([10**9, 16], [0, 64 * 10**9]), "model.safetensors: not a safetensors file"),
    "header of another size": (header([10**9, 16], [0, 0]), "model.safetensors: not a safetensors file"),
    "header of negative size": (header([-1, -1], [0, 4]), "model.safetensors: not a safetensors file"),
    "unknown numbers": (header([1], [0, 1], "Q7"), "model.safetensors: not a safetensors file"),
    "empty weights": (file("model.safetensors", b""), "model.safetensors: not a safetensors file"),
    "a pointer": (file("model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"), "a pointer of Git LFS"),
    "no weights": (file("model.safetensors", None), "no weights: none of model.safetensors,"),
    "a shard outside": (index({TABLE: "../raw/train.de-en.tsv"}), "it names '../raw/train.de-en.tsv', outside of its"),
    "a missing shard": (index({TABLE: "none.safetensors"}), "none.safetensors: this part of the weights is missing"),
    "another index": (index({TABLE: "part.safetensors"}), "its tensors are not those that model.safetensors."),
    "no index": (index([]), "model.safetensors.index.json: no table weight_map of tensors and files"),
    "a pickle": (as_torch(pickle.dumps({TABLE: 1})), "pytorch_model.bin: damaged, or it holds more than tensors"),
    "half a zip": (as_torch(b"PK\x03\x04" + bytes(99)), "pytorch_model.bin: damaged, or it holds more than tensors"),
    "no tokenizer": (file("tokenizer.json", None), "no such tokenizer: none of tokenizer.json"),
    "a damaged tokenizer": (file("tokenizer.json", b"{}"), "tokenizer.json: not a tokenizer.json, or a damaged one"),
}  # fmt: skip
PATHS = {
    "absent": "absent: no such directory",
    "raw": "raw/config.json: no such file",
    "raw/train.de-en.tsv": "a file, not the directory of a pretrained encoder; try raw",
    "two": "two: which of its towers?; two/source or two/target",
    "two/middle": "two: no tower 'middle'; two/source or two/target",
    "../" * 30: "config.json: no such file",
    "x" * 300: "File name too long",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoders")
    (folder / "raw").mkdir()
    words = [f"{one} {two}" for one in ("rot", "alt", "neu") for two in ("Haus", "Fluss", "Tag")]
    for name, number in (("train", 1), ("valid", 2)):
        rows = [f"{word} {number}\t{word} hier {number}\n" for word in words]
        (folder / "raw" / f"{name}.de-en.tsv").write_text("".join(rows))
    write_encoder(folder / "two", towers="separate")
    write_encoder(folder / "one")
    export_path(folder / "one", folder / "hf", "hf")
    return folder


@pytest.fixture
def quiet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XREP_HOME", str(folder.with_name("home")))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_encoder(name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = FORGED[name]
    change(Path(shutil.copytree(folder / "hf", tmp_path / "hf")))
    (tmp_path / "raw").symlink_to(folder / "raw")
    check_refused(Case("train", TRAIN.format(encoder="hf"), message), tmp_path, capsys)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", ["absurd layers", "absurd vocabulary", "absurd positions", "header overflows"])
def test_absurd_sizes_are_refused_before_an_encoder_is_built(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the memory of the machine is."""
    monkeypatch.setattr("xrep.memory.machine_memory", lambda device="cpu": 10**30)
    monkeypatch.setattr(Encoder, "build", lambda *_, **__: pytest.fail("an encoder is built"))
    test_a_forged_encoder(name, folder, tmp_path, capsys)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("path", PATHS)
def test_paths_that_are_no_encoder(path: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_refused(Case("train", TRAIN.format(encoder=path), PATHS[path]), folder, capsys)

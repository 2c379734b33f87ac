"""Forged checkpoints and pretrained directories: one line that names the file, and nothing is loaded or built."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.hostile.fuzzing import Fuzz, files_like
from tests.hostile.refusals import Case, case_name, check_refused
from tests.support.encoders import write_encoder
from xrep.data.batching import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.files import sha256_of
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.interop.pretrained import masked_language_head, read_pretrained
from xrep.models.directory import digest_of, open_checkpoint
from xrep.models.dual_encoder import DualEncoder
from xrep.models.start import find_start
from xrep.models.translation import Translation

TABLE = "encoders.source.token_embedding.weight"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("sound") / "run", towers="separate")


@pytest.fixture(scope="module")
def foreign(sound: Path) -> Path:
    export_path(sound, sound.parent / "exported", "sentence-transformers")
    return sound.parent / "exported" / "source"


def rehash(directory: Path, manifest: dict[str, Any]) -> None:
    """Write a manifest whose checksums are right."""
    files = manifest.get("files")
    for name in list(files) if isinstance(files, dict) else []:
        with suppress(OSError, ValueError):
            path = directory / name
            files[name] = {"sha256": sha256_of(path), "bytes": path.stat().st_size}
    manifest["sha256"] = digest_of({key: value for key, value in manifest.items() if key != "sha256"})
    (directory / "manifest.json").write_text(json.dumps(manifest))


def entry(value: object, *keys: str) -> Change:
    """Return a change of an entry of the manifest; ``...`` removes it."""

    def change(directory: Path) -> None:
        manifest = json.loads((directory / "manifest.json").read_text())
        inner = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner.pop(keys[-1], None)
        if value is not ...:
            inner[keys[-1]] = value
        rehash(directory, manifest)

    return change


def tower(value: object, key: str) -> Change:
    return entry(value, "architecture", "towers", "source", key)


def file(name: str, content: bytes) -> Change:
    def change(directory: Path) -> None:
        (directory / name).write_bytes(content)
        rehash(directory, json.loads((directory / "manifest.json").read_text()))

    return change


def option(value: object, *keys: str) -> Change:
    def change(directory: Path) -> None:
        config = yaml.safe_load((directory / "config.yaml").read_text())
        inner = config["model"] if len(keys) > 1 else config
        inner.pop(keys[-1], None)
        if value is not ...:
            inner[keys[-1]] = value
        file("config.yaml", yaml.safe_dump(config).encode())(directory)

    return change


def weights(make: Callable[[torch.Tensor], torch.Tensor | None], name: str = TABLE) -> Change:
    def change(directory: Path) -> None:
        tensors = load_file(directory / "model.safetensors")
        made = make(tensors[TABLE])
        kept = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(kept if made is None else {**kept, name: made}, directory / "model.safetensors")
        rehash(directory, json.loads((directory / "manifest.json").read_text()))

    return change


def header(shape: list[int], *offsets: int) -> bytes:
    text = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    return len(text).to_bytes(8, "little") + text


VOCABULARY = ("text", "vocabularies", "shared")
PROJECTIONS = ("architecture", "projections")
WIDE = {"input_size": 16, "output_size": 10**12}
FORGED: dict[str, tuple[Change, str]] = {
    "files are a list": (entry([], "files"), "manifest.json: the manifest.files is []"),
    "no files": (entry(..., "files"), "manifest.json: the manifest has no files"),
    "no text": (entry(..., "text"), "manifest.json: the manifest has no text"),
    "no architecture": (entry(..., "architecture"), "manifest.json: the manifest has no architecture"),
    "no step": (entry(..., "step"), "manifest.json: the manifest has no step"),
    "step is text": (entry("7", "step"), "manifest.json: the manifest.step is '7', not an integer"),
    "step is true": (entry(True, "step"), "manifest.json: the manifest.step is True"),
    "step below 0": (entry(-1, "step"), "manifest.json: step is -1"),
    "unknown key": (entry(1, "more"), "manifest.json: the manifest has an unknown key 'more'"),
    "no weights listed": (entry(..., "files", "model.safetensors"), "manifest.json: lists no model.safetensors"),
    "absolute path": (entry({"sha256": "", "bytes": 1}, "files", "/etc/passwd"), "names '/etc/passwd', outside"),
    "path outside": (entry({"sha256": "", "bytes": 1}, "files", "../x"), "names '../x', outside of its directory"),
    "nul in a path": (entry({"sha256": "", "bytes": 1}, "files", "a\0b"), "outside of its directory"),
    "long path": (entry({"sha256": "", "bytes": 1}, "files", "a" * 5000), "outside of its directory"),
    "link outside": (lambda path: (path / "tokenizer" / "x").symlink_to("/etc/passwd"), "x: a link that leads outside"),
    "folder outside": (lambda path: (path / "x").symlink_to("/etc"), "x: a link that leads outside"),
    "longest sentence": (entry(10**12, "text", "max_length"), "sentences may have 1000000000000 subwords"),
    "no length": (entry(0, "text", "max_length"), "describes no text that a model can read"),
    "large vocabulary": (entry(10**12, *VOCABULARY, "size"), "has 1000000000000 subwords"),
    "no vocabulary": (entry({}, "text", "vocabularies"), "describes no text that a model can read"),
    "pad id": (entry(-1, *VOCABULARY, "pad_id"), "special ids are outside of the vocabulary shared"),
    "languages": (entry([1], "text", "source_languages"), "source_languages is 1, not a string"),
    "two sides": (entry(["en"], "text", "source_languages"), "en: both a source and a target language"),
    "towers are a list": (entry([], "architecture", "towers"), "towers is []"),
    "no tower": (entry(..., "architecture", "towers", "source"), "do not fit together"),
    "no pooling": (entry({}, "architecture", "pooling"), "do not fit together"),
    "pooling": (entry("x", "architecture", "pooling", "source"), "pooling.source is 'x', not mean, max or cls"),
    "projection of nothing": (entry({"x": {**WIDE}}, *PROJECTIONS), "do not fit together"),
    "projection too wide": (entry({"source": WIDE, "target": WIDE}, *PROJECTIONS), "needs 128.0 TB of memory"),
    "spaces": (entry({"source": {**WIDE, "output_size": 16, "spaces": 10**12}}, *PROJECTIONS), "needs 58.2 PB"),
    "projection alone": (entry({"source": {**WIDE, "output_size": 16}}, *PROJECTIONS), "2 tensors missing: proj"),
    "unknown type": (tower("x", "type"), "unknown encoder 'x'"),
    "another type": (tower("transformers", "type"), "the transformers encoder has an unknown key"),
    "wide": (tower(10**9, "hidden_size"), "do not fit together"),
    "deep": (tower(10**9, "layers"), "impossible sizes: 1000000000 layers"),
    "heads": (tower(3, "heads"), "hidden_size 16 is not divisible by heads 3"),
    "no heads": (tower(0, "heads"), "impossible sizes: heads 0"),
    "positions": (tower(10**12, "max_positions"), "needs 64.0 TB of memory"),
    "offset": (tower(10**12, "position_offset"), "needs 64.0 TB of memory"),
    "types": (tower(10**12, "type_vocabulary_size"), "needs 64.0 TB of memory"),
    "inner": (tower(10**12, "feedforward_size"), "needs 132.0 TB of memory"),
    "vocabulary": (tower(10**12, "vocabulary_size"), "needs 64.0 TB of memory"),
    "epsilon": (tower(0, "norm_epsilon"), "impossible sizes: norm_epsilon 0.0"),
    "huge epsilon": (tower(10**400, "norm_epsilon"), "not a finite number"),
    "activation": (tower("x", "activation"), "activation is 'x'"),
    "norm": (tower("x", "norm"), "norm is 'x'"),
    "size of no encoder": (tower(1, "x"), "an unknown key 'x'"),
    "NaN": (weights(lambda old: old * torch.nan), f"model.safetensors: NaN or infinity in {TABLE}"),
    "infinity": (weights(lambda old: old + torch.inf), f"model.safetensors: NaN or infinity in {TABLE}"),
    "missing tensor": (weights(lambda old: None), f"model.safetensors: 1 tensors missing: {TABLE}"),
    "further tensor": (weights(torch.clone, "x"), "model.safetensors: 1 tensors too many: x"),
    "shape": (weights(lambda old: old[:, :1].contiguous()), f"1 tensors of another shape: {TABLE}"),
    "integers": (weights(lambda old: old.long()), f"1 tensors of another type: {TABLE}"),
    "pickle": (file("model.safetensors", pickle.dumps({"a": 1})), "model.safetensors: not a safetensors file"),
    "empty": (file("model.safetensors", b""), "model.safetensors: not a safetensors file"),
    "header": (file("model.safetensors", (2**62).to_bytes(8, "little") + b"{}"), "not a safetensors file"),
    "overflow": (file("model.safetensors", header([2**40, 2**40], 0, 0)), "not a safetensors file"),
    "offsets": (file("model.safetensors", header([2], 8, 0)), "not a safetensors file"),
    "no model": (option(..., "model"), "config.yaml: no name of a model"),
    "model is text": (option("x", "model"), "config.yaml: no name of a model"),
    "name": (option(3, "model", "name"), "config.yaml: no name of a model"),
    "unknown model": (option("x", "model", "name"), "its model 'x' is not known here"),
    "option's type": (option("many", "model", "layers"), "config.yaml: model.layers is 'many', not an integer"),
    "option's value": (option(-1, "model", "layers"), "config.yaml: model: layers must be at least 1, not -1"),
    "pooled layer": (option(99, "model", "pooled_layer"), "the source tower has 1 layers"),
    "towers": (option("shared", "model", "towers"), "do not fit together"),
    "another model": (option({"name": "translation"}, "model"), "not that of a translation model"),
    "configuration": (file("config.yaml", b"\xff\xfe\0"), "config.yaml: not the configuration of a run"),
    "date": (file("config.yaml", b"model: 2001-99-99"), "config.yaml: not the configuration of a run"),
}  # fmt: skip


@pytest.fixture
def forge(sound: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def make(change: Change) -> Path:
        directory = Path(shutil.copytree(sound, tmp_path / "run"))
        change(directory)
        return directory

    return make


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_checkpoint_is_refused(forge: Callable[[Change], Path], name: str) -> None:
    change, message = FORGED[name]
    with pytest.raises(UserError) as error:
        SentenceEncoder.load(forge(change), device="cpu")
    assert message in str(error.value) and error.value.path is not None and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"\xff", b"{}", b"9" * 5000])
def test_a_manifest_of_anything(forge: Callable[[Change], Path], content: bytes) -> None:
    with pytest.raises(UserError, match="not a checkpoint"):
        open_checkpoint(forge(lambda path: (path / "manifest.json").write_bytes(content)))


CASES = [
    Case("encode", "--path run --lang de --input lines --output v.npy", "run/manifest.json: the source tower"),
    Case("eval", "neighbours --path run --data lines --query a", "run/manifest.json: the source tower"),
    Case("export", "--path run --output out", "run/manifest.json: the source tower"),
    Case("encode", "--path absent --input lines --output v.npy", "absent"),
]


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_commands(forge: Callable[[Change], Path], capsys: pytest.CaptureFixture[str], case: Case) -> None:
    folder = forge(tower(0, "heads")).parent
    (folder / "lines").write_text("a\n")
    check_refused(case, folder, capsys)


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a file that asks for 100 MB is refused, as a large one is elsewhere."""
    monkeypatch.setattr("xrep.memory.machine_memory", lambda device="cpu": 100_000_000)


def load_run(path: Path) -> None:
    SentenceEncoder.load(path, device="cpu")
    with suppress(UserError):  # a run with two towers is no start as a whole
        find_start(str(path / "source"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["manifest.json", "config.yaml", "model.safetensors"])
@pytest.mark.usefixtures("small_memory")
def test_fuzzed_checkpoints(fuzz: Fuzz, sound: Path, name: str) -> None:
    directory = Path(shutil.copytree(sound, fuzz.folder.parent / "run"))
    manifest = json.loads((sound / "manifest.json").read_text())

    def read(path: Path) -> None:
        (directory / name).write_bytes(path.read_bytes())
        with suppress(ValueError, RecursionError, AttributeError):
            rehash(directory, json.loads(path.read_text()) if name == "manifest.json" else copy.deepcopy(manifest))
        load_run(directory)

    fuzz(name, name, files_like((sound / name).read_bytes()), read)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["config.json", "modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "model.safetensors"]
)
@pytest.mark.usefixtures("small_memory")
def test_fuzzed_pretrained_directories(fuzz: Fuzz, foreign: Path, name: str) -> None:
    shutil.copytree(foreign, fuzz.folder / "model")

    def read(path: Path) -> None:
        pretrained = read_pretrained(fuzz.folder / "model")
        state = pretrained.state()[0]
        DualEncoder(DualEncoder.Config(towers="shared", encoder=str(fuzz.folder / "model")), text(pretrained))
        assert all(tensor.dtype == torch.float32 for tensor in state.values())
        masked_language_head(pretrained)

    def text(pretrained: Any) -> TextSpec:
        own = Vocabulary(size=100, pad_id=pretrained.shape.pad_id, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
        return TextSpec(vocabularies={"shared": own}, max_length=8)

    fuzz(name, f"model/{name}", files_like((foreign / name).read_bytes()), read)


SIZES = st.sampled_from([-(10**12), -1, 0, 1, 2, 3, 8, 10**9, 10**12, 10**30])
OPTIONS = {name: SIZES for name in ("layers", "hidden_size", "heads", "feedforward_size", "max_positions")}
RATES = st.sampled_from([-1.0, 0.0, 0.5, 1.0, float("nan"), float("inf"), 1e-300])
OWN = {
    DualEncoder: {"projection_size": SIZES, "projection_spaces": SIZES, "pooled_layer": SIZES},
    Translation: {"decoder_layers": SIZES, "decoder_hidden_size": SIZES, "decoder_heads": SIZES},
}
SMALL = {"layers": 1, "hidden_size": 8, "heads": 2, "feedforward_size": 8, "max_positions": 8, "decoder_layers": 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.usefixtures("small_memory")
def test_options_at_extreme_values(kind: type[DualEncoder] | type[Translation]) -> None:
    """Options have a problem, or a model is built, or it is refused before it is."""
    own = Vocabulary(size=20, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=None)
    text = TextSpec(vocabularies={"shared": own}, max_length=8, source_languages=["de"], target_languages=["en"])
    built = 0

    @settings(max_examples=300, deadline=None)
    @given(st.fixed_dictionaries({}, optional={**OPTIONS, **OWN[kind], "dropout": RATES}))
    def check(changes: dict[str, Any]) -> None:
        nonlocal built
        known = {name: size for name, size in SMALL.items() if hasattr(kind.Config(), name)}
        config = kind.Config(**{**known, **changes})
        if not config.problems():
            with suppress(UserError):
                kind(config, text)
                built += 1

    check()
    assert built

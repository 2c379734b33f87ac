"""Damaged, incomplete and dangerous files of weights, and the search for a directory."""

import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors.torch import save_file

from tests.nn.small_models import assert_same, hidden_states, load, make_batch, make_model, refusal, save
from xrep.errors import UserError
from xrep.interop.pretrained import find_pretrained
from xrep.nn.weights import Weights


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sharded")
    make_model("BertModel").save_pretrained(directory, max_shard_size="40KB")
    return directory


def refuse(directory: Path, *parts: object) -> None:
    with pytest.raises(UserError) as error:
        dict(Weights(directory))
    refusal(error, *parts)


def test_a_tensor_is_read_when_it_is_asked_for(sharded: Path) -> None:
    weights, model = Weights(sharded), make_model("BertModel")
    assert weights.path == sharded / "model.safetensors.index.json"
    state = model.state_dict()
    assert set(weights) == {name for name in state if name != "embeddings.position_ids"} and len(weights) == len(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in weights.items())


def test_shards_that_do_not_fit(sharded: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sharded, tmp_path / "copy"))
    index = copy / "model.safetensors.index.json"
    shards = sorted(copy.glob("model-*.safetensors"))
    good = index.read_text()
    for content in ("[]", "", "{}"):
        index.write_text(content)
        refuse(copy, index)
    for name in ("../copy/x.safetensors", "/etc/passwd"):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        refuse(copy, index, f"it names {name!r}, outside of its directory")
    index.write_text(good)
    shards[1].unlink()
    refuse(copy, shards[1], "this part of the weights is missing")


def test_damaged_files_and_none(tmp_path: Path) -> None:
    refuse(tmp_path, tmp_path, "no weights: none of model.safetensors, model.safetensors.index.json, pytorch_model.bin")
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.arange(600.0)}, path)
    whole = path.read_bytes()
    for content in (b"", whole[:-30], b"\xff" * 100, pickle.dumps({"a": 1}, protocol=2)):
        path.write_bytes(content)
        refuse(tmp_path, path)
    for value in ([torch.ones(1)], {"state_dict": {"a": torch.ones(1)}}, torch.ones(1)):
        torch.save(value, path)
        refuse(tmp_path, path, "not a table of names and tensors")
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0)}, path)
    whole = path.read_bytes()
    for content in (b"", whole[:-1], b"\xff" * 100):
        path.write_bytes(content)
        refuse(tmp_path, path, "not a safetensors file, or a damaged one")
    path.write_bytes(b"version https://git-lfs.example/spec/v1\noid sha256:1\nsize 9\n")
    refuse(tmp_path, path, "a pointer of Git LFS, not the weights")


def test_a_directory_is_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_pretrained(tmp_path) == find_pretrained(str(tmp_path)) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert find_pretrained("~/model") == tmp_path / "model"
    (tmp_path / "file").touch()
    for path, message in (
        (tmp_path / "file", f"a file, not the directory of a pretrained encoder; try {tmp_path}"),
        (tmp_path / "nothing", "no such directory; name a directory"),
        ("a/b/c", "a/b/c: no such directory; name a directory"),
    ):
        with pytest.raises(UserError) as error:
            find_pretrained(path)
        refusal(error, message)


@pytest.mark.parametrize("part", [False, True])
def test_a_model_is_found_in_the_cache_whole_or_in_part(part: bool, tmp_path: Path, monkeypatch) -> None:
    """transformers fetches only the files that it needs."""
    trees = pytest.importorskip("huggingface_hub._snapshot_download", reason="see below")
    if part and not hasattr(trees, "write_tree_cache"):
        pytest.skip("this huggingface_hub does not know what a repository has")
    model, home = make_model("BertModel"), tmp_path / "models--somebody--small"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = save(model, home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    if part:
        (home / "trees").mkdir()
        entry = trees.TreeCacheEntry(size=3, blob_id="1", lfs_sha256=None, lfs_size=None, xet_hash=None)
        trees.write_tree_cache(str(home), commit, {"config.json": entry, "tf_model.h5": entry})
        with pytest.raises(huggingface_hub.errors.IncompleteSnapshotError):
            huggingface_hub.snapshot_download("somebody/small", local_files_only=True)
    found = find_pretrained("somebody/small")
    assert found.resolve() == snapshot.resolve()
    assert_same(load(found)[1], hidden_states(model, batch := make_batch(0)), batch)
    for name in ("somebody/other", "small", "not..valid"):
        with pytest.raises(UserError) as error:
            find_pretrained(name)
        refusal(error, f"{name}: no such directory, and no such model in the Hugging Face cache {tmp_path}")

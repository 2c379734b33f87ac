"""Directories of sentence-transformers: encoders read from them give the same vectors as the library."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.interop.sentence_models import (
    MAXIMUM,
    SENTENCES,
    as_batch,
    library,
    modules_of,
    our_vectors,
    write_tokenizer,
)
from tests.nn.small_models import load
from tests.support.closeness import assert_near
from xrep.interop.pretrained import read_pretrained

TANH = {"out_features": 12, "activation_function": torch.nn.Tanh()}
IDENTITY = {"out_features": 40, "activation_function": torch.nn.Identity(), "bias": False}
CHAINS = [("mean", None, False), ("max", None, True), ("cls", TANH, True), ("mean", IDENTITY, False)]


@pytest.mark.parametrize("pooling, dense, normalize", CHAINS)
def test_the_same_vectors(source: Path, tmp_path: Path, pooling: str, dense: Any, normalize: bool) -> None:
    theirs = modules_of(source, pooling=pooling, dense=dense, normalize=normalize)
    theirs.save(str(tmp_path / "new"))
    pretrained, encoder, _ = load(tmp_path / "new")
    assert (pretrained.pooling, pretrained.normalize) == (pooling, normalize)
    batch = as_batch(write_tokenizer(tmp_path), SENTENCES)
    assert batch.tokens.size(1) == MAXIMUM and batch.is_padded
    expected = torch.from_numpy(theirs.encode(SENTENCES))
    assert_near(our_vectors(pretrained, encoder, batch), expected)


def test_the_old_layout(whole: Path, tmp_path: Path) -> None:
    """Old directories have 0_Transformer, flags for pooling, pytorch_model.bin of the dense layer, no Normalize."""
    shutil.copytree(whole, tmp_path / "0_Transformer", ignore=shutil.ignore_patterns("[0-9]_*", "modules.json"))
    chain = ["Transformer", "Pooling", "Dense", "Normalize"]
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(chain)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({**pooling, "pooling_mode_mean_tokens": False}))
    shutil.copytree(whole / "2_Dense", tmp_path / "2_Dense")
    dense = read_pretrained(whole).projection
    assert dense is not None
    tensors = {f"linear.{name}": tensor for name, tensor in dense.tensors().items()}
    torch.save(tensors, tmp_path / "2_Dense" / "pytorch_model.bin")

    (tmp_path / "2_Dense" / "model.safetensors").unlink()

    pretrained, encoder, _ = load(tmp_path)
    assert pretrained.path == tmp_path / "0_Transformer"
    assert (pretrained.pooling, pretrained.normalize) == ("max", True)
    theirs = torch.from_numpy(library.SentenceTransformer(str(tmp_path)).encode(SENTENCES))
    batch = as_batch(write_tokenizer(tmp_path / "tokenizer"), SENTENCES)
    assert_near(our_vectors(pretrained, encoder, batch), theirs)

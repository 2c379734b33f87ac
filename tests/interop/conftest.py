"""Directories as transformers and sentence-transformers write them."""

from pathlib import Path

import pytest
import torch

from tests.interop.sentence_models import modules_of, write_tokenizer
from tests.nn.small_models import make_model


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a Hugging Face directory with a tokenizer."""
    directory = tmp_path_factory.mktemp("source")
    make_model("BertModel").save_pretrained(directory)
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whole")
    dense = {"out_features": 12, "activation_function": torch.nn.Tanh()}
    modules_of(source, pooling="mean", dense=dense, normalize=True).save(str(directory))
    return directory

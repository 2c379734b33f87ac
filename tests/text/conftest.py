"""The tokenizers of ``small_tokenizers.MAKERS``, for tests that name one by the parameter ``name``."""

from pathlib import Path

import pytest

from tests.support.once import made_once
from tests.text.small_tokenizers import published
from xrep.text.huggingface import save_as_huggingface
from xrep.text.sides import open_tokenizer
from xrep.text.tokenizer import Tokenizer


@pytest.fixture
def origin(name: str) -> Path:
    """The directory of a tokenizer as it is published."""
    return published(name)


@pytest.fixture
def ours(origin: Path) -> Tokenizer:
    return open_tokenizer(origin)


@pytest.fixture
def exported(name: str, ours: Tokenizer) -> Path:
    """The directory that xrep writes for transformers."""
    return made_once(f"exported-{name}", lambda folder: save_as_huggingface(ours, folder / "out", 96)) / "out"

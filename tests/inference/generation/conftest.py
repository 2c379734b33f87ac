"""A small translator with different translations of different sentences, and lines of different lengths."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.corpus import sentence_pairs
from tests.support.translators import make_translator
from xrep.data.batch import Batch, TextSpec
from xrep.inference.generation.translator import Translator
from xrep.models.translation import Translation


@pytest.fixture
def make_model(text: TextSpec) -> Callable[..., Translation]:
    return lambda **options: make_translator(text, **options)


@pytest.fixture(scope="session")
def lines(make_batch: Callable[..., Batch]) -> Batch:
    """Return 24 sentences of 1 to 8 words."""
    words = [[side.split() for side in pair] for pair in sentence_pairs(24)]
    cut = zip(words, itertools.cycle(range(1, 9)))
    return make_batch([(" ".join(source[:n]), " ".join(target[:n])) for (source, target), n in cut])


@pytest.fixture(scope="session")
def loaded(translator: Path) -> Translator:
    return Translator.load(translator, device="cpu")


@pytest.fixture(autouse=True)
def no_gradient_is_left() -> None:
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

"""Encoders that the tests of this folder read, loaded once; a test that changes one loads its own."""

from pathlib import Path

import pytest

from xrep.inference.sentence_encoder import SentenceEncoder


@pytest.fixture(scope="session")
def encoder(shared_encoder: Path) -> SentenceEncoder:
    return SentenceEncoder.load(shared_encoder, device="cpu")


@pytest.fixture(scope="session")
def two_towers(separate_encoder: Path) -> SentenceEncoder:
    return SentenceEncoder.load(separate_encoder, device="cpu")

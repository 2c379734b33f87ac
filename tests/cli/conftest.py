"""What several tests of commands share: the text of Tatoeba's test, an encoder that knows some of it, and records."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.commands import Commands
from tests.support.corpus import write_lines
from tests.support.encoders import write_encoder
from tests.support.once import made_once
from xrep.text.cleaning import sentence_hashes

SENTENCES = {
    "de": ["Maria wohnt seit 1998 in Berlin.", "Das Hotel hat 45 Zimmer und eine Bar.", "Wir trinken Wasser.",
           "Der Präsident besuchte Japan im Oktober.", "Hast du das Buch gelesen?", "Tom liebt Musik."],
    "en": ["Maria has lived in Berlin since 1998.", "The hotel has 45 rooms and a bar.", "We drink water.",
           "The president visited Japan in October.", "Did you read the book?", "Tom loves music."],
    "fr": ["Maria vit à Berlin depuis 1998.", "L'hôtel a 45 chambres et un bar.", "Nous buvons de l'eau.",
           "Le président a visité le Japon en octobre.", "As-tu lu le livre ?", "Tom aime la musique."],
}  # fmt: skip


@pytest.fixture(scope="session")
def tatoeba() -> Path:
    """Tatoeba's test of German and French with six sentences."""
    return made_once("tatoeba", write_tatoeba)


def write_tatoeba(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for code, language in (("deu", "de"), ("fra", "fr")):
        write_lines(folder / f"tatoeba.{code}-eng.{code}", SENTENCES[language])
        write_lines(folder / f"tatoeba.{code}-eng.eng", SENTENCES["en"])


def write_vectors_of_text(folder: Path, **options: Any) -> Path:
    """Write an encoder of the sentences of ``tatoeba`` with vectors [N, 32]."""
    sentences = [line for lines in SENTENCES.values() for line in lines]
    return write_encoder(folder, size=32, sentences=sentences, vocabulary_size=100, **options)


@pytest.fixture(scope="session")
def encoder() -> Path:
    """An encoder of one tower with hashes of training text: one German sentence and one English sentence."""

    def make(folder: Path) -> None:
        np.save(folder / "training_hashes.npy", np.unique(sentence_hashes(["wir trinken WASSER", "Tom loves music!"])))
        write_vectors_of_text(folder / "best", normalize=False)

    return made_once("known-encoder", make) / "best"


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(cli: Commands) -> Measure:
    """Run an evaluation with some options and return its record: ``measure("sts", "--path", path, ...)``."""

    def run(test: str, *words: object) -> dict[str, Any]:
        result = cli("eval", test, *words, "--json", "-")
        assert result.code == 0, result.err
        return json.loads(result.out)

    return run

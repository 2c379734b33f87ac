"""A tiny preprocessed corpus, made once in a process for each conftest.py that imports its fixtures."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.corpus import write_corpus
from xrep.data.batching import PairBatch, TextSpec, Vocabulary, collate
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.store import DataDirectory
from xrep.text.cleaning import sentence_hashes
from xrep.text.readers import discover_bitext
from xrep.text.tokenizer import Tokenizer

SPANISH = {
    "mi abuela": "my grandmother", "el panadero": "the baker", "tu primo": "your cousin", "el piloto": "the pilot",
}  # fmt: skip
VERBS = {"canta": "sings", "llega": "arrives", "duerme": "sleeps"}
PLACES = {"en la cocina": "in the kitchen", "cerca del puerto": "near the harbour", "sin prisa": "without haste"}


def spanish_pairs() -> list[tuple[str, str]]:
    """Return 36 (Spanish, English) pairs."""
    combined = itertools.product(SPANISH.items(), VERBS.items(), PLACES.items())
    return [(" ".join(part[0] for part in parts), " ".join(part[1] for part in parts)) for parts in combined]


@pytest.fixture(scope="session")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Preprocessed text of two language pairs, de-en (600 training pairs) and es-en (30), 150 subwords."""
    folder = tmp_path_factory.mktemp("corpus")
    raw = write_corpus(folder / "raw")
    pairs = spanish_pairs()
    for split, some in (("train", pairs[:30]), ("valid", pairs[30:])):
        text = "".join(f"{spanish}\t{english}\n" for spanish, english in some)
        (raw / f"{split}.es-en.tsv").write_text(text, encoding="utf-8")
    options = PreprocessOptions(vocabulary_size=150)
    preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False)
    return folder / "bin"


@pytest.fixture(scope="session")
def tokenizer(data_directory: Path) -> Tokenizer:
    return DataDirectory(data_directory).tokenizers["shared"]


@pytest.fixture(scope="session")
def text(tokenizer: Tokenizer) -> TextSpec:
    return TextSpec(
        vocabularies={"shared": Vocabulary.of(tokenizer)},
        max_length=48,
        source_languages=["de"],
        target_languages=["en"],
    )


@pytest.fixture(scope="session")
def make_batch(tokenizer: Tokenizer, text: TextSpec) -> Callable[[Sequence[tuple[str, str]]], PairBatch]:
    """A function that makes a ``PairBatch`` from (German, English) pairs; equal sentences have equal ids."""

    def make(pairs: Sequence[tuple[str, str]]) -> PairBatch:
        source, target = ([np.array(ids) for ids in tokenizer.encode(list(side))] for side in zip(*pairs, strict=True))
        ids = np.stack([sentence_hashes(side) for side in zip(*pairs, strict=True)], axis=1)
        return PairBatch(
            *(collate(side, text.vocabulary("shared"), text.max_length) for side in (source, target)),
            torch.from_numpy(ids.view(np.int64)),
            torch.arange(len(pairs)),
            torch.tensor([[0, 1]]).expand(len(pairs), 2),
        )

    return make

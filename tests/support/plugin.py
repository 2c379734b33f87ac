"""Fixtures of all tests. What takes time to make is made once for all processes, and no test may change it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.commands import Commands
from tests.support.corpus import spanish_pairs, write_corpus
from tests.support.encoders import write_encoder
from tests.support.once import made_once
from tests.support.planning import pair_batch
from tests.support.runs import TwoTerms, compose_run
from tests.support.translators import write_translator
from xrep.data.batch import Batch, TextSpec, Vocabulary, collate
from xrep.data.preprocess import PreprocessOptions, preprocess
from xrep.data.table import DataDirectory
from xrep.registry import CRITERIA
from xrep.text.cleaning import sentence_hashes
from xrep.text.find import discover_bitext
from xrep.text.tokenizer import Tokenizer
from xrep.training.run import train


@pytest.fixture(scope="session")
def data_directory() -> Path:
    """Preprocessed text of two language pairs, de-en (600 training pairs) and es-en (30), 150 subwords."""
    return made_once("corpus", _preprocess) / "bin"


def _preprocess(folder: Path) -> None:
    raw = write_corpus(folder / "raw")
    pairs = spanish_pairs()
    for split, some in (("train", pairs[:30]), ("valid", pairs[30:])):
        text = "".join(f"{spanish}\t{english}\n" for spanish, english in some)
        (raw / f"{split}.es-en.tsv").write_text(text, encoding="utf-8")
    options = PreprocessOptions(vocabulary_size=150)
    preprocess(discover_bitext(raw), folder / "bin", options, lambda line: None, progress=False)


@pytest.fixture(scope="session")
def shared_encoder() -> Path:
    """A checkpoint of an untrained encoder of German and English with one tower, vectors [N, 16]."""
    return made_once("shared", lambda folder: write_encoder(folder / "encoder")) / "encoder"


@pytest.fixture(scope="session")
def separate_encoder() -> Path:
    """A checkpoint of an untrained encoder with a tower for German and one for English."""
    return made_once("separate", lambda folder: write_encoder(folder / "encoder", towers="separate")) / "encoder"


@pytest.fixture(scope="session")
def translator() -> Path:
    """A checkpoint of an untrained translator from German to English."""
    return made_once("translator", lambda folder: write_translator(folder / "translator")) / "translator"


@pytest.fixture(scope="session")
def trained_run(data_directory: Path) -> Path:
    """A finished run of ``dual_moco`` with 12 steps, checkpoints at 4, 8 and 12, and validation."""
    given = {"max_steps": 12, "save_every": 4, "keep_last": 3, "validate_every": 4, "lr_scheduler": "constant"}
    return made_once("run", lambda folder: train(compose_run(data_directory, folder / "run", **given))) / "run"


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Commands:
    """Runs commands in this process, in the folder of the test: ``cli("encode", "--path", encoder).code``."""
    return Commands(tmp_path, capfd)


@pytest.fixture
def two_terms(monkeypatch: pytest.MonkeyPatch) -> type[TwoTerms]:
    """Register the criterion ``two_terms`` while a test runs."""
    monkeypatch.setitem(CRITERIA._targets, "two_terms", f"{TwoTerms.__module__}:TwoTerms")
    return TwoTerms


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
def make_batch(tokenizer: Tokenizer, text: TextSpec) -> Callable[[Sequence[tuple[str, str]]], Batch]:
    """A function that makes a batch of (German, English) pairs; equal sentences have equal ids."""

    def make(pairs: Sequence[tuple[str, str]]) -> Batch:
        source, target = ([np.array(ids) for ids in tokenizer.encode(list(side))] for side in zip(*pairs, strict=True))
        ids = np.stack([sentence_hashes(side) for side in zip(*pairs, strict=True)], axis=1)
        return pair_batch(
            *(collate(side, text.vocabulary("shared"), text.max_length) for side in (source, target)),
            torch.from_numpy(ids.view(np.int64)),
            torch.arange(len(pairs)),
            torch.tensor([[0, 1]]).expand(len(pairs), 2),
        )

    return make

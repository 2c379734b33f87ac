"""A small real encoder in numpy, and text in the layout of the Tatoeba test."""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cli.conftest import SENTENCES
from xrep.criteria.nli import Nli
from xrep.errors import UserError
from xrep.evaluation import nli
from xrep.evaluation.evaluation import Evaluation, Figures
from xrep.store.vectors import normalize_rows
from xrep.text.cleaning import sentence_hashes


class NgramEncoder:
    """An encoder of hashed character trigrams, which finds translations that share names, numbers and cognates.

    Each trigram has a weight of its own, so that different sentences are never equally similar and no test depends on
    the last bit of a sum. ``asked`` records (language, sentences, normalize) of each call.

    Args:
        known: The languages of separate towers; None: one shared tower, which encodes any language.
    """

    path, languages, encoder = "trigrams", (), None

    def __init__(
        self, known: Sequence[str] | None = None, training_hashes: Sequence[Path] = (), width: int = 1024
    ) -> None:
        self.known, self.training_hashes, self.width = known, training_hashes, width
        self.asked: list[tuple[str | None, list[str], bool]] = []

    def fingerprint(self) -> str:
        return f"trigrams {self.known}"

    def encode(
        self, sentences: list[str], lang: str | None = None, *, normalize: bool = True, show_progress: bool = False
    ) -> np.ndarray:
        if self.known is not None and lang not in self.known:
            raise UserError(f"this encoder has no tower for the language {lang!r}")
        self.asked.append((lang, list(sentences), normalize))
        vectors = np.zeros((len(sentences), self.width), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            text = f"  {sentence.casefold()}  "
            for start in range(len(text) - 2):
                vectors[row, zlib.crc32(text[start : start + 3].encode()) % self.width] += 1
        vectors *= np.random.default_rng(0).uniform(0.5, 1.5, self.width).astype(np.float32)
        return normalize_rows(vectors) if normalize else vectors


def measured(evaluation: type[Evaluation], encoder: object, **options: Any) -> Figures:
    """What ``xrep-eval`` gets when it runs an evaluation with these options."""
    made = evaluation(evaluation.Config(**options))
    _ = made.tables
    return made.measure(encoder)


def write(path: Path, lines: Sequence[str], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + end for line in lines), encoding="utf-8", newline="")
    return path


def save_hashes(folder: Path, sentences: Sequence[str]) -> list[Path]:
    """Write the hashes of training sentences, in two files."""
    files = [folder / "hashes.1.npy", folder / "hashes.2.npy"]
    for file, own in zip(files, (sentences[::2], sentences[1::2]), strict=True):
        np.save(file, np.unique(sentence_hashes(own)))
    return files


def write_tatoeba(folder: Path, code: str, pairs: Sequence[tuple[str, str]]) -> Path:
    """Write (sentence, English) pairs as files of the Tatoeba test in ``folder``."""
    for side, lines in zip((code, "eng"), zip(*pairs, strict=True), strict=True):
        write(folder / f"tatoeba.{code}-eng.{side}", lines)
    return folder


SCORED = [
    ("A man is playing a guitar.", "A man plays the guitar.", 4.8),
    ("A dog runs in the snow.", "A dog is running through snow.", 4.6),
    ("A woman slices an onion.", "A woman is cutting potatoes.", 2.2),
    ("Two boys swim in a lake.", "Stocks fell on Monday.", 0.0),
    ("The plane takes off.", "A plane is taking off.", 5.0),
    ("A cat sleeps.", "A man rides a horse.", 0.4),
]
"""Pairs with a score of people from 0 to 5."""
PAIRS = {
    "deu": list(zip(SENTENCES["de"], SENTENCES["en"], strict=True)),
    "cmn": [
        ("汤姆住在Boston。", "Tom lives in Boston."),
        ("他有3个孩子。", "He has 3 children."),
        ("谢谢你！", "Thank you!"),
        ("我喜欢喝咖啡。", "I like to drink coffee."),
    ],
    "swh": [
        ("Tom anapenda muziki.", "Tom likes music."),
        ("Nina kitabu kimoja.", "I have one book."),
        ("Baba yake ni daktari.", "His father is a doctor."),
    ],
}


@pytest.fixture
def tatoeba_folder(tmp_path: Path) -> Path:
    """Write six German, four Chinese and three Swahili pairs."""
    for code, pairs in PAIRS.items():
        write_tatoeba(tmp_path / "tatoeba", code, pairs)
    return tmp_path / "tatoeba"


@pytest.fixture
def classifier(monkeypatch: pytest.MonkeyPatch) -> Nli:
    """The classifier of inference that ``xrep-eval nli`` finds beside an ``NgramEncoder``."""
    torch.manual_seed(1)
    made = Nli(Nli.Config(scale_vectors=False), SimpleNamespace(output_size=1024), None).eval()
    monkeypatch.setattr(nli, "nli_head", lambda encoder, part: made)
    return made


def published(name: str) -> Path:
    """Return a folder of published data, in XREP_DATA or beside the repository."""
    folder = Path(os.environ.get("XREP_DATA") or Path(__file__).parents[3] / "shared" / "data") / name
    if not folder.is_dir():
        pytest.skip(f"the published files are not in {folder} (set XREP_DATA)")
    return folder

"""A small real encoder in numpy, and text in the layout of the Tatoeba test."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from xrep.errors import UserError
from xrep.evaluation.evaluation import Evaluation, Figures
from xrep.retrieval.neighbours import normalize_rows


class NgramEncoder:
    """An encoder of hashed character trigrams, which finds translations that share names, numbers and cognates.

    Each trigram has a weight of its own, so that different sentences are never equally similar and no test depends on
    the last bit of a sum.

    Args:
        known: The languages of separate towers; None: one shared tower, which encodes any language.
    """

    def __init__(self, known: list[str] | None = None, training_hashes: Path | None = None) -> None:
        self.known, self.training_hashes, self.path = known, training_hashes, "trigrams"

    def fingerprint(self) -> str:
        return f"trigrams {self.known}"

    def encode(
        self, sentences: list[str], lang: str | None = None, *, normalize: bool = True, show_progress: bool = False
    ) -> np.ndarray:
        if self.known is not None and lang not in self.known:
            raise UserError(f"this encoder has no tower for the language {lang!r}")
        vectors = np.zeros((len(sentences), 1024), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            text = f"  {sentence.casefold()}  "
            for start in range(len(text) - 2):
                vectors[row, zlib.crc32(text[start : start + 3].encode()) % 1024] += 1
        vectors *= np.random.default_rng(0).uniform(0.5, 1.5, 1024).astype(np.float32)
        return normalize_rows(vectors) if normalize else vectors


def measured(evaluation: type[Evaluation], encoder: object, **options: object) -> Figures:
    """What ``xrep-eval`` gets when it runs an evaluation with these options."""
    made = evaluation(evaluation.Config(**options))
    made.read()
    return made.measure(encoder)


PAIRS = {
    "deu": [
        ("Maria wohnt seit 1998 in Berlin.", "Maria has lived in Berlin since 1998."),
        ("Das Hotel hat 45 Zimmer und eine Bar.", "The hotel has 45 rooms and a bar."),
        ("Wir trinken Wasser.", "We drink water."),
        ("Der Präsident besuchte Japan im Oktober.", "The president visited Japan in October."),
        ("Hast du das Buch gelesen?", "Did you read the book?"),
        ("Tom liebt Musik.", "Tom loves music."),
    ],
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
def ngram_encoder() -> type[NgramEncoder]:
    return NgramEncoder


@pytest.fixture
def write_tatoeba(tmp_path: Path) -> Callable[[dict[str, list[tuple[str, str]]]], Path]:
    """Return a function that writes {code: [(sentence, English), ...]} as files of the Tatoeba test."""

    def write(pairs: dict[str, list[tuple[str, str]]]) -> Path:
        folder = tmp_path / "tatoeba"
        folder.mkdir()
        for code, rows in pairs.items():
            for column, side in enumerate((code, "eng")):
                lines = "".join(row[column] + "\n" for row in rows)
                (folder / f"tatoeba.{code}-eng.{side}").write_text(lines, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def tatoeba_folder(write_tatoeba: Callable[[dict[str, list[tuple[str, str]]]], Path]) -> Path:
    """Write six German, four Chinese and three Swahili pairs."""
    return write_tatoeba(PAIRS)


def published(name: str) -> Path:
    """Return a folder of published data, in XREP_DATA or beside the repository."""
    folder = Path(os.environ.get("XREP_DATA", Path(__file__).parents[3] / "shared" / "data")) / name
    if not folder.is_dir():
        pytest.skip(f"the published files are not in {folder} (set XREP_DATA)")
    return folder


@pytest.fixture
def published_tatoeba() -> Path:
    """Return the folder of LASER's Tatoeba test."""
    return published("tatoeba")


@pytest.fixture
def published_sts() -> Path:
    """Return the folder of STS12 to STS14, STS-B, SICK and the translated STS-B."""
    return published("sts")

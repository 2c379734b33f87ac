"""Readers of the data of evaluations: whatever a file holds, they return examples or say in one line what is wrong."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.senteval_sets import write_sets
from tests.hostile.fuzzing import Fuzz, files_like
from xrep.errors import UserError
from xrep.evaluation import alignment, bucc, nearest, nli, sts_sets, tatoeba
from xrep.evaluation.encoders import SENTENCES, VECTORS, Precomputed, _read_kept
from xrep.evaluation.multilingual import TextOptions, read_texts
from xrep.evaluation.overlap import load_training_hashes
from xrep.evaluation.senteval import readers
from xrep.evaluation.translation import TranslationQuality
from xrep.text.nli_readers import discover_nli_test

pytestmark = pytest.mark.slow

STSB = b"news\tMSR\t2012\t1\t4.5\tA dog runs.\tA dog is running.\nnews\tMSR\t2012\t2\t0\tA cat.\tStocks fell.\n"
SICK = b"pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA dog\tA cat\t2.5\tNEUTRAL\n" * 2
TRANSLATED = b'Ein Hund rennt.,"Ein Hund, der rennt.",4.5\n"Eine ""Katze"".",Aktien fallen.,0.2\n'
LINES = b"Wir trinken Wasser.\nTom liebt Musik.\nHast du das Buch?\n"


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [("sts-test.csv", STSB), ("SICK_trial.txt", SICK), ("stsb-de-dev.csv", TRANSLATED)],
)
def test_similarity_in_one_file(fuzz: Fuzz, name: str, content: bytes) -> None:
    def read(path: Path) -> None:
        test = sts_sets.read_file(path)
        assert test is not None and len(test) >= 2 and ((test.subsets[0].gold >= 0) & (test.subsets[0].gold <= 5)).all()

    fuzz(name, name, files_like(content), read)


@pytest.mark.parametrize(("part", "content"), [("input", b"a dog\ta cat\na fox\tan ox\n"), ("gold", b"4.5\n\n0\n2\n")])
def test_similarity_of_a_year(fuzz: Fuzz, part: str, content: bytes) -> None:
    folder = fuzz.folder / "STS16-en-test"
    folder.mkdir(parents=True)
    (folder / "STS.input.news.txt").write_bytes(b"a dog\ta cat\na fox\tan ox\na\tb\nc\td\n")
    (folder / "STS.gs.news.txt").write_bytes(b"4.5\n0\n")
    name = "STS.input.news.txt" if part == "input" else "STS.gs.news.txt"
    fuzz(f"STS16, {part}", f"{folder.name}/{name}", files_like(content), lambda path: sts_sets.find_sets(path.parent))


def test_tatoeba(fuzz: Fuzz) -> None:
    fuzz.folder.mkdir()
    (fuzz.folder / "tatoeba.deu-eng.eng").write_bytes(LINES)
    name = "tatoeba.deu-eng.deu"
    fuzz("Tatoeba", name, files_like(LINES), lambda path: tatoeba.read_pool(path.parent, "deu"))


@pytest.mark.parametrize("ending", ["de", "en", "gold"])
def test_bucc(fuzz: Fuzz, ending: str) -> None:
    files = {"de": b"d1\tHaus\nd2\tHof\n", "en": b"e1\thouse\ne2\tyard\n", "gold": b"d1\te1\nd2\te2\n"}
    fuzz.folder.mkdir()
    for name, content in files.items():
        (fuzz.folder / f"de-en.dev.{name}").write_bytes(content)
    gold = fuzz.folder / "de-en.dev.gold"
    fuzz(f"BUCC {ending}", f"de-en.dev.{ending}", files_like(files[ending]), lambda path: bucc.read_split(gold))


@pytest.mark.parametrize("name", readers.SETS)
@pytest.mark.parametrize("lang", ["en", "de"])
def test_senteval(fuzz: Fuzz, tmp_path: Path, name: str, lang: str) -> None:
    layout, place = readers.find(write_sets(tmp_path / "sets", size=2))[name]
    fuzz.folder.mkdir()
    for file in layout.files:
        (fuzz.folder / file).write_bytes((place / file).read_bytes())
    file = list(layout.files)[-1]
    valid = (fuzz.folder / file).read_bytes()

    def read(path: Path) -> None:
        data = readers.read(name, layout, path.parent, lang)
        assert all(len(side) == len(split) > 0 for split in data.splits.values() for side in split.sides)

    fuzz(f"SentEval {name} {lang}", file, files_like(valid), read, inputs=500)


def test_inference(fuzz: Fuzz) -> None:
    def read(path: Path) -> None:
        assert all(len(test.labels) for test in nli.read_tests(discover_nli_test(path, "test", "de"), "all"))

    valid = b"ein Hund\teine Katze\tneutral\nein Hund\tein Tier\tentailment\n"
    fuzz("inference", "test-de.tsv", files_like(valid), read)


@pytest.mark.parametrize(("ending", "column"), [("", 1), (".tsv", 2)])
def test_parallel_text_in_several_languages(fuzz: Fuzz, ending: str, column: int) -> None:
    english, german = ("".join(f"{n}\t{text}\n" for n, text in enumerate(side)) for side in (("a", "b"), ("c", "d")))
    fuzz.folder.mkdir()
    (fuzz.folder / f"text.en{ending}").write_text(english)
    options = TextOptions(data=str(fuzz.folder / f"text.{{lang}}{ending}"), column=column)

    def read(path: Path) -> None:
        assert all(len(side) >= 2 for group in read_texts(options).groups for side in group.values())

    fuzz(f"several languages {ending}", f"text.de{ending}", files_like(german.encode()), read)


def test_references(fuzz: Fuzz) -> None:
    fuzz.folder.mkdir()
    (fuzz.folder / "set.en").write_bytes(LINES)
    evaluation = TranslationQuality(TranslationQuality.Config(data=str(fuzz.folder / "set.{lang}")))

    def read(path: Path) -> None:
        evaluation.read()
        sides = evaluation._read_sides("en")
        assert len(sides["de"]) == len(sides["en"]) == 3

    fuzz("references", "set.de", files_like(LINES), read)


def test_pairs_for_alignment(fuzz: Fuzz) -> None:
    def read(path: Path) -> None:
        config = alignment.Alignment.Config(data=f"de-en={path}", pairs=2, true_pairs=1)
        assert len(alignment.read_parallel(config)) == 2

    valid = "ein Haus\ta house\nzwei Häuser\ttwo houses\nein Hof\ta yard\nWasser\twater\n".encode()
    fuzz("pairs for alignment", "pairs.tsv", files_like(valid), read)


def test_queries(fuzz: Fuzz) -> None:
    fuzz("queries", "queries.txt", files_like(LINES), lambda path: nearest.read_queries([], path))


def _vectors() -> Iterator[bytes]:
    for kind in (np.float32, np.float16, np.float64):
        yield npy(np.arange(9, dtype=kind).reshape(3, 3) + 1)
    yield npy(np.full((3, 3), np.nan, np.float32))
    yield npy(np.ones((3, 4), np.int64))
    yield npy(np.asfortranarray(np.ones((3, 2))))


def _encode(path: Path) -> None:
    vectors = Precomputed(path.parent).encode(["a", "c"], "de")
    assert vectors.dtype == np.float32 and len(vectors) == 2 and np.isfinite(vectors).all() and vectors.any()


@pytest.mark.parametrize("file", [VECTORS, SENTENCES])
def test_vectors_of_another_system(fuzz: Fuzz, file: str) -> None:
    fuzz.folder.mkdir()
    valid = {VECTORS: list(_vectors()), SENTENCES: [b"de\ta\nen\tb\nde\tc\n"]}
    for name, contents in valid.items():
        (fuzz.folder / name).write_bytes(contents[0])
    fuzz(f"vectors, {file}", file, files_like(*valid[file]), _encode)


@pytest.mark.parametrize(
    ("name", "read"), [("hashes", load_training_hashes), ("kept vectors", lambda path: _read_kept(path, (3, 3)))]
)
def test_arrays(fuzz: Fuzz, name: str, read: Callable[[Path], object]) -> None:
    valid = npy(np.arange(5, dtype=np.uint64)), *_vectors()
    fuzz(name, f"{name}.npy", files_like(*valid), read)


@pytest.mark.parametrize("score", ["banana", "nan", "-1", "5.1", "1e400", "4,5", "0x3", "٣٣"])
def test_a_score_is_a_number_from_0_to_5(tmp_path: Path, score: str) -> None:
    file = tmp_path / "sts-test.csv"
    file.write_text(f"n\tM\t1\t1\t4\ta\tb\nn\tM\t1\t2\t{score}\tc\td\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"sts-test.csv:2: '.*' is not a score of 0 to 5; fetch the file again"):
        sts_sets.find_sets(tmp_path)

"""An export with a smaller vocabulary gives the vectors of the text bit by bit, in every format and library."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.interop.foreign_models import FAMILIES, write_model
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_lines
from tests.support.encoders import write_encoder
from tests.support.vocabulary import small_tokenizer
from xrep.data.batch import TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.inference.export import export_path
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.inference.smaller import trim_vocabulary
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.shape import EncoderShape
from xrep.text.resources import xrep_home

GERMAN, ENGLISH = (list(side) for side in zip(*sentence_pairs(6), strict=True))
MANY = [sentence for pair in sentence_pairs(300) for sentence in pair]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("text")
    write_lines(folder / "text.de", GERMAN)
    write_lines(folder / "text.en", [*ENGLISH, ""])
    return [str(folder / "text.de"), str(folder / "text.en")]


def encoder_at(name: str, folder: Path) -> Path:
    if name in FAMILIES:
        return write_model(folder / name, name)
    return write_encoder(folder / name, towers=name, sentences=MANY, vocabulary_size=120)


def theirs(directory: Path, sentences: list[str], lang: str) -> np.ndarray:
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    model = library.SentenceTransformer(str(directory), device="cpu")
    task = {"task": lang} if (directory / "router_config.json").exists() else {}
    return model.encode(sentences, normalize_embeddings=True, **task)


@pytest.mark.slow
@pytest.mark.parametrize("name, format", [
    *itertools.product(("shared", "separate"), ("sentence-transformers", "hf", "xrep", "int8")),
    *itertools.product(FAMILIES, ("sentence-transformers", "xrep")),
])  # fmt: skip
def test_vectors_stay(name: str, format: str, files: list[str], tmp_path: Path) -> None:
    path, lines = encoder_at(name, tmp_path), list[str]()
    export_path(path, tmp_path / "out", format, note=lines.append, vocabulary_from=files)
    sizes = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) subwords", lines[0])]
    assert sizes[0] > sizes[1] and "MB in float32 -> " in lines[0]
    whole = SentenceEncoder.load(path, device="cpu", dtype="int8" if format == "int8" else "float32")
    if name == "separate" and format == "hf":
        assert len(lines) == 1 and (tmp_path / "out" / "target" / "config.json").is_file()
        return
    small = SentenceEncoder.load(tmp_path / "out", device="cpu")
    assert small.text.vocabulary("source").size == sizes[1] < whole.text.vocabulary("source").size
    assert len(lines) == 1 if format == "int8" else re.fullmatch(r"time to load: [\d.]+ s -> [\d.]+ s", lines[1])
    for lang, sentences in (("de", GERMAN), ("en", ENGLISH)):
        vectors = small.encode(sentences, lang=lang)
        assert np.array_equal(vectors, whole.encode(sentences, lang=lang))
        if format == "sentence-transformers":
            np.testing.assert_allclose(theirs(tmp_path / "out", sentences, lang), vectors, atol=1e-5)
    assert np.isfinite(small.encode(MANY, lang="en")).all()  # other text can be read
    if format == "xrep":  # and made smaller and exported again
        export_path(tmp_path / "out", tmp_path / "again", "sentence-transformers", vocabulary_from=files[:1])
        again = SentenceEncoder.load(tmp_path / "again", device="cpu")
        assert np.array_equal(again.encode(GERMAN, lang="de"), whole.encode(GERMAN, lang="de"))


def test_prompts_are_part_of_the_text(files: list[str], tmp_path: Path) -> None:
    path = export_path(encoder_at("shared", tmp_path), tmp_path / "st", "sentence-transformers")
    (tmp_path / "st" / "config_sentence_transformers.json").write_text('{"prompts": {"query": "xQ qzZ: "}}')
    export_path(next(iter(path)), tmp_path / "out", "sentence-transformers", vocabulary_from=files[:1])
    whole, small = (SentenceEncoder.load(tmp_path / name, device="cpu") for name in ("st", "out"))
    expected, found = (encoder.encode(GERMAN, lang="de", prompt_name="query") for encoder in (whole, small))
    assert np.array_equal(found, expected) and not np.array_equal(found, whole.encode(GERMAN, lang="de"))


def test_each_side_keeps_what_its_own_text_needs(files: list[str], tmp_path: Path) -> None:
    tokenizers = {"source": small_tokenizer(90, MANY[::2]), "target": small_tokenizer(100, MANY)}
    vocabularies = {side: Vocabulary.of(tokenizer) for side, tokenizer in tokenizers.items()}
    text = TextSpec(vocabularies=vocabularies, max_length=64, source_languages=["de"], target_languages=["en"])
    sizes: Any = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 16, "max_positions": 64}
    whole = SentenceEncoder(DualEncoder(DualEncoder.Config(**sizes), text), tokenizers, text)
    small, counts = trim_vocabulary(whole, files, None)
    for side, lang, sentences in (("source", "de", GERMAN), ("target", "en", ENGLISH)):
        assert counts[side].sum() == sum(map(len, tokenizers[side].encode(sentences)))
        assert small.text.vocabulary(side).size == len(counts[side]) < whole.text.vocabulary(side).size
        assert np.array_equal(small.encode(sentences, lang=lang), whole.encode(sentences, lang=lang))
    write_lines(tmp_path / "plain.txt", MANY)
    assert all(own.sum() > 1000 for own in trim_vocabulary(whole, [tmp_path / "plain.txt"], None)[1].values())
    with pytest.raises(UserError, match=r"text.de: no text for the target side; name text in its languages"):
        trim_vocabulary(whole, files[:1], None)


def test_the_most_frequent_pieces(files: list[str], tmp_path: Path, cli: Commands) -> None:
    path = encoder_at("shared", tmp_path)
    sizes = []
    for keep in (5, 20, 100_000):
        result = cli("export", "--path", path, "--vocabulary-from", *files, "--keep", keep, "--output", f"out{keep}")
        assert result.code == 0 and "time to load" in result.out
        sizes.append(SentenceEncoder.load(tmp_path / f"out{keep}", device="cpu").text.vocabulary("shared").size)
    export_path(path, tmp_path / "all", "xrep", vocabulary_from=files)
    assert sizes[0] < sizes[1] < sizes[2] == SentenceEncoder.load(tmp_path / "all").text.vocabulary("shared").size


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["minilm", "m3e-small"])
def test_real_weights(name: str, tmp_path: Path) -> None:
    path = xrep_home() / "models" / name
    if not (path / "config.json").exists():
        pytest.skip(f"needs the encoder in $XREP_HOME: xrep-data get {name}")
    write_lines(tmp_path / "text", MANY)
    export_path(path, tmp_path / "out", "sentence-transformers", vocabulary_from=[str(tmp_path / "text")])
    whole, small = (SentenceEncoder.load(own, device="cpu") for own in (path, tmp_path / "out"))
    assert np.array_equal(whole.encode(MANY), small.encode(MANY))
    assert sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file()) < 0.9 * sum(
        f.stat().st_size for f in path.rglob("*") if f.is_file()
    )
    np.testing.assert_allclose(theirs(tmp_path / "out", MANY[:50], "en"), small.encode(MANY[:50]), atol=1e-5)


def test_vectors_that_would_change_are_refused(files: list[str], tmp_path: Path, monkeypatch) -> None:
    """As those of models that count positions from the id of the padding token."""
    with_rows = EncoderShape.with_rows
    monkeypatch.setattr(EncoderShape, "with_rows", lambda own, rows: replace(with_rows(own, rows), norm_epsilon=1.0))
    encoder = SentenceEncoder.load(encoder_at("shared", tmp_path), device="cpu")
    with pytest.raises(UserError, match="its vectors would change with the number of the padding token"):
        trim_vocabulary(encoder, files, None)

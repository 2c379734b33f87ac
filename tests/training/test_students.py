"""The recipe multilingual_student: one line makes a student of a teacher, from the teacher's weights."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus
from tests.support.encoders import write_encoder
from xrep.config import runs_of
from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.models.directory import load_model, open_checkpoint
from xrep.models.start import take_vocabulary
from xrep.nn.encoder import Encoder
from xrep.text.resources import xrep_home
from xrep.text.shared_pieces import rows_of_pieces
from xrep_cli.train_options import parse

pytestmark = pytest.mark.slow
EMBEDDING = "encoders.shared.token_embedding.weight"
LINE = ["--config", "multilingual_student", "corpus/", "--teacher", "teacher/"]
SMALLER = ["--max-length", 40, "--batch-size", 20, "--device", "cpu", "--no-tensorboard", "--vocab-size", 90]


@pytest.fixture
def teacher(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> SentenceEncoder:
    """A teacher of English in teacher/, as sentence-transformers has it, beside text in corpus/."""
    monkeypatch.setenv("XREP_HOME", str(cli.folder / "home"))
    write_corpus(cli.folder / "corpus", 200, 40, 1)
    english = [pair[1] for pair in sentence_pairs(400)]
    own = {"languages": (["en"], ["en"]), "size": 32, "sentences": english, "vocabulary_size": 70}
    SentenceEncoder.load(write_encoder(cli.folder / "untrained", **own)).save(cli.folder / "teacher")
    return SentenceEncoder.load(cli.folder / "teacher")


def test_one_line(teacher: SentenceEncoder, cli: Commands) -> None:
    more = [*SMALLER, "--lr", "1e-2", "--warmup-steps", 5, "--lr-scheduler", "constant"]
    done = cli("train", *LINE, *more, "--max-steps", 40, "--save-dir", "whole")
    assert done.code == 0 and "encodes the target sentences" in done.out, done.err
    assert "90 subwords of the text, " in done.err
    for steps in (15, 40):
        stopped = cli("train", *LINE, *more, "--max-steps", steps, "--save-dir", "twice")
        assert stopped.code == 0 and "encodes" not in stopped.out, stopped.err
    one, other = (load_model(open_checkpoint(cli.folder / name / "last")) for name in ("whole", "twice"))
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))
    student, pairs = SentenceEncoder.load(cli.folder / "whole" / "best"), sentence_pairs(240)[200:]
    german, english = (student.encode([pair[side] for pair in pairs], "de") for side in (0, 1))
    taught = teacher.encode([pair[1] for pair in pairs])
    assert (german * taught).sum(1).mean() > 0.8 and (english * taught).sum(1).mean() > 0.8
    assert cli("export", "--path", "whole/best", "--output", "exported").code == 0
    library = pytest.importorskip("sentence_transformers", reason="it is in the extra 'bench'")
    theirs = library.SentenceTransformer(str(cli.folder / "exported"), device="cpu").encode([pair[0] for pair in pairs])
    np.testing.assert_allclose(theirs, german, atol=1e-5)


def test_the_student_begins_as_its_teacher(teacher: SentenceEncoder, cli: Commands) -> None:
    """A subword of the text has the teacher's vector, or the mean of the teacher's subwords; with the teacher's own
    vocabulary it is the teacher itself."""
    for name in ("text", "pretrained"):
        words = [*LINE, *SMALLER, "--vocabulary", name, "--lr", "1e-12", "--max-steps", 1, "--save-dir", name]
        done = cli("train", *words, "--init", "none")
        assert done.code == 0, done.err
    student, same = (SentenceEncoder.load(cli.folder / name / "last") for name in ("text", "pretrained"))
    sentences = [pair[1] for pair in sentence_pairs(20)]
    np.testing.assert_allclose(same.encode(sentences, "en"), teacher.encode(sentences), atol=1e-5)
    own, other = student.model.encoders["shared"], teacher.model.encoders["shared"]
    rows = rows_of_pieces(student.tokenizers["shared"], teacher.tokenizers["shared"])
    words, given = own.token_embedding.weight, other.token_embedding.weight
    expected = torch.stack([given[places].mean(0) if places else given.mean(0) for places in rows])
    torch.testing.assert_close(words, expected, atol=1e-6, rtol=0)
    kept = dict(own.named_parameters())
    for key, weights in other.named_parameters():
        if key != "token_embedding.weight":
            torch.testing.assert_close(kept[key], weights, atol=1e-6, rtol=0, msg=key)


def test_what_a_teacher_knows(teacher: SentenceEncoder, cli: Commands) -> None:
    """A teacher of other languages is refused. Teachers that differ in their tokenizers alone are two. Low-rank
    adaptation trains the new embeddings in whole."""
    given = [*LINE, *SMALLER, "--lr", "1e-2", "--max-steps", 3, "--warmup-steps", 0]
    refused = cli("train", *given, "--source-side", "source", "--save-dir", "no")
    assert (
        refused.code == 2 and "an encoder for en would teach from text in de; set --source-side to targ" in refused.err
    )
    assert "encodes the target" in cli("train", *given, "--save-dir", "whole").out
    file = cli.folder / "teacher" / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**content, "normalizer": {"type": "Lowercase"}}), encoding="utf-8")
    adapted = cli("train", *given, "--lora-rank", 2, "--save-dir", "adapted")
    assert adapted.code == 0 and "encodes the target" in adapted.out, adapted.err
    start = cli("train", *given[:-4], "--max-steps", 1, "--lr", "1e-12", "--save-dir", "start")
    assert start.code == 0, start.err
    models = (load_model(open_checkpoint(cli.folder / name / "last")) for name in ("adapted", "start"))
    ours, before = (dict(model.named_parameters()) for model in models)
    assert (ours[EMBEDDING] - before[EMBEDDING]).abs().max() > 1e-3


@pytest.mark.parametrize(("words", "start"), [
    ([], None), (["--teacher", "a"], "a"), (["--teacher", "a", "--encoder", "b"], "b"),
    (["--teacher", "a", "--encoder", "none"], None), (["--teacher", "a", "--towers", "separate"], None),
])  # fmt: skip
def test_where_a_student_starts(words: list[str], start: str | None) -> None:
    line = parse(["--config", "multilingual_student", *words])
    assert runs_of(line.layers, line.problems)[0].values["model.encoder"] == start


def test_an_encoder_of_transformers_keeps_its_vocabulary() -> None:
    message = "modernbert: encoders of type transformers keep their vocabulary; set `vocabulary` to pretrained"
    with pytest.raises(UserError, match=message):
        take_vocabulary(Mock(spec=Encoder, shape=Mock(type="transformers")), Mock(path=Path("modernbert")), Mock())


@pytest.mark.nightly
def test_the_real_minilm(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers of it learn German from Tatoeba's pairs in a few steps, and come near its English vectors."""
    minilm = xrep_home() / "models" / "minilm"
    text = Path(os.environ.get("XREP_DATA", Path(__file__).parents[3] / "shared" / "data"))
    pairs = text / "bitext" / "manythings" / "deu-eng.decontam.tsv"
    if not (minilm / "model.safetensors").exists() or not pairs.is_file():
        pytest.skip("needs the encoder in $XREP_HOME (xrep-data get minilm) and manythings below $XREP_DATA")
    monkeypatch.setenv("XREP_HOME", str(cli.folder / "home"))
    lines = pairs.read_text(encoding="utf-8").splitlines()[::80]
    (cli.folder / "corpus").mkdir()
    turned = ["\t".join(line.split("\t")[1::-1]) for line in lines]
    (cli.folder / "corpus" / "train.de-en.tsv").write_text("\n".join(turned) + "\n", encoding="utf-8")
    words = ["--config", "multilingual_student", "corpus/", "--teacher", minilm, "--max-length", 40, "--device", "cpu"]
    words += ["--pretrained-layers", 3, "--warmup-steps", 5, "--max-steps", 40, "--save-dir", "run", "--no-tensorboard"]
    done = cli("train", *words)
    assert done.code == 0, done.err
    teacher, student = SentenceEncoder.load(minilm), SentenceEncoder.load(cli.folder / "run" / "best")
    german, english = zip(*(line.split("\t")[:2] for line in turned[::20]), strict=True)
    taught = teacher.encode(english)
    found = {side: float((student.encode(some, "de") * taught).sum(1).mean()) for side, some in
             (("de", german), ("en", english))}  # fmt: skip
    before = float((teacher.encode(german) * taught).sum(1).mean())
    assert found["en"] > found["de"] > before + 0.1, (found, before)

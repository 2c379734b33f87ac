"""Tokenizers trained with the real SentencePiece on a few hundred sentences."""

import io
import itertools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import sentencepiece

from tests.support.programs import PATIENCE
from xrep.errors import UserError
from xrep.text.sides import open_tokenizer
from xrep.text.train_tokenizer import sample_for_tokenizer, train_tokenizer

WORDS = ("the old young red small", "dog cat house river teacher", "sees likes finds remembers", "green tall")
SENTENCES = [f"{a} {b} {c} a {d} tree." for a, b, c, d in itertools.product(*(w.split() for w in WORDS))]
SENTENCES += ["老师看见了一只狗。", "犬を見ました。", "Die Straße ist schön."] * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "model"
    train_tokenizer(iter(SENTENCES), 58, path)
    return path


def test_round_trip_and_special_ids(folder):
    tokenizer = open_tokenizer(folder)
    special = tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id
    assert special == (0, 1, 2, 3, 4) and tokenizer.vocabulary_size == 58
    ids = tokenizer.encode([SENTENCES[7], "", "老师看见了一只狗。"])
    assert ids[1] == [] and min(ids[0] + ids[2]) > 4
    assert [tokenizer.decode(row) for row in ids] == [SENTENCES[7], "", "老师看见了一只狗。"]
    assert tokenizer.decode(tokenizer.add_special(ids[0])) == SENTENCES[7]
    assert tokenizer.add_special([9, 8]) == [2, 9, 8, 3]
    assert not {0, 2, 3, 4} & set(tokenizer.encode(["<mask> <s> </s> <pad>"])[0])
    assert open_tokenizer(folder / "sentencepiece.model").encode([SENTENCES[7]]) == ids[:1]


def test_training_is_deterministic_and_saving_keeps_the_bytes(folder, tmp_path):
    again = train_tokenizer(iter(SENTENCES), 58, tmp_path / "again")
    model = (folder / "sentencepiece.model").read_bytes()
    assert (tmp_path / "again" / "sentencepiece.model").read_bytes() == model
    again.save(tmp_path / "copy")
    assert (tmp_path / "copy" / "sentencepiece.model").read_bytes() == model
    assert sorted(p.name for p in (tmp_path / "copy").iterdir()) == ["sentencepiece.model", "tokenizer_config.json"]


@pytest.mark.slow
def test_a_vocabulary_that_does_not_fit(tmp_path):
    largest = train_tokenizer(iter(SENTENCES), 1600, tmp_path / "t").vocabulary_size
    assert 12 < largest < 1600
    assert train_tokenizer(iter(SENTENCES), None, tmp_path / "usual").vocabulary_size == largest
    with pytest.raises(UserError, match="smaller than the number of different characters"):
        train_tokenizer(iter(SENTENCES), 12, tmp_path / "u")
    assert not (tmp_path / "u").exists()


def foreign_model() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=model, vocab_size=50, minloglevel=9
    )
    return model.getvalue()


@pytest.mark.parametrize(("name", "content", "problem"), [
    ("sentencepiece.model", b"no model at all" * 20, "not a SentencePiece model"),
    ("sentencepiece.model", None, "has no pad piece"),
    ("tokenizer_config.json", b'{"kind": "wordpiece"}', "kind 'wordpiece'"),
    ("tokenizer_config.json", b'{"model_max_length": 5}', "no such tokenizer"),
    ("none", b"", "no such tokenizer"),
])  # fmt: skip
def test_bad_tokenizers(tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(foreign_model() if content is None else content)
    with pytest.raises(UserError, match=problem):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("maximum", [10_000, 500])
def test_languages_are_balanced(maximum):
    counts = {"en": 6400, "de": 1600, "ja": 100}
    stream = [(language, f"{language} {i}") for language, count in counts.items() for i in range(count)]
    drawn = Counter(text.split()[0] for text in sample_for_tokenizer(stream, counts, exponent=0.5, maximum=maximum))
    total = min(8100, maximum)
    assert [drawn[language] for language in counts] == pytest.approx([total * w / 130 for w in (80, 40, 10)], abs=1)


def test_exponent_one_passes_everything_on_once():
    stream = [("en", "a"), ("de", "b"), ("en", "c")]
    assert list(sample_for_tokenizer(stream, {"en": 2, "de": 1}, exponent=1)) == ["a", "b", "c"]


@pytest.mark.slow
def test_a_program_whose_threads_have_computed_can_train_a_vocabulary(tmp_path: Path) -> None:
    """A process that is forked after OpenMP has had threads would wait for them for ever."""
    program = "import sys, torch; torch.set_num_threads(2); torch.rand(10_000_000).exp().sum()\n"
    program += "from xrep.text.train_tokenizer import train_tokenizer\n"
    program += "train_tokenizer((f'word {n} and {n * n}' for n in range(500)), None, sys.argv[1])"
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], env=environment, check=True, timeout=PATIENCE)
    assert list(tmp_path.iterdir())


def test_modules_of_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for name in ("json", "signal", "sentencepiece"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)", encoding="utf-8")
    assert train_tokenizer(iter(SENTENCES), 58, tmp_path / "model").vocabulary_size == 58

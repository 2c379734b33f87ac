"""Hostile tokenizers: every file of a tokenizer's folder, damaged; none runs code, hangs or asks for endless memory."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from tests.hostile.fuzzing import Fuzz, files_like
from tests.hostile.refusals import Case, case_name, check_refused
from tests.text.small_tokenizers import OUR_IDS
from xrep.errors import UserError
from xrep.text.pretrained_tokenizer import maximum_length
from xrep.text.tokenizer import Tokenizer
from xrep.text.tokenizer_json import build_unigram

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "a", "##b", "0", "."]
TEXTS = ["a b", "", "The 0.\u2028\x00 [MASK] \U00013000 e\u0301", "x" * 300]


def use(path: Path) -> None:
    """Read the tokenizer in a folder or file and do with it what xrep does."""
    tokenizer = Tokenizer.load(path)
    for ids in tokenizer.encode(TEXTS):
        assert all(0 <= number < tokenizer.vocabulary_size for number in tokenizer.add_special(ids))
        tokenizer.decode(ids)
    assert len(tokenizer.begins_word()) == tokenizer.vocabulary_size
    tokenizer.files()
    maximum_length(path)


def wordpiece() -> bytes:
    return tokenizers.BertWordPieceTokenizer({word: number for number, word in enumerate(WORDS)}).to_str().encode()


def unigram() -> bytes:
    pieces = ["<unk>", "<s>", "</s>", "<pad>", "\u2581a", "b"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([(piece, -1.0) for piece in pieces], 0, True))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return tokenizer.to_str().encode()


def byte_level() -> dict[str, bytes]:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), "ab"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": b"#version: 0.2\na b\n"}


def tiny_model(**options: Any) -> bytes:
    model = io.BytesIO()
    options = {"vocab_size": 320, "hard_vocab_limit": False, "minloglevel": 9, "num_threads": 1, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXTS[:1] * 9), model_writer=model, **options)
    return model.getvalue()


def folder(fuzz: Fuzz, files: dict[str, bytes]) -> None:
    fuzz.folder.mkdir()
    for name, content in files.items():
        (fuzz.folder / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("make", [wordpiece, unigram, lambda: wordpiece().replace(b'"WordPiece"', b'"WordLevel"')])
def test_tokenizer_json(fuzz: Fuzz, make: Callable[[], bytes]) -> None:
    seeds = [json.dumps(json.loads(make()), ensure_ascii=False).encode()]
    fuzz("tokenizer.json", "tokenizer.json", files_like(*seeds), lambda path: use(path.parent))


@pytest.mark.slow
def test_vocabulary_of_words(fuzz: Fuzz) -> None:
    fuzz("vocab.txt", "vocab.txt", files_like("\n".join(WORDS).encode()), lambda path: use(path.parent))


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["vocab.json", "merges.txt"])
def test_byte_level_bpe(fuzz: Fuzz, damaged: str) -> None:
    files = byte_level()
    folder(fuzz, files)
    fuzz(damaged, damaged, files_like(files[damaged]), lambda path: use(path.parent))


CONFIGS = {
    "tokenizer_config.json": {
        "do_lower_case": True,
        "tokenizer_class": "BertTokenizer",
        "model_max_length": 512,
        "unk_token": {"content": "[UNK]", "lstrip": False},
        "added_tokens_decoder": {"10": {"content": "<en>", "special": True}},
    },
    "special_tokens_map.json": {"pad_token": "[PAD]", "cls_token": {"content": "[CLS]"}, "mask_token": "[MASK]"},
    "added_tokens.json": {"<en>": 10, "<de>": 11},
    "sentence_bert_config.json": {"max_seq_length": 128, "do_lower_case": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_configs(fuzz: Fuzz, name: str) -> None:
    folder(fuzz, {"vocab.txt": "\n".join(WORDS).encode()})
    fuzz(name, name, files_like(json.dumps(CONFIGS[name]).encode()), lambda path: use(path.parent))


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["tokenizer.json", "tokenizer_config.json"])
def test_folders_that_xrep_wrote(fuzz: Fuzz, tmp_path: Path, damaged: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(wordpiece())
    files = Tokenizer.load(tmp_path).files()
    folder(fuzz, files)
    fuzz(f"xrep's {damaged}", damaged, files_like(files[damaged]), lambda path: use(path.parent))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sentencepiece.model", "sentencepiece.bpe.model"])
def test_sentencepiece_models(fuzz: Fuzz, name: str) -> None:
    ids = OUR_IDS if name == "sentencepiece.model" else {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
    seeds = [tiny_model(normalization_rule_name="identity", **ids), tiny_model(byte_fallback=True, **ids)]

    def read(path: Path) -> None:
        use(path.parent)
        build_unigram(path.read_bytes())

    fuzz(name, name, files_like(*seeds), read)


def change(content: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(content), **changes}).encode()


GROWING = [{"type": "Replace", "pattern": {"Regex": "."}, "content": "aaaaaaaaaa"}] * 30
HOSTILE_JSON = {
    "ids past any vocabulary": (
        lambda c: c.replace(b'"the":5', b'"the":4294967294'),
        "ids up to 4,294,967,294",
    ),
    "text that grows without bound": (
        lambda c: change(c, normalizer={"type": "Sequence", "normalizers": GROWING}),
        "its normalizer may make a text more than",
    ),
    "nothing gives a piece": (
        lambda c: change(c, normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": ""}),
        "it gives no piece for a letter",
    ),
    "deep nesting": (lambda c: b"[" * 100_000, "not a tokenizer.json, or a damaged one"),
}


@pytest.mark.parametrize("name", HOSTILE_JSON)
def test_hostile_tokenizer_json(tmp_path: Path, name: str) -> None:
    damage, problem = HOSTILE_JSON[name]
    (tmp_path / "tokenizer.json").write_bytes(damage(wordpiece()))
    with pytest.raises(UserError, match=problem) as error:
        use(tmp_path)
    assert error.value.path == tmp_path / "tokenizer.json" and error.value.cure


CASES = [
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer fifo --destdir out", "fifo: not a regular file; copy the tok"),
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer /dev/zero --destdir out", "/dev/zero: not a regular file"),
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer large.model --destdir out", "a file of 300.0 MB is no tok"),
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer a.tsv --destdir out", "a.tsv: not a SentencePiece model"),
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer pipes --destdir out", "pipes/tokenizer.json: not a regular"),
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer deep --destdir out", "deep/tokenizer_config.json: not a tok"),
    Case("preprocess", "--bitext de-en=a.tsv --tokenizer huge --destdir out", "ids up to 4,000,000,000"),
]


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_refused(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.tsv").write_text("ein Haus hier\ta house here\n")
    for name in ("pipes", "deep", "huge"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "fifo")
    os.mkfifo(tmp_path / "pipes" / "tokenizer.json")
    (tmp_path / "deep" / "tokenizer_config.json").write_bytes(b'{"a":' * 100_000)
    model = {**json.loads(wordpiece())["model"], "vocab": {"[UNK]": 1, "a": 4_000_000_000}}
    (tmp_path / "huge" / "tokenizer.json").write_bytes(change(wordpiece(), model=model, post_processor=None))
    if "large" in case.arguments:
        with open(tmp_path / "large.model", "wb") as file:
            file.truncate(300_000_000)
    check_refused(case, tmp_path, capsys)

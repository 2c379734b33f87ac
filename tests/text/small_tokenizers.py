"""Small tokenizers of every family, trained with the real libraries and written as in a model directory."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from tests.text.sentences import LANGUAGES, TEXT

BYTE_LEVEL_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_wordpiece(directory: Path, **config: Any) -> Path:
    """Write ``vocab.txt`` of 1500 cased pieces, and ``tokenizer_config.json`` if there are options."""
    directory.mkdir(parents=True, exist_ok=True)
    trainer = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    trainer.train_from_iterator([*TEXT, *map(str.lower, LANGUAGES * 2)], vocab_size=1500)
    trainer.save_model(str(directory))
    if config:
        write_json(directory / "tokenizer_config.json", config)
    return directory


def write_byte_level(directory: Path, **config: Any) -> Path:
    """Write ``vocab.json`` and ``merges.txt`` of 1200 pieces."""
    directory.mkdir(parents=True, exist_ok=True)
    trainer = tokenizers.ByteLevelBPETokenizer()
    trainer.train_from_iterator(TEXT, vocab_size=1200, special_tokens=BYTE_LEVEL_SPECIAL)
    trainer.save_model(str(directory))
    if config:
        write_json(directory / "tokenizer_config.json", config)
    return directory


def sentencepiece_model(**options: Any) -> bytes:
    """Return a serialized SentencePiece model of the small text."""
    model = io.BytesIO()
    options = {"model_type": "unigram", "vocab_size": 1400, "hard_vocab_limit": False, **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, minloglevel=9, num_threads=1, **options
    )
    return model.getvalue()


def write_xlm_roberta(directory: Path) -> Path:
    """Write ``sentencepiece.bpe.model`` as in fairseq, without a piece for padding and with the unknown piece first."""
    directory.mkdir(parents=True, exist_ok=True)
    model = sentencepiece_model(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    return directory


OUR_IDS = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "control_symbols": ["<mask>"]}
"""Special pieces of a tokenizer that xrep-preprocess trains."""


def write_ours(directory: Path, **options: Any) -> Path:
    """Write a bare ``sentencepiece.model`` with the ids of xrep."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sentencepiece.model").write_bytes(sentencepiece_model(**OUR_IDS, **options))
    return directory

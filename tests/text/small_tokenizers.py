"""Small tokenizers of every family, trained with the real libraries and written as in a model directory."""

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from tests.support.once import made_once
from tests.text.sentences import LANGUAGES, TEXT


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_trained(directory: Path, trainer: Any, text: list[str], config: dict[str, Any], **options: Any) -> Path:
    """Write the files of a trained tokenizer, which ``config`` describes for transformers."""
    directory.mkdir(parents=True, exist_ok=True)
    trainer.train_from_iterator(text, **options)
    trainer.save_model(str(directory))
    write_json(directory / "tokenizer_config.json", config)
    return directory


def write_wordpiece(directory: Path, **config: Any) -> Path:
    """Write ``vocab.txt`` of 1500 cased pieces."""
    trainer = tokenizers.BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    config.setdefault("tokenizer_class", "BertTokenizer")
    return write_trained(directory, trainer, [*TEXT, *map(str.lower, LANGUAGES * 2)], config, vocab_size=1500)


def write_byte_level(directory: Path, **config: Any) -> Path:
    """Write ``vocab.json`` and ``merges.txt`` of 1200 pieces."""
    options = {"vocab_size": 1200, "special_tokens": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]}
    config.setdefault("tokenizer_class", "RobertaTokenizer")
    return write_trained(directory, tokenizers.ByteLevelBPETokenizer(), TEXT, config, **options)


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


PIECES = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}


def write_converted(path: Path, *, family: str, file: str, name: str, **options: Any) -> Path:
    """Write a SentencePiece model of a family that xrep does not know, so that transformers converts it."""
    write_json(path / "config.json", {"model_type": family})
    write_json(path / "tokenizer_config.json", {"tokenizer_class": f"{name}Tokenizer"})
    (path / file).write_bytes(sentencepiece_model(**options))
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "bert": write_wordpiece,
    "bert-cased": partial(write_wordpiece, do_lower_case=False),
    "bert-accents": partial(write_wordpiece, do_lower_case=True, strip_accents=False),
    "bert-chinese": partial(write_wordpiece, do_lower_case=False, strip_accents=True, tokenize_chinese_chars=False),
    "roberta": write_byte_level,
    "roberta-spaced": partial(write_byte_level, add_prefix_space=True),
    "xlm-roberta": write_xlm_roberta,
    "ours": write_ours,
    "ours-bytes": partial(write_ours, byte_fallback=True, character_coverage=0.98),
    "ours-folded": partial(write_ours, normalization_rule_name="nmt_nfkc_cf"),
    "ours-nfkc": partial(write_ours, normalization_rule_name="nfkc"),
    "ours-as-is": partial(write_ours, normalization_rule_name="identity", remove_extra_whitespaces=False,
                          add_dummy_prefix=False),
    "deberta-v2": partial(write_converted, family="deberta-v2", file="spm.model", name="DebertaV2",
                          **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}, **PIECES),
    "t5": partial(write_converted, family="t5", file="spiece.model", name="T5",
                  **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
}  # fmt: skip
CONVERTED = ("deberta-v2", "t5")
UNIGRAM = [name for name in MAKERS if name.startswith(("xlm", "ours"))]


def published(name: str) -> Path:
    """Return the directory of a tokenizer of ``MAKERS``, which no test may change."""
    return made_once(f"tokenizer-{name}", lambda folder: MAKERS[name](folder / "origin")) / "origin"

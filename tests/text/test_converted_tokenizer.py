"""SentencePiece models of families that xrep does not know: transformers converts them, and the ids are its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.text.sentences import LANGUAGES
from tests.text.small_tokenizers import sentencepiece_model, write_json
from xrep.errors import UserError
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="it is in the extra 'hf'")
PIECES = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deberta-v2": ("spm.model", "DebertaV2", {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, **PIECES}),
    "t5": ("spiece.model", "T5", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}),
}


def write(directory: Path, family: str) -> Path:
    file, name, options = FAMILIES[family]
    write_json(directory / "config.json", {"model_type": family})
    write_json(directory / "tokenizer_config.json", {"tokenizer_class": f"{name}Tokenizer"})
    (directory / file).write_bytes(sentencepiece_model(**options))
    return directory


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    directory = write(tmp_path / "model", family)
    ours, theirs = Tokenizer.load(directory), transformers.AutoTokenizer.from_pretrained(directory)
    assert (ours.bos_id is None) == (family == "t5")
    expected = [theirs(sentence)["input_ids"] for sentence in LANGUAGES]
    assert [ours.add_special(ids) for ids in ours.encode(LANGUAGES)] == expected
    save_as_huggingface(ours, tmp_path / "out", 64)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert [again(sentence, truncation=False)["input_ids"] for sentence in LANGUAGES] == expected
    ours.save(tmp_path / "folder")
    folder = Tokenizer.load(tmp_path / "folder")
    assert [folder.add_special(ids) for ids in folder.encode(LANGUAGES)] == expected


def test_what_transformers_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write(tmp_path / "model", "t5")
    (directory / "spiece.model").write_bytes(b"none" * 9)
    with pytest.raises(UserError, match=r"transformers cannot read this tokenizer .*; save it with transformers"):
        Tokenizer.load(directory)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"no such tokenizer.*pip install 'xrep\[hf\]'.* may read spiece.model"):
        Tokenizer.load(directory)

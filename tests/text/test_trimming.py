"""Smaller vocabularies divide the text that they were made for as before, in tokenizers of every kind."""

import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers

from tests.text.sentences import LANGUAGES, MARKED, ODD, TEXT
from tests.text.small_tokenizers import MAKERS, OUR_IDS, published, sentencepiece_model
from xrep.errors import UserError
from xrep.text.huggingface import HuggingFaceTokenizer, save_as_huggingface
from xrep.text.sides import open_tokenizer
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer
from xrep.text.trimming import trim

IDS = {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "mask": None}


def with_every_merge() -> Tokenizer:
    """Byte-pair encoding of which pieces have several merges, as in files that were converted from SentencePiece, and
    whose unknown characters are bytes."""
    processor = sentencepiece.SentencePieceProcessor.from_proto(sentencepiece_model(model_type="bpe", vocab_size=900))
    texts = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
    names = ["<pad>", "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *texts]
    ids = {text: i for i, text in enumerate(names)}
    merges = [(t[:k], t[k:]) for t in texts for k in range(1, len(t)) if t[:k] in ids and t[k:] in ids]
    assert len(merges) > len({left + right for left, right in merges})
    model = tokenizers.models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True)
    rust = tokenizers.Tokenizer(model)
    rust.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    return HuggingFaceTokenizer(rust.to_str().encode(), IDS)


def opened(name: str) -> Tokenizer:
    if name == "bpe":
        return SentencePieceTokenizer(sentencepiece_model(**{**OUR_IDS, "model_type": "bpe"}))
    return with_every_merge() if name == "every merge" else open_tokenizer(published(name))


def count(tokenizer: Tokenizer, text: list[str]) -> np.ndarray:
    return np.bincount([i for row in tokenizer.encode(text) for i in row], minlength=tokenizer.vocabulary_size)


@pytest.mark.parametrize("name", [*MAKERS, "bpe", "every merge"])
def test_the_text_is_divided_as_before(name: str, tmp_path: Path) -> None:
    whole, draw = opened(name), random.Random(5)
    characters = sorted(set("".join([*TEXT, *ODD])))
    for text in (LANGUAGES, MARKED + ODD, draw.sample(TEXT, 20), draw.sample(TEXT, 200), ["a"]):
        counts = count(whole, text)
        small, rows = trim(whole, counts, None)
        assert small.vocabulary_size == len(rows) < whole.vocabulary_size and (np.diff(rows) > 0).all()
        assert [rows[ids].tolist() for ids in small.encode(text)] == whole.encode(text)
        assert {role: None if i is None else rows[i] for role, i in small.special_ids.items()} == whole.special_ids
        assert [small.decode([i]) for i in range(len(rows))] == [whole.decode([i]) for i in rows]
        known = [whole.unk_id in ids for ids in whole.encode(characters)]
        assert [small.unk_id in ids for ids in small.encode(characters)] == known
    few, fewer = trim(whole, count(whole, TEXT), 30)[1], trim(whole, count(whole, TEXT), 10)[1]
    assert len(fewer) < len(few) and {*fewer} < {*few}
    small, rows = trim(whole, count(whole, LANGUAGES), None)
    small.save(tmp_path / "saved")
    assert open_tokenizer(tmp_path / "saved").encode(ODD) == small.encode(ODD)
    if name != "bpe":  # which has no counterpart there
        save_as_huggingface(small, tmp_path / "written", 96)
        again = open_tokenizer(tmp_path / "written")
        assert [again.add_special(row) for row in again.encode(LANGUAGES)] == [
            small.add_special(row) for row in small.encode(LANGUAGES)
        ]


def test_the_scores_of_unknown_characters_stay() -> None:
    """They are taken from the lowest score, and decide whether a longer piece or unknown characters are better."""
    whole = SentencePieceTokenizer(sentencepiece_model(**OUR_IDS, character_coverage=0.98))
    small, rows = trim(whole, count(whole, ["a"]), None)
    assert isinstance(small, SentencePieceTokenizer)
    scores = [whole.processor.get_score(i) for i in range(5, whole.vocabulary_size)]
    assert {min(scores), max(scores)} <= {whole.processor.get_score(int(i)) for i in rows}
    assert {small.processor.get_score(i) for i in range(len(rows))} == {whole.processor.get_score(int(i)) for i in rows}


def test_marks_at_the_ends_of_pieces_are_refused() -> None:
    rust = tokenizers.Tokenizer(tokenizers.models.BPE({"a</w>": 0}, [], end_of_word_suffix="</w>"))
    tokenizer = HuggingFaceTokenizer(rust.to_str().encode(), dict.fromkeys(IDS, 0))
    with pytest.raises(UserError, match="with marks at the beginnings or ends of pieces cannot be made smaller; leave"):
        trim(tokenizer, np.ones(1, dtype=np.int64), None)

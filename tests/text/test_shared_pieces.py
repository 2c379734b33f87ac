"""Which subwords of one vocabulary are those of another."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from xrep.text.huggingface import HuggingFaceTokenizer
from xrep.text.shared_pieces import rows_of_pieces, texts_of_pieces
from xrep.text.tokenizer import SPACE
from xrep.text.train_tokenizer import train_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "house", "the", "ing", "##ing", "wer", "中", "##中"]
WORDS += [letter for each in "abcdefghijklmnopqrstuvwxyz" for letter in (each, f"##{each}")]
TEXT = ["The house, 中中 house", "working in the house, singing", "the houses; 中 houses werden", "Wer singing"] * 20


def bert() -> HuggingFaceTokenizer:
    library = Library(models.WordPiece({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.add_special_tokens(WORDS[:5])
    names = ("pad", "unk", "bos", "eos", "mask")
    return HuggingFaceTokenizer(library.to_str().encode(), {name: place for place, name in enumerate(names)})


@pytest.fixture
def own(tmp_path: Path):
    return train_tokenizer(TEXT, None, tmp_path)


def test_the_subwords_of_bert(own) -> None:
    """Its text is in lower case, it has a sign for subwords inside a word, and it never joins Chinese characters."""
    other = bert()
    pieces = texts_of_pieces(own)
    found = {
        piece: [WORDS[place] for place in places]
        for piece, places in zip(pieces, rows_of_pieces(own, other), strict=True)
    }
    assert list(found.values())[:5] == [["[PAD]"], ["[UNK]"], ["[CLS]"], ["[SEP]"], ["[MASK]"]]
    expected = {f"{SPACE}house": ["house"], f"{SPACE}the": ["the"], "ing": ["##ing"], "中": ["中"], "s": ["##s"],
                f"{SPACE}The": ["the"], f"{SPACE}": [], ",": []}  # fmt: skip
    assert {piece: found[piece] for piece in expected if piece in found} == {
        piece: places for piece, places in expected.items() if piece in found
    }
    assert {"ing", f"{SPACE}house", "中"} <= {*found}, pieces
    composed = next(piece for piece in found if piece.strip(SPACE).isalpha() and len(found[piece]) > 1)
    assert "".join(found[composed]).replace("##", "") == composed.strip(SPACE).lower()


def test_the_subwords_of_roberta_and_of_itself(own) -> None:
    library = Library(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<pad>", "<unk>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    roles = {"pad": 0, "unk": 1, "bos": 2, "eos": 3, "mask": None}
    other = HuggingFaceTokenizer(library.to_str().encode(), roles)
    house = texts_of_pieces(own).index(f"{SPACE}house")
    assert rows_of_pieces(own, other)[house] == [library.token_to_id("Ġhouse")]
    assert rows_of_pieces(own, own) == [[place] for place in range(own.vocabulary_size)]

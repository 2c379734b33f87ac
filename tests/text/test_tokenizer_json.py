"""Export: the files of save_as_huggingface give transformers the same ids as xrep."""

from __future__ import annotations

import io
import itertools
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from tests.text.sentences import LANGUAGES, MARKED, ODD, SPELLED, TEXT
from tests.text.small_tokenizers import (
    OUR_IDS,
    sentencepiece_model,
    write_byte_level,
    write_json,
    write_ours,
    write_wordpiece,
    write_xlm_roberta,
)
from xrep.errors import UserError
from xrep.text.pretrained_tokenizer import save_as_huggingface
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer
from xrep.text.tokenizer_json import NORMAL, parse_sentencepiece

DECOMPOSED = [unicodedata.normalize("NFD", s) for s in LANGUAGES]
SENTENCES = LANGUAGES + MARKED + DECOMPOSED + ODD + SPELLED
ROLES = ("pad", "unk", "bos", "eos", "mask")
MAKERS = {
    "bert": write_wordpiece,
    "bert-cased": lambda path: write_wordpiece(path, do_lower_case=False),
    "roberta": write_byte_level,
    "roberta-spaced": lambda path: write_byte_level(path, add_prefix_space=True),
    "xlm-roberta": write_xlm_roberta,
    "ours": write_ours,
    "ours-bytes": lambda path: write_ours(path, byte_fallback=True, character_coverage=0.98),
    "ours-folded": lambda path: write_ours(path, normalization_rule_name="nmt_nfkc_cf"),
    "ours-nfkc": lambda path: write_ours(path, normalization_rule_name="nfkc"),
    "ours-as-is": lambda path: write_ours(
        path, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False
    ),
}
UNIGRAM = [name for name in MAKERS if name.startswith(("xlm", "ours"))]


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="loads what is written with transformers")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, Path]]:
    """Return our tokenizers, and the directories they were written to, by name."""
    root, found = tmp_path_factory.mktemp("exported"), {}
    for name, make in MAKERS.items():
        tokenizer = Tokenizer.load(make(root / name / "origin"))
        save_as_huggingface(tokenizer, root / name / "exported", 96)
        found[name] = tokenizer, root / name / "exported"
    return found


def by_sentence(ids: list[list[int]]) -> dict[str, list[int]]:
    return dict(zip(SENTENCES, ids, strict=True))


@pytest.mark.parametrize("name", MAKERS)
def test_transformers_has_our_ids(made, transformers, name) -> None:
    ours, directory = made[name]
    # AutoTokenizer also reads config.json, and could use the class of that family instead of the file.
    model_types = [None, "bert" if "bert" in name and "ro" not in name else "xlm-roberta", "roberta"]
    for model_type in model_types:
        if model_type:
            write_json(directory / "config.json", {"model_type": model_type})
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        expected = [ours.add_special(row) for row in ours.encode(SENTENCES)]
        assert by_sentence(theirs(SENTENCES)["input_ids"]) == by_sentence(expected)
    names = ("pad", "unk", "cls", "sep", "mask")
    assert [getattr(theirs, f"{n}_token_id") for n in names] == [getattr(ours, f"{role}_id") for role in ROLES]
    assert theirs.model_max_length == 96 and theirs.padding_side == "right" and len(theirs) == ours.vocabulary_size
    cut = theirs(LANGUAGES, truncation=True, max_length=7, padding=True)
    assert cut["input_ids"] == [
        (i + [ours.pad_id] * 7)[:7] for i in ([*ours.add_special(row[:5])] for row in ours.encode(LANGUAGES))
    ]


@pytest.mark.parametrize("name", MAKERS)
def test_pairs_and_token_types(made, transformers, name) -> None:
    ours, directory = made[name]
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    first, second = ours.encode(LANGUAGES[:2])
    pair = theirs(*LANGUAGES[:2])
    between = [ours.eos_id] if name.startswith("bert") else [ours.eos_id, ours.eos_id]
    assert pair["input_ids"] == [ours.bos_id, *first, *between, *second, ours.eos_id]
    if name.startswith("bert"):
        assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    else:
        assert "token_type_ids" not in pair


@pytest.mark.parametrize("name", MAKERS)
def test_xrep_reads_back_what_it_wrote(made, tmp_path, name) -> None:
    ours, directory = made[name]
    again = Tokenizer.load(directory)
    assert again.encode(SENTENCES) == ours.encode(SENTENCES)
    for attribute in ("vocabulary_size", *(f"{role}_id" for role in ROLES)):
        assert getattr(again, attribute) == getattr(ours, attribute)
    save_as_huggingface(again, tmp_path / "again", 96)
    for file in ("tokenizer.json", "special_tokens_map.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (directory / file).read_bytes()
    again.save(tmp_path / "folder")
    assert Tokenizer.load(tmp_path / "folder").encode(SENTENCES) == ours.encode(SENTENCES)


@pytest.mark.parametrize("name", UNIGRAM)
def test_text_cannot_spell_special_tokens(made, transformers, name) -> None:
    ours, directory = made[name]
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    special = {ours.pad_id, ours.bos_id, ours.eos_id, ours.mask_id}
    for row in theirs(SPELLED, add_special_tokens=False)["input_ids"]:
        assert not special & set(row)
    alone = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    alone.encode_special_tokens = True
    rows = [e.ids for e in alone.encode_batch(SENTENCES, add_special_tokens=False)]
    assert by_sentence(rows) == by_sentence(ours.encode(SENTENCES))


@pytest.mark.parametrize("name", UNIGRAM)
def test_decoding(made, transformers, name) -> None:
    ours, directory = made[name]
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    typed = [s for s in SENTENCES if "▁" not in s]
    rows = [ours.add_special(row) for row in ours.encode(typed) if ours.unk_id not in row]
    assert len(rows) > 40
    assert theirs.batch_decode(rows, skip_special_tokens=True) == [ours.decode(row) for row in rows]


def test_marks_as_people_type_them_keep_their_order(made) -> None:
    """Unicode's normal forms would reorder or compose each of these; SentencePiece does not."""
    for sentence in MARKED:
        assert unicodedata.normalize("NFC", sentence) != sentence
    ours, directory = made["ours-bytes"]
    again = Tokenizer.load(directory)
    for sentence in MARKED:
        assert (
            again.encode([sentence]) == ours.encode([sentence]) and ours.decode(ours.encode([sentence])[0]) == sentence
        )


def test_every_character_is_normalised_alike(made) -> None:
    """Test single characters between letters, from all of Unicode up to the emoji."""
    ours, directory = made["ours"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=ours.model)
    normalizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).normalizer
    points = [*range(1, 0xD800), *range(0xE000, 0xFDD0), *range(0xFDF0, 0x10000), *range(0x1F000, 0x1FB00)]
    texts = [f"a{chr(point)}b" for point in points]
    differ = [text for text in texts if processor.normalize(text) != normalizer.normalize_str(text)]
    assert differ == ["a\u0344b"]  # a mark that Unicode discourages, which NFC decomposes


def test_the_model_is_read_as_sentencepiece_reads_it() -> None:
    model = sentencepiece_model(**OUR_IDS, byte_fallback=True)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    parsed = parse_sentencepiece(model)
    size = processor.get_piece_size()
    assert [p.text for p in parsed.pieces] == [processor.id_to_piece(i) for i in range(size)]
    assert [p.score for p in parsed.pieces] == [processor.get_score(i) for i in range(size)]
    assert len([p for p in parsed.pieces if p.type != NORMAL]) == 5 + 256
    assert parsed.add_dummy_prefix and parsed.remove_extra_whitespaces and len(parsed.replacements) > 10_000


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model_type": "bpe"}, "it is not a unigram model"),
        ({"treat_whitespace_as_suffix": True}, "its pieces have their space behind them"),
        ({"user_defined_symbols": ["<sep>"]}, r"user-defined or unused \('<sep>'\)"),
        ({"control_symbols": ["<mask>", "¤"]}, r"a reserved piece is a single character \('¤'\)"),
    ],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, options, problem) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model(**{**OUR_IDS, **options}))
    with pytest.raises(UserError, match=problem):
        save_as_huggingface(tokenizer, tmp_path / "out", 96)
    assert not (tmp_path / "out").exists()


def test_two_pieces_of_one_name_are_refused(tmp_path) -> None:
    """XLM-R's numbering adds <mask>, which would be there twice if the model has one already."""
    model = sentencepiece_model(unk_id=0, bos_id=1, eos_id=2, pad_id=-1, control_symbols=["<mask>"])
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    with pytest.raises(UserError, match="two of its pieces have the same name"):
        save_as_huggingface(Tokenizer.load(tmp_path), tmp_path / "out", 96)


def test_another_kind_is_refused(made, tmp_path) -> None:
    class Words(Tokenizer):
        kind = "words"
        open = encode = use_one_thread = encode_spans = decode = begins_word = None

    with pytest.raises(UserError, match="a tokenizer of kind 'words' cannot become a tokenizer.json"):
        save_as_huggingface(Words(), tmp_path, 96)


def test_length_may_stay_open_and_special_tokens_are_named(made, tmp_path) -> None:
    save_as_huggingface(made["ours"][0], tmp_path, None)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    special = json.loads((tmp_path / "special_tokens_map.json").read_text())
    assert "model_max_length" not in config and config["split_special_tokens"] is True
    assert special["cls_token"] == special["bos_token"] == "<s>" and special["mask_token"] == "<mask>"
    assert {name: config[name] for name in special} == special
    for name, spaced in (("roberta", False), ("roberta-spaced", True)):  # transformers 4 reads this
        config = json.loads((made[name][1] / "tokenizer_config.json").read_text())
        assert config["add_prefix_space"] is spaced and config["split_special_tokens"] is False


def test_a_model_without_mask(tmp_path) -> None:
    ids = {name: value for name, value in OUR_IDS.items() if name != "control_symbols"}
    tokenizer = SentencePieceTokenizer(sentencepiece_model(**ids))
    save_as_huggingface(tokenizer, tmp_path, 96)
    assert "mask_token" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert Tokenizer.load(tmp_path).mask_id is None
    assert Tokenizer.load(tmp_path).encode(SENTENCES) == tokenizer.encode(SENTENCES)


def test_pieces_with_spaces_inside(tmp_path) -> None:
    """Models that do not split at spaces have pieces such as this ("▁in▁the")."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.islice(TEXT, 300),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        split_by_whitespace=False,
        minloglevel=9,
        **OUR_IDS,
    )
    tokenizer = SentencePieceTokenizer(model.getvalue())
    assert any("▁" in piece.text[1:] for piece in parse_sentencepiece(model.getvalue()).pieces)
    save_as_huggingface(tokenizer, tmp_path, 96)
    assert Tokenizer.load(tmp_path).encode(TEXT[:300]) == tokenizer.encode(TEXT[:300])


@pytest.mark.parametrize("name", MAKERS)
def test_pieces_that_begin_a_word(made, name: str) -> None:
    """Word starts are the pieces after a space, one for each word; the first word may lack the sign."""
    tokenizer, directory = made[name]
    exported = Tokenizer.load(directory)
    for own in (tokenizer, exported):
        begins = own.begins_word()
        assert len(begins) == own.vocabulary_size
        text = "the quick brown foxes jumped"
        (ids,) = own.encode([text])
        words: list[list[int]] = []
        for number in ids:
            if begins[number] or not words:
                words.append([])
            words[-1].append(number)
        assert [own.decode(word).strip() for word in words] == [
            own.decode(own.encode([w])[0]).strip() for w in text.split()
        ]

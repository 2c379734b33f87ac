"""Tokenizers of every family give the ids of transformers, where they are read and where they are written."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers

from tests.text.sentences import LANGUAGES, MARKED, ODD, SPELLED, TEXT
from tests.text.small_tokenizers import CONVERTED, MAKERS, OUR_IDS, UNIGRAM, published, sentencepiece_model, write_json
from xrep.errors import UserError
from xrep.text.huggingface import maximum_length, save_as_huggingface
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer

transformers = pytest.importorskip("transformers", reason="it is in the extra 'hf'")
DECOMPOSED = [unicodedata.normalize("NFD", s) for s in LANGUAGES]
COMPOSED = LANGUAGES + MARKED + [s for s in ODD if "ｶﾞ" not in s and "e\u0301" not in s]
SENTENCES = COMPOSED + DECOMPOSED + ODD + SPELLED
ROLES = ("pad", "unk", "bos", "eos", "mask")
READ = {"bert": "BertTokenizerFast", "roberta": "RobertaTokenizerFast", "xlm": "XLMRobertaTokenizer",
        "deberta": "AutoTokenizer", "t5": "AutoTokenizer"}  # fmt: skip
"""Classes of transformers that read the directories of families, by the beginnings of their names."""


def write_tokenizer_json(name: str, directory: Path, **config: Any) -> Path:
    """Write ``tokenizer.json`` of a published tokenizer, and the config beside it."""
    write_json(directory / "tokenizer_config.json", config)
    (directory / "tokenizer.json").write_bytes(Tokenizer.load(published(name)).model)
    return directory


def exportable(name: str) -> list[str]:
    """Return the sentences that an export has the ids of: of a SentencePiece model only those of composed characters
    without the names of special tokens, because ``tokenizers`` applies SentencePiece's replacements to characters."""
    return COMPOSED if name in UNIGRAM else SENTENCES


def assert_same(ours: Tokenizer, theirs: Any, sentences: list[str]) -> None:
    """Check that the ids without and with special tokens, the special ids and the size are the same."""
    ids = ours.encode(sentences)
    expected = theirs(sentences, add_special_tokens=False)["input_ids"]
    assert {s: i for s, i in zip(sentences, ids, strict=True)} == dict(zip(sentences, expected, strict=True))
    assert [ours.add_special(row) for row in ids] == theirs(sentences)["input_ids"]
    special = [getattr(ours, f"{role}_id") for role in ROLES]
    assert special == [getattr(theirs, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")]
    assert ours.vocabulary_size == len(theirs)


@pytest.mark.parametrize("name", [name for name in MAKERS if not name.startswith("ours")])
def test_directories_are_read_as_transformers_reads_them(name: str, origin: Path, ours: Tokenizer) -> None:
    kind = next(kind for family, kind in READ.items() if name.startswith(family))
    theirs = getattr(transformers, kind).from_pretrained(origin)
    if name in CONVERTED:
        assert (ours.bos_id is None) == (name == "t5")
        expected = [theirs(sentence)["input_ids"] for sentence in LANGUAGES]
        assert [ours.add_special(ids) for ids in ours.encode(LANGUAGES)] == expected
    elif name == "xlm-roberta":
        # Only composed characters: transformers 5 applies SentencePiece's replacements to single characters.
        assert_same(ours, theirs, [unicodedata.normalize("NFC", s) for s in LANGUAGES + ODD if "ｶﾞ" not in s])
        processor = sentencepiece.SentencePieceProcessor(model_file=str(origin / "sentencepiece.bpe.model"))
        assert ours.encode(SENTENCES) == [[i + 1 if i else 3 for i in row] for row in processor.encode(SENTENCES)]
        assert ours.mask_id == ours.vocabulary_size - 1 and ours.encode(["\ue000"])[0][-1] == ours.unk_id == 3
    else:
        # Special tokens in text: in transformers 4 <mask> removes the space before it, in 5 it does not.
        spelled = LANGUAGES + MARKED + ODD + SPELLED
        assert_same(ours, theirs, [s for s in spelled if "<mask>" not in s or name.startswith("bert")])


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_transformers_has_our_ids(name: str, ours: Tokenizer, exported: Path, tmp_path: Path) -> None:
    sentences = exportable(name)
    expected = [ours.add_special(row) for row in ours.encode(sentences)]
    # AutoTokenizer also reads config.json, and could use the class of that family instead of the file.
    for model_type in (None, "bert" if name.startswith("bert") else "xlm-roberta", "roberta"):
        folder = shutil.copytree(exported, tmp_path / str(model_type))
        if model_type:
            write_json(folder / "config.json", {"model_type": model_type})
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        found = theirs(sentences, truncation=False)["input_ids"]
        assert dict(zip(sentences, found, strict=True)) == dict(zip(sentences, expected, strict=True))
    special = [getattr(ours, f"{role}_id") for role in ROLES]
    if name not in CONVERTED:
        assert [getattr(theirs, f"{n}_token_id") for n in ("pad", "unk", "cls", "sep", "mask")] == special
        pair, (first, second) = theirs(*LANGUAGES[:2]), ours.encode(LANGUAGES[:2])
        between = [ours.eos_id] if name.startswith("bert") else [ours.eos_id, ours.eos_id]
        assert pair["input_ids"] == [ours.bos_id, *first, *between, *second, ours.eos_id]
        types = [0] * (len(first) + 2) + [1] * (len(second) + 1)
        assert pair.get("token_type_ids") == (types if name.startswith("bert") else None)
        cut = theirs(LANGUAGES, truncation=True, max_length=7, padding=True)["input_ids"]
        wanted = [ours.add_special(row[:5]) for row in ours.encode(LANGUAGES)]
        assert cut == [(ids + [ours.pad_id] * 7)[:7] for ids in wanted]
    assert theirs.model_max_length == 96 and theirs.padding_side == "right" and len(theirs) == ours.vocabulary_size
    if name in UNIGRAM:
        for row in theirs(SPELLED, add_special_tokens=False)["input_ids"]:
            assert not {ours.pad_id, ours.bos_id, ours.eos_id, ours.mask_id} & set(row)
        alone = tokenizers.Tokenizer.from_file(str(exported / "tokenizer.json"))
        alone.encode_special_tokens = True
        assert [e.ids for e in alone.encode_batch(sentences, add_special_tokens=False)] == ours.encode(sentences)
        typed = ours.encode([s for s in sentences if "▁" not in s])
        rows = [ours.add_special(row) for row in typed if ours.unk_id not in row]
        assert len(rows) > 25
        assert theirs.batch_decode(rows, skip_special_tokens=True) == [ours.decode(row) for row in rows]


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_written_is_read(name: str, ours: Tokenizer, exported: Path, tmp_path: Path) -> None:
    """For transformers and as a folder of xrep; both are written again with the same bytes."""
    ours.save(tmp_path / "folder")
    for path, sentences in ((exported, exportable(name)), (tmp_path / "folder", SENTENCES)):
        again = Tokenizer.load(path)
        assert again.encode(sentences) == ours.encode(sentences)
        for attribute in ("vocabulary_size", *(f"{role}_id" for role in ROLES)):
            assert getattr(again, attribute) == getattr(ours, attribute)
    again.save(tmp_path / "second")
    assert type(again) is type(ours)
    save_as_huggingface(Tokenizer.load(exported), tmp_path / "again", 96)
    for one, other in ((tmp_path / "folder", tmp_path / "second"), (exported, tmp_path / "again")):
        assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in other.iterdir()}


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in (*CONVERTED, "roberta-spaced")])
def test_decoding_leaves_special_tokens_out(name: str, ours: Tokenizer) -> None:
    text = "das kleine haus"
    ids = ours.encode([text])[0]
    assert ours.decode([ours.pad_id, *ours.add_special(ids), ours.mask_id]) == text
    assert ours.encode([""]) == [[]] and ours.encode([]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta"])
def test_tokenizer_json_is_that_of_transformers(name: str, origin: Path, tmp_path: Path) -> None:
    """Without what the file says of cutting, padding and dropout."""
    theirs = getattr(transformers, READ[name.partition("-")[0]]).from_pretrained(origin)
    theirs.backend_tokenizer.enable_truncation(4)
    theirs.backend_tokenizer.enable_padding(length=4)
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    assert written["truncation"]["max_length"] == 4 and written["padding"]["strategy"] == {"Fixed": 4}
    ours = Tokenizer.load(tmp_path)
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    # Both read the same file, so special tokens that occur in the text are special to both.
    assert_same(ours, theirs, LANGUAGES + MARKED + ODD + SPELLED)
    assert ours.mask_id in ours.encode([SPELLED[2 if name == "bert" else 0]])[0]
    if name == "roberta":
        written["model"]["dropout"] = 0.5
        write_json(tmp_path / "tokenizer.json", written)
        assert Tokenizer.load(tmp_path).encode(LANGUAGES * 3) == ours.encode(LANGUAGES * 3)


@pytest.mark.slow
def test_config_wins_over_tokenizer_json(tmp_path: Path) -> None:
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    for kind, options in (
        ("BertTokenizer", {"do_lower_case": True, "strip_accents": False}),
        ("BertTokenizer", {"do_lower_case": False}),
        ("PreTrainedTokenizerFast", {"do_lower_case": True, "mask_token": "[MASK]", **named}),
    ):
        directory = write_tokenizer_json("bert-cased", tmp_path, tokenizer_class=kind, **options)
        theirs = getattr(transformers, kind.replace("BertTokenizer", "BertTokenizerFast"))
        assert_same(Tokenizer.load(directory), theirs.from_pretrained(directory), SENTENCES)
    cased = Tokenizer.load(published("bert-cased")).encode(SENTENCES)
    for nothing in ({}, {"do_lower_case": None}):
        directory = write_tokenizer_json("bert-cased", tmp_path, tokenizer_class="BertTokenizer", **nothing)
        assert Tokenizer.load(directory).encode(SENTENCES) == cased
    spaced = Tokenizer.load(published("roberta-spaced")).encode(SENTENCES)
    assert Tokenizer.load(write_tokenizer_json("roberta", tmp_path, add_prefix_space=True)).encode(SENTENCES) == spaced


def test_sentence_transformers_can_ask_for_lower_case(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(published("roberta"))
    directory = write_tokenizer_json("roberta", tmp_path / "model" / "0_Transformer")
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 96, "do_lower_case": True})
    lower = Tokenizer.load(tmp_path / "model")  # old directories have their modules in folders
    assert lower.encode(LANGUAGES[:9]) == tokenizer.encode([s.lower() for s in LANGUAGES[:9]])
    assert lower.encode(LANGUAGES[:9]) != tokenizer.encode(LANGUAGES[:9])
    assert maximum_length(tmp_path / "model") == 96


def test_declared_special_tokens(tmp_path: Path) -> None:
    directory = write_tokenizer_json("bert", tmp_path / "bert", cls_token="[wrong]", eos_token="[wrong]")
    text = (directory / "tokenizer.json").read_text(encoding="utf-8")
    for old, new in (("[PAD]", "<fill>"), ("[CLS]", "<go>"), ("[SEP]", "<stop>"), ("[MASK]", "¤")):
        text = text.replace(old, new)
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    special = {"pad_token": "<fill>", "cls_token": {"content": "<go>", "lstrip": False}, "sep_token": "<stop>"}
    write_json(directory / "special_tokens_map.json", special)
    tokenizer = Tokenizer.load(directory)
    assert [getattr(tokenizer, f"{role}_id") for role in ROLES] == [0, 1, 2, 3, None]
    assert tokenizer.encode(["<go>the"])[0][0] == 2
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").mask_id is None


def test_what_the_file_puts_around_a_sentence_counts(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_buffer(Tokenizer.load(published("bert")).model)
    around = [("the", tokenizer.token_to_id("the")), ("a", tokenizer.token_to_id("a"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("the $A a", special_tokens=around)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [{**token, "special": token["content"] == "[UNK]"} for token in content["added_tokens"]]
    pieces = content["model"]["vocab"]
    pieces[max(pieces, key=pieces.get)] = 5000  # gaps count in the size
    write_json(tmp_path / "tokenizer.json", content)
    ours = Tokenizer.load(tmp_path)
    assert (ours.bos_id, ours.eos_id, ours.vocabulary_size) == (around[0][1], around[1][1], 5001)
    # The file's tokens for beginning and end are not text, even if it does not call them special.
    ids = ours.encode(["old house"])[0]
    assert ours.decode([*ours.add_special(ids), ours.pad_id, ours.mask_id]) == "old house"


@pytest.mark.parametrize(("name", "file", "content", "problem"), [
    ("bert", "special_tokens_map.json", '{"pad_token": "<e>"}', r"no pad token: the vocabulary has no <e>; name one"),
    ("bert", "tokenizer.json", '{"version": "1.0"', r"tokenizer.json: not a tokenizer.json"),
    ("bert", "tokenizer_config.json", "[]", r"tokenizer_config.json: not a JSON object"),
    ("roberta", "merges.txt", "#version: 0.2\na b\nc\n", r"transformers cannot read vocab.json .*; save it with"),
    ("xlm-roberta", "sentencepiece.bpe.model", "none" * 9, r"not a SentencePiece model, or a damaged one"),
    ("t5", "spiece.model", "none" * 9, r"transformers cannot read spiece.model .*; save it with transformers"),
])  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, name: str, file: str, content: str, problem: str) -> None:
    directory = shutil.copytree(published(name), tmp_path / name)
    if name == "bert":
        write_tokenizer_json(name, directory)
    (directory / file).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=problem) as error:
        Tokenizer.load(directory)
    assert error.value.cure and "\n" not in str(error.value) and str(directory) in str(error.value)


def test_files_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 512})
    with pytest.raises(UserError, match=r"no such tokenizer: neither tokenizer\.json nor vocab\.txt, .*there"):
        Tokenizer.load(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"spiece.model is read with transformers.*; pip install 'xrep\[hf\]'"):
        Tokenizer.load(published("t5"))


def test_a_model_with_other_ids_is_not_taken_for_xlm_roberta(tmp_path: Path) -> None:
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model(unk_id=0, bos_id=2, eos_id=1, pad_id=-1))
    with pytest.raises(UserError, match="its first pieces are <unk>, </s>, <s>, those of XLM-R"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(("sentence", "config", "length"), [
    ({"max_seq_length": 256}, {"model_max_length": 512}, 256),
    ({"max_seq_length": None}, {"model_max_length": 512}, 512),
    (None, {"model_max_length": 128.0}, 128),
    (None, {"model_max_length": 1000000000000000019884624838656}, None),
    (None, {"model_max_length": True}, None),
    (None, None, None),
])  # fmt: skip
def test_maximum_length(tmp_path: Path, sentence: Any, config: Any, length: int | None) -> None:
    for name, content in (("sentence_bert_config.json", sentence), ("tokenizer_config.json", config)):
        if content is not None:
            write_json(tmp_path / name, content)
    assert maximum_length(tmp_path) == length


@pytest.mark.parametrize(
    "options", [{"model_type": "bpe"}, {"treat_whitespace_as_suffix": True}, {"user_defined_symbols": ["<sep>"]}]
)
def test_what_cannot_be_expressed_is_refused(tmp_path: Path, options: Any) -> None:
    tokenizer = SentencePieceTokenizer(sentencepiece_model(**OUR_IDS, **options))
    with pytest.raises(UserError, match="cannot become a tokenizer.json: it is not a unigram model, has"):
        save_as_huggingface(tokenizer, tmp_path / "out", 96)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "spaced"), [("ours", None), ("roberta", False), ("roberta-spaced", True)])
def test_special_tokens_are_named_for_transformers(name, spaced, ours, exported, tmp_path):
    config = json.loads((exported / "tokenizer_config.json").read_text())
    special = json.loads((exported / "special_tokens_map.json").read_text())
    assert special["cls_token"] == special["bos_token"] == "<s>" and special["mask_token"] == "<mask>"
    assert {key: config[key] for key in special} == special and config["split_special_tokens"] is (name == "ours")
    assert config.get("add_prefix_space") is spaced  # transformers 4 reads this
    save_as_huggingface(ours, tmp_path, None)
    assert "model_max_length" not in json.loads((tmp_path / "tokenizer_config.json").read_text())


def test_models_without_mask_and_with_spaces_in_pieces(tmp_path: Path) -> None:
    ids = {name: value for name, value in OUR_IDS.items() if name != "control_symbols"}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.islice(TEXT, 300), model_writer=model, vocab_size=300, hard_vocab_limit=False,
        split_by_whitespace=False, minloglevel=9, **ids,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(model.getvalue())
    assert any("▁" in tokenizer.processor.id_to_piece(i)[1:] for i in range(tokenizer.vocabulary_size))  # "▁in▁the"
    save_as_huggingface(tokenizer, tmp_path, 96)
    assert "mask_token" not in json.loads((tmp_path / "tokenizer_config.json").read_text())
    again = Tokenizer.load(tmp_path)
    assert again.mask_id is None and again.encode(TEXT[:300] + COMPOSED) == tokenizer.encode(TEXT[:300] + COMPOSED)

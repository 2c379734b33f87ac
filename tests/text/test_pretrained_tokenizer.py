"""Tokenizers read from model directories give the ids of transformers, or a clear error."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from tests.text.sentences import LANGUAGES, MARKED, ODD, SPELLED
from tests.text.small_tokenizers import (
    sentencepiece_model,
    write_byte_level,
    write_json,
    write_ours,
    write_wordpiece,
    write_xlm_roberta,
)
from xrep.errors import UserError
from xrep.text.pretrained_tokenizer import (
    HuggingFaceTokenizer,
    XLMRobertaTokenizer,
    maximum_length,
    read_pretrained_tokenizer,
)
from xrep.text.tokenizer import SentencePieceTokenizer, Tokenizer

SENTENCES = LANGUAGES + MARKED + ODD + SPELLED
ROLES = ("pad", "unk", "bos", "eos", "mask")


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="compares with transformers' tokenizers")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("directories")
    return {
        "bert": write_wordpiece(root / "bert"),
        "roberta": write_byte_level(root / "roberta"),
        "xlm-roberta": write_xlm_roberta(root / "xlm-roberta"),
    }


def copy(source: Path, target: Path, **config: Any) -> Path:
    target.mkdir(parents=True)
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    if config:
        write_json(target / "tokenizer_config.json", config)
    return target


def assert_same(ours: Tokenizer, theirs: Any, sentences: list[str]) -> None:
    """Check that the ids without and with special tokens, the special ids and the size are the same."""
    ids = ours.encode(sentences)
    expected = theirs(sentences, add_special_tokens=False)["input_ids"]
    assert {s: i for s, i in zip(sentences, ids, strict=True)} == dict(zip(sentences, expected, strict=True))
    assert [ours.add_special(row) for row in ids] == theirs(sentences)["input_ids"]
    special = [getattr(ours, f"{role}_id") for role in ROLES]
    names = ("pad", "unk", "cls", "sep", "mask")
    assert special == [getattr(theirs, f"{name}_token_id") for name in names]
    assert ours.vocabulary_size == len(theirs)


BERT_OPTIONS = [
    {},
    {"do_lower_case": False, "tokenizer_class": "BertTokenizer"},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    {"do_lower_case": None, "tokenizer_class": "BertTokenizerFast"},
]


@pytest.mark.parametrize("options", BERT_OPTIONS)
def test_wordpiece_is_that_of_transformers(directories, tmp_path, transformers, options) -> None:
    directory = copy(directories["bert"], tmp_path / "bert", **options)
    ours = read_pretrained_tokenizer(directory)
    given = {name: value for name, value in options.items() if value is not None}
    write_json(directory / "tokenizer_config.json", given)  # transformers reads null as false
    assert_same(ours, transformers.BertTokenizerFast.from_pretrained(directory), SENTENCES)


def test_options_of_wordpiece_differ(directories, tmp_path) -> None:
    found = set()
    for number, options in enumerate(BERT_OPTIONS[:-1]):
        directory = copy(directories["bert"], tmp_path / str(number), **options)
        found.add(str(read_pretrained_tokenizer(directory).encode(SENTENCES)))
    assert len(found) == len(BERT_OPTIONS) - 1


@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True, "tokenizer_class": "RobertaTokenizer"}])
def test_byte_level_bpe_is_that_of_transformers(directories, tmp_path, transformers, options) -> None:
    directory = copy(directories["roberta"], tmp_path / "roberta", **options)
    theirs = transformers.RobertaTokenizerFast.from_pretrained(directory)
    # Special tokens in text: in transformers 4 <mask> removes the space before it, in 5 it does not.
    sentences = [s for s in SENTENCES if "<mask>" not in s]
    assert_same(read_pretrained_tokenizer(directory), theirs, sentences)


def test_xlm_roberta_is_that_of_transformers(directories, transformers) -> None:
    ours = read_pretrained_tokenizer(directories["xlm-roberta"])
    theirs = transformers.XLMRobertaTokenizer.from_pretrained(directories["xlm-roberta"])
    # Only composed characters: transformers 5 applies SentencePiece's replacements to single characters.
    composed = [unicodedata.normalize("NFC", s) for s in LANGUAGES + ODD if "ｶﾞ" not in s]
    assert_same(ours, theirs, composed)
    assert not {ours.pad_id, ours.bos_id, ours.eos_id, ours.mask_id} & set(sum(ours.encode(SPELLED), []))
    assert ours.mask_id == ours.vocabulary_size - 1 and ours.encode(["\ue000"])[0][-1] == ours.unk_id == 3


def test_xlm_roberta_is_sentencepiece_itself(directories) -> None:
    import sentencepiece

    path = directories["xlm-roberta"] / "sentencepiece.bpe.model"
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    shifted = [[i + 1 if i else 3 for i in row] for row in processor.encode(SENTENCES)]
    ours = read_pretrained_tokenizer(directories["xlm-roberta"])
    assert ours.encode(SENTENCES) == shifted
    expected = [processor.decode(row) for row in processor.encode(SENTENCES)]
    assert [ours.decode(ours.add_special(row)) for row in shifted] == expected


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_tokenizer_json_is_that_of_transformers(directories, tmp_path, transformers, family) -> None:
    classes = {"bert": "BertTokenizerFast", "roberta": "RobertaTokenizerFast", "xlm-roberta": "XLMRobertaTokenizer"}
    theirs = getattr(transformers, classes[family]).from_pretrained(directories[family])
    theirs.backend_tokenizer.enable_truncation(4)
    theirs.backend_tokenizer.enable_padding(length=4)
    theirs.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "tokenizer.json").read_text())
    assert written["truncation"]["max_length"] == 4 and written["padding"]["strategy"] == {"Fixed": 4}
    ours = Tokenizer.load(tmp_path)
    assert ours.kind == "huggingface"
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    # Both read the same file, so special tokens that occur in the text are special to both.
    assert_same(ours, theirs, SENTENCES)
    assert ours.mask_id in ours.encode([SPELLED[2 if family == "bert" else 0]])[0]
    written["model"]["dropout"] = 0.5
    (tmp_path / "tokenizer.json").write_text(json.dumps(written))
    assert family != "roberta" or Tokenizer.load(tmp_path).encode(LANGUAGES * 3) == ours.encode(LANGUAGES * 3)


def test_config_wins_over_tokenizer_json(directories, tmp_path, transformers) -> None:
    cased = read_pretrained_tokenizer(copy(directories["bert"], tmp_path / "cased", do_lower_case=False))
    cased.save(tmp_path / "json")
    for options in ({"do_lower_case": True}, {"do_lower_case": True, "strip_accents": False}, {"do_lower_case": False}):
        write_json(tmp_path / "json" / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **options})
        theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path / "json")
        assert_same(Tokenizer.load(tmp_path / "json"), theirs, SENTENCES)
    write_json(tmp_path / "json" / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    assert Tokenizer.load(tmp_path / "json").encode(SENTENCES) == cased.encode(SENTENCES)
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True, "pad_token": "[PAD]"}
    options |= {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    write_json(tmp_path / "json" / "tokenizer_config.json", options)
    assert_same(
        Tokenizer.load(tmp_path / "json"),
        transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "json"),
        SENTENCES,
    )
    spaced = read_pretrained_tokenizer(copy(directories["roberta"], tmp_path / "spaced", add_prefix_space=True))
    read_pretrained_tokenizer(directories["roberta"]).save(tmp_path / "bpe")
    write_json(tmp_path / "bpe" / "tokenizer_config.json", {"add_prefix_space": True})
    assert Tokenizer.load(tmp_path / "bpe").encode(SENTENCES) == spaced.encode(SENTENCES)


def test_sentence_transformers_can_ask_for_lower_case(directories, tmp_path) -> None:
    tokenizer = read_pretrained_tokenizer(directories["roberta"])
    directory = copy(directories["roberta"], tmp_path / "model" / "0_Transformer")
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": 96, "do_lower_case": True})
    lower = Tokenizer.load(tmp_path / "model")  # old directories have their modules in folders
    assert lower.encode(LANGUAGES[:9]) == tokenizer.encode([s.lower() for s in LANGUAGES[:9]])
    assert lower.encode(LANGUAGES[:9]) != tokenizer.encode(LANGUAGES[:9])
    assert maximum_length(tmp_path / "model") == 96


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_round_trip(directories, tmp_path, family) -> None:
    tokenizer = Tokenizer.load(directories[family])
    tokenizer.save(tmp_path / "first")
    again = Tokenizer.load(tmp_path / "first")
    again.save(tmp_path / "second")
    assert type(again) is type(tokenizer) and again.kind == ("xlm-roberta" if "xlm" in family else "huggingface")
    for name in ("vocabulary_size", *(f"{role}_id" for role in ROLES)):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert again.encode(SENTENCES) == tokenizer.encode(SENTENCES)
    files = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("first", "second")]
    assert files[0] == files[1] and len(files[0]) == 2
    assert read_pretrained_tokenizer(tmp_path / "first").encode(LANGUAGES) == tokenizer.encode(LANGUAGES)


def test_decoding_leaves_special_tokens_out(directories) -> None:
    for family in ("roberta", "xlm-roberta"):
        tokenizer = Tokenizer.load(directories[family])
        ids = tokenizer.encode([LANGUAGES[1]])[0]
        assert tokenizer.decode([tokenizer.pad_id, *tokenizer.add_special(ids), tokenizer.mask_id]) == LANGUAGES[1]
    bert = Tokenizer.load(directories["bert"])
    ids = bert.encode(["das kleine Haus"])[0]
    assert bert.decode([*bert.add_special(ids), bert.mask_id]) == "das kleine haus"
    assert bert.encode([""]) == [[]] and bert.encode([]) == []


def test_declared_special_tokens(directories, tmp_path) -> None:
    directory = copy(directories["bert"], tmp_path / "bert", cls_token="[wrong]", eos_token="[wrong]")
    lines = (directory / "vocab.txt").read_text(encoding="utf-8")
    renamed = (
        lines.replace("[PAD]", "<fill>").replace("[CLS]", "<go>").replace("[SEP]", "<stop>").replace("[MASK]", "¤")
    )
    (directory / "vocab.txt").write_text(renamed, encoding="utf-8")
    special = {"pad_token": "<fill>", "cls_token": {"content": "<go>", "lstrip": False}, "sep_token": "<stop>"}
    write_json(directory / "special_tokens_map.json", special)
    write_json(directory / "added_tokens.json", {"<en>": 1500, "<de>": 1501})
    tokenizer = Tokenizer.load(directory)
    special_ids = [getattr(tokenizer, f"{role}_id") for role in ROLES]
    assert special_ids == [0, 1, 2, 3, None] and tokenizer.vocabulary_size == 1502
    assert tokenizer.encode(["<de><go>the<en>"])[0][:2] == [1501, 2]
    assert tokenizer.encode(["<de><go>the<en>"])[0][-1] == 1500
    tokenizer.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").mask_id is None


def test_what_the_file_puts_around_a_sentence_counts(directories, tmp_path) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(read_pretrained_tokenizer(directories["bert"]).text)
    around = [("the", tokenizer.token_to_id("the")), ("a", tokenizer.token_to_id("a"))]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("the $A a", special_tokens=around)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [{**token, "special": token["content"] == "[UNK]"} for token in content["added_tokens"]]
    write_json(tmp_path / "tokenizer.json", content)
    ours = Tokenizer.load(tmp_path)
    assert (ours.bos_id, ours.eos_id) == (around[0][1], around[1][1])
    # The file's tokens for beginning and end are not text, even if it does not call them special.
    ids = ours.encode(["old house"])[0]
    assert ours.decode([*ours.add_special(ids), ours.pad_id, ours.mask_id]) == "old house"


def test_ids_with_gaps_count_in_the_vocabulary_size(directories, tmp_path) -> None:
    model = json.loads(read_pretrained_tokenizer(directories["bert"]).text)
    pieces = model["model"]["vocab"]
    last = max(pieces, key=pieces.get)
    pieces[last] = 5000
    write_json(tmp_path / "tokenizer.json", model)
    assert Tokenizer.load(tmp_path).vocabulary_size == 5001


def change(directory: Path, name: str, edit: Any) -> None:
    content = json.loads((directory / name).read_text(encoding="utf-8"))
    write_json(directory / name, edit(content) or content)


def no_pad(directory: Path) -> None:
    text = (directory / "vocab.txt").read_text(encoding="utf-8").replace("[PAD]", "[unused]")
    (directory / "vocab.txt").write_text(text, encoding="utf-8")


def without_separator(directory: Path) -> None:
    write_json(directory / "special_tokens_map.json", {"sep_token": "<end>"})


def other_template(directory: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_str(read_pretrained_tokenizer(directory).text)
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("[SEP] [SEP] $A", special_tokens=[("[SEP]", 3)])
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")


def damaged_template(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(read_pretrained_tokenizer(directory).text, encoding="utf-8")
    change(directory, "tokenizer.json", lambda c: c["post_processor"]["special_tokens"].pop("[CLS]") and None)


def without_unknown(directory: Path) -> None:
    (directory / "tokenizer.json").write_text(read_pretrained_tokenizer(directory).text, encoding="utf-8")
    change(directory, "tokenizer.json", lambda c: c["model"].update(unk_token="[nothing]"))


def write(name: str, content: bytes) -> Any:
    return lambda directory: (directory / name).write_bytes(content)


REFUSED = [
    ("bert", no_pad, r"vocab.txt: no pad token: the vocabulary has no \[PAD\] or <pad>; name one .* pad_token"),
    ("bert", without_separator, r"vocab.txt: no eos token: the vocabulary has no <end>"),
    ("bert", other_template, r"tokenizer.json: it puts 2 special tokens before a sentence and 0 behind it"),
    ("bert", damaged_template, r"tokenizer.json: not a tokenizer.json, or a damaged one"),
    ("bert", without_unknown, r"tokenizer.json: not a tokenizer.json, or a damaged one \(WordPiece error"),
    ("bert", write("tokenizer.json", b'{"version": "1.0"'), r"tokenizer.json: not a tokenizer.json"),
    ("bert", write("tokenizer.json", b"\xff\xfe"), r"tokenizer.json: not UTF-8 text \(byte 0\)"),
    ("bert", write("vocab.txt", b"[PAD]\n\xff\n"), r"vocab.txt: not UTF-8 text \(byte 6\)"),
    ("bert", write("vocab.txt", b""), r"vocab.txt: an empty vocabulary"),
    ("bert", write("tokenizer_config.json", b'{"do_lower_case": "no"}'), r"do_lower_case is 'no'; true or false"),
    ("bert", write("tokenizer_config.json", b'{"tokenizer_class": "BertJapaneseTokenizer"}'), r"BertJapaneseTokenizer"),
    ("bert", write("tokenizer_config.json", b"[1]"), r"tokenizer_config.json: not a tokenizer config"),
    ("bert", write("special_tokens_map.json", b"{"), r"special_tokens_map.json: not a JSON object, or a damaged one"),
    ("bert", write("added_tokens.json", b'{"<en>": 7}'), r"added_tokens.json: added token '<en>' has the id 7, but"),
    ("bert", write("added_tokens.json", b'{"<en>": null}'), r"added_tokens.json: not an added token and its id"),
    ("bert", write("tokenizer_config.json", b'{"added_tokens_decoder": {"9": 5}}'), r"config.json: not an added token"),
    ("bert", write("tokenizer_config.json", b'{"added_tokens_decoder": []}'), r"added_tokens_decoder is not a table"),
    ("roberta", write("vocab.json", b'{"a": "b"}'), r"vocab.json: not a table of pieces and ids"),
    ("roberta", write("merges.txt", b"#version: 0.2\na b\nc\n"), r"merges.txt:3: not a pair of pieces"),
    ("roberta", write("merges.txt", b"zz yy\n"), r"merges.txt: the merges do not fit vocab.json"),
    ("roberta", write("tokenizer_config.json", b'{"tokenizer_class": "GPT2Tokenizer"}'), r"belongs to GPT2Tokenizer"),
    ("xlm-roberta", write("sentencepiece.bpe.model", b"none" * 9), r"not a SentencePiece model, or a damaged one"),
    (
        "xlm-roberta",
        write("config.json", b'{"model_type": "camembert"}'),
        r"belongs to a model of type camembert; save",
    ),
]


@pytest.mark.parametrize(("family", "damage", "problem"), REFUSED)
def test_refused(directories, tmp_path, family, damage, problem) -> None:
    directory = copy(directories[family], tmp_path / family)
    damage(directory)
    with pytest.raises(UserError, match=problem) as error:
        Tokenizer.load(directory)
    assert error.value.cure and "\n" not in str(error.value) and str(directory) in str(error.value)


def test_no_tokenizer_names_what_was_looked_for(tmp_path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"model_max_length": 512})
    for read in (Tokenizer.load, read_pretrained_tokenizer):
        with pytest.raises(UserError, match=r"no such tokenizer: none of tokenizer\.json, vocab\.txt, .*there"):
            read(tmp_path)


def test_a_model_with_other_ids_is_not_taken_for_xlm_roberta(directories, tmp_path) -> None:
    model = (write_ours(tmp_path / "ours") / "sentencepiece.model").read_bytes()
    assert isinstance(Tokenizer.load(tmp_path / "ours"), SentencePieceTokenizer)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    with pytest.raises(UserError, match="its first pieces are <pad>, <unk>, <s>, those of XLM-R"):
        Tokenizer.load(tmp_path)
    model = sentencepiece_model(unk_id=0, bos_id=2, eos_id=1, pad_id=-1)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    with pytest.raises(UserError, match="its first pieces are <unk>, </s>, <s>, those of XLM-R"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json: no such file"),
        (lambda d: change(d, "tokenizer_config.json", lambda c: c.pop("special_ids") and None), "no ids of special"),
        (lambda d: change(d, "tokenizer_config.json", lambda c: c["special_ids"].update(pad=9999)), "the pad id 9999"),
        (lambda d: change(d, "tokenizer_config.json", lambda c: c["special_ids"].update(eos=None)), "the eos id None"),
        (lambda d: change(d, "tokenizer_config.json", lambda c: c.update(vocabulary_size=7)), "has 7"),
    ],
)
def test_damaged_folders_of_ours(directories, tmp_path, damage, problem) -> None:
    Tokenizer.load(directories["bert"]).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=problem):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("sentence", "config", "length"),
    [
        ({"max_seq_length": 256}, {"model_max_length": 512}, 256),
        ({"max_seq_length": None}, {"model_max_length": 512}, 512),
        (None, {"model_max_length": 128.0}, 128),
        (None, {"model_max_length": 1000000000000000019884624838656}, None),
        (None, {"model_max_length": True}, None),
        (None, None, None),
    ],
)
def test_maximum_length(tmp_path, sentence, config, length) -> None:
    for name, content in (("sentence_bert_config.json", sentence), ("tokenizer_config.json", config)):
        if content is not None:
            write_json(tmp_path / name, content)
    assert maximum_length(tmp_path) == length


def test_kinds_are_imported_when_first_used() -> None:
    program = "import sys, xrep.text.tokenizer; print('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
    assert HuggingFaceTokenizer.kind == "huggingface" and XLMRobertaTokenizer.kind == "xlm-roberta"

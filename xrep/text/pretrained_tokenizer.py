"""Tokenizers of pretrained models: Hugging Face model directories in, Hugging Face files out.

``read_pretrained_tokenizer`` opens a model directory. Two kinds of ``xrep.text.tokenizer.Tokenizer`` hold what it
finds: ``HuggingFaceTokenizer`` (anything the ``tokenizers`` library runs: WordPiece, byte-level BPE, unigram) and
``XLMRobertaTokenizer`` (SentencePiece with fairseq's ids). ``save_as_huggingface`` writes any tokenizer of xrep so
that transformers opens it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.files import write_aside
from xrep.text.special_tokens import (
    ROLES,
    SPECIAL_FILE,
    add_tokens,
    content_of,
    find_special,
    read_json,
    read_text,
)
from xrep.text.tokenizer import (
    CONFIG_FILE,
    SPACE,
    SentencePieceTokenizer,
    Tokenizer,
    open_sentencepiece,
    read_model,
    save_files,
    word_starts,
)
from xrep.text.tokenizer_json import (
    AGAIN,
    apply_options,
    build_byte_level_bpe,
    build_unigram,
    build_wordpiece,
    lower_case,
    read_tokenizer_json,
    surround,
    write_tokenizer_json,
)

JSON_FILE = "tokenizer.json"
XLM_ROBERTA_FILE = "sentencepiece.bpe.model"
SENTENCE_FILE = "sentence_bert_config.json"
BYTE_LEVEL_SPACE = "\u0120"
"""What byte-level BPE writes for a space."""
# Whose files these are, by the class of transformers that reads them.
_WORDPIECE = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_BYTE_LEVEL = ("RobertaTokenizer",)
_XLM_ROBERTA = ("XLMRobertaTokenizer",)


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library held in memory.

    Special tokens which a text spells ("a [MASK] here") become their ids, as transformers has it, unless
    ``split_special_tokens``. Text of nothing but spaces is what the model makes of it: nothing for BERT.

    Args:
        text: content of a ``tokenizer.json``.
        special_ids: ids of ``pad``, ``unk``, ``bos``, ``eos`` and ``mask`` (which may be None).
        split_special_tokens: take special tokens in a text for text.
        origin: where they came from, for messages.

    Raises:
        UserError: the text is no ``tokenizer.json``, or an id is missing or outside its vocabulary.
    """

    kind = "huggingface"

    def __init__(
        self,
        text: str,
        special_ids: Mapping[str, int | None],
        *,
        split_special_tokens: bool = False,
        origin: Path | str = JSON_FILE,
    ) -> None:
        self.text, self.split_special_tokens = text, split_special_tokens
        self._tokenizer = read_tokenizer_json(text, origin)
        self._tokenizer.encode_special_tokens = split_special_tokens
        # Ids may have gaps, so the number of pieces is not enough.
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        for name in ROLES:
            identity = special_ids.get(name)
            if identity is None and name == "mask":
                self.mask_id = None
                continue
            if type(identity) is not int or self._tokenizer.id_to_token(identity) is None:
                raise UserError(f"no piece has the {name} id {identity}", path=origin, cure=AGAIN)
            setattr(self, f"{name}_id", identity)
        self._silent = {self.pad_id, self.bos_id, self.eos_id, self.mask_id}

    @classmethod
    def _from_directory(cls, directory: Path) -> HuggingFaceTokenizer:
        config = read_json(directory / CONFIG_FILE)
        special_ids = config.get("special_ids")
        if not isinstance(special_ids, dict):
            cure = "give a folder that xrep wrote"
            raise UserError("no ids of special tokens", path=directory / CONFIG_FILE, cure=cure)
        split = config.get("split_special_tokens") is True
        path = directory / JSON_FILE
        tokenizer = cls(read_text(path), special_ids, split_special_tokens=split, origin=path)
        if tokenizer.vocabulary_size != config.get("vocabulary_size"):
            problem = (
                f"a vocabulary of {tokenizer.vocabulary_size}, but {CONFIG_FILE} has {config.get('vocabulary_size')}"
            )
            raise UserError(problem, path=path, cure="give a folder as xrep wrote it")
        return tokenizer

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids if int(i) not in self._silent], skip_special_tokens=True)

    def begins_word(self) -> list[bool]:
        model = json.loads(self.text)["model"]
        pieces = [self._tokenizer.id_to_token(i) or "" for i in range(self.vocabulary_size)]
        if model["type"] == "WordPiece":
            return [not piece.startswith(model["continuing_subword_prefix"]) for piece in pieces]
        return [piece.startswith((SPACE, BYTE_LEVEL_SPACE)) for piece in pieces]

    def save(self, directory: str | Path) -> None:
        special_ids = {name: getattr(self, f"{name}_id") for name in ROLES}
        files = {JSON_FILE: self.text.encode("utf-8")}
        save_files(self, directory, files, special_ids=special_ids, split_special_tokens=self.split_special_tokens)


class XLMRobertaTokenizer(Tokenizer):
    """The SentencePiece model of XLM-R with the ids of fairseq's dictionary.

    Ids: ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, piece i of the model i + 1, ``<mask>`` last. No text can spell
    the special ones (as in fairseq; transformers makes ``<mask>`` in a text the mask).

    Args:
        model: bytes of ``sentencepiece.bpe.model``.
        origin: where they came from, for messages.

    Raises:
        UserError: the bytes are no SentencePiece model, or its first pieces are not ``<unk>``, ``<s>``, ``</s>``.
    """

    kind = "xlm-roberta"
    bos_id, pad_id, eos_id, unk_id = 0, 1, 2, 3

    def __init__(self, model: bytes, origin: Path | str = XLM_ROBERTA_FILE) -> None:
        self.model = model
        self._processor = open_sentencepiece(model, origin)
        first = [self._processor.id_to_piece(i) for i in range(min(3, self._processor.get_piece_size()))]
        if first != ["<unk>", "<s>", "</s>"]:
            raise UserError(
                f"its first pieces are {', '.join(first)}, those of XLM-R <unk>, <s>, </s>",
                path=origin,
                cure="give XLM-R's model, or save this tokenizer as tokenizer.json with transformers",
            )
        self.vocabulary_size = self._processor.get_piece_size() + 2
        self.mask_id = self.vocabulary_size - 1

    @classmethod
    def _from_directory(cls, directory: Path) -> XLMRobertaTokenizer:
        path = directory / XLM_ROBERTA_FILE
        return cls(read_model(path), origin=path)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        unknown = self.unk_id
        rows = self._processor.encode(list(sentences), out_type=int)
        return [[i + 1 if i else unknown for i in row] for row in rows]

    def decode(self, ids: Iterable[int]) -> str:
        silent = {self.bos_id, self.pad_id, self.eos_id, self.mask_id}
        kept = (int(i) for i in ids if int(i) not in silent)
        return self._processor.decode([0 if i == self.unk_id else i - 1 for i in kept])

    def begins_word(self) -> list[bool]:
        return [False, *word_starts(self._processor), False]

    def save(self, directory: str | Path) -> None:
        save_files(self, directory, {XLM_ROBERTA_FILE: self.model})


def read_pretrained_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face model directory (or of a tokenizer folder of xrep).

    Read from ``tokenizer.json``, else ``vocab.txt`` (WordPiece), else ``vocab.json`` and ``merges.txt`` (byte-level
    BPE), else ``sentencepiece.bpe.model`` (XLM-R), in the directory or in ``0_Transformer``. Truncation and padding
    that ``tokenizer.json`` asks for are off. The special tokens are those of ``special_tokens_map.json`` and
    ``tokenizer_config.json``, else BERT's or RoBERTa's. What ``tokenizer_config.json`` says of case and accents wins
    over ``tokenizer.json`` where its class is BERT's, as in transformers; where it is silent, ``tokenizer.json`` counts
    (transformers would lower-case). ``bos_id`` and ``eos_id`` are what the model has around a sentence: [CLS] and
    [SEP], <s> and </s>.

    Raises:
        UserError: no tokenizer there, a damaged file, a special token missing, a tokenizer of another family.
    """
    directory = _find(Path(directory))
    config = {name: value for name, value in read_json(directory / CONFIG_FILE).items() if value is not None}
    if "kind" in config:
        return Tokenizer.load(directory)
    _check_options(config, directory / CONFIG_FILE)
    declared = {**config, **read_json(directory / SPECIAL_FILE)}
    path = directory / JSON_FILE
    original = read_text(path) if path.exists() else None
    if original is not None:
        tokenizer = read_tokenizer_json(original, path)
        if _class_of(config) in (None, *_WORDPIECE, *_BYTE_LEVEL):
            apply_options(tokenizer, config)
    elif (path := directory / "vocab.txt").exists():
        _check_class(config, path, _WORDPIECE)
        unknown = content_of(declared.get("unk_token")) or "[UNK]"
        tokenizer = build_wordpiece(path, unknown, config)
    elif (path := directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        _check_class(config, path, _BYTE_LEVEL)
        tokenizer = build_byte_level_bpe(path, directory / "merges.txt", config.get("add_prefix_space") is True)
    elif (path := directory / XLM_ROBERTA_FILE).exists():
        _check_class(config, path, _XLM_ROBERTA, read_json(directory / "config.json").get("model_type"))
        return XLMRobertaTokenizer(read_model(path), origin=path)
    else:
        raise UserError(
            f"no such tokenizer: none of {JSON_FILE}, vocab.txt, vocab.json with merges.txt, {XLM_ROBERTA_FILE} there",
            path=directory,
            cure="give a tokenizer folder, a Hugging Face model directory or a .model file",
        )
    if read_json(directory / SENTENCE_FILE).get("do_lower_case") is True:
        lower_case(tokenizer)
    add_tokens(tokenizer, directory, config)
    special_ids = find_special(tokenizer, declared, path)
    return HuggingFaceTokenizer(
        write_tokenizer_json(tokenizer, original),
        special_ids,
        split_special_tokens=config.get("split_special_tokens") is True,
        origin=path,
    )


def maximum_length(directory: str | Path) -> int | None:
    """The longest input of a pretrained model in tokens, special ones included, as its directory gives it.

    That is ``max_seq_length`` of ``sentence_bert_config.json``, else ``model_max_length`` of
    ``tokenizer_config.json`` if that is a length at all (below a million), else None.

    Raises:
        UserError: one of these files is damaged.
    """
    directory = _find(Path(directory))
    for name, key in ((SENTENCE_FILE, "max_seq_length"), (CONFIG_FILE, "model_max_length")):
        length = read_json(directory / name).get(key)
        if isinstance(length, (int, float)) and not isinstance(length, bool) and 0 < length < 1e6:
            return int(length)
    return None


def save_as_huggingface(tokenizer: Tokenizer, directory: str | Path, model_max_length: int | None) -> None:
    """Write what transformers' ``AutoTokenizer`` and ``PreTrainedTokenizerFast`` load, with the same ids.

    ``tokenizer.json`` puts ``bos`` and ``eos`` around a sentence. SentencePiece models become their equivalent in the
    ``tokenizers`` library (``xrep.text.tokenizer_json`` says where the two may differ). Text cannot spell the special
    tokens of those; transformers knows it from ``split_special_tokens``, the ``tokenizers`` library alone does not.

    Args:
        directory: made if missing; files of the same names are replaced.
        model_max_length: longest input in tokens, special ones included; None leaves it open.

    Raises:
        UserError: a tokenizer that the ``tokenizers`` library cannot express.
    """
    original = tokenizer.text if isinstance(tokenizer, HuggingFaceTokenizer) else None
    if isinstance(tokenizer, HuggingFaceTokenizer):
        rust, split = read_tokenizer_json(tokenizer.text, JSON_FILE), tokenizer.split_special_tokens
    elif isinstance(tokenizer, XLMRobertaTokenizer):
        before = ("<s>", "<pad>", "</s>", "<unk>")
        rust, split = build_unigram(tokenizer.model, before, ("<mask>",), drop=3, unknown_id=tokenizer.unk_id), True
    elif isinstance(tokenizer, SentencePieceTokenizer):
        rust, split = build_unigram(tokenizer.model), True
    else:
        cure = "use one of the kinds that come with xrep"
        raise UserError(f"a tokenizer of kind {tokenizer.kind!r} cannot become a {JSON_FILE}", cure=cure)
    ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
    tokens = {role: rust.id_to_token(identity) for role, identity in ids.items() if identity is not None}
    if rust.encode("").ids != [tokenizer.bos_id, tokenizer.eos_id]:
        bos, eos = tokens["bos"], tokens["eos"]
        assert bos is not None and eos is not None
        surround(rust, bos, eos, bert=bos == "[CLS]")
    special = {name: tokens[role] for role, (names, _) in ROLES.items() if role in tokens for name in names}
    types = ["token_type_ids"] if 1 in rust.encode("", "").type_ids else []
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    if model_max_length is not None:
        config["model_max_length"] = model_max_length
    config |= {
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": split,
        "model_input_names": ["input_ids", *types, "attention_mask"],
    }
    prefixed = getattr(rust.pre_tokenizer, "add_prefix_space", None)
    if prefixed is not None:
        config["add_prefix_space"] = prefixed  # transformers 4 would set its own default
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    contents = {JSON_FILE: write_tokenizer_json(rust, original), SPECIAL_FILE: json.dumps(special, indent=2) + "\n"}
    contents[CONFIG_FILE] = json.dumps(config, indent=2) + "\n"
    for name, content in contents.items():
        with write_aside(directory / name) as temporary:
            temporary.write_text(content, encoding="utf-8")


def _find(directory: Path) -> Path:
    """Where the tokenizer's files lie: old sentence-transformers directories have a folder for each module."""
    inner = directory / "0_Transformer"
    return inner if inner.is_dir() and not (directory / CONFIG_FILE).exists() else directory


def _check_options(config: Mapping[str, Any], path: Path) -> None:
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"):
        if not isinstance(config.get(name, False), bool):
            raise UserError(f"{name} is {config[name]!r}", path=path, cure="true or false")


def _check_class(
    config: Mapping[str, Any], path: Path, known: Sequence[str], model_type: str | None = "xlm-roberta"
) -> None:
    """Refuse files that are like those of a known family but belong to another."""
    name = _class_of(config)
    other = name if name not in (None, *known) else None
    if name is None and model_type not in (None, "xlm-roberta"):
        other = f"a model of type {model_type}"
    if other:
        cure = f"save it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) gives {JSON_FILE}"
        raise UserError(f"read as {known[0]}, but it belongs to {other}", path=path, cure=cure)


def _class_of(config: Mapping[str, Any]) -> str | None:
    name = config.get("tokenizer_class")
    return name.removesuffix("Fast") if isinstance(name, str) else None

"""Tokenizers of pretrained models: reading Hugging Face model directories, and writing Hugging Face files.

``read_pretrained_tokenizer`` opens a model directory and returns a ``HuggingFaceTokenizer`` (everything that the
``tokenizers`` library runs: WordPiece, byte-level BPE, unigram) or an ``XLMRobertaTokenizer`` (SentencePiece with
fairseq's ids). ``save_as_huggingface`` writes any tokenizer of xrep in the format of transformers.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xrep.errors import UserError
from xrep.text.special_tokens import ROLES, SPECIAL_FILE, add_tokens, content_of, find_special
from xrep.text.tokenizer import (
    AGAIN,
    CONFIG_FILE,
    SentencePieceTokenizer,
    Tokenizer,
    read_json,
    read_text,
    write_files,
)
from xrep.text.tokenizer_json import (
    apply_options,
    build_byte_level_bpe,
    build_unigram,
    build_wordpiece,
    explaining,
    lower_case,
    read_tokenizer_json,
    surround,
    write_tokenizer_json,
)

JSON_FILE = "tokenizer.json"
XLM_ROBERTA_FILE = "sentencepiece.bpe.model"
SENTENCE_FILE = "sentence_bert_config.json"
# The tokenizer classes of transformers, without "Fast", that belong to each family of files.
_WORDPIECE = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_BYTE_LEVEL = ("RobertaTokenizer",)
_XLM_ROBERTA = ("XLMRobertaTokenizer",)


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library held in memory.

    The name of a special token in a text ("a [MASK] here") becomes the id of that token, as in transformers, unless
    ``split_special_tokens`` is set. A text of spaces only is left to the model: with BERT's it gives no ids.

    Args:
        text: Content of a ``tokenizer.json``.
        special_ids: Ids of ``pad``, ``unk``, ``bos``, ``eos`` and ``mask``; ``bos`` and ``mask`` may be None.
        split_special_tokens: Treat the name of a special token in a text as ordinary text.
        origin: Where ``text`` came from, for error messages.
    """

    kind = "huggingface"
    model_file = JSON_FILE

    def __init__(
        self,
        text: str,
        special_ids: Mapping[str, int | None],
        *,
        split_special_tokens: bool = False,
        origin: Path | str = JSON_FILE,
    ) -> None:
        self.model, self.split_special_tokens = text.encode("utf-8"), split_special_tokens
        self._tokenizer, self._origin = read_tokenizer_json(text, origin), origin
        self._tokenizer.encode_special_tokens = split_special_tokens
        # There may be unused ids in between, so the number of pieces can be smaller than the largest id.
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        for role in ROLES:
            identity = special_ids.get(role)
            is_piece = type(identity) is int and self._tokenizer.id_to_token(identity) is not None
            if not is_piece and not (identity is None and role in ("bos", "mask")):
                raise UserError(f"no piece has the {role} id {identity}", path=origin, cure=AGAIN)
            setattr(self, f"{role}_id", identity)
        self.pair_separators = max(1, self._tokenizer.num_special_tokens_to_add(True) - 2)
        self._silent = {self.pad_id, self.bos_id, self.eos_id, self.mask_id}

    @property
    def text(self) -> str:
        """The content of ``tokenizer.json``."""
        return self.model.decode("utf-8")

    @classmethod
    def open(cls, directory: Path) -> HuggingFaceTokenizer:
        config = read_json(directory / CONFIG_FILE)
        special_ids = config.get("special_ids")
        if not isinstance(special_ids, dict):
            cure = "give a folder that xrep wrote"
            raise UserError("no ids of special tokens", path=directory / CONFIG_FILE, cure=cure)
        path = directory / JSON_FILE
        split = config.get("split_special_tokens") is True
        tokenizer = cls(read_text(path), special_ids, split_special_tokens=split, origin=path)
        size = config.get("vocabulary_size")
        if tokenizer.vocabulary_size != size:
            problem = f"a vocabulary of {tokenizer.vocabulary_size}, but {CONFIG_FILE} has {size}"
            raise UserError(problem, path=path, cure="give a folder as xrep wrote it")
        return tokenizer

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        with explaining("the tokenizer fails on a text", self._origin):
            encodings = self._tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def use_one_thread(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int]) -> str:
        with explaining("the tokenizer fails on ids", self._origin):
            return self._tokenizer.decode([int(i) for i in ids if int(i) not in self._silent], skip_special_tokens=True)

    def _options(self) -> dict[str, Any]:
        return {"special_ids": self.special_ids, "split_special_tokens": self.split_special_tokens}


class XLMRobertaTokenizer(SentencePieceTokenizer):
    """The SentencePiece model of XLM-R with the ids of fairseq's dictionary.

    The ids are ``<s>`` 0, ``<pad>`` 1, ``</s>`` 2, ``<unk>`` 3, i + 1 for piece i of the model, and ``<mask>`` last. No
    text is encoded as a special token other than ``<unk>``. This is as in fairseq; transformers turns ``<mask>`` in a
    text into the mask. The first pieces of the model must be ``<unk>``, ``<s>`` and ``</s>``.
    """

    kind = "xlm-roberta"
    model_file = XLM_ROBERTA_FILE

    def _set_ids(self, size: int, origin: Path | str) -> None:
        first = [self._processor.id_to_piece(i) for i in range(min(3, size))]
        if first != ["<unk>", "<s>", "</s>"]:
            problem = f"its first pieces are {', '.join(first)}, those of XLM-R <unk>, <s>, </s>"
            cure = "give XLM-R's model, or save this tokenizer as tokenizer.json with transformers"
            raise UserError(problem, path=origin, cure=cure)
        self.bos_id, self.pad_id, self.eos_id, self.unk_id = 0, 1, 2, 3
        self.vocabulary_size = size + 2
        self.mask_id = size + 1

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        return [[i + 1 if i else self.unk_id for i in row] for row in super().encode(sentences)]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, spans = super().encode_spans(text)
        return [i + 1 if i else self.unk_id for i in ids], spans

    def decode(self, ids: Iterable[int]) -> str:
        kept = (int(i) for i in ids if int(i) not in (self.bos_id, self.pad_id, self.eos_id, self.mask_id))
        return super().decode(0 if i == self.unk_id else i - 1 for i in kept)


KINDS = (HuggingFaceTokenizer, XLMRobertaTokenizer)
"""The kinds of saved tokenizers that ``xrep.text.tokenizer`` does not have itself."""


def read_pretrained_tokenizer(directory: str | Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face model directory (or of a tokenizer folder of xrep).

    The tokenizer is read from the first of these that is in the directory or in its folder ``0_Transformer``:
    ``tokenizer.json``, ``vocab.txt`` (WordPiece), ``vocab.json`` with ``merges.txt`` (byte-level BPE),
    ``sentencepiece.bpe.model`` (XLM-R), or any other ``*.model`` that transformers reads, if it is installed.
    Truncation and padding in ``tokenizer.json`` are ignored. The special tokens are those that
    ``special_tokens_map.json`` and ``tokenizer_config.json`` name, or else BERT's or RoBERTa's.
    ``bos_id`` and ``eos_id`` are the tokens that the model has around a sentence: [CLS] and [SEP], or <s> and </s>.

    Options of ``tokenizer_config.json`` such as those for case and accents override ``tokenizer.json``, as in
    transformers, if the class there is BERT's or RoBERTa's or is not given. An option that is not given is taken from
    ``tokenizer.json`` (transformers would lower-case).

    Raises:
        UserError: If a file is damaged or missing, or the tokenizer belongs to another family.
    """
    directory = _find(Path(directory))
    config = {name: value for name, value in read_json(directory / CONFIG_FILE).items() if value is not None}
    if "kind" in config:
        return Tokenizer.load(directory)
    _check_options(config, directory / CONFIG_FILE)
    declared = {**config, **read_json(directory / SPECIAL_FILE)}
    path = directory / JSON_FILE
    original = read_text(path) if path.exists() else _converted(directory)
    if original is not None:
        tokenizer = read_tokenizer_json(original, path)
        if _class_of(config) in (None, *_WORDPIECE, *_BYTE_LEVEL):
            apply_options(tokenizer, config)
    elif (path := directory / "vocab.txt").exists():
        _check_class(config, path, _WORDPIECE)
        tokenizer = build_wordpiece(path, content_of(declared.get("unk_token")) or "[UNK]", config)
    elif (path := directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        _check_class(config, path, _BYTE_LEVEL)
        tokenizer = build_byte_level_bpe(path, directory / "merges.txt", config.get("add_prefix_space") is True)
    elif (path := directory / XLM_ROBERTA_FILE).exists():
        _check_class(config, path, _XLM_ROBERTA, read_json(directory / "config.json").get("model_type"))
        return XLMRobertaTokenizer.open(directory)
    else:
        files = f"{JSON_FILE}, vocab.txt, vocab.json with merges.txt, {XLM_ROBERTA_FILE}"
        cure = "give a tokenizer folder, a Hugging Face model directory or a .model file"
        if other := _other_models(directory):
            cure = f"pip install 'xrep[hf]', with which transformers may read {other[0].name}"
        raise UserError(f"no such tokenizer: none of {files} there", path=directory, cure=cure)
    if read_json(directory / SENTENCE_FILE).get("do_lower_case") is True:
        lower_case(tokenizer)
    with explaining("a damaged tokenizer", path):
        add_tokens(tokenizer, directory, config)
        special_ids = find_special(tokenizer, declared, path)
    text, split = write_tokenizer_json(tokenizer, original), config.get("split_special_tokens") is True
    return HuggingFaceTokenizer(text, special_ids, split_special_tokens=split, origin=path)


def _converted(directory: Path) -> str | None:
    """Return the ``tokenizer.json`` that transformers makes of ``spm.model`` and the like; None if there is none."""
    if not _other_models(directory) or importlib.util.find_spec("transformers") is None:
        return None
    from transformers import AutoTokenizer

    try:
        fast = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return fast.backend_tokenizer.to_str()
    except Exception as error:
        problem = f"transformers cannot read this tokenizer ({type(error).__name__}: {' '.join(str(error).split())})"
        raise UserError(problem, path=directory, cure=f"save it with transformers, which gives {JSON_FILE}") from None


def _other_models(directory: Path) -> list[Path]:
    """Return the SentencePiece models of families other than XLM-R; files that xrep reads itself come first."""
    own = ("vocab.txt", "vocab.json", XLM_ROBERTA_FILE)
    return [] if any((directory / name).exists() for name in own) else sorted(directory.glob("*.model"))


def maximum_length(directory: str | Path) -> int | None:
    """Return the longest input of a pretrained model in tokens, including special ones, as given in its directory.

    This is ``max_seq_length`` of ``sentence_bert_config.json``, or else ``model_max_length`` of
    ``tokenizer_config.json``. A value of a million or more does not count as a length. None if neither is given.
    """
    directory = _find(Path(directory))
    for name, key in ((SENTENCE_FILE, "max_seq_length"), (CONFIG_FILE, "model_max_length")):
        length = read_json(directory / name).get(key)
        if isinstance(length, (int, float)) and not isinstance(length, bool) and 0 < length < 1e6:
            return int(length)
    return None


def save_as_huggingface(tokenizer: Tokenizer, directory: str | Path, model_max_length: int | None) -> None:
    """Write the files that transformers' ``AutoTokenizer`` and ``PreTrainedTokenizerFast`` load, with the same ids.

    ``tokenizer.json`` puts ``bos`` and ``eos`` around a sentence. SentencePiece models are converted to their
    equivalent in the ``tokenizers`` library (``xrep.text.tokenizer_json`` describes where the two may differ), and the
    option ``split_special_tokens`` makes transformers, too, take the name of a special token in a text as ordinary
    text; the ``tokenizers`` library used alone does not know the option.

    Args:
        directory: Output folder, created if missing; files of the same names are replaced.
        model_max_length: Longest input in tokens, including special ones; None sets no limit.

    Raises:
        UserError: If the ``tokenizers`` library cannot express the tokenizer.
    """
    original = None
    if isinstance(tokenizer, HuggingFaceTokenizer):
        original, split = tokenizer.text, tokenizer.split_special_tokens
        rust = read_tokenizer_json(original, JSON_FILE)
    elif isinstance(tokenizer, XLMRobertaTokenizer):
        before = ("<s>", "<pad>", "</s>", "<unk>")
        rust, split = build_unigram(tokenizer.model, before, ("<mask>",), drop=3, unknown_id=tokenizer.unk_id), True
    elif isinstance(tokenizer, SentencePieceTokenizer):
        rust, split = build_unigram(tokenizer.model), True
    else:
        cure = "use one of the kinds that come with xrep"
        raise UserError(f"a tokenizer of kind {tokenizer.kind!r} cannot become a {JSON_FILE}", cure=cure)
    ids = tokenizer.special_ids
    tokens = {role: rust.id_to_token(identity) for role, identity in ids.items() if identity is not None}
    if rust.encode("").ids != tokenizer.add_special([]):
        bos, eos = tokens.get("bos"), tokens["eos"]
        assert bos is not None and eos is not None
        surround(rust, bos, eos, bert=bos == "[CLS]")
    special = {name: tokens[role] for role, (names, _) in ROLES.items() if role in tokens for name in names}
    types = ["token_type_ids"] if 1 in rust.encode("", "").type_ids else []
    prefixed = getattr(rust.pre_tokenizer, "add_prefix_space", None)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        **({} if model_max_length is None else {"model_max_length": model_max_length}),
        "padding_side": "right",
        "truncation_side": "right",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": split,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        # Without this entry, transformers 4 would use its own default.
        **({} if prefixed is None else {"add_prefix_space": prefixed}),
    }
    texts = {JSON_FILE: write_tokenizer_json(rust, original), SPECIAL_FILE: json.dumps(special, indent=2) + "\n"}
    texts[CONFIG_FILE] = json.dumps(config, indent=2) + "\n"
    write_files({name: text.encode("utf-8") for name, text in texts.items()}, directory)


def _find(directory: Path) -> Path:
    """Return the folder of the tokenizer's files; old sentence-transformers directories have one folder per module."""
    inner = directory / "0_Transformer"
    return inner if inner.is_dir() and not (directory / CONFIG_FILE).exists() else directory


def _check_options(config: Mapping[str, Any], path: Path) -> None:
    for name in ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"):
        if not isinstance(config.get(name, False), bool):
            raise UserError(f"{name} is {config[name]!r}", path=path, cure="true or false")


def _check_class(config: Mapping[str, Any], path: Path, known: Sequence[str], model_type: Any = None) -> None:
    """Raise UserError for files that look like those of a known family but belong to another."""
    other = _class_of(config)
    if other is None and model_type not in (None, "xlm-roberta"):
        other = f"a model of type {model_type}"
    if other not in (None, *known):
        cure = f"save it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) gives {JSON_FILE}"
        raise UserError(f"read as {known[0]}, but it belongs to {other}", path=path, cure=cure)


def _class_of(config: Mapping[str, Any]) -> str | None:
    name = config.get("tokenizer_class")
    return name.removesuffix("Fast") if isinstance(name, str) else None

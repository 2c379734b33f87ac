"""Tokenizers that the ``tokenizers`` library runs (``tokenizer.json``), and the files of Hugging Face directories.

``read_huggingface`` opens that of a model directory, and ``save_as_huggingface`` writes any as transformers has it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from xrep.errors import UserError
from xrep.text.tokenizer import (
    CONFIG_FILE,
    FETCH_AGAIN,
    MASK_PIECE,
    SPACE,
    XLM_ROBERTA_FILE,
    SentencePieceTokenizer,
    Tokenizer,
    XLMRobertaTokenizer,
    as_json,
    read_config,
    read_model_file,
    write_files,
)

JSON_FILE = "tokenizer.json"
SPECIAL_FILE = "special_tokens_map.json"
SENTENCE_FILE = "sentence_bert_config.json"
# The role of each special token, the config entries that declare it, and its text if nothing declares it.
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pad": (("pad_token",), ("[PAD]", "<pad>")),
    "unk": (("unk_token",), ("[UNK]", "<unk>")),
    "bos": (("cls_token", "bos_token"), ("[CLS]", "<s>")),
    "eos": (("sep_token", "eos_token"), ("[SEP]", "</s>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
}
# Families of which an option in ``tokenizer_config.json`` overrides ``tokenizer.json``; "" is none that is named.
_WITH_OPTIONS = ("", "bert", "distilbert", "electra", "roberta")
# The types of the pieces of a SentencePiece model, and its kind (sentencepiece_model.proto).
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE, _UNIGRAM = 1, 3, 4, 5, 6, 1


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer of the ``tokenizers`` library held in memory.

    The name of a special token in a text ("a [MASK] here") becomes the id of that token, as in transformers, unless
    ``split_special_tokens`` is set. A text of spaces only is left to the model: with BERT's it gives no ids.

    Args:
        model: Content of a ``tokenizer.json``; truncation, padding and dropout in it are ignored.
        special_ids: Ids of ``pad``, ``unk``, ``bos``, ``eos`` and ``mask``; ``bos`` and ``mask`` may be None.
        split_special_tokens: Treat the name of a special token in a text as ordinary text.
        origin: Where ``model`` came from, for error messages.
    """

    kind = "huggingface"
    model_file = JSON_FILE

    def __init__(
        self,
        model: bytes,
        special_ids: Mapping[str, int | None],
        *,
        split_special_tokens: bool = False,
        origin: Path | str = JSON_FILE,
    ) -> None:
        self.model, self.split_special_tokens = model, split_special_tokens
        self._tokenizer = _from_json(model, origin)
        self._tokenizer.encode_special_tokens = split_special_tokens
        # There may be unused ids in between, so the number of pieces can be smaller than the largest id.
        self.vocabulary_size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)
        for role in ROLES:
            setattr(self, f"{role}_id", special_ids[role])
        self.pair_separators = max(1, self._tokenizer.num_special_tokens_to_add(True) - 2)
        self._silent = {self.pad_id, self.bos_id, self.eos_id, self.mask_id}

    @classmethod
    def open(cls, directory: Path) -> HuggingFaceTokenizer:
        """Open a folder that a tokenizer of this kind was saved in."""
        config, path = read_config(directory / CONFIG_FILE), directory / JSON_FILE
        split = config["split_special_tokens"]
        return cls(read_model_file(path), config["special_ids"], split_special_tokens=split, origin=path)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def use_one_thread(self) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode([int(i) for i in ids if int(i) not in self._silent], skip_special_tokens=True)

    def _options(self) -> dict[str, Any]:
        return {"special_ids": self.special_ids, "split_special_tokens": self.split_special_tokens}


def read_huggingface(directory: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face model directory.

    The tokenizer is read from ``tokenizer.json`` or ``sentencepiece.bpe.model`` (XLM-R) in the directory or in its
    folder ``0_Transformer``. Other files, such as ``vocab.txt``, are read by transformers, if it is installed. The
    special tokens are those that ``special_tokens_map.json`` and ``tokenizer_config.json`` name, or else BERT's or
    RoBERTa's. ``bos_id`` and ``eos_id`` are the tokens that the model has around a sentence: [CLS] and [SEP], or <s>
    and </s>; of decoders those that ``tokenizer.json`` puts there, or else ``add_bos_token`` and ``add_eos_token``.
    Without an unknown token, ``unk_id`` is ``pad_id``.

    Options of ``tokenizer_config.json`` such as those for case override ``tokenizer.json``, as in transformers, if the
    class there is BERT's or RoBERTa's or is not given. Options that are not given are those of ``tokenizer.json``.

    Raises:
        UserError: If a file is damaged or missing, texts are cut at the left, or transformers is needed and not there.
    """
    directory = _find(directory)
    config = {name: value for name, value in read_config(directory / CONFIG_FILE).items() if value is not None}
    family, path = _family(config.get("tokenizer_class")), directory / JSON_FILE
    if path.exists():
        original = read_model_file(path)
    elif (path := directory / XLM_ROBERTA_FILE).exists() and _is_xlm_roberta(directory, family):
        return XLMRobertaTokenizer(read_model_file(path), path)
    else:
        path, original = directory, _convert(directory)
    tokenizer = _from_json(original, path)
    if config.get("truncation_side") == "left":
        raise UserError("cuts texts at the left", path=directory / CONFIG_FILE, cure="set truncation_side to right")
    if family in _WITH_OPTIONS:
        _apply_options(tokenizer, config)
    if read_config(directory / SENTENCE_FILE).get("do_lower_case") is True:
        rest = [tokenizer.normalizer] if tokenizer.normalizer else []
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *rest])
    special_ids = _find_special(tokenizer, {**config, **read_config(directory / SPECIAL_FILE)}, path)
    split = config.get("split_special_tokens") is True
    return HuggingFaceTokenizer(_to_json(tokenizer, original), special_ids, split_special_tokens=split, origin=path)


def maximum_length(directory: str | Path) -> int | None:
    """Return the longest input of a pretrained model in tokens, including special ones, as given in its directory.

    This is ``max_seq_length`` of ``sentence_bert_config.json``, or else ``model_max_length`` of
    ``tokenizer_config.json``. A value of a million or more does not count as a length. None if neither is given.
    """
    directory = _find(Path(directory))
    for name, key in ((SENTENCE_FILE, "max_seq_length"), (CONFIG_FILE, "model_max_length")):
        length = read_config(directory / name).get(key)
        if isinstance(length, (int, float)) and not isinstance(length, bool) and 0 < length < 1e6:
            return int(length)
    return None


def save_as_huggingface(tokenizer: Tokenizer, directory: str | Path, model_max_length: int | None) -> None:
    """Write the files that transformers' ``AutoTokenizer`` and ``PreTrainedTokenizerFast`` load, with the same ids.

    ``tokenizer.json`` puts ``bos`` and ``eos`` around a sentence. SentencePiece models are converted to their
    equivalent in the ``tokenizers`` library. The option ``split_special_tokens`` makes transformers, too, take the name
    of a special token in a text as ordinary text; the ``tokenizers`` library used alone does not know the option.

    Args:
        directory: Output folder, created if missing; files of the same names are replaced.
        model_max_length: Longest input in tokens, including special ones; None sets no limit.

    Raises:
        UserError: If the ``tokenizers`` library cannot express the tokenizer.
    """
    original = None
    if isinstance(tokenizer, HuggingFaceTokenizer):
        original, split = tokenizer.model, tokenizer.split_special_tokens
        rust = _from_json(original, JSON_FILE)
    else:
        assert isinstance(tokenizer, SentencePieceTokenizer)
        rust, split = _unigram(tokenizer), True
    ids = tokenizer.special_ids
    tokens = {role: rust.id_to_token(identity) for role, identity in ids.items() if identity is not None}
    if rust.encode("").ids != tokenizer.add_special([]):
        _surround(rust, tokenizer.bos_id, tokenizer.eos_id)
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
    files = {JSON_FILE: _to_json(rust, original)}
    files |= {name: as_json(content) for name, content in ((SPECIAL_FILE, special), (CONFIG_FILE, config))}
    write_files(files, directory)


def _find(directory: Path) -> Path:
    """Return the folder of the tokenizer's files; old sentence-transformers directories have one folder per module."""
    inner = directory / "0_Transformer"
    return inner if inner.is_dir() and not (directory / CONFIG_FILE).exists() else directory


def _family(name: Any) -> str:
    """Return the family that a tokenizer class or a type of model names: "xlmroberta", or "" for None."""
    return str(name or "").removesuffix("Fast").removesuffix("Tokenizer").replace("-", "").lower()


def _is_xlm_roberta(directory: Path, family: str) -> bool:
    """Return whether a ``sentencepiece.bpe.model`` has XLM-R's ids; other families number its pieces differently."""
    return (family or _family(read_config(directory / "config.json").get("model_type"))) in ("", "xlmroberta")


def _from_json(content: bytes, origin: Path | str) -> tokenizers.Tokenizer:
    """Return the tokenizer in a ``tokenizer.json``, with truncation, padding and dropout turned off."""
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:
        problem = f"not a {JSON_FILE}, or a damaged one ({' '.join(str(error).split())})"
        raise UserError(problem, path=origin, cure=FETCH_AGAIN) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None  # Dropout is for training: it gives a sentence different ids each time.
    return tokenizer


def _to_json(tokenizer: tokenizers.Tokenizer, original: bytes | None = None) -> bytes:
    """Return a ``tokenizer.json``; ``original`` is the content that the tokenizer was read from, if any.

    The library does not read the scores of a unigram model to the last digit, so that each reading and writing would
    change them, and with them the choice between segmentations of equal score. They are copied from ``original``.
    """
    text = tokenizer.to_str()
    if not isinstance(tokenizer.model, models.Unigram):
        return text.encode()
    content = json.loads(text)
    if original is not None:
        content["model"]["vocab"] = json.loads(original)["model"]["vocab"]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _apply_options(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Override the options of ``tokenizer.json`` with those that ``tokenizer_config.json`` gives."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        normalizer.lowercase = config.get("do_lower_case", normalizer.lowercase)
        normalizer.strip_accents = config.get("strip_accents", normalizer.strip_accents)
        normalizer.handle_chinese_chars = config.get("tokenize_chinese_chars", normalizer.handle_chinese_chars)
        tokenizer.normalizer = normalizer
    if isinstance(splitter, pre_tokenizers.ByteLevel) and "add_prefix_space" in config:
        splitter.add_prefix_space = config["add_prefix_space"]
        tokenizer.pre_tokenizer = splitter


def _convert(directory: Path) -> bytes:
    """Return the ``tokenizer.json`` that transformers makes of other files, such as ``vocab.txt`` or ``spm.model``."""
    files = sorted(path.name for pattern in ("vocab.*", "*.model") for path in directory.glob(pattern))
    if not files:
        problem = f"no such tokenizer: neither {JSON_FILE} nor vocab.txt, vocab.json or a .model file there"
        cure = "give a tokenizer folder, a Hugging Face model directory or a .model file"
        raise UserError(problem, path=directory, cure=cure)
    if importlib.util.find_spec("transformers") is None:
        problem = f"{files[0]} is read with transformers, which is not installed"
        raise UserError(problem, path=directory, cure="pip install 'xrep[hf]'")
    from transformers import AutoTokenizer

    try:
        fast = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return fast.backend_tokenizer.to_str().encode()
    except Exception as error:
        problem = f"transformers cannot read {files[0]} ({type(error).__name__}: {' '.join(str(error).split())})"
        raise UserError(problem, path=directory, cure=f"save it with transformers, which gives {JSON_FILE}") from None


def _find_special(tokenizer: tokenizers.Tokenizer, declared: Mapping[str, Any], path: Path) -> dict[str, int | None]:
    """Return the ids of the special tokens by role, and register these tokens as special in the tokenizer.

    The tokens that the tokenizer itself puts around a sentence are ``bos`` and ``eos``; one that neither it nor its
    configuration puts there is None. If it puts none on either side and the vocabulary has [CLS] or <s>, it is changed
    to do so.

    Args:
        declared: The entries of ``special_tokens_map.json`` and ``tokenizer_config.json``.
        path: The file of the vocabulary, for error messages.
    """
    ids, wanted = dict[str, int | None](), dict[str, Sequence[str]]()
    registered = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for role, (names, defaults) in ROLES.items():
        wanted[role] = [token for token in map(_content, map(declared.get, names)) if token][:1] or defaults
        token = next((token for token in wanted[role] if tokenizer.token_to_id(token) is not None), None)
        ids[role] = None if token is None else tokenizer.token_to_id(token)
        if token is not None and token not in registered:
            tokenizer.add_special_tokens([token])
    mask = (encoding := tokenizer.encode("a")).special_tokens_mask
    before, behind = encoding.ids[: mask.index(0)], encoding.ids[len(mask) - mask[::-1].index(0) :]
    if len(before) > 1 or len(behind) > 1:
        problem = f"it puts {len(before)} special tokens before a sentence and {len(behind)} behind it"
        raise UserError(problem, path=path, cure="use a model with one at most")
    bos = "" if ids["bos"] is None else tokenizer.id_to_token(ids["bos"])
    surrounds = bool(bos and not before and not behind and (declared.get("cls_token") or bos in ROLES["bos"][1]))
    cure = "" if ids["eos"] is None else f", such as {tokenizer.id_to_token(ids['eos'])}"
    if not surrounds:  # The model was trained with what the file itself, or else its configuration, puts there.
        for role, there in (("bos", before), ("eos", behind)):
            ids[role] = next(iter(there), ids[role] if declared.get(f"add_{role}_token") is True else None)
    if ids["unk"] is None and getattr(tokenizer.model, "unk_token", "") is None:
        ids["unk"] = ids["pad"]
    for role, identity in ids.items():
        if identity is None and (role in ("pad", "unk") or (role == "eos" and surrounds)):
            cure = f"name one of its pieces as {ROLES[role][0][0]} in {SPECIAL_FILE}{cure}"
            problem = f"no {role} token: the vocabulary has no {' or '.join(wanted[role])}"
            raise UserError(problem, path=path, cure=cure)
    if surrounds:
        _surround(tokenizer, ids["bos"], ids["eos"])
    return ids


def _content(value: Any) -> str | None:
    """Return the text of a token in a config, which is a string or a table with the entry ``content``."""
    return value.get("content") if isinstance(value, dict) else value


def _surround(tokenizer: tokenizers.Tokenizer, bos_id: int | None, eos_id: int | None) -> None:
    """Make a tokenizer put special tokens around sentences, those of the two that there are.

    BERT has ``[CLS] A [SEP]`` and ``[CLS] A [SEP] B [SEP]`` (B has type 1), RoBERTa has ``<s> A </s>`` and
    ``<s> A </s> </s> B </s>``.
    """
    begin, end = ([] if i is None else [str(tokenizer.id_to_token(i))] for i in (bos_id, eos_id))
    special = list(zip([*begin, *end], [i for i in (bos_id, eos_id) if i is not None], strict=True))
    single = [*begin, "$A", *end]
    behind = ["$B:1", *(f"{token}:1" for token in end)] if begin == ["[CLS]"] else [*end, "$B", *end]
    tokenizer.post_processor = processors.TemplateProcessing(single, [*single, *behind], special)


def _unigram(tokenizer: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """Return what equals a SentencePiece unigram model in the ``tokenizers`` library.

    They differ where the text is not in Unicode's composed form: SentencePiece applies its table of replacements (the
    ``precompiled_charsmap``) to the longest sequence found, ``tokenizers`` to single characters. They may also choose
    differently between segmentations with the same score. In 89,877 sentences of 112 languages, five to eight
    differed, by model.

    Raises:
        UserError: If ``tokenizers`` cannot express the model.
    """
    model, processor = message_fields(tokenizer.model), tokenizer.processor
    trainer, rules = ({n: v[-1] for n, v in message_fields(model.get(part, [b""])[-1]).items()} for part in (2, 3))
    types = [message_fields(piece).get(3, [_NORMAL])[-1] for piece in model[1]]
    if trainer.get(3, _UNIGRAM) != _UNIGRAM or trainer.get(24) or {_USER_DEFINED, _UNUSED} & {*types}:
        problem = "it is not a unigram model, has pieces with spaces behind them, or user-defined ones"
        cure = "train a tokenizer with xrep-preprocess to hand a model on"
        raise UserError(f"this SentencePiece model cannot become a {JSON_FILE}: {problem}", cure=cure)
    pieces = [(processor.id_to_piece(i), processor.get_score(i), kind) for i, kind in enumerate(types)]
    if isinstance(tokenizer, XLMRobertaTokenizer):
        pieces[:3] = [(name, 0.0, _CONTROL) for name in ("<s>", "<pad>", "</s>", "<unk>")]
        pieces.append((MASK_PIECE, 0.0, _CONTROL))
    scores = [(text, score) for text, score, _ in pieces]
    rust = tokenizers.Tokenizer(models.Unigram(scores, tokenizer.unk_id, byte_fallback=_BYTE in types))
    replacements, adds_space, removes_spaces = rules.get(2), rules.get(3, 1), rules.get(4, 1)
    steps: list[Any] = [normalizers.Precompiled(replacements)] if replacements else []
    if removes_spaces:
        # ▁ at the end, too, because SentencePiece takes it for its own sign for a space.
        ends = Regex(rf"\A +|[ {SPACE}]+\z")
        steps += [normalizers.Replace(ends, ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if adds_space:
        steps.append(normalizers.Prepend(SPACE))
    rust.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    # SentencePiece does not find control pieces in a text, ``tokenizers`` does: their names are cut behind the first
    # character.
    names = "|".join(re.escape(text) for text, _, kind in pieces if kind != _NORMAL)
    rust.pre_tokenizer = pre_tokenizers.Split(Regex(f"(?={names})."), "merged_with_previous")
    metaspace = decoders.Metaspace(replacement=SPACE, prepend_scheme="always" if adds_space else "never")
    rust.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace])
    special = [text for i, (text, _, kind) in enumerate(pieces) if kind == _CONTROL or i == tokenizer.unk_id]
    rust.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    return rust


def message_fields(message: bytes) -> dict[int, list[Any]]:
    """Return the values of each field of a protobuf message by the number of the field."""
    # SentencePiece's own protobuf module refuses a protobuf that is older than itself. In an empty message, all fields
    # are unknown ones, which every version reads. Only exports need protobuf, which tensorboard brings.
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    fields: dict[int, list[Any]] = {}
    for field in UnknownFieldSet(Empty.FromString(message)):
        fields.setdefault(field.field_number, []).append(field.data)
    return fields

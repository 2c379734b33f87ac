"""Special tokens of Hugging Face model directories: their names, the files that declare them, and their ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from xrep.errors import UserError
from xrep.text.tokenizer import AGAIN, CONFIG_FILE, read_json
from xrep.text.tokenizer_json import surround

SPECIAL_FILE = "special_tokens_map.json"
# The role of each special token, the config entries that declare it, and its text if nothing declares it.
ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pad": (("pad_token",), ("[PAD]", "<pad>")),
    "unk": (("unk_token",), ("[UNK]", "<unk>")),
    "bos": (("cls_token", "bos_token"), ("[CLS]", "<s>")),
    "eos": (("sep_token", "eos_token"), ("[SEP]", "</s>")),
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
}


def find_special(tokenizer: Tokenizer, declared: Mapping[str, Any], path: Path) -> dict[str, int | None]:
    """Return the ids of the special tokens by role, and register these tokens as special in the tokenizer.

    The tokens that the tokenizer itself puts around a sentence are ``bos`` and ``eos``; ``bos`` is None if it puts one
    behind the sentence alone. If it puts none there, it is changed to do so.

    Args:
        declared: The entries of ``special_tokens_map.json`` and ``tokenizer_config.json``.
        path: The file of the vocabulary, for error messages.

    Raises:
        UserError: If a token other than ``mask`` is missing, or the tokenizer puts more than one token before a
            sentence, or not exactly one behind it.
    """
    tokens: dict[str, str] = {}
    for role, (names, defaults) in ROLES.items():
        value = next((declared[name] for name in names if declared.get(name) is not None), None)
        for token in [content_of(value)] if content_of(value) else defaults:
            if token and tokenizer.token_to_id(token) is not None:
                tokens.setdefault(role, token)
        if role in tokens and tokens[role] not in _added(tokenizer):
            tokenizer.add_special_tokens([_added_token(tokens[role], value)])
    ids: dict[str, int | None] = {role: tokenizer.token_to_id(token) for role, token in tokens.items()}
    before, behind = tokens_around(tokenizer, path)
    if len(before) <= 1 and len(behind) == 1:  # The model was trained with what the file itself puts around a sentence.
        ids["bos"], ids["eos"] = (before[0] if before else None), behind[0]
    elif before or behind:
        problem = f"it puts {len(before)} special tokens before a sentence and {len(behind)} behind it"
        raise UserError(problem, path=path, cure="use a model with one behind and at most one before")
    for role, (names, defaults) in ROLES.items():
        if role not in ids and role != "mask":
            name = next(filter(None, (content_of(declared.get(name)) for name in names)), " or ".join(defaults))
            cure = f"name one of its pieces as {names[0]} in {SPECIAL_FILE}"
            raise UserError(f"no {role} token: the vocabulary has no {name}", path=path, cure=cure)
    if not before and not behind:
        surround(tokenizer, tokens["bos"], tokens["eos"], bert=tokens["bos"] == "[CLS]")
    return {role: ids.get(role) for role in ROLES}


def tokens_around(tokenizer: Tokenizer, path: Path) -> tuple[list[int], list[int]]:
    """Return the ids that a tokenizer puts before and behind a sentence; ``path`` is for error messages."""
    for text in ("a", "0", "一"):
        plain, whole = tokenizer.encode(text, add_special_tokens=False).ids, tokenizer.encode(text).ids
        for start in range(len(whole) - len(plain) + 1 if plain else 0):
            if whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
    raise UserError("it gives no piece for a letter or digit", path=path, cure=AGAIN)


def add_tokens(tokenizer: Tokenizer, directory: Path, config: Mapping[str, Any]) -> None:
    """Add the tokens of ``added_tokens.json`` and ``tokenizer_config.json``, which are not in the vocabulary file."""
    path = directory / CONFIG_FILE
    table = config.get("added_tokens_decoder", {})
    if not isinstance(table, dict):
        raise UserError("added_tokens_decoder is not a table of ids and tokens", path=path, cure=AGAIN)
    rows = [(identity, token, path) for identity, token in table.items()]
    path = directory / "added_tokens.json"
    wanted: dict[int, tuple[Any, Path]] = {}
    for identity, value, source in [*((identity, token, path) for token, identity in read_json(path).items()), *rows]:
        if content_of(value) is None or not str(identity).isdecimal():
            raise UserError(f"not an added token and its id: {value!r}, {identity!r}", path=source, cure=AGAIN)
        wanted[int(identity)] = value, source
    for identity, (value, source) in sorted(wanted.items(), key=lambda item: item[0]):
        token = content_of(value) or ""
        if token not in _added(tokenizer):
            tokenizer.add_tokens([_added_token(token, value, special=False)])
        if tokenizer.token_to_id(token) != identity:
            problem = f"added token {token!r} has the id {identity}, but there it is {tokenizer.token_to_id(token)}"
            raise UserError(problem, path=source, cure=AGAIN)


def _added(tokenizer: Tokenizer) -> set[str]:
    return {token.content for token in tokenizer.get_added_tokens_decoder().values()}


def _added_token(content: str, value: Any, special: bool = True) -> AddedToken:
    flags = value if isinstance(value, dict) else {}
    options = {name: flags.get(name) is True for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(content, **options, special=special or flags.get("special") is True)


def content_of(value: Any) -> str | None:
    """Return the text of a token in a config, which is a string or a table whose entry ``content`` is one."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None

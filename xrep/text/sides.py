"""Opening a tokenizer, and the tokenizers of a language pair: one that both sides share, or one for each side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from xrep.errors import UserError
from xrep.text.tokenizer import (
    CONFIG_FILE,
    SENTENCEPIECE_FILE,
    SENTENCEPIECE_KINDS,
    SentencePieceTokenizer,
    Tokenizer,
    read_config,
    read_model_file,
)

SHARED, SIDES = "shared", ("source", "target")

Tokenizers = Mapping[str, Tokenizer]
"""Tokenizers by side; the keys are either ``shared`` alone, or ``source`` and ``target``."""


def open_tokenizer(path: str | Path) -> Tokenizer:
    """Open a tokenizer folder, a Hugging Face model directory, a bare ``sentencepiece.model`` or its folder. Raises
    UserError if there is no tokenizer, its kind is unknown to this version, or the model is damaged."""
    path = Path(path)
    if not path.is_dir():
        return SentencePieceTokenizer(read_model_file(path), path)
    kind = read_config(path / CONFIG_FILE).get("kind")
    if kind is None and not (path / CONFIG_FILE).exists() and (path / SENTENCEPIECE_FILE).exists():
        kind = SentencePieceTokenizer.kind
    if kind in SENTENCEPIECE_KINDS:
        cls = SENTENCEPIECE_KINDS[kind]
        return cls(read_model_file(path / cls.model_file), path / cls.model_file)
    from xrep.text.huggingface import HuggingFaceTokenizer, read_huggingface  # imports ``tokenizers``, which is slow

    if kind is None:
        return read_huggingface(path)
    if kind == HuggingFaceTokenizer.kind:
        return HuggingFaceTokenizer.open(path)
    problem = f"tokenizer of the unknown kind {kind!r}"
    raise UserError(problem, path=path / CONFIG_FILE, cure="use a newer xrep or another tokenizer")


def tokenizer_of(tokenizers: Tokenizers, side: str) -> Tokenizer:
    """Return the tokenizer of ``source``, ``target`` or ``shared``; a shared tokenizer serves both sides."""
    return tokenizers.get(side) or tokenizers[SHARED]


def load_tokenizers(paths: Mapping[str, str | Path], *, partial: bool = False) -> dict[str, Tokenizer]:
    """Load tokenizer folders, given by side; two equal tokenizers are returned as one shared tokenizer. Raises
    UserError if a side is missing (unless ``partial``), or as ``open_tokenizer`` raises it."""
    if set(paths) not in ({SHARED}, set(SIDES)) and not (partial and set(paths) < set(SIDES)):
        raise UserError(f"a tokenizer of {', '.join(paths)} alone", cure="give one for both sides, or one for each")
    tokenizers = {side: open_tokenizer(path) for side, path in paths.items()}
    if set(tokenizers) == set(SIDES) and same_tokenizer(*tokenizers.values()):
        return {SHARED: tokenizers["source"]}
    return tokenizers


def open_tokenizers(directory: Path) -> dict[str, Tokenizer]:
    """Load the tokenizers that ``save_tokenizers`` wrote."""
    if all((directory / side).is_dir() for side in SIDES):
        return {side: open_tokenizer(directory / side) for side in SIDES}
    return {SHARED: open_tokenizer(directory)}


def save_tokenizers(tokenizers: Tokenizers, directory: Path) -> None:
    """Save a shared tokenizer into ``directory`` itself, or two into its folders ``source`` and ``target``."""
    for side, tokenizer in tokenizers.items():
        tokenizer.save(directory if side == SHARED else directory / side)


def same_tokenizers(a: Tokenizers, b: Tokenizers) -> bool:
    return set(a) == set(b) and all(same_tokenizer(a[side], b[side]) for side in a)


def same_tokenizer(a: Tokenizer, b: Tokenizer) -> bool:
    """Return whether both tokenizers save the same files."""
    return a.files() == b.files()

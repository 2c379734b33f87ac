"""A tokenizer of whole words that puts no token in front of a sentence, as that of T5."""

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers

SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}


def write_tokenizer_without_first_token(directory: Path, words: Iterable[str]) -> Path:
    """Write a directory as transformers would; a word that is not among ``words`` is unknown."""
    vocabulary = {piece: number for number, piece in enumerate([*SPECIAL.values(), *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(SPECIAL), encoding="utf-8")
    return directory

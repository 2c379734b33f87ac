"""Vocabularies for tests, each trained once for all processes."""

import hashlib
import json

from tests.support.corpus import sentence_pairs
from tests.support.once import made_once
from xrep.text.sides import open_tokenizer
from xrep.text.tokenizer import Tokenizer
from xrep.text.train_tokenizer import train_tokenizer


def small_tokenizer(size: int = 120, sentences: list[str] | None = None) -> Tokenizer:
    """Return a SentencePiece tokenizer of ``size`` pieces of the sentences, by default 100 pairs of the corpus."""
    sentences = sentences or [side for pair in sentence_pairs(100) for side in pair]
    key = hashlib.sha256(json.dumps([size, sentences]).encode()).hexdigest()[:16]
    return open_tokenizer(made_once(f"vocabulary-{key}", lambda folder: train_tokenizer(sentences, size, folder)))

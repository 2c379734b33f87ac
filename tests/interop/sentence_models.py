"""A small tokenizer, sentences for it, and sentence vectors of encoders that were read from directories."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.corpus import sentence_pairs
from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch
from xrep.interop.pretrained import Start
from xrep.nn.encoder import TransformerEncoder
from xrep.nn.pooling import pool
from xrep.text.sides import open_tokenizer
from xrep.text.tokenizer import Tokenizer

library = pytest.importorskip("sentence_transformers", reason="compares with the sentence-transformers library")
tokenizers = pytest.importorskip("tokenizers", reason="makes the tokenizer of the small models")
SENTENCES = [sentence for pair in sentence_pairs(4) for sentence in pair] + ["", "the", "unknown words 42"]
MAXIMUM = 8
"""Maximum length of a sentence in tokens; longer ones are cut."""


def write_tokenizer(directory: Path) -> Any:
    """Write a WordPiece tokenizer of tests/support/corpus.py with at most 60 pieces, as transformers does."""
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    words = sorted({word for pair in sentence_pairs(8) for sentence in pair for word in sentence.split()})
    pieces = [*special.values(), *words][:60]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=MAXIMUM, **special).save_pretrained(directory)
    tokenizer.enable_truncation(MAXIMUM)
    return tokenizer


@functools.cache
def small_tokenizer() -> Tokenizer:
    """Return what ``write_tokenizer`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return open_tokenizer(folder)


def modules_of(library_model: Path, *, pooling: Any, dense: Any, normalize: bool) -> Any:
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    torch.manual_seed(5)
    modules = [Transformer(str(library_model), max_seq_length=MAXIMUM), Pooling(32, pooling)]
    modules += [] if dense is None else [Dense(32, **dense)]
    return library.SentenceTransformer(modules=[*modules, *([Normalize()] if normalize else [])])


def as_batch(tokenizer: Any, sentences: list[str]) -> TokenBatch:
    ids = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(sentences)]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return token_batch(padded, torch.tensor([len(i) for i in ids]))


@torch.no_grad()
def our_vectors(pretrained: Start, encoder: TransformerEncoder, batch: TokenBatch) -> Tensor:
    vectors = pool(encoder(batch), batch.mask, pretrained.pooling)
    if (dense := pretrained.projection) is not None:
        vectors = F.linear(vectors, **dense.tensors())
        vectors = torch.tanh(vectors) if dense.activation == "tanh" else vectors
    return F.normalize(vectors, dim=-1) if pretrained.normalize else vectors

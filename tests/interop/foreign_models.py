"""Small random models of families that only transformers computes, with their tokenizers, as it writes them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.corpus import sentence_pairs

transformers = pytest.importorskip("transformers", reason="it is in the extra 'hf'")
tokenizers = pytest.importorskip("tokenizers")

FAMILIES = ("modernbert", "deberta-v2", "t5", "qwen3")
POSITIONS = 64
SENTENCES = [sentence for pair in sentence_pairs(5) for sentence in pair] + ["", "the", "unknown words 42"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


def write_model(directory: Path, family: str, seed: int = 0) -> Path:
    """A model directory with dropout 0.1."""
    tokenizer = _tokenizer(family)
    size = tokenizer.get_vocab_size()
    sizes = {"vocab_size": size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 48, "max_position_embeddings": POSITIONS, "pad_token_id": 0}
    torch.manual_seed(seed)
    if family == "modernbert":
        config = transformers.ModernBertConfig(
            **sizes, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3, local_attention=4
        )
        model = transformers.ModernBertModel(config)
    elif family == "deberta-v2":
        relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
        config = transformers.DebertaV2Config(
            **sizes, **relative, position_biased_input=False, type_vocab_size=0, norm_rel_ebd="layer_norm"
        )
        model = transformers.DebertaV2Model(config)
    elif family == "qwen3":
        model = transformers.Qwen3Model(transformers.Qwen3Config(**sizes, head_dim=16, num_key_value_heads=1))
    else:
        config = transformers.T5Config(
            vocab_size=size, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu"
        )
        model = transformers.T5EncoderModel(config)
    for parameter in model.parameters():  # larger than at initialisation, so that an error is visible
        parameter.data.mul_(1.5)
    model.save_pretrained(directory)
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"} if family == "t5" else SPECIAL
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=POSITIONS, **special)
    fast.save_pretrained(directory)
    return directory


def _tokenizer(family: str) -> Any:
    """Words of tests/support/corpus.py; T5 has one token behind a sentence, the others one before and one behind."""
    words = sorted({word for pair in sentence_pairs(2048) for sentence in pair for word in sentence.split()})
    special = ["<pad>", "</s>", "<unk>"] if family == "t5" else [*SPECIAL.values(), "[MASK]"]
    vocabulary = {piece: number for number, piece in enumerate([*special, *words])}
    unknown = "<unk>" if family == "t5" else "[UNK]"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    template, ends = ("$A </s>", ["</s>"]) if family == "t5" else ("[CLS] $A [SEP]", ["[CLS]", "[SEP]"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[(token, vocabulary[token]) for token in ends]
    )
    return tokenizer


@torch.no_grad()
def library_vectors(directory: Path, sentences: list[str]) -> torch.Tensor:
    """Means of token vectors, as transformers computes them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForTextEncoding if "t5" in directory.name else transformers.AutoModel
    model = model.from_pretrained(directory).eval()
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    tokens = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1)

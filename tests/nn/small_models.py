"""Small random models of the transformers library, saved like real ones, and batches for them."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.closeness import assert_near
from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch
from xrep.interop.pretrained import Start, read_pretrained
from xrep.nn.encoder import TransformerEncoder

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
transformers = pytest.importorskip("transformers", reason="compares with the transformers library")

VOCABULARY, LAYERS, POSITIONS = 60, 3, 24
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "intermediate_size": 48,
}  # fmt: skip
OFFSETS = {"Bert": 0, "Roberta": 2, "Camembert": 2, "XLMRoberta": 2}
"""How many positions each family of models keeps free."""


def make_model(name: str, **options: Any) -> nn.Module:
    """Return a model of a class of transformers (``BertForMaskedLM``), none of whose tensors is constant."""
    family = next(family for family in sorted(OFFSETS, key=len, reverse=True) if name.startswith(family))
    given = {"max_position_embeddings": POSITIONS + OFFSETS[family], "layer_norm_eps": 1e-3, **SIZES, **options}
    config = getattr(transformers, f"{family}Config")(**given)
    torch.manual_seed(3)
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def save(model: nn.Module, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


def make_batch(pad_id: int) -> TokenBatch:
    lengths = torch.tensor([7, POSITIONS, 1, 12])
    generator = torch.Generator().manual_seed(4)
    batch = token_batch(torch.randint(3, VOCABULARY, (4, POSITIONS), generator=generator), lengths)
    batch.tokens[~batch.mask] = pad_id
    return batch


@torch.no_grad()
def hidden_states(model: nn.Module, batch: TokenBatch) -> list[Tensor]:
    """Return their states of the embeddings and of each layer, with zeros at padding."""
    mask = batch.mask
    output = model.base_model(input_ids=batch.tokens, attention_mask=mask.long(), output_hidden_states=True)
    return [hidden * mask.unsqueeze(-1) for hidden in output.hidden_states]


def load(directory: Path, layers: int | None = None) -> tuple[Start, TransformerEncoder, list[str]]:
    """Return our encoder with the weights of the directory, and the tensors that it does not use."""
    pretrained = read_pretrained(directory)
    state, unused = pretrained.state(layers)
    values = pretrained.shape.as_dict() | ({} if layers is None else {"layers": layers})
    encoder = TransformerEncoder(type(pretrained.shape)(**values), dropout=0.1, attention_dropout=0.1)
    encoder.load_state_dict(state, strict=True)
    return pretrained, encoder.eval(), unused


@torch.no_grad()
def assert_same(encoder: TransformerEncoder, theirs: list[Tensor], batch: TokenBatch) -> None:
    assert len(encoder.layers) == len(theirs) - 1
    for number, expected in enumerate(theirs):
        assert_near(encoder(batch, number), expected)


def edit_json(path: Path, **changes: Any) -> None:
    """Change entries of a JSON object; ``...`` removes one."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    content = {key: value for key, value in content.items() if value is not ...}
    path.write_text(json.dumps(content), encoding="utf-8")


def refusal(error: pytest.ExceptionInfo[BaseException], *parts: object) -> None:
    """Check that the error is one line with all the parts and a cure."""
    text = str(error.value)
    assert "\n" not in text and "; " in text, text
    for part in parts:
        assert str(part) in text, text

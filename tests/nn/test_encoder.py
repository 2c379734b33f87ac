"""The encoder against torch's own transformer with the same weights, and packed batches against single sentences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from xrep.data.batching import TokenBatch
from xrep.nn.encoder import TransformerEncoder

HIDDEN, HEADS, LAYERS, VOCABULARY, PAD = 24, 3, 2, 50, 1
LENGTHS = torch.tensor([5, 11, 1, 8])


def make_encoder(norm: str) -> TransformerEncoder:
    torch.manual_seed(0)
    encoder = TransformerEncoder(
        vocabulary_size=VOCABULARY,
        pad_id=PAD,
        max_positions=16,
        hidden_size=HIDDEN,
        layers=LAYERS,
        heads=HEADS,
        feedforward_size=40,
        dropout=0.1,
        attention_dropout=0.1,
        norm=norm,
        initializer_range=0.3,
    )
    with torch.no_grad():  # so that no bias and no normalisation goes unnoticed
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return encoder.eval()


def make_batch() -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, VOCABULARY, (len(LENGTHS), 11), generator=generator)
    batch = TokenBatch(tokens, LENGTHS)
    batch.tokens[~batch.mask] = PAD
    return batch


def copy_to_torch(encoder: TransformerEncoder, norm: str) -> nn.TransformerEncoder:
    options = {"activation": "gelu", "layer_norm_eps": 1e-12, "batch_first": True, "norm_first": norm == "pre"}
    layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 40, **options)
    final = nn.LayerNorm(HIDDEN, eps=1e-12) if norm == "pre" else None
    stack = nn.TransformerEncoder(layer, LAYERS, norm=final, enable_nested_tensor=False)
    for ours, theirs in zip(encoder.layers, stack.layers, strict=True):
        theirs.self_attn.in_proj_weight.data = ours.attention.qkv.weight.data
        theirs.self_attn.in_proj_bias.data = ours.attention.qkv.bias.data
        theirs.self_attn.out_proj = ours.attention.output
        theirs.norm1, theirs.norm2 = ours.attention_norm, ours.feedforward_norm
        theirs.linear1, theirs.linear2 = ours.feedforward_in, ours.feedforward_out
    if final is not None:
        stack.norm = encoder.norm
    return stack.eval()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_equals_torchs_encoder(norm: str) -> None:
    encoder, batch = make_encoder(norm), make_batch()
    fast = encoder(batch)
    encoder.double()
    embedded = encoder.token_embedding(batch.tokens) + encoder.position_embedding(torch.arange(11))
    if norm == "post":
        embedded = encoder.norm(embedded)
    expected = copy_to_torch(encoder, norm)(embedded, src_key_padding_mask=~batch.mask)
    expected = expected * batch.mask.unsqueeze(-1)  # ours has zeros at padding
    torch.testing.assert_close(encoder(batch), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(fast.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 2e-5)], ids=str)
def test_gradient_of_a_padded_batch_is_that_of_its_sentences(norm: str, dtype: torch.dtype, tolerance: float) -> None:
    encoder, batch = make_encoder(norm).to(dtype), make_batch()
    direction = torch.randn(4, 11, HIDDEN, generator=torch.Generator().manual_seed(2)).to(dtype)

    (encoder(batch) * direction).sum().backward()
    packed = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    for row, length in enumerate(LENGTHS.tolist()):
        alone = TokenBatch(batch.tokens[row : row + 1, :length], LENGTHS[row : row + 1])
        assert not alone.is_padded
        (encoder(alone) * direction[row : row + 1, :length]).sum().backward()
    for name, parameter in encoder.named_parameters():
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(packed[name], parameter.grad, rtol=0, atol=tolerance * max(scale, 1.0), msg=name)


def test_dropout_only_in_training() -> None:
    encoder, batch = make_encoder("post"), make_batch()
    assert torch.equal(encoder(batch), encoder(batch))
    encoder.train()
    assert not torch.equal(encoder(batch), encoder(batch))
    with torch.no_grad():
        for module in encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    assert not torch.equal(encoder(batch), encoder(batch)), "attention has no dropout"


def test_initialisation_is_berts() -> None:
    encoder = TransformerEncoder(
        vocabulary_size=4000, pad_id=PAD, max_positions=300, hidden_size=128, layers=1, heads=2, feedforward_size=512,
        dropout=0.0, attention_dropout=0.0, norm="post",
    )  # fmt: skip
    assert not encoder.token_embedding.weight[PAD].any()
    for name, parameter in encoder.named_parameters():
        if parameter.ndim == 2:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.05), name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, "norm.weight" in name)), name

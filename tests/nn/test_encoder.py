"""The encoder against torch's own transformer with the same weights, and packed batches against single sentences."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.closeness import assert_near
from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch
from xrep.kernels.attention import SHORT
from xrep.nn.encoder import EncoderShape, TransformerEncoder, set_activation_checkpointing
from xrep.nn.layers import EqualLengths, Masking, SelfAttention

HIDDEN, HEADS, LAYERS, VOCABULARY, PAD = 24, 3, 2, 50, 1
LENGTHS = torch.tensor([5, 11, 1, 8])


SHAPE = EncoderShape(
    vocabulary_size=VOCABULARY, pad_id=PAD, hidden_size=HIDDEN, layers=LAYERS, heads=HEADS, feedforward_size=40,
    max_positions=16,
)  # fmt: skip
SHAPES = {
    "post": SHAPE,
    "pre": replace(SHAPE, norm="pre"),
    "bert": replace(SHAPE, type_vocabulary_size=2, norm_epsilon=1e-2),
    "roberta": replace(SHAPE, position_offset=PAD + 1, type_vocabulary_size=1, norm_epsilon=1e-2, max_positions=11),
    "tanh": replace(SHAPE, activation="gelu_tanh", norm="pre", position_offset=3),
    "relu": replace(SHAPE, activation="relu"),
}
LAYOUTS = {"packed": [5, 11, 1, 8], "masked": [11, 11, 10, 11], "full": [11] * 4}
of_layouts = pytest.mark.parametrize("lengths", LAYOUTS.values(), ids=LAYOUTS)
ACTIVATIONS = {"gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu}


def make_encoder(shape: EncoderShape) -> TransformerEncoder:
    torch.manual_seed(0)
    encoder = TransformerEncoder(shape, dropout=0.1, attention_dropout=0.1, initializer_range=0.3)
    with torch.no_grad():  # so that every bias and normalisation has an effect
        for parameter in encoder.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return encoder.eval()


def make_batch() -> TokenBatch:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(2, VOCABULARY, (len(LENGTHS), 11), generator=generator)
    batch = token_batch(tokens, LENGTHS)
    batch.tokens[~batch.mask] = PAD
    return batch


def copy_to_torch(encoder: TransformerEncoder) -> nn.TransformerEncoder:
    shape, epsilon = encoder.shape, encoder.shape.norm_epsilon
    options = {"layer_norm_eps": epsilon, "batch_first": True, "norm_first": shape.norm == "pre"}
    layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 40, activation=ACTIVATIONS[shape.activation], **options)
    final = nn.LayerNorm(HIDDEN, eps=epsilon) if shape.norm == "pre" else None
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


@pytest.mark.parametrize("name", SHAPES)
def test_equals_torchs_encoder(name: str) -> None:
    encoder, batch = make_encoder(SHAPES[name]), make_batch()
    assert EncoderShape(**json.loads(json.dumps(encoder.shape.as_dict()))) == encoder.shape
    fast = encoder(batch)
    encoder.double()
    positions = torch.arange(11) + encoder.shape.position_offset
    embedded = encoder.token_embedding(batch.tokens) + encoder.position_embedding(positions)
    if encoder.shape.type_vocabulary_size:
        embedded = embedded + encoder.type_embedding(torch.zeros_like(batch.tokens))
    if encoder.shape.norm == "post":
        embedded = encoder.norm(embedded)
    stack = copy_to_torch(encoder)
    # Ours has zeros at padding.
    expected = stack(embedded, src_key_padding_mask=~batch.mask) * batch.mask.unsqueeze(-1)
    torch.testing.assert_close(encoder(batch), expected, rtol=0, atol=1e-11)
    assert_near(fast, expected)

    hidden = embedded
    for number, layer in enumerate([None, *stack.layers]):
        if layer is not None:
            hidden = layer(hidden, src_key_padding_mask=~batch.mask)
        if number < LAYERS:  # a final normalisation follows the last layer
            of_layer = encoder(batch, hidden_layer=number)
            torch.testing.assert_close(of_layer, hidden * batch.mask.unsqueeze(-1), rtol=0, atol=1e-11)
    assert torch.equal(encoder(batch, hidden_layer=LAYERS), encoder(batch))


def test_layers_above_are_not_computed() -> None:
    encoder, batch = make_encoder(SHAPE), make_batch()
    calls: list[int] = []
    for number, layer in enumerate(encoder.layers, start=1):
        layer.register_forward_hook(lambda *_, number=number: calls.append(number))
    for wanted, run in ((0, []), (1, [1]), (2, [1, 2]), (None, [1, 2])):
        encoder(batch, wanted)
        assert calls == run
        calls.clear()
    for wrong in (-1, LAYERS + 1):
        with pytest.raises(ValueError, match=r"hidden_layer must lie in \[0, 2\], not"):
            encoder(batch, wrong)


@pytest.mark.parametrize("name", ["post", "pre"])
@of_layouts
def test_the_first_tokens_alone_are_those_of_the_whole(name: str, lengths: list[int]) -> None:
    encoder = make_encoder(SHAPES[name]).double()
    batch = token_batch(make_batch().tokens, torch.tensor(lengths))
    direction = torch.randn(4, 1, HIDDEN, generator=torch.Generator().manual_seed(2)).double()
    for layers in (None, 1, 0):
        found = []
        for states in (encoder(batch, layers)[:, :1], encoder(batch, layers, first_only=True)):
            encoder.zero_grad()
            (states * direction).sum().backward()
            found.append([states.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
        with torch.no_grad():
            torch.testing.assert_close(encoder(batch, layers, first_only=True), found[0][0], rtol=0, atol=1e-11)


def test_initialisation_is_berts() -> None:
    large = {"vocabulary_size": 4000, "max_positions": 300, "hidden_size": 128, "feedforward_size": 512}
    shape = replace(SHAPE, **large, layers=1, heads=2, type_vocabulary_size=50)
    encoder = TransformerEncoder(shape, dropout=0.0, attention_dropout=0.0)
    assert not encoder.token_embedding.weight[PAD].any()
    for name, parameter in encoder.named_parameters():
        if parameter.ndim == 2:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.05), name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, "norm.weight" in name)), name


def test_attention_without_gradient_is_the_same_at_any_length() -> None:
    """Short sentences take another path then, which has dropout as well."""
    torch.manual_seed(3)
    attention = SelfAttention(32, 4, 0.5).eval()
    for length in (SHORT, SHORT + 1):
        x = torch.randn(3, length, 32)
        mask = torch.arange(length) < torch.tensor([length, 5, 1])[:, None]
        for layout in (Masking(), Masking(mask)):
            expected, _ = attention(x, layout)
            with torch.no_grad():
                found, _ = attention(x, layout)
                real = torch.ones_like(mask) if layout.attention_mask is None else mask
                torch.testing.assert_close(found[real], expected[real].detach(), rtol=1e-4, atol=1e-5)
                assert not torch.allclose(attention.train()(x, layout)[0][real], found[real], atol=1e-3)
                attention.eval()


@pytest.mark.parametrize("lengths", [[5, 11, 1, 8, 5], [70, 3, 70, 2]], ids=["short", "long"])
def test_sentences_of_one_length_are_computed_together(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make_encoder(replace(SHAPE, max_positions=max(lengths)))
    tokens = torch.randint(2, VOCABULARY, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    batch = token_batch(tokens, torch.tensor(lengths))
    with torch.no_grad():
        assert EqualLengths.is_faster(batch)
        found = encoder(batch)
        for row, length in enumerate(lengths):
            alone = encoder(batch.rows(row, row + 1))[0]
            assert_near(found[row, :length], alone)
        assert not found[~batch.mask].any()
        assert not EqualLengths.is_faster(token_batch(tokens[:, :5], torch.tensor([5, 5, 4, 3, 5][: len(lengths)])))
    with torch.autocast("cpu", torch.bfloat16):
        assert not EqualLengths.is_faster(batch)
    results = []
    for _ in ("by length", "padded"):
        encoder.zero_grad()
        hidden = encoder(batch)
        hidden.square().sum().backward()
        results.append([hidden.detach(), *(parameter.grad for parameter in encoder.parameters())])
        assert_near(found, hidden)
        monkeypatch.setattr(EqualLengths, "is_faster", lambda batch: False)
    for mine, padded in zip(*results, strict=True):
        assert_near(mine, padded)


def kept_bytes(encoder: TransformerEncoder, batch: TokenBatch) -> tuple[torch.Tensor, int]:
    """Return hidden states, and the size of what is kept for the backward pass, without parameters."""
    kept = {}
    parameters = {parameter.data_ptr() for parameter in encoder.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = 0 if storage.data_ptr() in parameters else storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = encoder(batch)
    return hidden, sum(kept.values())


@of_layouts
@pytest.mark.parametrize("half", [False, True])
def test_activation_checkpointing(lengths: list[int], half: bool) -> None:
    encoder = make_encoder(replace(SHAPE, layers=4)).to(torch.float32 if half else torch.float64).train()
    batch = token_batch(make_batch().tokens, torch.tensor(lengths))
    direction = torch.randn(4, 11, HIDDEN, generator=torch.Generator().manual_seed(2))
    found = []
    for on in (False, True):
        set_activation_checkpointing(nn.ModuleList([nn.Linear(1, 1), encoder]), on)
        encoder.zero_grad()
        torch.manual_seed(5)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            hidden, size = kept_bytes(encoder, batch)
            again = encoder(batch)  # a shared tower also reads the other side
        ((hidden + again) * direction).sum().backward()
        found.append(([hidden.detach(), *(p.grad for p in encoder.parameters())], size))
    (plain, much), (saving, little) = found
    assert little < 0.4 * much
    for one, other in zip(plain, saving, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert kept_bytes(encoder.eval(), batch)[1] > little, "nothing is computed twice but in training"

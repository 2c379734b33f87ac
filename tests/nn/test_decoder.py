"""The decoder against torch's own, and its single steps against the whole."""

import pytest
import torch
from torch import Tensor, nn

from tests.support.planning import token_batch
from xrep.nn.decoder import DecoderShape, SourceKeys, StepCache, TransformerDecoder
from xrep.nn.layers import Masking, Packing

SIZE, HEADS, LAYERS = 24, 4, 2


def make_decoder(norm: str, source_size: int = SIZE) -> TransformerDecoder:
    sizes = {"hidden_size": SIZE, "layers": LAYERS, "heads": HEADS, "feedforward_size": 40, "max_positions": 30}
    shape = DecoderShape(**sizes, source_size=source_size, norm=norm, norm_epsilon=1e-5)
    torch.manual_seed(3)
    decoder = TransformerDecoder(shape, dropout=0.0, attention_dropout=0.0).double()
    for parameter in decoder.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=parameter.detach().mean().item(), std=0.2)
        else:
            nn.init.normal_(parameter, std=0.3)
    return decoder


def test_initialisation_depends_on_the_width() -> None:
    shape = DecoderShape(hidden_size=128, layers=1, heads=2, feedforward_size=512, max_positions=300, source_size=128)
    for name, parameter in TransformerDecoder(shape, dropout=0.0, attention_dropout=0.0).named_parameters():
        if parameter.ndim == 2:
            assert float(parameter.detach().std()) == pytest.approx(parameter.size(1) ** -0.5, rel=0.05), name
        else:
            assert torch.equal(parameter, torch.full_like(parameter, "norm.weight" in name)), name


def sources(source_size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Return states of three sentences, and the mask of real ones."""
    generator = torch.Generator().manual_seed(4)
    mask = torch.arange(6) < torch.tensor([[6], [2], [4]])
    return torch.randn(3, 6, source_size, generator=generator, dtype=torch.float64) * mask.unsqueeze(2), mask


def targets(length: int = 9) -> Tensor:
    return torch.randn(3, length, SIZE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def torch_decoder(ours: TransformerDecoder) -> nn.TransformerDecoder:
    """Return torch's decoder with the same weights."""
    first = ours.norm_first
    layer = nn.TransformerDecoderLayer(SIZE, HEADS, 40, 0.0, "gelu", 1e-5, batch_first=True, norm_first=first)
    theirs = nn.TransformerDecoder(layer, LAYERS, nn.LayerNorm(SIZE) if first else None).double()
    for own, other in zip(ours.layers, theirs.layers, strict=True):
        look = own.source_attention
        pairs = {
            "self_attn.in_proj_weight": own.attention.qkv.weight,
            "self_attn.in_proj_bias": own.attention.qkv.bias,
            "self_attn.out_proj.weight": own.attention.output.weight,
            "self_attn.out_proj.bias": own.attention.output.bias,
            "multihead_attn.in_proj_weight": torch.cat([look.query.weight, look.key_value.weight]),
            "multihead_attn.in_proj_bias": torch.cat([look.query.bias, look.key_value.bias]),
            "multihead_attn.out_proj.weight": look.output.weight,
            "multihead_attn.out_proj.bias": look.output.bias,
        }
        named = {"linear1": own.feedforward_in, "linear2": own.feedforward_out, "norm1": own.attention_norm}
        named |= {"norm2": own.source_attention_norm, "norm3": own.feedforward_norm}
        pairs |= {f"{name}.{kind}": getattr(part, kind) for name, part in named.items() for kind in ("weight", "bias")}
        other.load_state_dict(pairs)
    if first:
        theirs.norm.load_state_dict(ours.norm.state_dict())
    return theirs


def source_keys(decoder: TransformerDecoder, states: Tensor, mask: Tensor) -> SourceKeys:
    return decoder.keys_of(states, Masking(mask), mask)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_equals_torch_and_its_gradients(norm: str) -> None:
    decoder, (states, mask), vectors = make_decoder(norm), sources(), targets()
    theirs = torch_decoder(decoder)
    found = []
    for each in ("ours", "torch"):
        inputs, memory = vectors.clone().requires_grad_(), states.clone().requires_grad_()
        if each == "ours":
            out = decoder(inputs, Masking(), source_keys(decoder, memory, mask))
        else:
            x = inputs + decoder.position_embedding.weight[:9]
            x = x if decoder.norm_first else decoder.norm(x)
            future = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
            out = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=~mask)
        found.append([out.detach(), *torch.autograd.grad(out.square().sum(), (inputs, memory))])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)
    # Packed and padded targets are one.
    batch, memory = token_batch(torch.zeros(3, 9).long(), torch.tensor([2, 9, 5])), source_keys(decoder, states, mask)
    padded = decoder(vectors, Masking(batch.mask), memory)[batch.mask]
    packing = Packing.of(batch)
    torch.testing.assert_close(decoder(vectors, packing, memory)[: len(padded)], padded, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(("width", "room"), [(SIZE, 8), (16, 3), (SIZE, 1)])
def test_steps_of_many_hypotheses_equal_all_at_once(norm: str, width: int, room: int, monkeypatch) -> None:
    """Hypotheses change places, are copied and dropped, their number changes, and sentences leave the batch."""
    monkeypatch.setattr("xrep.nn.decoder.ROOM", room)
    decoder, (states, mask) = make_decoder(norm, width), sources(width)
    decoder.eval()
    memory, draw = source_keys(decoder, states, mask), torch.Generator().manual_seed(6)
    cache = StepCache(LAYERS, memory.keys[0])
    rows = torch.arange(3)
    chains = torch.zeros(3, 1, 0, SIZE, dtype=torch.float64)  # the tokens of each hypothesis
    for position, count in enumerate([1, 4, 4, 2, 5, 1, 1, 3]):
        if position == 4:
            rows = torch.tensor([0, 2])
            chains = chains[rows]
            cache.keep(rows)
            memory.keep(rows)
        parents = torch.randint(0, chains.size(1), (len(rows), count), generator=draw)
        tokens = torch.randn(len(rows), count, SIZE, generator=draw, dtype=torch.float64)
        chains = torch.stack([chain[some] for chain, some in zip(chains, parents, strict=True)])
        chains = torch.cat([chains, tokens.unsqueeze(2)], dim=2)
        with torch.no_grad():
            cache.advance(None if position == 0 else parents, count)
            stepped = decoder.step(tokens, position, cache, memory)
            for hypothesis in range(count):
                whole = decoder(chains[:, hypothesis], Masking(), source_keys(decoder, states[rows], mask[rows]))
                torch.testing.assert_close(stepped[:, hypothesis], whole[:, -1], rtol=0, atol=1e-10)
    assert room > 1 or cache.own.size(2) < 12  # of 21 tokens

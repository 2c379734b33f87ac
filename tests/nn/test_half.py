"""Stacks of layers in half precision, as GPUs compute them: on a CPU, with torch's flash kernel written out."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cuda.flash import flash, flash_backward
from tests.nn.test_encoder import SHAPES, make_batch, make_encoder
from xrep.kernels.attention import packed_attention, packs_attention
from xrep.nn import encoder as encoder_module
from xrep.nn import half
from xrep.nn.encoder import TransformerEncoder, set_activation_checkpointing

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the CPU compute as a GPU does under autocast."""
    if GPU:
        with torch.autocast("cuda", torch.bfloat16):
            yield
        return
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_flash_attention_forward", flash)
    library.impl("_flash_attention_backward", flash_backward)
    for module in (half, encoder_module):
        monkeypatch.setattr(module, "half_type", lambda device: torch.bfloat16)
    monkeypatch.setattr(encoder_module, "packs_attention", lambda device, dtype, size: size % 8 == 0)
    yield
    library._destroy()


def tame_encoder(name: str) -> TransformerEncoder:
    """Return an encoder whose weights are as small as those of real ones, so that rounding errors do not grow."""
    encoder = make_encoder(SHAPES[name]).to(DEVICE)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter *= 0.2 if parameter.dim() > 1 else 1.0
    return encoder


def results(encoder: TransformerEncoder, **options: Any) -> dict[str, Tensor]:
    encoder.zero_grad()
    out = encoder(make_batch().to(DEVICE), **options)
    (out.float() * torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(DEVICE)).sum().backward()
    gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
    return {"out": out.detach().float(), **gradients}


def assert_near(found: dict[str, Tensor], exact: dict[str, Tensor], share: float = 0.05) -> None:
    assert found.keys() == exact.keys()
    for name, expected in exact.items():
        assert (found[name].to(expected.device) - expected).norm() <= share * expected.norm() + 1e-3, name


@pytest.mark.parametrize("name", SHAPES)
def test_an_encoder_without_padding_equals_the_padded_one(name: str, on_gpu: None) -> None:
    encoder = tame_encoder(name)
    with torch.autocast("cuda", enabled=False), pytest.MonkeyPatch.context() as patch:
        for module in (half, encoder_module):
            patch.setattr(module, "half_type", lambda device: None)
        exact = results(encoder)
    assert_near(results(encoder), exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_module, "packs_attention", lambda device, dtype, size: False)
        assert_near(results(encoder), exact)
    assert all(isinstance(p, nn.Parameter) and p.dtype == torch.float32 for p in encoder.parameters())


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_attention_has_dropout() -> None:
    qkv = torch.ones(64, 3, 2, 64, dtype=torch.bfloat16, device=DEVICE)
    starts = torch.tensor([0, 30, 64], dtype=torch.int32, device=DEVICE)
    assert packs_attention(DEVICE, torch.bfloat16, 64)
    found = packed_attention(qkv, starts, 34, 0.5).float()
    assert found.std() > 0.05 and 0.8 < found.mean() < 1.2


def test_frozen_layers_and_checkpointed_ones(on_gpu: None) -> None:
    encoder = tame_encoder("post")
    whole = results(encoder)
    for name, parameter in encoder.layers[0].named_parameters():
        parameter.requires_grad_("bias" in name)
    encoder.train()
    for layer in encoder.layers:
        encoder.dropout.p = layer.dropout.p = layer.attention.dropout = 0.0
    set_activation_checkpointing(encoder, True)
    frozen = {n for n, p in encoder.named_parameters() if not p.requires_grad}
    found = results(encoder)
    assert len(frozen) == 6 and found.keys() == whole.keys() - frozen
    assert_near(found, {name: value for name, value in whole.items() if name not in frozen}, share=1e-6)

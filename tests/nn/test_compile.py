"""Compiled layers against the same layers without compilation."""

import copy
import random
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from tests.support.planning import token_batch
from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.nn import compile as of_layers
from xrep.nn.compile import compile_layers
from xrep.nn.encoder import EncoderShape, TransformerEncoder, set_activation_checkpointing

SHAPE = EncoderShape(
    vocabulary_size=50, pad_id=1, hidden_size=32, layers=3, heads=4, feedforward_size=64, max_positions=80
)
DIRECTION = torch.linspace(-1, 2, 32)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    # Without vector instructions the C++ compiler has less work, and need not find out which there are.
    inductor = torch._inductor.config.patch({"cpp.simdlen": 1})
    with torch._dynamo.config.patch(optimize_ddp=True, recompile_limit=8), inductor:
        yield
    torch._dynamo.reset()


def make_pair(dropout: float = 0.0) -> tuple[TransformerEncoder, TransformerEncoder]:
    """Return an encoder, and a copy of it to be compiled."""
    torch.manual_seed(0)
    encoder = TransformerEncoder(SHAPE, dropout=dropout, attention_dropout=dropout)
    return encoder, copy.deepcopy(encoder)


def make_batches(count: int, layouts: list[str]) -> Iterator[TokenBatch]:
    """Yield batches of 3 to 9 sentences and up to 80 tokens, in each layout in turn."""
    chance = random.Random(2)  # torch assumes that sizes which are equal at first are always equal, and compiles again
    for number in range(count):
        layout = layouts[number % len(layouts)]
        rows, width = chance.randint(3, 9), chance.randint(30, 80)
        shortest = {"packed": 2, "masked": width - 2, "full": width}[layout]
        lengths = [width, *(chance.randint(shortest, width) for _ in range(rows - 2)), shortest]
        tokens = torch.randint(4, SHAPE.vocabulary_size, (rows, width), generator=torch.Generator().manual_seed(number))
        yield token_batch(tokens, torch.tensor(lengths))


@pytest.mark.nightly
def test_training_goes_on_as_without_it() -> None:
    """The test uses the real compiler on the layout of nearly all batches."""
    encoder, compiled = make_pair()
    names = list(compiled.state_dict())
    compile_layers(compiled)
    counters.clear()
    losses: list[list[float]] = [[], []]
    for batch in make_batches(6, ["packed"]):
        for own, found in zip((encoder, compiled), losses, strict=True):
            loss = (own(batch).tanh() * DIRECTION).mean()
            own.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in own.parameters():
                    parameter -= 0.5 * parameter.grad
            found.append(float(loss.detach()))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and abs(losses[0][0] - losses[0][-1]) > 0.01
    assert list(compiled.state_dict()) == names
    assert counters["stats"]["unique_graphs"] == 1, "one compilation for all layers"
    assert all(layer._compiled_call_impl is not None for layer in compiled.layers)


@pytest.mark.slow
def test_other_sizes_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test uses DDP, bfloat16 and activation checkpointing, in training and inference."""
    monkeypatch.setattr(of_layers, "BACKEND", "aot_eager")
    encoder, compiled = make_pair()
    compile_layers(nn.ModuleDict({"anywhere": compiled}))
    set_activation_checkpointing(compiled, True)
    counters.clear()
    with ExitStack() as stack:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        stack.callback(dist.destroy_process_group)
        parallel = DistributedDataParallel(compiled, bucket_cap_mb=0.001)
        stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        for batch in make_batches(15, ["packed", "masked", "full"]):
            with torch.no_grad():
                expected, found = encoder.eval()(batch), compiled.eval()(batch)
            assert float((found - expected).abs().max()) < 0.2
            nn.ModuleList([encoder, compiled]).train().zero_grad()
            for own in (encoder, parallel):
                (own(batch).tanh() * DIRECTION).mean().backward()
            for one, other in zip(encoder.parameters(), compiled.parameters(), strict=True):
                assert float((one.grad - other.grad).abs().max()) < 1e-3
    assert counters["stats"]["unique_graphs"] == 6, "three layouts, each with and without gradient"
    assert not counters["graph_break"]


def test_without_a_compiler() -> None:
    compiler = (None, "/nowhere/g++")
    with torch._inductor.config.patch({"cpp.cxx": compiler}), pytest.raises(UserError) as error:
        compile_layers(make_pair()[1])
    text = str(error.value)
    assert "\n" not in text and "/nowhere/g++" in text and "torch.compile does not work on cpu here" in text
    assert text.endswith("or train without `compile`")

"""Time of our encoder over that of torch.nn.TransformerEncoder with the same weights, on batches of the demo corpus.

Both take the same padded batches in the recipe's size, forward and backward; the two alternate within one run, and what
is printed is the ratio of the medians (below 1: ours is faster).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from xrep.data.batching import TokenBatch
from xrep.data.stream import stream
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.tasks.bitext import BitextTask

SIZES = {"hidden_size": 192, "layers": 2, "heads": 4, "feedforward_size": 768}


def peer_of(encoder: TransformerEncoder) -> Callable[[TokenBatch], torch.Tensor]:
    """torch's own encoder layers behind our embeddings."""
    layer = nn.TransformerEncoderLayer(
        SIZES["hidden_size"], SIZES["heads"], SIZES["feedforward_size"], 0.0, "gelu", 1e-12, batch_first=True
    )
    stack = nn.TransformerEncoder(layer, SIZES["layers"], enable_nested_tensor=False)
    for theirs, ours in zip(stack.layers, encoder.layers, strict=True):
        attention = {"in_proj_weight": ours.attention.qkv.weight, "in_proj_bias": ours.attention.qkv.bias}
        theirs.self_attn.load_state_dict(
            {**attention, **{f"out_proj.{k}": v for k, v in ours.attention.output.state_dict().items()}}
        )
        theirs.linear1.load_state_dict(ours.feedforward_in.state_dict())
        theirs.linear2.load_state_dict(ours.feedforward_out.state_dict())

    def forward(batch: TokenBatch) -> torch.Tensor:
        positions = torch.arange(batch.tokens.size(1))
        x = encoder.norm(encoder.token_embedding(batch.tokens) + encoder.position_embedding(positions))
        return stack(x, src_key_padding_mask=~batch.mask)

    return forward


def seconds(encode: Callable[[TokenBatch], torch.Tensor], batch: TokenBatch) -> float:
    start = time.perf_counter()
    (encode(batch) * batch.mask.unsqueeze(-1)).sum().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=40)
    options = parser.parse_args()
    task = BitextTask(BitextTask.Config(batch_size=128, max_length=64, vocab_size=12000), seed=1)
    vocabulary = task.text.vocabulary("shared")
    shape = EncoderShape(vocabulary_size=vocabulary.size, pad_id=vocabulary.pad_id, max_positions=64, **SIZES)
    encoder = TransformerEncoder(shape, dropout=0.0, attention_dropout=0.0)
    peer = peer_of(encoder)
    batches = [batch.source for batch, _ in itertools.islice(stream(task), options.batches)]
    with torch.no_grad():
        difference = max(((encoder(b) - peer(b)) * b.mask.unsqueeze(-1)).abs().max().item() for b in batches[:4])
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for number, batch in enumerate(batches):
        ours, theirs = seconds(encoder, batch), seconds(peer, batch)
        if number >= 5:  # the first ones compile
            times["ours"].append(ours)
            times["peer"].append(theirs)
    ratio = statistics.median(times["ours"]) / statistics.median(times["peer"])
    padding = sum(b.tokens.numel() for b in batches) / sum(int(b.lengths.sum()) for b in batches)
    print(f"largest difference of outputs {difference:.1e}; {padding:.2f} positions a token with padding")
    print(f"ours / torch.nn.TransformerEncoder, forward and backward: {ratio:.2f} ({torch.get_num_threads()} threads)")


if __name__ == "__main__":
    main()

"""The time of our encoder over that of torch.nn.TransformerEncoder with the same weights, on the demo corpus.

Both read the same padded batches with the sizes of the demo's recipe, forward and backward. They take turns in one
process, and the script prints the ratio of the medians (below 1: ours is faster).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from harness import make_parser, take_turns, write_json
from torch import nn

from xrep.data.batch import TokenBatch
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.tasks.bitext import BitextTask

PEER = "torch.nn.TransformerEncoder"
SIZES = {"hidden_size": 192, "layers": 2, "heads": 4, "feedforward_size": 768}


def peer_of(encoder: TransformerEncoder) -> Callable[[TokenBatch], torch.Tensor]:
    """Return torch's own encoder layers behind our embeddings, as a function of a batch."""
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


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--batches", type=int, default=40, help="batches, of which the first five are not measured")
    options = parser.parse_args()
    task = BitextTask(BitextTask.Config(batch_size=128, max_length=64, vocab_size=12000), seed=1)
    vocabulary = task.text.vocabulary("shared")
    shape = EncoderShape(vocabulary_size=vocabulary.size, pad_id=vocabulary.pad_id, max_positions=64, **SIZES)
    encoder = TransformerEncoder(shape, dropout=0.0, attention_dropout=0.0)
    peer = peer_of(encoder)
    batches = [task.make(plan.rows).source for plan in itertools.islice(task.plan(), options.batches)]
    with torch.no_grad():
        difference = max(((encoder(b) - peer(b)) * b.mask.unsqueeze(-1)).abs().max().item() for b in batches[:4])

    def differentiated(encode: Callable[[TokenBatch], torch.Tensor]) -> Callable[[TokenBatch], None]:
        return lambda batch: (encode(batch) * batch.mask.unsqueeze(-1)).sum().backward()

    contestants = {"ours": differentiated(encoder), PEER: differentiated(peer)}
    medians = take_turns(contestants, batches, warm_up=5).medians()  # the first batches are compiled
    ratio = medians["ours"] / medians[PEER]
    padding = sum(b.tokens.numel() for b in batches) / sum(int(b.lengths.sum()) for b in batches)
    print(f"largest difference of outputs {difference:.1e}; {padding:.2f} positions a token with padding")
    print(f"ours / {PEER}, forward and backward: {ratio:.2f} ({torch.get_num_threads()} threads)")
    write_json(options.json, {"ratio": ratio, "largest_difference": difference, "positions_a_token": padding})


if __name__ == "__main__":
    main()

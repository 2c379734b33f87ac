"""The cost of dual-alignment pre-training over translation ranking (table 6 of the paper, and its figures 3 and 4).

The script counts the floating-point operations of a forward pass per pair of two full sentences, from the sizes of the
encoder (matrix products only; a multiplication and its addition are two operations):

- TR: the encoder reads both sentences;
- TR+TLM: the encoder also reads them once more, end to end, and scores the vocabulary at the masked tokens;
- DAP: a head of K layers reads the token vectors of one sentence and the [MASK]s of the other, and scores the
  vocabulary at the reconstructed tokens.

  python benchmarks/dap_cost.py                                            # mBERT base, 32 tokens: table 6
  python benchmarks/dap_cost.py --layers 4 --hidden-size 192 --heads 4 --feedforward-size 768 --vocabulary-size 16000 \\
      --steps 30 --data data-bin/de-en                                  # the time of training steps, too

With --steps, whole training steps of TR, TR+TLM and DAP take turns on the same batches. The script prints the medians,
their ratios to the median of TR, and these ratios over the ratios of the operations: 1.00 means that the time grows as
the operations do.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sys
from collections.abc import Iterator

import numpy as np
import torch
from flops import transformer_flops, vocabulary_flops
from harness import add_training_options, make_parser, make_step, run_step, take_turns, write_json
from torch import nn

from xrep.criteria.criterion import Loss, Planned
from xrep.criteria.dap import DAP
from xrep.criteria.tlm import TLM
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batch import Batch, TextSpec, TokenBatch, Vocabulary
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.training.distributed import pick_device

MASKED = 0.15
"""Share of the tokens that TLM masks."""
WARM_UP = 3
"""Number of steps before those that are measured."""


def operations(
    options: argparse.Namespace,
    source: np.ndarray,
    target: np.ndarray,
    *,
    layers: int = 0,
    ratio: float = 1.0,
    words: int | None = None,
    tlm: float | None = None,
) -> int:
    """Return the operations of a forward pass over pairs of sentences.

    Args:
        source: Number of tokens of each source sentence, special ones included.
        target: The same for the target sentences.
        layers: Number of layers of DAP's head, whose y is the target; 0: no head.
        ratio: Share of the tokens of y that are reconstructed.
        words: Number of subwords that the head scores; None: all.
        tlm: Share of the tokens at which TLM scores the vocabulary; None: no TLM.
    """
    sizes = {"hidden_size": options.hidden_size, "feedforward_size": options.feedforward_size}
    found = transformer_flops(np.concatenate([source, target]), layers=options.layers, **sizes)
    if layers:
        predicted = np.maximum(np.rint(ratio * (target - 1)), 1).astype(np.int64)  # [CLS] takes no part
        found += transformer_flops(source + target - 2, layers=layers, **sizes)
        found += vocabulary_flops(
            int(predicted.sum()), hidden_size=options.hidden_size, words=words or options.vocabulary_size
        )
    if tlm is not None:
        found += transformer_flops(source + target, layers=options.layers, **sizes)
        masked = round(tlm * int(source.sum() + target.sum()))
        found += vocabulary_flops(masked, hidden_size=options.hidden_size, words=options.vocabulary_size)
    return found


def counted(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the operations of each objective for a pair of full sentences."""
    full = np.array([options.length])
    rows = {
        "TR": {},
        f"TR+TLM, vocabulary at {MASKED:.0%} of the tokens": {"tlm": MASKED},
        "TR+TLM, vocabulary at every token": {"tlm": 1.0},
        **{f"DAP, K = {k}": {"layers": k} for k in sorted({1, 2, 3, 4, options.rtl_layers}) if k <= options.layers},
        **{f"DAP, K = {options.rtl_layers}, rho = {rho}": {"layers": options.rtl_layers, "ratio": rho}
           for rho in (0.25, 0.5, 0.75)},
    }  # fmt: skip
    if options.target_words:
        name = f"DAP, K = {options.rtl_layers}, {options.target_words:,} subwords"
        rows[name] = {"layers": options.rtl_layers, "words": options.target_words}
    return [(name, operations(options, full, full, **given)) for name, given in rows.items()]


def random_batches(options: argparse.Namespace, text: TextSpec) -> Iterator[Batch]:
    """Yield batches of pairs of full sentences of random tokens."""
    generator = torch.Generator().manual_seed(0)
    rows, first = options.batch_size, 5
    while True:
        sides = []
        for _ in range(2):
            tokens = torch.randint(first, options.vocabulary_size, (rows, options.length), generator=generator)
            tokens[:, 0], tokens[:, -1] = text.vocabulary("shared").bos_id, text.vocabulary("shared").eos_id
            lengths = torch.full((rows,), options.length)
            sides.append(TokenBatch(tokens, lengths, lengths.numpy()))
        numbers = torch.arange(rows)
        languages = torch.tensor([[1, 0]]).expand(rows, 2)
        facts = {"ids": numbers.unsqueeze(1).expand(rows, 2), "indices": numbers, "languages": languages}
        yield Batch(dict(zip(("source", "target"), sides, strict=True)), facts)


def text_of(options: argparse.Namespace) -> tuple[TextSpec, Iterator[Batch]]:
    """Return the training batches of a data directory, or of random tokens."""
    if options.data:
        task = BitextTask(
            BitextTask.Config(data=options.data, batch_size=options.batch_size, max_length=options.length), 1
        )
        options.vocabulary_size = task.text.vocabulary("shared").size
        return task.text, (task.make(plan.rows) for plan in task.plan())
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "mask_id": 4}
    vocabulary = Vocabulary(size=options.vocabulary_size, **ids)
    text = TextSpec(
        vocabularies={"shared": vocabulary}, max_length=options.length, source_languages=["xx"], target_languages=["en"]
    )
    return text, random_batches(options, text)


def measured(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the milliseconds per pair of training steps that take turns, and how the costs compare."""
    text, batches = text_of(options)
    torch.manual_seed(0)
    sizes = {name: getattr(options, name) for name in ("layers", "hidden_size", "heads", "feedforward_size")}
    config = DualEncoder.Config(towers="shared", pooling="cls", max_positions=max(512, options.length), **sizes)
    model = DualEncoder(config, text)
    ranking = TranslationRanking.Config(directions="forward")
    dap = DAP.Config(rtl_layers=options.rtl_layers, reconstruction_ratio=options.ratio)
    objectives = {"TR": (TranslationRanking, ranking), "TR+TLM": (RankingAndTLM, ranking), "DAP": (DAP, dap)}
    beyond = {"TR": {}, "TR+TLM": {"tlm": MASKED}, "DAP": {"layers": options.rtl_layers, "ratio": options.ratio}}
    steps = {}
    for name, (objective, given) in objectives.items():
        own = copy.deepcopy(model)
        precision = {"precision": options.precision, "clip_norm": options.clip_norm}
        step = make_step(own, objective(given, own, text), options.device, **precision)
        steps[name] = lambda batch, step=step: run_step(step, batch)
    chosen = list(itertools.islice(batches, WARM_UP + options.steps))
    turns = take_turns(steps, chosen, warm_up=WARM_UP, device=options.device)
    medians, counts = {}, {}
    for name, seconds in turns.seconds.items():
        pairs = list(zip(seconds, chosen[WARM_UP:], strict=True))
        medians[name] = statistics.median(1000 * taken / len(batch) for taken, batch in pairs)
        lengths = [(batch.source.host_lengths, batch.target.host_lengths) for _, batch in pairs]
        counts[name] = sum(operations(options, *each, **beyond[name]) for each in lengths)
    return {name: _compared(medians[name], medians["TR"], counts[name] / counts["TR"]) for name in steps}


def _compared(median: float, base: float, expected: float) -> dict[str, float]:
    ratio = median / base
    return {"ms a pair": median, "time ratio": ratio, "operations ratio": expected, "over": ratio / expected}


class RankingAndTLM(TranslationRanking):
    """L_TR + L_TLM, the objective that the paper compares DAP with."""

    def __init__(self, config: TranslationRanking.Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model, text)
        self.tlm = TLM(TLM.Config(mask_rate=MASKED), model, text)

    def plan(self, batch: Batch, generator: torch.Generator) -> Planned:
        ranking, masked = super().plan(batch, generator), self.tlm.plan(batch, generator)
        return Planned(batch, ranking.sizes | masked.sizes, masked.details)

    def forward(self, model: nn.Module, planned: Planned) -> Loss:
        ranking, masked = super().forward(model, planned), self.tlm(model, planned)
        return Loss(ranking.terms | masked.terms)


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.device = pick_device(options.device)
    rows = counted(options)
    first = rows[0][1]
    print("| forward pass of a pair | operations | over TR |\n| --- | --- | --- |")
    for name, count in rows:
        print(f"| {name} | {count / 1e9:.3g}G | {count / first:.2f} |")
    report: dict[str, object] = {"operations": dict(rows)}
    if options.steps:
        found = measured(options)
        report["measured"] = found
        print(f"\ntraining steps of {options.batch_size} pairs on {options.device}, {options.precision}:\n")
        print(
            "| | ms a pair | time over TR | operations over TR | one over the other |\n| --- | --- | --- | --- | --- |"
        )
        for name, values in found.items():
            print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in values.values()) + " |")
    write_json(options.json, report)
    return 0


def parser() -> argparse.ArgumentParser:
    made = make_parser(__doc__)
    sizes = {"layers": 12, "hidden_size": 768, "heads": 12, "feedforward_size": 3072, "vocabulary_size": 119547}
    add_training_options(made, **sizes, batch_size=64)  # the sizes of mBERT base
    add = made.add_argument
    add("--target-words", type=int, help="number of subwords of y's language, to count DAP that scores these alone")
    add("--rtl-layers", type=int, default=2, help="K, the number of layers of the head")
    add("--ratio", type=float, default=1.0, help="rho of the steps that are measured")
    add("--steps", type=int, default=0, help="training steps of each objective to measure; 0: only count")
    return made


if __name__ == "__main__":
    sys.exit(main())

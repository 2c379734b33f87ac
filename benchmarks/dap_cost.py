"""What dual-alignment pre-training costs over translation ranking (table 6 of the paper, and its figures 3 and 4).

Floating-point operations of a forward pass per pair, counted from the sizes of the encoder (matrix products alone, two
operations for a multiplication and its addition), for pairs of two full sentences:

- TR: the encoder reads both sentences;
- TR+TLM: it reads them once more, end to end, and scores the vocabulary at the masked tokens;
- DAP: a head of K layers reads the token vectors of one sentence and the [MASK]s of the other, and scores the
  vocabulary at the reconstructed tokens.

  python benchmarks/dap_cost.py                                            # mBERT base, 32 tokens: table 6
  python benchmarks/dap_cost.py --layers 4 --hidden-size 192 --heads 4 --feedforward-size 768 --vocabulary-size 16000 \\
      --steps 30 --data data-bin/de-en                                  # and what training steps really take

With --steps, whole training steps of TR, TR+TLM and DAP take turns on the same batches; printed are the medians, their
ratio to TR's, and that over the ratio of their operations. 1.00: it costs what its operations do.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from xrep.criteria.criterion import Criterion, Loss, Planned
from xrep.criteria.dap import DAP
from xrep.criteria.tlm import TLM
from xrep.criteria.translation_ranking import TranslationRanking
from xrep.data.batching import PairBatch, TextSpec, TokenBatch, Vocabulary
from xrep.data.stream import stream
from xrep.files import write_aside
from xrep.metrics.flops import transformer_flops, vocabulary_flops
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.bitext import BitextTask
from xrep.training.distributed import alone, pick_device
from xrep.training.freezing import Freezing
from xrep.training.step import Engine, TrainingModule

MASKED = 0.15
"""Share of the tokens that TLM masks."""
WARM_UP = 3
"""Steps before those that are measured."""


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
    """Of a forward pass over pairs of sentences of so many tokens, special ones included.

    Args:
        layers: of DAP's head, whose y is the target; 0: no head.
        ratio: share of the tokens of y that are reconstructed.
        words: that the head scores; None: all.
        tlm: share of the tokens at which TLM scores the vocabulary; None: no TLM.
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
    """Operations of each objective for a pair of full sentences."""
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


def random_batches(options: argparse.Namespace, text: TextSpec) -> Iterator[PairBatch]:
    """Pairs of full sentences of random tokens."""
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
        yield PairBatch(*sides, numbers.unsqueeze(1).expand(rows, 2), numbers, torch.tensor([[1, 0]]).expand(rows, 2))


def text_of(options: argparse.Namespace) -> tuple[TextSpec, Iterator[PairBatch]]:
    """What is read: training batches of a data directory, or random tokens."""
    if options.data:
        task = BitextTask(
            BitextTask.Config(data=options.data, batch_size=options.batch_size, max_length=options.length), 1
        )
        options.vocabulary_size = task.text.vocabulary("shared").size
        return task.text, (batch for batch, _ in stream(task))
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "mask_id": 4}
    vocabulary = Vocabulary(size=options.vocabulary_size, **ids)
    text = TextSpec(
        vocabularies={"shared": vocabulary}, max_length=options.length, source_languages=["xx"], target_languages=["en"]
    )
    return text, random_batches(options, text)


def engine(options: argparse.Namespace, model: DualEncoder, criterion: Criterion) -> Engine:
    module = TrainingModule(model, criterion).to(options.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)
    found = Engine(
        module, optimizer, Freezing([]), alone(options.device), precision=options.precision, clip_norm=options.clip_norm
    )
    found.prepare(0)
    found.train_mode()
    return found


def run_step(engine: Engine, batch: PairBatch) -> None:
    """Plan a batch and train on it, always with the same random numbers in the plan."""
    planned = engine.module.criterion.plan(batch, torch.Generator().manual_seed(0))
    engine.run([planned], planned.sizes, lambda: None)


def measured(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds per pair of training steps that take turns, and how the costs compare."""
    text, batches = text_of(options)
    torch.manual_seed(0)
    sizes = {name: getattr(options, name) for name in ("layers", "hidden_size", "heads", "feedforward_size")}
    config = DualEncoder.Config(towers="shared", pooling="cls", max_positions=max(512, options.length), **sizes)
    model = DualEncoder(config, text)
    ranking = TranslationRanking.Config(directions="forward")
    head = {"layers": options.rtl_layers, "ratio": options.ratio}
    dap = DAP.Config(rtl_layers=options.rtl_layers, reconstruction_ratio=options.ratio)
    first, second = copy.deepcopy(model), copy.deepcopy(model)
    engines = {
        "TR": (engine(options, first, TranslationRanking(ranking, first, text)), {}),
        "TR+TLM": (engine(options, second, RankingAndTLM(ranking, second, text)), {"tlm": MASKED}),
        "DAP": (engine(options, model, DAP(dap, model, text)), head),
    }
    times: dict[str, list[float]] = {name: [] for name in engines}
    done = dict.fromkeys(engines, 0)
    for number, batch in enumerate(itertools.islice(batches, WARM_UP + options.steps)):
        lengths = (batch.source.host_lengths, batch.target.host_lengths)
        for name, (one, beyond) in engines.items():
            begun = time.perf_counter()
            run_step(one, batch)
            if number >= WARM_UP:
                times[name].append(1000 * (time.perf_counter() - begun) / len(batch))
                done[name] += operations(options, *lengths, **beyond)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {name: _compared(medians[name], medians["TR"], done[name] / done["TR"]) for name in engines}


def _compared(median: float, base: float, expected: float) -> dict[str, float]:
    ratio = median / base
    return {"ms a pair": median, "time ratio": ratio, "operations ratio": expected, "over": ratio / expected}


class RankingAndTLM(TranslationRanking):
    """L_TR + L_TLM, what the paper compares with."""

    def __init__(self, config: TranslationRanking.Config, model: DualEncoder, text: TextSpec) -> None:
        super().__init__(config, model, text)
        self.tlm = TLM(TLM.Config(mask_rate=MASKED), model, text)

    def plan(self, batch: PairBatch, generator: torch.Generator) -> Planned:
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
    if options.json:
        with write_aside(Path(options.json)) as aside:
            aside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--layers", type=int, default=12, help="of the encoder (default: mBERT base, as all sizes)")
    add("--hidden-size", type=int, default=768)
    add("--heads", type=int, default=12)
    add("--feedforward-size", type=int, default=3072)
    add("--vocabulary-size", type=int, default=119547)
    add("--target-words", type=int, help="subwords of y's language: what DAP costs if it scores these alone")
    add("--length", type=int, default=32, help="tokens of a sentence, special ones included")
    add("--rtl-layers", type=int, default=2, help="K")
    add("--ratio", type=float, default=1.0, help="rho, of the steps that are measured")
    add("--steps", type=int, default=0, help="training steps of each objective to measure; 0: count alone")
    add("--batch-size", type=int, default=64, help="pairs in a step")
    add("--data", help="directory made by xrep-preprocess, for sentences of real lengths; else full random ones")
    add("--clip-norm", type=float, default=1.0)
    add("--precision", choices=("float32", "bf16", "fp16"), default="float32")
    add("--device", default="auto")
    add("--json", help="file for the figures")
    return made


if __name__ == "__main__":
    sys.exit(main())

"""Batches of the task nli for tests of its criteria, which several processes train on them."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.kernels.ranks import Results
from tests.support.nli_data import nli_rows, write_columns
from tests.support.planning import loss_of
from xrep.criteria.nli import Nli
from xrep.criteria.nli_triplet import NliTriplet
from xrep.kernels.gather import current_group
from xrep.models.dual_encoder import DualEncoder
from xrep.tasks.nli import NliBatch, NliTask

SMALL = {"layers": 1, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}
EXACT = {**SMALL, "dropout": 0.0, "attention_dropout": 0.0}
CRITERIA = {
    "pairs": lambda model: Nli(Nli.Config(head="mlp", head_size=12, head_dropout=0.0), model, model._text),
    "triplets": lambda model: NliTriplet(NliTriplet.Config(mask_equal_sentences=True), model, model._text),
}
PARTS = {1: [(8,), (5,), (0,), (7,)], 2: [(5, 3), (0, 5), (0, 0), (6, 1)]}
"""Numbers of examples of each batch on each rank."""


def make_task(folder: Path, tokenizer: Path, form: str, premises: int = 40) -> NliTask:
    """Return German and English premises with hypotheses of the other language."""
    for language in ("de", "en"):
        write_columns(folder / f"train-{language}.tsv", nli_rows(premises, language))
    given = {"form": form, "cross_lingual": True, "tokenizer": str(tokenizer), "max_length": 48}
    return NliTask(NliTask.Config(data=str(folder), **given), 1)


def make_batches(task: NliTask) -> list[NliBatch]:
    """Return the batches of ``PARTS``, in which premises are repeated."""
    rows = np.random.default_rng(0).integers(task.examples, size=40)
    rows[3], rows[6], rows[10] = rows[0], rows[1], rows[9]
    sizes = [sum(counts) for counts in PARTS[1]]
    return [task.make(rows[sum(sizes[:n]) : sum(sizes[: n + 1])]) for n in range(len(sizes))]


def train(rank: int, world: int, form: str, model: DualEncoder, batches: list[NliBatch]) -> dict[str, Results]:
    """Return losses, gradients and weights of a short training on this rank's part of each batch."""
    torch.manual_seed(1)
    model = copy.deepcopy(model)
    both = nn.ModuleList([model, CRITERIA[form](model)]).double()
    found: dict[str, list[torch.Tensor]] = {"loss": [], "gradient": []}
    for batch, sizes in zip(batches, PARTS[world], strict=True):
        start = sum(sizes[:rank])
        loss = loss_of(both[1], model, batch.rows(start, start + sizes[rank]))
        (term,) = loss.terms.values()
        both.zero_grad()
        (term.sum / max(len(batch), 1)).backward()
        gradient = torch.cat([p.grad.flatten() for p in both.parameters()])
        if current_group() is not None:
            dist.all_reduce(gradient)
        with torch.no_grad():
            parameters = list(both.parameters())
            for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
                p -= 0.2 * part.view_as(p)
        found["loss"].append(term.sum.detach())
        found["gradient"].append(gradient)
    return {"run": {name: torch.stack(values) for name, values in found.items()}}

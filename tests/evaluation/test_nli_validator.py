"""Entailment against contradiction by the vectors of a model, as a validator measures it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.nli_data import nli_rows, write_jsonl, write_simcse
from xrep.data.batching import TokenBatch
from xrep.errors import UserError
from xrep.evaluation.nli_validator import NliValidator
from xrep.tasks.nli import NliTask

TRAIN = nli_rows(60)
E, N, C = "entailment", "neutral", "contradiction"


class Bag(nn.Module):
    """Vectors of a sentence by what its subwords are worth; dropout while training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(size, 24)
        self.dropout = nn.Dropout(0.5)

    def encode_pair(self, source: TokenBatch, target: TokenBatch) -> tuple[Tensor, Tensor]:
        sums = ((self.dropout(self.table(side.tokens)) * side.mask.unsqueeze(-1)).sum(1) for side in (source, target))
        return tuple(sums)


@pytest.fixture
def make(tmp_path: Path):
    """``make(rows)``: the task whose dev split has these rows (triplets if they have three sentences)."""

    def made(rows: list[tuple[str, str, str]] | None, form: str = "pairs") -> NliTask:
        write_jsonl(tmp_path / "snli_train.jsonl", TRAIN)
        (tmp_path / "dev.csv").unlink(missing_ok=True)
        (tmp_path / "snli_dev.jsonl").unlink(missing_ok=True)
        if rows is not None and form == "triplets":
            write_simcse(tmp_path / "dev.csv", rows)
        elif rows is not None:
            write_jsonl(tmp_path / "snli_dev.jsonl", rows)
        return NliTask(NliTask.Config(data=str(tmp_path), form=form, vocab_size=70), 1)

    return made


def cosine(model: Bag, task: NliTask, one: str, other: str) -> float:
    tokenizer = task.tokenizers["shared"]
    ids = [torch.tensor(tokenizer.add_special(text)) for text in tokenizer.encode([one, other])]
    a, b = (model.table(row).sum(0).detach() for row in ids)
    return float(torch.cosine_similarity(a, b, dim=0))


def test_pairs_of_one_premise_are_compared(make) -> None:
    rows = [
        *nli_rows(40, seed=1),
        ("the old man", "the man", E), ("the old man", "her teacher", C), ("the old man", "the cold river", C),
        ("her teacher", "in winter", E),  # nothing to compare it with
    ]  # fmt: skip
    task = make(rows)
    model = Bag(70).train()
    premises = {row[0] for row in rows}
    of = {
        label: {premise: [r[1] for r in rows if r[0] == premise and r[2] == label] for premise in premises}
        for label in (E, C)
    }
    won = [
        cosine(model, task, premise, entailed) > cosine(model, task, premise, contradicted)
        for premise in premises
        for entailed in of[E][premise]
        for contradicted in of[C][premise]
    ]
    found = NliValidator(NliValidator.Config(), task)(model)
    assert found == {"accuracy": pytest.approx(100 * sum(won) / len(won))} and len(won) == 42
    assert 0 < sum(won) < 42 and model.training and model.dropout.training


def test_triplets_and_several_parts(make) -> None:
    triplets = [(row[0], row[1], other[1]) for row, other in zip(TRAIN[::2], TRAIN[1::2], strict=True)]
    task = make(triplets, "triplets")
    model = Bag(70)
    won = [cosine(model, task, a, p) > cosine(model, task, a, n) for a, p, n in triplets]
    found = NliValidator(NliValidator.Config(), task)(model)
    assert found == {"accuracy": pytest.approx(100 * sum(won) / len(won))} and 0 < sum(won) < len(won)
    mixture = SimpleNamespace(tasks={"bitext": SimpleNamespace(), "nli": task})
    assert NliValidator(NliValidator.Config(), mixture)(model) == found
    with torch.no_grad():
        model.table.weight.fill_(1.0)
    assert NliValidator(NliValidator.Config(), task)(model) == {"accuracy": 0.0}  # all one vector: no success


@pytest.mark.parametrize("rows", [None, [("a man", "the man", N), ("the man", "in winter", E)]])
def test_nothing_to_ask(make, rows) -> None:
    task = make(rows)
    with pytest.raises(UserError, match="there is no dev split of task nli to validate on; give it a file such as"):
        NliValidator(NliValidator.Config(), task)
    with pytest.raises(UserError, match="there is no dev split"):
        NliValidator(NliValidator.Config(), SimpleNamespace(tasks={"bitext": SimpleNamespace()}))

"""AdamW with the gradients of some rows of a table against torch's with dense gradients."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.support.runs import compose_run, make_trainer
from xrep.training import row_adamw
from xrep.training.row_adamw import RowAdamW

ROWS, WIDTH = 40, 16
STEPS: list[list[int]] = [[], [3, 5, 3], [39, 0], [3], [], [7, 7, 5, 38], list(range(10, 30)), [3, 39]]
"""Rows that the batches of a course read."""


def table() -> nn.Parameter:
    return nn.Parameter(torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)))


def step(optimizer: torch.optim.Optimizer, p: nn.Parameter, rows: list[int], sparse: bool, scale: float = 1.0) -> None:
    values = torch.randn(len(rows), WIDTH, generator=torch.Generator().manual_seed(len(rows))) * scale
    gradient = torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.long), values, (ROWS, WIDTH))
    p.grad = gradient if sparse else gradient.to_dense()
    optimizer.step()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_rows_change_as_with_dense_gradients(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_adamw, "_BLOCK", 5 * WIDTH)
    options = {"lr": 0.1, "weight_decay": decay, "betas": (0.8, 0.9), "fused": True}
    p, q = table(), table()
    ours, theirs = RowAdamW([p], **options), torch.optim.AdamW([q], **options)
    for number, rows in enumerate(STEPS):
        for group in (*ours.param_groups, *theirs.param_groups):
            group["lr"] = 0.1 / (number + 1)
        step(ours, p, rows, sparse=number != 5)  # once it is dense
        step(theirs, q, rows, sparse=False)
        close(p, q)
    for name, value in theirs.state[q].items():
        close(ours.state[p][name], value)
    untouched = sorted(set(range(ROWS)) - {row for rows in STEPS for row in rows})
    assert not ours.state[p]["exp_avg_sq"][untouched].any()
    assert decay or torch.equal(p[untouched], table()[untouched])


@pytest.mark.parametrize("sparse", [True, False])
def test_gradients_are_divided_on_their_way(sparse: bool) -> None:
    p, q = table(), table()
    ours, theirs = (RowAdamW([each], lr=0.1, fused=True, eps=1e-2) for each in (p, q))
    ours.grad_scale = torch.tensor(8.0)
    for rows in STEPS:
        step(ours, p, rows, sparse, scale=8.0)
        step(theirs, q, rows, sparse)
        assert p.grad is not None and q.grad is not None
        close(p.grad.to_dense(), q.grad.to_dense())
    close(p, q)


@pytest.mark.slow
def test_training_reads_rows_alone(data_directory: Path, tmp_path: Path) -> None:
    """A run learns the same whether its embeddings have sparse gradients, and trains only the tokens that occur."""
    found = []
    for name in ("rows", "dense"):
        run = compose_run(data_directory, tmp_path / name, criterion="translation_ranking", max_steps=5, clip_norm=0.1)
        trainer = make_trainer(run, tmp_path / name)
        (embedding,) = (part for part in trainer.pair.modules() if isinstance(part, nn.Embedding) and part.sparse)
        embedding.sparse = name == "rows"
        trainer.train()
        assert embedding.weight.grad is not None and embedding.weight.grad.is_sparse == (name == "rows")
        found.append(dict(trainer.pair.named_parameters()))
    for label, one in found[0].items():
        torch.testing.assert_close(one, found[1][label], rtol=1e-4, atol=2e-5, msg=label)

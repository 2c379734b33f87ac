"""The losses of scored pairs beside those of sentence-transformers, with their gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.closeness import assert_near
from xrep.criteria.criterion import Planned
from xrep.errors import UserError
from xrep.registry import CRITERIA
from xrep.tasks.similarity import SimilarityTask

LOSSES = {"cosent": "CoSENTLoss", "angle": "AnglELoss"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", [48, 33])
@pytest.mark.parametrize("name", LOSSES)
def test_they_are_those_of_sentence_transformers(name: str, width: int, dtype: torch.dtype) -> None:
    module = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(40, width, generator=generator) for _ in range(2)]
    labels = torch.randint(0, 6, (40,), generator=generator) / 5
    pairs, exact = ([side.to(kind).requires_grad_() for side in given] for kind in (dtype, torch.float64))
    theirs = getattr(module, LOSSES[name])(torch.nn.Identity()).compute_loss_from_embeddings(exact, labels)
    kind: Any = CRITERIA.load(name)
    mine = kind(kind.Config(), None).contrast(tuple(pairs), Planned(Rows(labels), {})).terms[name].sum / 40
    assert mine.dtype == dtype
    torch.testing.assert_close(mine.double(), theirs, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0)
    found, wanted = torch.autograd.grad(mine, pairs), torch.autograd.grad(theirs, exact)
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other, 1e-6 if dtype == torch.float32 else 1e-12, name)


class Rows:
    """As much of a batch as the losses read."""

    def __init__(self, labels: torch.Tensor) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)


@pytest.mark.parametrize("name", LOSSES)
def test_equal_scores_are_worth_nothing(name: str) -> None:
    kind: Any = CRITERIA.load(name)
    loss = kind(kind.Config(), None).contrast((torch.randn(5, 8), torch.randn(5, 8)), Planned(Rows(torch.ones(5)), {}))
    assert float(loss.terms[name].sum) == 0 == float(loss.metrics["accuracy"])


def test_text_whose_scores_are_all_equal_is_refused(tmp_path: Path) -> None:
    kind: Any = CRITERIA.load("cosent")
    for second, problem in (("2", None), ("3", r"scores.tsv: all pairs have the same score, so they have no order")):
        lines = [f"{score}\t{place} dogs\t{place} cats\n" for place, score in enumerate(["3", second] * 20)]
        (tmp_path / "scores.tsv").write_text("".join(lines), encoding="utf-8")
        task = SimilarityTask(SimilarityTask.Config(data=str(tmp_path / "scores.tsv"), vocab_size=40), 1)
        if problem is None:
            kind(kind.Config(), None).prepare(task)
        else:
            with pytest.raises(UserError, match=problem):
                kind(kind.Config(), None).prepare(task)

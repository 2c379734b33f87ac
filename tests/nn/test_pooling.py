"""Pooling by hand."""

import torch

from xrep.nn.pooling import pool


def test_by_hand() -> None:
    tokens = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]], [[-1.0, 5.0], [float("nan"), 7.0], [0.0, 0.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert pool(tokens, mask, "mean").tolist() == [[2.0, -3.0], [-1.0, 5.0]]
    assert pool(tokens, mask, "max").tolist() == [[3.0, -2.0], [-1.0, 5.0]]
    assert pool(tokens, mask, "cls").tolist() == [[1.0, -4.0], [-1.0, 5.0]]

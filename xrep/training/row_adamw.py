"""AdamW whose cost in the table of an embedding grows with the rows that occur in the text, not with the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

_BLOCK = 1 << 17
"""Numbers of a table that are computed at a time: few enough that they, their moments and gradients stay in cache."""


class RowAdamW(torch.optim.AdamW):
    """Fused AdamW, which also takes sparse gradients of rows, and computes with them what it would with dense ones.

    The moments of a row without any gradient so far are 0, so that weight decay alone changes it. All other rows are
    computed at every step, like those of a dense gradient, because their moments move them.

    Attributes:
        grad_scale: 0-d, divides all gradients in the next step; None: they stay as they are.
    """

    grad_scale: Tensor | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._touched: dict[Tensor, tuple[Tensor, Tensor]] = {}
        """Maps each table to its first moment and to the rows that have had a gradient, bool [V]."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        tables: list[tuple[dict[str, Any], Tensor, Tensor]] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.grad.is_sparse:
                    tables.append((group, p, p.grad.coalesce()))
                    p.grad = None
                elif p.grad is not None:
                    self._touched.pop(p, None)
        result = super().step(closure)
        for group, p, gradient in tables:
            p.grad = gradient
            if self.grad_scale is not None:
                gradient.values().div_(self.grad_scale)
            self._change_rows(group, p, gradient.indices()[0], gradient.values())
        return result

    def _change_rows(self, group: dict[str, Any], p: Tensor, rows: Tensor, values: Tensor) -> None:
        """Update a table [V, H].

        Args:
            rows, values: int64 [N], ascending, and [N, H]: the gradients of some rows.
        """
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        tensors = p, state["exp_avg"], state["exp_avg_sq"]
        moment, touched = self._touched.get(p, (None, rows))
        if moment is not tensors[1]:  # it is new, or was loaded
            touched = tensors[1].any(1) | tensors[2].any(1)
            self._touched[p] = tensors[1], touched
        touched[rows] = True
        if torch.tensor(kept := 1 - group["lr"] * group["weight_decay"], dtype=p.dtype) != 1:
            p.mul_(kept)
        every = touched.nonzero().squeeze(1)  # there are none before the first batch that has text of this table
        for some in every.split(max(1, _BLOCK // p.size(1))) if len(every) else ():
            table, mean, square = parts = [tensor.index_select(0, some) for tensor in tensors]
            gradient = torch.zeros_like(table)
            start, stop = torch.searchsorted(rows, some[[0, -1]] + torch.tensor([0, 1], device=p.device)).tolist()
            gradient.index_copy_(0, torch.searchsorted(some, rows[start:stop]), values[start:stop])
            adamw(
                [table], [gradient], [mean], [square], [], [state["step"].clone()], fused=True, amsgrad=False,
                beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=0.0,
                eps=group["eps"], maximize=False,
            )  # fmt: skip
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.index_copy_(0, some, part)
        state["step"] += 1

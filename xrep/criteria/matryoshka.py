"""Vectors that may be cut after training: Matryoshka representations (Kusupati et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from xrep.criteria.criterion import Loss, Planned, Term
from xrep.errors import UserError


@dataclass(kw_only=True)
class Nested:
    """Option of objectives whose vectors can be shortened."""

    matryoshka: list[int] = field(default_factory=list)
    """Widths to which the vectors may be cut after training, such as 256,128,64. The loss is then the sum of that of
    the whole vectors and those of their first 256, 128 and 64 numbers, scaled to length 1. By default there are
    none."""

    def problems(self) -> list[str]:
        if min(self.matryoshka, default=1) < 1 or len(set(self.matryoshka)) < len(self.matryoshka):
            return [f"matryoshka must have different widths of at least 1, not {','.join(map(str, self.matryoshka))}"]
        return []


def widths_of(config: Any, model: Any) -> list[int]:
    """Return the widths that a criterion's vectors are cut to. Raises UserError if one is not below the model's."""
    widths = config.matryoshka if isinstance(config, Nested) else []
    if too_wide := [width for width in widths if width >= model.output_size]:
        problem = f"`matryoshka` has {too_wide[0]}, and the model's vectors have {model.output_size} numbers"
        raise UserError(problem, cure="name smaller widths")
    return widths


def add_widths(
    whole: Loss, widths: list[int], contrast: Callable[..., Loss], vectors: tuple[Tensor, ...], planned: Planned
) -> None:
    """Add to the loss of whole vectors what ``contrast`` finds of shorter ones; tensors with one number for each row
    stay as they are."""
    for width in widths:
        loss = contrast(tuple(shortened(vector, width) if vector.dim() > 1 else vector for vector in vectors), planned)
        for name, term in loss.terms.items():
            whole.terms[name] = Term(whole.terms[name].sum + term.sum, term.weight)
        found = {name: value for name, value in loss.metrics.items() if name.endswith("accuracy")}
        whole.metrics |= {f"{name}_{width}": value for name, value in found.items()}


def shortened(vectors: Tensor, width: int) -> Tensor:
    """Return the first ``width`` numbers of vectors [N, D], scaled to length 1."""
    return F.normalize(vectors[:, :width], dim=1)

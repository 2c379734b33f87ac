"""The k best similarities of each row, which searches of any parts of the other side in any order add up to.

Similarities come from one formula, ``pair_similarities``, of the two vectors alone, and of equal ones the lowest index
is the best. So no two pairs are equally good, ``merge`` is commutative and associative, and the result does not depend
on the order of the work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xrep.kernels.precision import accumulation_dtype

_PIECE = 1 << 18
"""Number of products of numbers that are held at a time: in float64, they stay in the cache."""


@dataclass
class TopK:
    """The k best similarities found so far for each of R rows, and their indices: [R, k], best first.

    Where fewer are found, the similarity is -inf and the index -1.
    """

    similarity: Tensor
    index: Tensor

    @classmethod
    def none(cls, rows: int, k: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> TopK:
        """Return no neighbours yet."""
        similarity = torch.full((rows, k), -torch.inf, dtype=dtype, device=device)
        return cls(similarity, torch.full((rows, k), -1, dtype=torch.int64, device=device))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def k(self) -> int:
        return self.index.size(1)

    def slice(self, start: int, stop: int) -> TopK:
        """Return the part for some rows. It shares memory with this object, so an update of the part updates both."""
        return TopK(self.similarity[start:stop], self.index[start:stop])

    def merge(self, other: TopK, rows: Tensor | None = None) -> None:
        """Keep the best of these neighbours and others [A, P], those of the given rows [A] or of all rows. An index
        that occurs twice counts once."""
        some = slice(None) if rows is None else rows
        index, order = torch.cat((self.index[some], other.index), dim=1).sort(dim=1)
        similarity = torch.cat((self.similarity[some], other.similarity), dim=1).gather(1, order)
        repeated = index[:, 1:] == index[:, :-1]
        similarity[:, 1:][repeated] = -torch.inf
        index[:, 1:][repeated] = -1
        best, order = similarity.sort(dim=1, descending=True, stable=True)
        self.similarity[some], self.index[some] = best[:, : self.k], index.gather(1, order[:, : self.k])


def pair_similarities(x: Tensor, y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the inner products [P] of rows of x [N, D] and of y [M, D]: float32, or float64 if the vectors are.

    The products of two numbers of float32 are exact in float64. Adding them up in another order, as other processors
    do, changes the 16th digit, which float32 does not have.
    """
    step, sums = max(1, _PIECE // x.size(1)), []
    for some_rows, some_columns in zip(rows.split(step), columns.split(step), strict=True):
        # index_select takes a third of the time of x[rows].
        products = x.index_select(0, some_rows).double().mul_(y.index_select(0, some_columns).double())
        sums.append(products.sum(1).to(accumulation_dtype(x)))
    return torch.cat(sums)

"""The best similarities found so far, which blocks of similarities update one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

GROUP = 20
"""Number of similarities in a group. The maximum of each group is taken first. It divides the sizes of both tiles, so
that only the last tiles need padding."""


def padded(tile_RC: Tensor) -> Tensor:
    """Return a tile with rows and columns of -inf at its ends, so that groups divide it in both directions."""
    ragged = (0, -tile_RC.size(1) % GROUP, 0, -tile_RC.size(0) % GROUP)
    return F.pad(tile_RC, ragged, value=-torch.inf) if any(ragged) else tile_RC


@dataclass
class Best:
    """The k best similarities found so far for each of R rows, and their indices: [R, k], best first.

    Blocks of columns must come in the order of their indices: of equal similarities the first one stays.
    """

    similarity: Tensor
    index: Tensor

    @classmethod
    def none(cls, rows: int, k: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Best:
        """Return no neighbours yet: similarity -inf, index -1."""
        similarity = torch.full((rows, k), -torch.inf, dtype=dtype, device=device)
        return cls(similarity, torch.full((rows, k), -1, dtype=torch.int64, device=device))

    def slice(self, start: int, stop: int) -> Best:
        """Return the part for some rows. It shares memory with this object, so an update of the part updates both."""
        return Best(self.similarity[start:stop], self.index[start:stop])

    def update(self, tile_RC: Tensor, offset: int) -> None:
        """Search a block of columns whose first column has the index ``offset``; -inf is never better.

        Most rows find nothing better in a block. One pass over the tile computes the maxima of groups of similarities,
        which show which rows do. The k + 1 best groups contain the k + 1 best similarities.
        """
        k = self.similarity.size(1)
        if tile_RC.stride(1) == 1:
            groups_RG = tile_RC.unflatten(1, (GROUP, -1)).amax(1)
        else:  # read a transposed tile in its order in memory: the result is the same, 30 times faster
            groups_RG = tile_RC.t().unflatten(0, (GROUP, -1)).amax(0).t()
        rows_A = (groups_RG.amax(1) > self.similarity[:, -1]).nonzero().squeeze(1)
        if not len(rows_A):
            return
        chosen_AK = groups_RG[rows_A].topk(min(k + 1, groups_RG.size(1))).indices
        steps = torch.arange(GROUP, device=tile_RC.device) * groups_RG.size(1)
        columns_AE = (chosen_AK[:, :, None] + steps).flatten(1)
        values_AE = tile_RC[rows_A[:, None], columns_AE]
        top = values_AE.topk(min(k + 1, values_AE.size(1)))
        columns_AK = columns_AE.gather(1, top.indices)
        similarity_AK, index_AK = top.values[:, :k], columns_AK[:, :k]
        if top.values.size(1) > k:
            tied = top.values[:, k - 1] == top.values[:, k]
            tied &= top.values[:, k] > self.similarity[rows_A, -1]
            if tied.any():  # topk does not define which of equal values it takes
                whole = tile_RC[rows_A[tied]].sort(dim=1, descending=True, stable=True)
                similarity_AK[tied], index_AK[tied] = whole.values[:, :k], whole.indices[:, :k]
        index_AK, order = index_AK.sort(dim=1)
        self.merge(rows_A, similarity_AK.gather(1, order), index_AK + offset)

    def merge(self, rows_A: Tensor | slice, similarity_AK: Tensor, index_AK: Tensor) -> None:
        """Keep the best of the known neighbours of some rows and new ones [A, P], whose indices must be higher: the
        sort is stable, so a new one does not replace an equal one."""
        k = self.similarity.size(1)
        both = torch.cat((self.similarity[rows_A], similarity_AK), dim=1).sort(dim=1, descending=True, stable=True)
        index = torch.cat((self.index[rows_A], index_AK), dim=1).gather(1, both.indices[:, :k])
        self.similarity[rows_A], self.index[rows_A] = both.values[:, :k], index

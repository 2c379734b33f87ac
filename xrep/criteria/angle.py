"""AnglE: the angles of pairs in complex space come into the order of their scores."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from xrep.criteria.cosent import CoSENT


class Angle(CoSENT):
    """A pair with a higher score gets a smaller angle in complex space (Li and Li 2023, AnglE, section 3.4).

    The loss is that of CoSENT with another similarity. Vectors (a, b) and (c, d) of length 1 are read as the complex
    vectors a + bi and c + di. Their similarity is |a.c + b.d + b.c - a.d|, the sum of the real and imaginary parts of
    the quotient, as in sentence-transformers' AnglELoss. Its gradient does not vanish where the cosine is near 1.

    Use:
        - Needs: pairs with a score of their similarity (task similarity) and a pretrained encoder.
        - Choose it: for the same purpose as cosent; train both and compare.
        - Related: cosent. The paper adds up this loss, that of cosent and in-batch negatives, as ``parts`` can do.

    Example:
        ```sh
        xrep-train scored/ --task similarity --criterion angle --towers shared --batch-size 64
        ```
    """

    term = "angle"

    def similarity(self, first: Tensor, second: Tensor) -> Tensor:
        x, y = (F.normalize(F.pad(v, (0, v.size(1) % 2))) for v in (first, second))  # a zero makes an odd width even
        (a, b), (c, d) = x.chunk(2, dim=1), y.chunk(2, dim=1)
        return ((x * y).sum(dim=1) + (b * c - a * d).sum(dim=1)).abs()

"""AnglE: the angles of pairs in complex space come into the order of their scores."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xrep.criteria.cosent import CoSENT
from xrep.errors import UserError


class Angle(CoSENT):
    """A pair with a higher score gets a smaller angle in complex space (Li and Li 2023, AnglE, section 3.4).

    The loss is that of CoSENT with another similarity. Vectors (a, b) and (c, d) of length 1 are read as the complex
    vectors a + bi and c + di. Their similarity is |a.c + b.d + b.c - a.d|, the sum of the real and imaginary parts of
    the quotient, as in sentence-transformers' AnglELoss. Its gradient does not vanish where the cosine is near 1.

    Use:
        - Needs: what cosent needs, and vectors of an even width.
        - Choose it: for the same purpose; train both and compare.
        - Related: cosent. The paper adds up this loss, that of cosent and in-batch negatives, as ``parts`` can do.

    Example:
        ```sh
        xrep-train sts/ --task similarity --criterion angle --towers shared --batch-size 64
        ```

    Raises:
        UserError: the vectors, or those of a width of ``matryoshka``, have an odd width.
    """

    term = "angle"

    def __init__(self, config: CoSENT.Config, model: Any, text: Any = None) -> None:
        super().__init__(config, model, text)
        if odd := [width for width in (model.output_size, *config.matryoshka) if width % 2]:
            problem = f"angle halves vectors into real and imaginary parts, and these have {odd[0]} numbers"
            raise UserError(problem, cure="set `projection_size` and `matryoshka` to even numbers")

    def similarity(self, first: Tensor, second: Tensor) -> Tensor:
        (a, b), (c, d) = first.chunk(2, dim=1), second.chunk(2, dim=1)
        products = (a * c + b * d + b * c - a * d).sum(dim=1)
        return (products / (first.norm(dim=1) * second.norm(dim=1))).abs()

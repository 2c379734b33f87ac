"""The contestants: our kernels, plain torch and other peers, and the matrix products alone."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kernel_bench.cases import Case, Size
from xrep.kernels.fused import steps_for
from xrep.kernels.hard_infonce import hard_infonce
from xrep.kernels.inbatch_infonce import inbatch_infonce
from xrep.kernels.linear_cross_entropy import linear_cross_entropy
from xrep.kernels.queue_infonce import queue_infonce

TEMPERATURE = 0.04
EXPONENT = 0.5
"""ζ · p⁺ of hard negatives: between 0, which leaves them unchanged, and the 0.9 of a trained model."""

CACHED_TILE = (1024, 2048)
"""Rows and columns of similarities (8 MB) that stay in cache between two products."""

Run = Callable[[], tuple[Tensor | None, list[Tensor]]]
"""A forward and backward pass. It returns the losses (None for products alone) and the gradients, or arrays of their
shapes."""


def vectors(count: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return random vectors of length 1 [count, width], made in parts to save memory."""
    result = torch.empty(count, width, dtype=dtype, device=generator.device)
    for part in result.split(65536):
        part.copy_(F.normalize(torch.randn(part.shape, generator=generator, device=generator.device), dim=1))
    return result


def translations(count: int, width: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return pairs of such vectors with a cosine of about 0.24, so that a loss is neither very small nor very large."""
    x = vectors(count, width, torch.float32, generator)
    y = F.normalize(x + 4 * vectors(count, width, torch.float32, generator), dim=1)
    return x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_()


def plain_queue(query: Tensor, positive: Tensor, queue: Tensor, tau: Tensor) -> Tensor:
    scaled = query / tau
    logits = torch.cat([(scaled * positive).sum(1, keepdim=True), scaled @ queue.to(query.dtype).t()], 1)
    return F.cross_entropy(logits.float(), query.new_zeros(len(query), dtype=torch.int64), reduction="none")


def plain_inbatch(x: Tensor, y: Tensor, tau: Tensor, ids: Tensor) -> Tensor:
    logits = ((x / tau) @ y.t()).float()
    own = torch.arange(len(x), device=x.device)
    itself = own.unsqueeze(1) == own
    logits = logits.masked_fill((ids == ids.t()) & ~itself, float("-inf"))
    losses = torch.cat([F.cross_entropy(side, own, reduction="none") for side in (logits, logits.t())])
    with torch.no_grad():  # a training step also reports how many positives beat all negatives
        others = logits.masked_fill(itself, float("-inf"))
        _ = [logits.diagonal() > others.amax(dim) for dim in (0, 1)]
    return losses


def plain_hard(x: Tensor, y: Tensor, tau: Tensor, ids: Tensor) -> Tensor:
    """Return the loss of HiCTL (equations 5 and 6), in the closed form that builds no harder negatives."""
    q, positive = torch.cat([x, y]), torch.cat([y, x])
    dot, square = (q @ q.t()).float(), q.float().square().sum(1)
    a, b = square.unsqueeze(1), square
    distance = (a + b - 2 * dot).detach().clamp(min=0)
    to_positive = (q.detach().float() - positive.detach().float()).square().sum(1, keepdim=True)
    mixed = torch.where(distance > to_positive, (to_positive / distance) ** (EXPONENT / 2), 1.0)
    rest = 1 - mixed
    harder = rest**2 * a + mixed**2 * b + 2 * rest * mixed * dot
    cosine = (rest * a + mixed * dot) / (a * harder).sqrt() / tau
    own = torch.arange(len(q), device=q.device)
    both = ids.repeat(2, 1)  # a query and its positive have the same
    counted = both != both.t()
    right = F.cosine_similarity(q.float(), positive.float(), dim=1) / tau
    logits = torch.cat([right.unsqueeze(1), cosine.masked_fill(~counted, float("-inf"))], 1)
    return F.cross_entropy(logits, torch.zeros_like(own), reduction="none")


def plain_vocabulary(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).float(), target)


@functools.cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, dynamic=False)


class Contest(ABC):
    """The inputs of one case and the contestants.

    Attributes:
        leaves: Tensors that get a gradient.
        arguments: Arguments of ``plain``.
        sides: [R, D] and [C, D], whose products a floor computes.
        products: 2 or 3: sides[0] · sides[1]ᵀ, this product times sides[1], and its transpose times sides[0].
        arrays: Approximate number of float32 arrays [R, C] that ``plain`` holds at once.
    """

    plain: Callable[..., Tensor]
    products = 3
    arrays = 4
    leaves: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]
    sides: tuple[Tensor, Tensor]

    @abstractmethod
    def __init__(self, size: Size, generator: torch.Generator, dtype: torch.dtype) -> None: ...

    @abstractmethod
    def ours(self) -> Tensor:
        """Return the losses."""

    def exact(self, some: Tensor) -> Tensor | None:
        """Return the losses of some rows in float64, if they are compared."""
        return None

    def tiles(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of the tiles in which a floor may compute the products; the fastest is the floor."""
        rows, columns = (len(side) for side in self.sides)
        return {"floor-tiles": CACHED_TILE, "floor-whole": (rows, columns)}

    def names(self) -> list[str]:
        """Return the names of the contestants."""
        return ["ours", *self.tiles(), "plain", "compiled"]

    def losses(self, name: str) -> Callable[[], Tensor]:
        if name == "ours":
            return self.ours
        function = compiled(type(self).plain) if name == "compiled" else type(self).plain
        return lambda: function(*self.arguments)

    def prepare(self, name: str) -> Run:
        """Return one forward and backward pass of a contestant of ``names``. Conversions made here are not measured."""
        if name in self.tiles():
            return Products(*self.operands(), self.tiles()[name], self.products)
        losses = self.losses(name)

        def run() -> tuple[Tensor, list[Tensor]]:
            found = losses()
            return found.detach(), list(torch.autograd.grad(found.mean(), self.leaves))

        return run

    def operands(self) -> list[Tensor]:
        """Return the sides in the type of their products: float32 on CPUs, which would round products of bfloat16."""
        kept = self.sides[1].is_cuda
        return [side.detach().to(self.sides[1].dtype if kept else torch.float32) for side in self.sides]


class Queue(Contest):
    plain = staticmethod(plain_queue)
    products = 2

    def __init__(
        self,
        size: Size,
        generator: torch.Generator,
        dtype: torch.dtype,
        queue_dtype: torch.dtype,
        learn_temperature: bool,
    ) -> None:
        rows, columns, width = size
        self.query, self.positive = translations(rows, width, dtype, generator)
        self.queue = vectors(columns, width, queue_dtype, generator)
        self.tau = torch.tensor(TEMPERATURE, device=generator.device, requires_grad=learn_temperature)
        self.leaves = (self.query, self.positive, *([self.tau] if learn_temperature else []))
        self.arguments = (self.query, self.positive, self.queue, self.tau)
        self.sides = (self.query, self.queue)
        self.rounds = not self.queue.is_cuda and self.queue.dtype == torch.bfloat16

    def ours(self) -> Tensor:
        return queue_infonce(*self.arguments).loss

    def tiles(self) -> dict[str, tuple[int, int]]:
        rows, columns = (len(side) for side in self.sides)
        return {"floor-blocks": (rows, steps_for(self.queue.device).queue_rows(rows)), "floor-whole": (rows, columns)}

    def names(self) -> list[str]:
        return super().names() + (["bfloat16-products"] if self.rounds else [])

    def prepare(self, name: str) -> Run:
        if name == "bfloat16-products":
            query = self.query.detach().to(self.queue.dtype)
            return Products(query, self.queue, self.tiles()["floor-blocks"], 2)
        return super().prepare(name)

    def exact(self, some: Tensor) -> Tensor:
        query, positive = (side.detach()[some].double() for side in (self.query, self.positive))
        logits = [(query * positive).sum(1, keepdim=True)]
        logits += [query @ part.double().t() for part in self.queue.split(16384)]
        return -(torch.cat(logits, 1) / self.tau.detach().double()).log_softmax(1)[:, 0]


class InBatch(Contest):
    """Equal sentences are masked, as in training, though there are none."""

    plain = staticmethod(plain_inbatch)
    arrays = 6

    def __init__(self, size: Size, generator: torch.Generator, dtype: torch.dtype) -> None:
        rows, _, width = size
        self.x, self.y = translations(rows, width, dtype, generator)
        self.tau = torch.tensor(TEMPERATURE, device=generator.device)
        self.ids = torch.arange(rows, device=generator.device).unsqueeze(1)
        self.leaves = self.sides = (self.x, self.y)
        self.arguments = (*self.leaves, self.tau, self.ids)

    def ours(self) -> Tensor:
        return torch.cat(inbatch_infonce(self.x, self.y, self.tau, ids=self.ids)[:2])


class Hard(InBatch):
    """Both sides of every pair are queries and are negatives of the others: [2B, 2B] similarities."""

    plain = staticmethod(plain_hard)
    arrays = 20

    def __init__(self, size: Size, generator: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__(size, generator, dtype)
        both = torch.cat([self.x, self.y]).detach()
        self.sides = (both, both)

    def ours(self) -> Tensor:
        return torch.cat(hard_infonce(self.x, self.y, self.tau, exponent=EXPONENT, ids=self.ids)[:2])


class Vocabulary(Contest):
    plain = staticmethod(plain_vocabulary)

    def __init__(self, size: Size, generator: torch.Generator, dtype: torch.dtype) -> None:
        rows, columns, width = size
        # Rows of the embedding have length 4, so that logits spread as those of a language model do.
        self.hidden = (vectors(rows, width, torch.float32, generator) * 4).to(dtype).requires_grad_()
        self.weight = (vectors(columns, width, torch.float32, generator) * 4).to(dtype).requires_grad_()
        self.target = torch.randint(columns, (rows,), generator=generator, device=generator.device)
        self.leaves = self.sides = (self.hidden, self.weight)
        self.arguments = (*self.leaves, self.target)

    def ours(self) -> Tensor:
        return linear_cross_entropy(*self.arguments).loss / len(self.target)

    def names(self) -> list[str]:
        return [*super().names(), "liger"]

    def losses(self, name: str) -> Callable[[], Tensor]:
        if name != "liger":
            return super().losses(name)
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        loss = LigerFusedLinearCrossEntropyLoss()
        return lambda: loss(self.weight, self.hidden, self.target)


KINDS: dict[str, type[Contest]] = {"queue": Queue, "inbatch": InBatch, "hard": Hard, "vocabulary": Vocabulary}


def build(case: Case, device: str, scale: float = 1.0, seed: int = 0) -> Contest:
    """Return the random inputs of a case: float32 on CPUs, bfloat16 on CUDA."""
    dtype = torch.float32 if device == "cpu" or case.queue_dtype else torch.bfloat16
    generator = torch.Generator(device).manual_seed(seed)
    special = {}
    if case.kind == "queue":
        queue_dtype = getattr(torch, case.queue_dtype) if case.queue_dtype else dtype
        special = {"queue_dtype": queue_dtype, "learn_temperature": case.learn_temperature}
    return KINDS[case.kind](case.size(device, scale), generator, dtype, **special)


class Products:
    """Only the matrix products that a loss and its gradient need. Arrays are allocated once.

    Args:
        left: [R, D].
        right: [C, D].
        tile: Rows and columns of a block of left · rightᵀ.
        products: 2 or 3; the third one is for the gradient of ``right``.
    """

    def __init__(self, left: Tensor, right: Tensor, tile: tuple[int, int], products: int) -> None:
        self.left, self.right, self.products = left, right, products
        self.tile = (min(tile[0], len(left)), min(tile[1], len(right)))
        # CUDA multiplies 16-bit numbers into float32. The next product needs the operands' type again. That
        # conversion belongs to the softmax, so a constant replaces the converted factor here.
        self.widens = left.is_cuda and left.dtype in (torch.float16, torch.bfloat16)
        self.arrays: list[Tensor] = []

    def __call__(self) -> tuple[None, list[Tensor]]:
        if not self.arrays:
            self._allocate()
        scores, weights, *results = self.arrays
        for i in range(0, len(self.left), self.tile[0]):
            rows = slice(i, i + self.tile[0])
            left = self.left[rows]
            for j in range(0, len(self.right), self.tile[1]):
                columns = slice(j, j + self.tile[1])
                right = self.right[columns]
                shape = (len(left), len(right))
                block = scores[: shape[0] * shape[1]].view(shape)
                self._multiply(block, left, right.t(), add=False)
                factor = weights[: shape[0] * shape[1]].view(shape) if self.widens else block
                self._multiply(results[0][rows], factor, right, add=j > 0)
                if self.products == 3:
                    self._multiply(results[1][columns], factor.t(), left, add=i > 0)
        return None, results

    def _allocate(self) -> None:
        dtype = torch.float32 if self.widens else self.left.dtype
        size = self.tile[0] * self.tile[1]
        scores = torch.empty(size, dtype=dtype, device=self.left.device)
        weights = torch.rand_like(scores, dtype=self.left.dtype) if self.widens else scores
        sides = (self.left, self.right)[: self.products - 1]
        self.arrays = [scores, weights, *(torch.empty_like(side, dtype=dtype) for side in sides)]

    def _multiply(self, out: Tensor, a: Tensor, b: Tensor, add: bool) -> None:
        if self.widens:  # adding would need one more pass
            torch.mm(a, b, out_dtype=torch.float32, out=out)
        elif add:
            out.addmm_(a, b)
        else:
            torch.mm(a, b, out=out)

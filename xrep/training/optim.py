"""Optimizers: each has a Config and a function that builds the torch optimizer from it.

``build(config, groups)`` takes the groups of ``parameter_groups``, which have every parameter that trains at some step,
including those that are still frozen: without a gradient a parameter is not changed, not even by weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from xrep.config.fields import NotNegative
from xrep.training.parameter_groups import ParameterOptions

if TYPE_CHECKING:  # torch is imported where an optimizer is built
    import torch

Groups = list[dict[str, Any]]


@dataclass(kw_only=True)
class MomentOptions(ParameterOptions):
    """Options of optimizers that average the gradient and its square."""

    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    """Decay rates of the first and the second moment."""

    def problems(self) -> list[str]:
        problems = super().problems()
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            problems.append(f"betas must be two numbers in [0, 1), not {self.betas}")
        return problems


class AdamW:
    """Adam with decoupled weight decay, in torch's fused form (about three times the default's speed on a CPU).

    Gradients of embeddings may be sparse.
    """

    @dataclass(kw_only=True)
    class Config(MomentOptions):
        lr: NotNegative = 5e-4
        """Peak learning rate. The default suits training from scratch; for pretrained encoders use 2e-5 to 4e-5."""
        adam_eps: NotNegative = 1e-8
        """Number that is added to the denominator."""

    @staticmethod
    def build(config: Config, groups: Groups) -> torch.optim.Optimizer:
        from xrep.training.row_adamw import RowAdamW

        betas = (config.betas[0], config.betas[1])
        return RowAdamW(groups, lr=config.lr, betas=betas, eps=config.adam_eps, fused=True)


class Lamb:
    """LAMB: Adam with the step of each matrix scaled to a share of the norm of the matrix, for large batches.

    You et al. 2020, "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", algorithm 2, with phi
    the identity. As in the authors' code, parameters that do not decay (biases, normalisation weights and scalars) take
    Adam's step unscaled, and a matrix or an update of norm 0 has the trust ratio 1.
    """

    @dataclass(kw_only=True)
    class Config(MomentOptions):
        lr: NotNegative = 1e-3
        """Peak learning rate; the default is that of CMLM."""
        weight_decay: NotNegative = 0.01
        """Decoupled weight decay of matrices (the default of the authors' code); biases, normalisation weights and
        scalars never decay."""
        lamb_eps: NotNegative = 1e-6
        """Number that is added to the denominator."""

    @staticmethod
    def build(config: Config, groups: Groups) -> torch.optim.Optimizer:
        from xrep.training.lamb import LambOptimizer

        betas = (config.betas[0], config.betas[1])
        return LambOptimizer(groups, betas=betas, eps=config.lamb_eps)


class SGD:
    """Stochastic gradient descent with momentum; its weight decay is coupled (added to the gradient)."""

    @dataclass(kw_only=True)
    class Config(ParameterOptions):
        lr: NotNegative = 0.1
        """Peak learning rate."""
        weight_decay: NotNegative = 0.0
        """L2 penalty on matrices, added to the gradient; biases, normalisation weights and scalars have none."""
        sgd_momentum: Annotated[float, "[0, 1)"] = 0.9
        """Momentum: the share of the previous step that is added to the next one. 0: no momentum."""

    @staticmethod
    def build(config: Config, groups: Groups) -> torch.optim.Optimizer:
        import torch

        # torch's fused form fails if a parameter thaws in a group whose other parameters already have momentum.
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.sgd_momentum)

"""Optimizers: a Config and a way to build the torch optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import nn


class AdamW:
    """Adam with decoupled weight decay, in torch's fused form (about three times the default's speed on a CPU)."""

    @dataclass(kw_only=True)
    class Config:
        lr: float = 5e-4
        """Peak learning rate. The default suits an encoder from scratch; pretrained ones want 2e-5 to 4e-5."""
        betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
        """Decay rates of the two moments."""
        adam_eps: float = 1e-8
        """Added to the denominator."""
        weight_decay: float = 1e-4
        """Decoupled weight decay of matrices; biases, normalisation weights and scalars never decay."""

        def problems(self) -> list[str]:
            found = []
            for name in ("lr", "adam_eps", "weight_decay"):
                if not 0 <= getattr(self, name) < math.inf:
                    found.append(f"{name} must be a number of at least 0, not {getattr(self, name)}")
            if self.betas and (len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas)):
                found.append(f"betas must be two numbers in [0, 1), not {self.betas}")
            return found

    @staticmethod
    def build(config: Config, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer over the parameters that need gradient; matrices decay, all others do not."""
        trained = [p for p in parameters if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        betas = (config.betas[0], config.betas[1]) if config.betas else (0.9, 0.999)
        return torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=config.lr, betas=betas, eps=config.adam_eps, fused=True
        )

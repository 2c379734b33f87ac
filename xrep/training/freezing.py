"""Parameters that are not trained, for the whole run or until a given step."""

from __future__ import annotations

import math

from torch import nn

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.training.parameter_groups import matching

OPTION = "freeze"


def pattern_problems(patterns: list[str]) -> list[str]:
    """Return what is wrong with the spelling of patterns, each PATTERN or PATTERN@STEP."""
    return [
        f"{OPTION} must be PATTERN or PATTERN@STEP with a step of at least 1, not {pattern!r}"
        for pattern in patterns
        if not _rule(pattern)[0] or not _rule(pattern)[1] >= 1
    ]


def _rule(text: str) -> tuple[str, float]:
    """Return the pattern and the step at which it thaws: infinity if none is given, nan if it is not a number."""
    pattern, at, step = text.rpartition("@")
    if not at:
        return text, math.inf
    return pattern, int(step) if step.isdecimal() else math.nan


class Freezing:
    """Freezes the parameters that patterns match: PATTERN for the whole run, PATTERN@N for the first N steps.

    ``parameter_groups`` describes what a pattern matches; names are relative to the module that holds ``model`` and
    ``criterion``. If several patterns match a parameter, the longest freeze applies. Only parameters that required
    gradient when the module was first seen are frozen and thawed, so a momentum encoder never starts to train.

    A module whose parameters are all frozen is in evaluation mode, so its dropout is off. A criterion itself stays in
    training mode, because it depends on that mode to know that a step trains (to fill its queue, for example).

    Raises:
        UserError: a pattern is misspelt.
    """

    def __init__(self, patterns: list[str]) -> None:
        problems = pattern_problems(patterns)
        if problems:
            raise UserError(problems[0])
        self._rules = [_rule(pattern) for pattern in patterns]
        self._thaw: dict[str, float] | None = None
        """Maps the name of each parameter that may train to the step from which it trains."""
        self._frozen: set[str] = set()

    def apply(self, module: nn.Module, step: int) -> bool:
        """Freeze and thaw parameters after ``step`` optimizer steps; return whether that differs from the last call.

        After a change, what was built for the set of trained parameters (the distributed engine) must be built again.

        Raises:
            UserError: a pattern matches no parameter, or no parameter would train from the first step on.
        """
        thaw = self.thaw_steps(module)
        frozen = {name for name, until in thaw.items() if step < until}
        if frozen == self._frozen:
            return False
        for name, parameter in module.named_parameters():
            if name in thaw:
                parameter.requires_grad_(name not in frozen)
            if name in frozen:
                parameter.grad = None
        self._frozen = frozen
        if module.training:
            module.train()
            self.set_modes(module)
        return True

    def set_modes(self, module: nn.Module, name: str = "", above: bool = False) -> None:
        """Put ``module`` and its children into evaluation mode again where they are frozen, after ``module.train()``.

        Args:
            name: full name of the module with a dot at its end, or empty for the top module.
            above: whether the parent module is frozen, which decides for a module without parameters (dropout).
        """
        trained = [known for known in self._thaw or {} if known.startswith(name)]
        frozen = above
        if trained:
            frozen = self._frozen.issuperset(trained)
        elif next(module.parameters(), None) is not None:
            frozen = False  # a module that never trains (a momentum encoder) sets its own mode
        if frozen and not isinstance(module, Criterion):
            module.training = False
        for child, part in module.named_children():
            self.set_modes(part, f"{name}{child}.", frozen)

    def ever_trained(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that train at some step, in the order of the module.

        Raises:
            UserError: as in ``apply``.
        """
        thaw = self.thaw_steps(module)
        return [(name, p) for name, p in module.named_parameters() if thaw.get(name, math.inf) < math.inf]

    def thaw_steps(self, module: nn.Module) -> dict[str, float]:
        """Return the step from which each parameter trains, by name: 0 for the start, infinity for never.

        Parameters that cannot train at all, such as those of a momentum encoder, are not among them.

        Raises:
            UserError: as in ``apply``.
        """
        if self._thaw is None:
            names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
            thaw = dict.fromkeys(names, 0.0)
            for pattern, until in self._rules:
                for name in matching(pattern, names, OPTION):
                    thaw[name] = max(thaw[name], until)
            first = min(thaw.values(), default=math.inf)
            if first > 0:
                when = "nothing is left to train" if first == math.inf else f"nothing trains before step {first}"
                raise UserError(f"{OPTION}: {when}", cure="freeze less")
            self._thaw = thaw
        return self._thaw

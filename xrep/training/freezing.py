"""Parameters that are not trained, for the whole run or until a given step."""

from __future__ import annotations

import math
import re

from torch import nn

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.training.parameter_groups import matching

OPTION = "freeze"
_RULE = re.compile(r"([^@]+)(?:@([1-9][0-9]*))?")


def pattern_problems(patterns: list[str]) -> list[str]:
    """Return what is wrong with the spelling of patterns, each PATTERN or PATTERN@STEP."""
    problem = f"{OPTION} must be PATTERN or PATTERN@STEP with a step of at least 1"
    return [f"{problem}, not {pattern!r}" for pattern in patterns if not _RULE.fullmatch(pattern)]


class Freezing:
    """Freezes the parameters that patterns match: PATTERN for the whole run, PATTERN@N for the first N steps.

    ``parameter_groups`` describes what a pattern matches; names are relative to the module, which holds ``model`` and
    ``criterion``. If several patterns match a parameter, the longest freeze applies. Only parameters that required
    gradient at first are frozen and thawed, so a momentum encoder never starts to train.

    A module whose parameters are all frozen is in evaluation mode, so its dropout is off. A criterion itself stays in
    training mode, because it depends on that mode to know that a step trains (to fill its queue, for example).

    Attributes:
        thaw: the step from which each parameter trains, by name: 0 for the start, infinity for never. Parameters that
            cannot train at all are not among them.

    Raises:
        UserError: a pattern matches no parameter, or no parameter would train from the first step on.
    """

    def __init__(self, patterns: list[str], module: nn.Module) -> None:
        self.module, self._frozen = module, set[str]()
        names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.thaw = dict.fromkeys(names, 0.0)
        for pattern, step in (match.groups() for text in patterns if (match := _RULE.fullmatch(text))):
            for name in matching(pattern, names, OPTION):
                self.thaw[name] = max(self.thaw[name], math.inf if step is None else int(step))
        first = min(self.thaw.values(), default=math.inf)
        if first > 0:
            when = "nothing is left to train" if first == math.inf else f"nothing trains before step {first}"
            raise UserError(f"{OPTION}: {when}", cure="freeze less")

    def apply(self, step: int) -> bool:
        """Freeze and thaw parameters after ``step`` optimizer steps; return whether that differs from the last call.

        After a change, what was built for the set of trained parameters (DDP) must be built again.
        """
        frozen = {name for name, until in self.thaw.items() if step < until}
        if frozen == self._frozen:
            return False
        self._frozen = frozen
        for name, parameter in self.module.named_parameters():
            if name in self.thaw:
                parameter.requires_grad_(name not in frozen)
            if name in frozen:
                parameter.grad = None
        if self.module.training:
            self.train_mode()
        return True

    def train_mode(self) -> None:
        """Put the module into training mode, except for its parts that are frozen."""
        self.module.train()
        frozen: dict[str, bool] = {}
        for name, part in self.module.named_modules():
            trained = [known for known in self.thaw if known.startswith(f"{name}.") or not name]
            if trained:
                frozen[name] = self._frozen.issuperset(trained)
            elif next(part.parameters(), None) is not None:
                frozen[name] = False  # a module that never trains (a momentum encoder) sets its own mode
            else:
                frozen[name] = frozen.get(name.rpartition(".")[0], False)  # dropout is like the module that it is in
            if frozen[name] and not isinstance(part, Criterion):
                part.training = False

    def ever_trained(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that train at some step, in the order of the module."""
        return [(name, p) for name, p in self.module.named_parameters() if self.thaw.get(name, math.inf) < math.inf]

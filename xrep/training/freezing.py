"""Parameters that are kept as they are, for ever or until a step."""

from __future__ import annotations

import math

from torch import nn

from xrep.criteria.criterion import Criterion
from xrep.errors import UserError
from xrep.training.parameter_groups import matching

OPTION = "freeze"


def pattern_problems(patterns: list[str]) -> list[str]:
    """What is wrong with the spelling of patterns, each PATTERN or PATTERN@STEP."""
    return [
        f"{OPTION} must be PATTERN or PATTERN@STEP with a step of at least 1, not {pattern!r}"
        for pattern in patterns
        if not _rule(pattern)[0] or not _rule(pattern)[1] >= 1
    ]


def _rule(text: str) -> tuple[str, float]:
    """Pattern and the step at which it thaws: infinity without one, nan if it is no number."""
    pattern, at, step = text.rpartition("@")
    if not at:
        return text, math.inf
    return pattern, int(step) if step.isdecimal() else math.nan


class Freezing:
    """Freezes the parameters of a module that patterns name: PATTERN for ever, PATTERN@N for the first N steps.

    ``parameter_groups`` says what a pattern matches; names are relative to the module that holds ``model`` and
    ``criterion``. Of several patterns that match one parameter the longest freeze counts. Only parameters that required
    gradient when the module was first seen are frozen and thawed: a momentum encoder never starts to train.

    Frozen modules compute as in evaluation: dropout is off in every module all of whose parameters are frozen. A
    criterion itself stays in training mode, by which it knows that a step is trained (it fills its queue, say).

    Raises:
        UserError: a pattern is misspelt.
    """

    def __init__(self, patterns: list[str]) -> None:
        problems = pattern_problems(patterns)
        if problems:
            raise UserError(problems[0])
        self._rules = [_rule(pattern) for pattern in patterns]
        self._thaw: dict[str, float] | None = None
        """Name of each parameter that may train -> step from which it does."""
        self._frozen: set[str] = set()

    def apply(self, module: nn.Module, step: int) -> bool:
        """Freeze and thaw as ``step`` optimizer steps done ask for; returns whether that changed since the last call.

        After a change, what was built on the set of trained parameters (the distributed engine) must be built again.

        Raises:
            UserError: a pattern matches no parameter, or nothing is left to train.
        """
        thaw = self._thaw_steps(module)
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
            self.rest(module)
        return True

    def rest(self, module: nn.Module) -> None:
        """Put what is frozen into evaluation mode again, after ``module.train()``."""
        self._rest(module, "", False)

    def ever_trained(self, module: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """The parameters that train at some step, in the module's order.

        Raises:
            UserError: as in ``apply``.
        """
        thaw = self._thaw_steps(module)
        return [(name, p) for name, p in module.named_parameters() if thaw.get(name, math.inf) < math.inf]

    def _thaw_steps(self, module: nn.Module) -> dict[str, float]:
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

    def _rest(self, module: nn.Module, name: str, above: bool) -> None:
        """Put ``module`` (``name`` in the whole) and its children into evaluation mode where they are frozen.

        Args:
            above: whether the module that holds it is frozen, which decides for one without parameters (dropout).
        """
        trained = [known for known in self._thaw or {} if known.startswith(name)]
        frozen = above
        if trained:
            frozen = self._frozen.issuperset(trained)
        elif next(module.parameters(), None) is not None:
            frozen = False  # what never trains (a momentum encoder) sees to its own mode
        if frozen and not isinstance(module, Criterion):
            module.training = False
        for child, part in module.named_children():
            self._rest(part, f"{name}{child}.", frozen)
